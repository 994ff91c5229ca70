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

import contextlib
import logging
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import anyio

from ..errors import ClosedError
from ..lifetime import Origin, at_exit
from .landing import Cargo, Entry, Landing, Source, Who, who
from .locked import Locked
from .sender import Sender

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..stats import Counters
    from .convert import Convert
    from .interface import Device

__all__ = ["DEPTH", "MAX_BYTES", "Copier"]

_log = logging.getLogger("aioload.device")

DEPTH = 2
MAX_BYTES = 1 << 30
_LEAD = 2  # batches that were taken, and that the device has yet to read
_LIVENESS = 1.0  # seconds between two looks at whether anybody is still there, while waiting
_CLOSE_SECONDS = 4.0


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
        self._depth = depth
        self._max_bytes = max_bytes
        self._locked = Locked(device, stages=depth + 1) if locked is None else locked
        self._sender = Sender(device, self._locked, convert, counters)
        # again by the same thread: a loader may be collected, and so closed, wherever objects are made
        self._changed = threading.Condition(threading.RLock())
        self._thread = threading.Thread(target=self._run, name="aioload-copy", daemon=True)
        self._landing: Landing | None = None
        self._adopts: tuple[NDArray[np.uint8], Callable[[int, int], None]] | None = None
        self._paused_by: list[Who] = []  # once for each pause: they would wait for themselves
        # nothing is under way, and nothing will be done to the device before it has looked for pauses
        self._parked = True
        self._closing = self._left_behind = False
        self._failure: Exception | None = None  # what the thread died of
        self._origin = Origin()

    def adopt(self, memory: NDArray[np.uint8], touch: Callable[[int, int], None]) -> None:
        """Page-lock memory in which batches will lie, in the copy thread, before the first iteration."""
        with self._changed:
            self._adopts = memory, touch
            self._start()

    def leave(self) -> None:
        """End the iteration that is under way; nobody is in its source any more when this returns."""
        self.check_process()
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
        landing = Landing(self._changed, source, self._device, self._counters, self._paused_by)
        with self._changed:
            if self._closing:
                raise self._failure or ClosedError("it was closed; make a new one to go on")
            self._landing = landing
            self._start()
            self._changed.notify_all()
        return landing

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Do nothing to the device for a while: all copies are complete when it is entered."""
        self.check_process()
        caller = who()
        with self._changed:
            self._paused_by.append(caller)
            self._changed.notify_all()
        try:  # Ctrl-C may come while it waits, and must not leave copies paused
            with self._changed:
                while not self._parked and self._thread.is_alive():
                    self._changed.wait(_LIVENESS)
            yield
        finally:
            with self._changed:
                self._paused_by.remove(caller)
                self._changed.notify_all()

    def check(self) -> None:
        """Raise if the thread has died without a word: whoever waits for it must not wait for ever."""
        self.check_process()
        landing = self._landing
        said_why = landing is not None and landing.over  # the next step raises it
        if self._thread.ident is not None and not self._thread.is_alive() and not said_why:
            raise ClosedError("the copy thread has ended, and with it this iteration; make a new loader")

    def check_process(self) -> None:
        """Raise in a copy that a fork has made, before a lock is taken that may be held there for ever."""
        if self._origin.is_left:
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
        if self._origin.is_left:
            return False  # a fork has copied it: the thread is the parent's, and locks may be held for ever
        with self._changed:
            self._closing = True
            landing = self._landing
            self._changed.notify_all()
        if landing is not None:
            landing.close()
        return self._thread.is_alive() and self._thread is not threading.current_thread()

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, which a device that is stuck can prevent; once."""
        if self._left_behind or not self._thread.is_alive() or self._thread is threading.current_thread():
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._left_behind = True
            _log.warning(
                "%s did not answer within %.1f s; its copy thread is left behind", self._device.name, seconds
            )

    def _start(self) -> None:
        if self._thread.ident is None and not self._closing:
            _open.add(self)
            self._thread.start()

    # the thread

    def _run(self) -> None:
        """Be the thread."""
        try:
            self._await_pauses()
            self._sender.open()
            while (landing := self._next_landing()) is not None:
                self._serve(landing)
        except Exception as error:
            _log.debug("the copy thread failed", exc_info=True)
            self._fail(error)
        finally:
            self._end()

    def _await_pauses(self) -> None:
        """Wait until the device may be touched, and say that it will be."""
        with self._changed:
            while self._paused_by and not self._closing:
                self._changed.wait(_LIVENESS)
            self._parked = False

    def _next_landing(self) -> Landing | None:
        """Wait for an iteration that wants something; None at the end."""
        while True:
            self._reap(0)
            with self._changed:
                self._parked = True
                self._changed.notify_all()
                while not self._closing and (self._paused_by or not self._has_work()):
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
        while self._may_go_on(landing, needs_room=True):
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
                entry = self._send(cargo, landing)
            except Exception as error:
                error.add_note(
                    f"this came up while batch {landing.brought} was copied to {self._device.name}"
                )
                landing.finish(error)
                return
            landing.put(entry)
            del cargo, entry  # the memory of both is others' business from now on
            self._reap(1)

    def _send(self, cargo: Cargo, landing: Landing) -> Entry:
        """Ask for all that brings a batch to the device; whatever fails, its memory is let go."""
        trace, began, cargo.step = self._counters.trace, time.perf_counter(), landing.brought
        try:
            if len(landing.marks) > _LEAD:
                self._reap(0)  # which waits for no step
            while len(landing.marks) > _LEAD:
                landing.marks.popleft().synchronize()
            entry = self._sender.send(cargo)
        except Exception as error:
            self._sender.settle()
            traceback.clear_frames(error.__traceback__)  # who keeps the error need not keep the batch
            cargo.release()
            raise
        if trace is not None:
            trace.sent(began, cargo.batch_id, cargo.step, entry.size)
        return entry

    def _may_go_on(self, landing: Landing, *, needs_room: bool = False) -> bool:
        """Wait as long as copies are paused; False where this iteration is over."""
        while True:
            with self._changed:
                if self._closing or landing.over or landing is not self._landing:
                    return False
                if not self._paused_by and (not needs_room or self._has_room(landing)):
                    self._parked = False
                    return True
                if not self._sender.flights:
                    self._parked = True
                    self._changed.notify_all()
                    self._changed.wait(_LIVENESS)
                    continue
            self._reap(0)  # without the lock, which the user takes at each step

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
        except BaseException as error:  # whatever the user's code ends with is the user's to see
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
            if not self._sender.flights:
                self._parked = True
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                since, landing.starving_since = landing.starving_since, None
                landing.starved += time.perf_counter() - since
                self._changed.notify_all()  # who begins anew may wait for this

    def _reap(self, left: int) -> None:
        """Let go of what copies have read, until no more than `left` of them are under way."""
        if self._parked:
            return  # there is none, and the device must not even be asked
        self._sender.reap(left)
        landing = self._landing
        if landing is not None:
            self._sender.add_up(landing.stalls)

    def _fail(self, error: Exception) -> None:
        """End the iteration with what the thread died of, and refuse others with it."""
        with self._changed:
            self._closing, self._failure, landing = True, error, self._landing
        if landing is not None:
            landing.finish(error)

    def _end(self) -> None:
        """Give back what the thread has: copies first, then page-locked memory; then the arena may go."""
        parts: tuple[Callable[[], None], ...] = (partial(self._sender.reap, 0), self._locked.close)
        for part in parts:
            try:
                part()
            except Exception:  # the device has failed, and all that is left is to go
                _log.debug("a device could not be left in order", exc_info=True)
        with self._changed:
            self._parked = True
            self._adopts = None  # what was never page-locked must not keep the arena either
            self._changed.notify_all()


_open: weakref.WeakSet[Copier] = weakref.WeakSet()
os.register_at_fork(after_in_child=_open.clear)


def _close_all() -> None:
    Copier.close_all(_open)


at_exit(_close_all)
