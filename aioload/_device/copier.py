"""Copier: the thread that copies batches to a device, on one stream, for as long as a loader lives.

What it promises, and by which means:

- *The host's memory is read before it is reused*: it is let go when the copy's event is complete on the host,
  never because a stream waits for it.
- *The device's memory is read before it is reused*: blocks are the copy stream's, and are kept for the
  stream that takes them: the allocator hands them out again when all is done that this stream had been given
  by the time the last tensor over the block was dropped. So batches are ordinary tensors, kept or dropped at
  any time, and no copy waits for a step that runs. (Blocks of the user's stream would: see DESIGN.md.)
- *No wait of the host's on the user's side*: the user's stream waits for the event, if it is not complete.
- *Bounds*: `depth` batches and `max_bytes` lie ready at most, and one is on its way. Where the host is
  further ahead of the device than `_LEAD` batches, no more are copied until the device has come near: dropped
  batches that it has yet to read hold memory, too.
- *Failures come out* in the place of their batch, after those before it. The thread ends with its loader,
  within a deadline, or with the interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from ..errors import ClosedError
from .convert import Convert, Work, laid_out, planned
from .landing import Cargo, Entry, Landing, Source
from .locked import Locked
from .pack import Parcel, pack, tensors_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..stats import Counters
    from .interface import Device, Event, Stream

__all__ = ["DEPTH", "MAX_BYTES", "Copier"]

_log = logging.getLogger("aioload.device")

DEPTH = 2
MAX_BYTES = 1 << 30
_LEAD = 2  # batches that were taken, and that the device has yet to read
_LIVENESS = 1.0  # seconds between two looks at whether anybody is still there, while waiting
_CLOSE_SECONDS = 4.0


@dataclass(eq=False, slots=True)
class _Flight:
    """A copy that was asked for, and the host's memory that must stay as it is until it has run."""

    cargo: Cargo
    begun: Event
    done: Event


