"""Sender: asks a device for all that brings one batch there, and knows when the host's memory is free again.

It runs in the copy thread alone, and waits for nothing but where it says so.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .convert import laid_out, planned
from .landing import Cargo, Entry
from .pack import pack, storages_in

if TYPE_CHECKING:
    from ..stats import Counters
    from .convert import Convert, Work
    from .interface import Device, Event, Stream
    from .locked import Locked, Stage
    from .pack import Move, Parcel

__all__ = ["Sender"]


@dataclass(eq=False, slots=True)
class _Flight:
    """A copy that was asked for, and the host's memory that must stay as it is until it has run."""

    cargo: Cargo
    moves: list[Move]
    begun: Event
    done: Event
    asked: float  # when


class _Clock:
    """Tells when a device did something, by the host's clock; its own tells distances only.

    Args:
        device: whose.
        stream: in which it looks for a place whose time is known.
    """

    def __init__(self, device: Device, stream: Stream) -> None:
        self._device = device
        self._free = 0.0  # when the last copy had ended
        tries = [self._try(stream) for _ in range(3)]
        _, self._zero, self._at = min(tries, key=lambda one: one[0])

    def began(self, flight: _Flight, seconds: float) -> float:
        """Return when a copy began that is complete now; later ones never before earlier ones have ended."""
        late = self._at + self._device.seconds(self._zero, flight.begun) + seconds - time.perf_counter()
        self._at -= max(late, 0.0)  # it would have ended in the future: the host saw zero late
        began = self._at + self._device.seconds(self._zero, flight.begun)
        began = max(began, flight.asked, self._free)
        self._free = began + seconds
        return began

    def _try(self, stream: Stream) -> tuple[float, Event, float]:
        """Return how long a place took to be passed, the place, and when the host saw that."""
        began = time.perf_counter()
        event = self._device.record(stream, timed=True)
        event.synchronize()
        now = time.perf_counter()
        return now - began, event, now


class Sender:
    """Sends batches, on one stream.

    Args:
        device: where to.
        locked: what may be copied from.
        convert: what is done to tensors there.
        counters: told of copies.
    """

    def __init__(self, device: Device, locked: Locked, convert: Convert, counters: Counters) -> None:
        self._device = device
        self._locked = locked
        self._convert = convert
        self._counters = counters
        self._stream: Stream = None
        self._flights: deque[_Flight] = deque()
        self._clock: _Clock | None = None  # while there is a trace

    @property
    def flights(self) -> int:
        """Batches whose copies may not have run."""
        return len(self._flights)

    def open(self) -> None:
        """Make the device the calling thread's, and open the stream that serves until the end."""
        self._device.enter()
        self._stream = self._device.open_stream()

    def send(self, cargo: Cargo) -> Entry:
        """Ask for a batch's copies, and for what becomes of it there; waits where staging buffers run out."""
        torch: Any = sys.modules.get("torch")
        whole = None if cargo.whole is None or torch is None else torch.from_numpy(cargo.whole)
        parcel = pack(cargo.batch, self._device.holds, self._locked.is_locked, whole)
        if not parcel.places and not parcel.foreign and not parcel.there:
            cargo.release()
            return Entry(cargo.finish(cargo.batch))

        if parcel.there:  # made in this thread, on the stream that is its current one, and maybe not yet done
            self._device.wait(self._stream, self._device.record(self._device.current_stream()))
        if self._counters.trace is not None and self._clock is None:
            self._clock = _Clock(self._device, self._stream)
        asked = time.perf_counter()
        begun = self._device.record(self._stream, timed=True)
        found, block, size, stage = self._bring(parcel)
        for leaf in parcel.foreign:
            found[leaf] = self._device.send(parcel.leaves[leaf], self._stream)
        done = self._device.record(self._stream, timed=True)

        if stage is not None:
            stage.free_after = done
            self._counters.add(device_staged=1)
        self._counters.add(device_batches=1, device_bytes=parcel.size)
        self._counters.set(locked_bytes=self._locked.registered_bytes)
        others = {leaf: found.get(leaf, parcel.leaves[leaf]) for leaf in (*parcel.foreign, *parcel.there)}
        blocks = (block, *storages_in(list(others.values()), self._device.holds))
        entry = Entry(cargo.finish(parcel.build(found)), size, done, blocks)
        # last: what fails releases the cargo
        self._flights.append(_Flight(cargo, parcel.moves, begun, done, asked))
        return entry

    def reap(self, left: int) -> None:
        """Wait until no more than `left` copies are under way, and let go of what the others have read."""
        while len(self._flights) > left:
            flight = self._flights[0]
            flight.done.synchronize()
            self._flights.popleft()
            seconds = self._device.seconds(flight.begun, flight.done)
            self._counters.add(device_seconds=seconds)
            if (trace := self._counters.trace) is not None and self._clock is not None:
                began = self._clock.began(flight, seconds)
                trace.copied(began, seconds, flight.cargo.batch_id, flight.cargo.step)
            flight.cargo.release()

    def settle(self) -> None:
        """Wait for what was asked for before something failed: its memory must stay until then."""
        with contextlib.suppress(Exception):
            self._device.record(self._stream).synchronize()

    def add_up(self, stalls: deque[tuple[Event, Event]]) -> None:
        """Count how long the user's stream stood still, as far as that lies behind."""
        while stalls and stalls[0][1].query():
            self._counters.add(device_stall_seconds=self._device.seconds(*stalls.popleft()))

    def _bring(self, parcel: Parcel) -> tuple[dict[int, Any], Any, int, Stage | None]:
        """Ask for a parcel's copies.

        Returns:
            Its tensors by leaf, the block that they lie in, its bytes, and the staging buffer that is read.
        """
        works = planned(parcel, self._convert) if self._convert.active else None
        # a byte at least: an empty tensor has no memory that could be told apart
        arrivals = self._device.allocate(max(parcel.size, 1), self._stream)
        stage = self._copy(parcel, arrivals)
        if works is None:
            found = {place.leaf: place.view.over(arrivals, place.start) for place in parcel.places}
            return found, arrivals, parcel.size, stage
        if not any(work.needed for work in works):
            pairs = zip(works, parcel.places, strict=True)
            found = {work.leaf: work.target.over(arrivals, place.start) for work, place in pairs}
            return found, arrivals, parcel.size, stage
        places, size = laid_out(works)
        results = self._device.allocate(max(size, 1), self._stream)
        found = {place.leaf: place.view.over(results, place.start) for place in places}
        self._compute(parcel, works, arrivals, found)
        return found, results, size, stage

    def _copy(self, parcel: Parcel, block: Any) -> Stage | None:
        """Ask for the copies into a block; return the staging buffer they read, if there is one."""
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
        todo, ins, outs = ([pair[part] for pair in pairs] for part in range(3))
        convert = self._convert
        self._device.fill(
            lambda targets, sources: convert.fill(todo, targets, sources), outs, ins, self._stream
        )