class Copier:
    """Copies what sources give, one iteration after the other.

    Args:
        device: where to.
        counters: told of everything.
        convert: what is done to tensors there.
        depth: batches that may lie ready.
        max_bytes: that they may take, unless it is a single one.
        locked: its page-locked memory, if not the usual.
    """

    def __init__(
        self,
        device: Device,
        counters: Counters,
        convert: Convert,
        *,
        depth: int = DEPTH,
        max_bytes: int = MAX_BYTES,
        locked: Locked | None = None,
    ) -> None:
        self._device = device
        self._counters = counters
        self._convert = convert
        self._depth = depth
        self._max_bytes = max_bytes
        self._locked = Locked(device, stages=depth + 1) if locked is None else locked
        # again by the same thread: a loader may be collected, and so closed, wherever objects are made
        self._changed = threading.Condition(threading.RLock())
        self._thread = threading.Thread(target=self._run, name="aioload-copy", daemon=True)
        self._landing: Landing | None = None
        self._adopts: tuple[NDArray[np.uint8], Callable[[int, int], None]] | None = None
        self._flights: deque[_Flight] = deque()
        self._stream: Stream = None
        self._pauses = 0
        # nothing is under way, and nothing will be done to the device before it has looked for pauses
        self._parked = True
        self._closing = False
        self._process = _process

    def adopt(self, memory: NDArray[np.uint8], touch: Callable[[int, int], None]) -> None:
        """Page-lock memory in which batches will lie, in the copy thread, before the first iteration."""
        with self._changed:
            self._adopts = memory, touch
            self._start()

    def leave(self) -> None:
        """End the iteration that is under way; nobody is in its source any more when this returns."""
        with self._changed:
            old, self._landing = self._landing, None
        if old is not None:
            if old.source.over and not old.ready:
                old.finish(anyio.EndOfStream())  # it has had its last batch, and nobody takes it over
            else:
                old.close(ClosedError("another iteration has begun; there is one at a time"))
            with self._changed:
                while old.starving_since is not None and self._thread.is_alive():
                    self._changed.wait(_LIVENESS)

    def begin(self, source: Source) -> Landing:
        """Begin an iteration, which takes over from the one before. From the user's thread."""
        self.leave()
        landing = Landing(self._changed, source, self._device, self._counters)
        with self._changed:
            if self._closing:
                raise ClosedError("it was closed; make a new one to go on")
            self._landing = landing
            self._start()
            self._changed.notify_all()
        return landing

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Do nothing to the device for a while: all copies are complete when it is entered."""
        with self._changed:
            self._pauses += 1
            self._changed.notify_all()
            while not self._parked and self._thread.is_alive():
                self._changed.wait(_LIVENESS)
            landing = self._landing
            if landing is not None:
                landing.paused_by = threading.get_ident()
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                if landing is not None:
                    landing.paused_by = None
                self._changed.notify_all()

    def check(self) -> None:
        """Raise if the thread has died: whoever waits for it must not wait for ever."""
        self.check_process()
        if self._thread.ident is not None and not self._thread.is_alive():
            raise ClosedError("the copy thread has ended, and with it this iteration; make a new loader")

    def check_process(self) -> None:
        """Raise in a copy that a fork has made, before a lock is taken that may be held there for ever."""
        if self._process is not _process:
            raise ClosedError("this process was forked, and the copy thread stayed with the parent")

    def close(self) -> None:
        """End the thread, in bounded time; twice is free."""
        self.close_all([self])

    @staticmethod
    def close_all(copiers: Iterable[Copier]) -> None:
        """Close copiers side by side."""
        closing = [copier for copier in list(copiers) if copier.begin_close()]
        deadline = time.monotonic() + _CLOSE_SECONDS
        for copier in closing:
            copier.join(max(deadline - time.monotonic(), 0))

    def begin_close(self) -> bool:
        """Have the thread end; tell whether there is one to wait for."""
        if self._process is not _process:
            return False  # a fork has copied it: the thread is the parent's, and locks may be held for ever
        with self._changed:
            self._closing = True
            landing = self._landing
            self._changed.notify_all()
        if landing is not None:
            landing.close()
        return self._thread.is_alive() and self._thread is not threading.current_thread()

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, which a device that is stuck can prevent."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)
        if self._thread.is_alive():
            _log.warning(
                "%s did not answer within %.1f s; its copy thread is left behind", self._device.name, seconds
            )

    def _start(self) -> None:
        if self._thread.ident is None and not self._closing:
            _open.add(self)
            self._parked = False
            self._thread.start()

    # the thread

    def _run(self) -> None:
        """Be the thread."""
        try:
            self._device.enter()
            self._stream = self._device.open_stream()
            while (landing := self._next_landing()) is not None:
                self._serve(landing)
        except Exception as error:
            _log.debug("the copy thread failed", exc_info=True)
            self._fail(error)
        finally:
            self._end()

    def _next_landing(self) -> Landing | None:
        """Wait for an iteration that wants something; None at the end."""
        while True:
            self._reap(0)
            with self._changed:
                self._parked = True
                self._changed.notify_all()
                while not self._closing and (self._pauses or not self._has_work()):
                    self._changed.wait(_LIVENESS)
                if self._closing:
                    return None
                self._parked = False
                adopts, self._adopts = self._adopts, None
                landing = self._landing
            if adopts is not None:
                self._locked.adopt(*adopts)
                self._counters.set(locked_bytes=self._locked.registered_bytes)
            elif landing is not None:
                return landing

    def _has_work(self) -> bool:
        return self._adopts is not None or (self._landing is not None and not self._landing.over)

    def _serve(self, landing: Landing) -> None:
        """Copy batches of one iteration, as long as there is room for more."""
        while self._may_take(landing):
            if landing.source.waits:
                self._reap(0)  # it may use its memory again for what it makes now
            cargo = self._take(landing)
            if cargo is None:
                continue
            if not self._may_go_on(landing):
                cargo.release()
                return
            if isinstance(cargo.batch, Exception):
                landing.put(Entry(cargo.batch))
                continue
            try:
                entry = self._carry(cargo, landing)
            except Exception as error:
                self._let_settle()
                error.add_note(
                    f"this came up while batch {landing.brought} was copied to {self._device.name}"
                )
                cargo.release()
                landing.finish(error)
                return
            landing.put(entry)
            del cargo, entry  # the memory of both is others' business from now on
            self._reap(1)

    def _may_take(self, landing: Landing) -> bool:
        """Wait until a further batch may come; False where this iteration is over."""
        if not self._has_room(landing):
            self._reap(0)
        return self._may_go_on(landing, needs_room=True)

    def _may_go_on(self, landing: Landing, *, needs_room: bool = False) -> bool:
        """Wait as long as copies are paused; False where this iteration is over."""
        with self._changed:
            while not (self._closing or landing.over or landing is not self._landing):
                if not self._pauses and (not needs_room or self._has_room(landing)):
                    self._parked = False
                    return True
                if self._flights:  # a pause that began meanwhile waits for these
                    self._parked = False
                    self._reap(0)
                    continue
                self._parked = True
                self._changed.notify_all()
                self._changed.wait(_LIVENESS)
            return False

    def _has_room(self, landing: Landing) -> bool:
        if landing.ready >= self._depth:
            return False
        return not landing.ready or landing.bytes_ready + landing.last_size <= self._max_bytes

    def _take(self, landing: Landing) -> Cargo | None:
        """Return the next batch of the source; None if there is none, or none yet."""
        try:
            with self._starving(landing):
                return landing.source.take()
        except anyio.WouldBlock:
            pass
        except anyio.EndOfStream:
            self._reap(0)
            landing.finish(anyio.EndOfStream())
            return None
        except Exception as error:
            landing.finish(error)
            return None
        self._reap(0)  # while nothing else is to be done: its memory may be what the source waits for
        with self._starving(landing):
            landing.source.wait(_LIVENESS)
        return None

    @contextlib.contextmanager
    def _starving(self, landing: Landing) -> Iterator[None]:
        """Count time as waiting for a source, in which nothing is done to the device."""
        with self._changed:
            landing.starving_since = time.perf_counter()
            if not self._flights:
                self._parked = True
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                since, landing.starving_since = landing.starving_since, None
                landing.starved += time.perf_counter() - since
                self._changed.notify_all()  # who begins anew may wait for this

    def _carry(self, cargo: Cargo, landing: Landing) -> Entry:
        """Ask for all that brings a batch to the device."""
        torch: Any = sys.modules.get("torch")
        whole = None if cargo.whole is None or torch is None else torch.from_numpy(cargo.whole)
        parcel = pack(cargo.batch, self._device.holds, self._locked.is_locked, whole)
        self._counters.set(locked_bytes=self._locked.registered_bytes)
        if not parcel.moves and not parcel.foreign and not parcel.places:
            cargo.release()
            return Entry(cargo.finish(cargo.batch))
        return self._send(cargo, parcel, landing)

    def _send(self, cargo: Cargo, parcel: Parcel, landing: Landing) -> Entry:
        device, stream = self._device, self._stream
        self._await_user(landing)
        works = planned(parcel, self._convert) if self._convert.active else None
        computes = works is not None and any(work.source != work.target for work in works)
        arrivals, size = device.allocate(max(parcel.size, 1), stream), parcel.size
        results = arrivals
        if works is not None and computes:
            places, size = laid_out(works)
            results = device.allocate(max(size, 1), stream)

        begun = device.record(stream, timed=True)
        stage = self._copy(parcel, arrivals)
        if works is None:
            found = {place.leaf: place.view.over(arrivals, place.start) for place in parcel.places}
        elif computes:
            found = {place.leaf: place.view.over(results, place.start) for place in places}
            self._compute(parcel, works, arrivals, found)
        else:
            starts = {place.leaf: place.start for place in parcel.places}
            found = {work.leaf: work.target.over(arrivals, starts[work.leaf]) for work in works}
        for leaf in parcel.foreign:
            found[leaf] = device.send(parcel.leaves[leaf], stream)
        done = device.record(stream, timed=True)

        if stage is not None:
            stage.free_after = done
            self._counters.add(device_staged=1)
        self._counters.add(device_batches=1, device_bytes=parcel.size)
        foreign = tuple(itertools.chain.from_iterable(tensors_in(found[leaf]) for leaf in parcel.foreign))
        self._flights.append(_Flight(cargo, begun, done))
        result = cargo.finish(parcel.build(found))
        return Entry(result, size, done, (results, *foreign))

    def _await_user(self, landing: Landing) -> None:
        """Wait until the device is near the host."""
        while len(landing.marks) > _LEAD:
            landing.marks.popleft().synchronize()

    def _copy(self, parcel: Parcel, block: Any) -> Any:
        """Ask for the copies of a parcel; return the staging buffer they read, if there is one."""
        device, stream = self._device, self._stream
        staged = [move for move in parcel.moves if move.staged]
        stage = None
        if staged:
            stop = staged[-1].start + staged[-1].size
            stage = self._locked.stage(stop)
            for move in staged:
                stage.put(move.start, move.source)
            device.copy(block[:stop], stage.memory[:stop], stream)
        for move in parcel.moves:
            if not move.staged:
                for start, stop in self._locked.ranges(move.source):
                    target = block[move.start + start : move.start + stop]
                    device.copy(target, move.source[start:stop], stream)
        return stage

    def _compute(self, parcel: Parcel, works: list[Work], arrivals: Any, found: dict[int, Any]) -> None:
        """Ask for what becomes of tensors once they are there."""
        pairs = [
            (work, work.source.over(arrivals, place.start), found[work.leaf])
            for work, place in zip(works, parcel.places, strict=True)
            if work.target.size
        ]
        works, ins, outs = ([pair[part] for pair in pairs] for part in range(3))
        self._device.fill(
            lambda targets, sources: self._convert.fill(works, targets, sources), outs, ins, self._stream
        )

    def _reap(self, left: int) -> None:
        """Let go of what copies have read, until no more than `left` of them are under way."""
        if self._parked:
            return  # there is none, and the device must not even be asked
        while len(self._flights) > left:
            flight = self._flights[0]
            flight.done.synchronize()
            self._flights.popleft()
            self._counters.add(device_seconds=self._device.seconds(flight.begun, flight.done))
            flight.cargo.release()
        landing = self._landing
        while landing is not None and landing.stalls and landing.stalls[0][1].query():
            before, after = landing.stalls.popleft()
            self._counters.add(device_stall_seconds=self._device.seconds(before, after))

    def _let_settle(self) -> None:
        """Wait for copies that were asked for before something failed: their memory must stay until then."""
        with contextlib.suppress(Exception):
            self._device.record(self._stream).synchronize()

    def _fail(self, error: Exception) -> None:
        """End the iteration with what the thread died of."""
        with self._changed:
            self._closing, landing = True, self._landing
        if landing is not None:
            landing.finish(error)

    def _end(self) -> None:
        """Give back what the thread has: copies first, then page-locked memory; then the arena may go."""
        try:
            self._reap(0)
            self._locked.close()
        except Exception:  # the device has failed, and all that is left is to go
            _log.debug("a device could not be left in order", exc_info=True)
        with self._changed:
            self._parked = True
            self._changed.notify_all()
        _open.discard(self)


_open: weakref.WeakSet[Copier] = weakref.WeakSet()


_process = object()  # of this process, and of no copy that a fork makes


def _note_fork() -> None:
    global _process
    _process = object()
    _open.clear()


os.register_at_fork(after_in_child=_note_fork)


def _close_all() -> None:
    Copier.close_all(_open)


# an ordinary atexit hook comes after other libraries' threads were waited for, which may wait for batches
getattr(threading, "_register_atexit", atexit.register)(_close_all)
