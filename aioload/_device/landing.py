"""Landing: where batches that were copied wait for the user, and what is done when one is taken.

It has the same face as the hand-over between engine and user, so whoever iterates does not know which of the
two it is. Taking costs no wait of the host's: the stream that the user computes on, looked up at that moment,
is told to wait for the copy.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from ..errors import ClosedError, ConfigError
from ..wake import Awaited

if TYPE_CHECKING:
    from ..stats import Counters
    from .interface import Device, Event

__all__ = ["Cargo", "Entry", "Landing", "Source", "Who", "who"]

Who = tuple[int, object]
"""A thread, and the task that runs in it, if one does: who waits for itself, and who for a neighbour."""


def who() -> Who:
    """Return who calls."""
    try:
        return threading.get_ident(), asyncio.current_task()
    except RuntimeError:
        return threading.get_ident(), None


@dataclass(eq=False, slots=True)
class Cargo:
    """A batch of the host, on its way."""

    batch: Any
    """A tree; or an exception, which takes this batch's place."""
    whole: Any = None
    """The one stretch of memory that its tensors lie in, as an array of uint8, if that is known."""
    finish: Callable[[Any], Any] = field(default=lambda batch: batch)
    """Makes of the batch on the device what is handed over."""
    release: Callable[[], None] = field(default=lambda: None)
    """Called when the device has read all of it."""
    batch_id: tuple[int, int] | None = None
    """What a trace calls it."""
    step: int = 0
    """Batches of the iteration before it."""


class Source(Protocol):
    """Where the copy thread gets batches from."""

    waits: bool
    """Whether `take` may block, and what it gave before must not be read meanwhile."""

    @property
    def calls(self) -> bool:
        """Whether there is an errand for the user's thread."""

    @property
    def over(self) -> bool:
        """Whether the last batch was taken from it."""

    def take(self) -> Cargo:
        """Return the next batch.

        Raises:
            anyio.WouldBlock: it is not here yet.
            anyio.EndOfStream: there is none.
        """

    def wait(self, timeout: float) -> None:
        """Block until there is something to take, or for so long."""

    def errand(self) -> Callable[[], None] | None:
        """Return something that the user's thread is to do meanwhile."""

    def close(self) -> None:
        """Give nothing more, and let a wait end."""


@dataclass(eq=False, slots=True)
class Entry:
    """A batch of the device that waits for the user."""

    result: Any
    size: int = 0
    done: Event | None = None  # None: there was nothing to copy
    blocks: tuple[Any, ...] = ()  # of the copy stream


class Landing(Awaited):
    """Batches of one iteration, in order.

    Args:
        changed: the copy thread's lock, notified of all that happens.
        source: where they come from.
        device: where they are copied to.
        counters: told of waits.
        paused_by: who has paused copies.
    """

    def __init__(
        self,
        changed: threading.Condition,
        source: Source,
        device: Device,
        counters: Counters,
        paused_by: Collection[Who],
    ) -> None:
        super().__init__(changed)
        self.source = source
        self.due = 0
        self.brought = 0  # batches so far
        self.bytes_ready = self.last_size = 0
        self.stalls: deque[tuple[Event, Event]] = deque()  # before and after waits of the user's stream
        self.marks: deque[Event] = deque()  # in the user's stream, when batches were taken
        self.starved = 0.0  # seconds that the copy thread waited for the source
        self.starving_since: float | None = None
        self._paused_by = paused_by
        self._device = device
        self._counters = counters
        self._ready: deque[Entry] = deque()
        self._end: BaseException | None = None  # what comes after those that are ready
        self._closed: Exception | None = None
        self._waits: tuple[float, float] | None = None  # since when, and how long the thread had starved

    # the copy thread's side

    @property
    def ready(self) -> int:
        """Batches that wait here."""
        return len(self._ready)

    @property
    def over(self) -> bool:
        """Whether nothing more comes, or nobody takes it."""
        return self._closed is not None or self._end is not None

    def put(self, entry: Entry) -> None:
        """Bring the next batch."""
        with self._changed:
            self.brought += 1
            if self._closed is None:
                self._ready.append(entry)
                self.bytes_ready, self.last_size = self.bytes_ready + entry.size, entry.size
                self.wake()

    def finish(self, end: BaseException) -> None:
        """Say what comes after the last batch: `anyio.EndOfStream`, or what went wrong."""
        with self._changed:
            self._end = self._end or end
            self.wake()

    # the user's side

    def take_nowait(self) -> Any:
        """Return the next batch, on the stream that the calling thread computes on.

        Raises:
            anyio.WouldBlock: it is not here yet.
            anyio.EndOfStream: there is none.
            ConfigError: it must not be waited for, or taken, just now.
            Exception: what went wrong, in its place; the end comes after it.
        """
        with self._changed:
            if self._closed is not None:
                raise self._closed
            if self._ready and self._device.is_capturing():
                raise ConfigError(
                    "a batch cannot be taken while a graph is captured; take it before or after"
                )
            if not self._ready:
                if self._end is not None:
                    end, self._end = self._end, anyio.EndOfStream()
                    try:
                        raise end
                    finally:  # neither kept here nor by its own frame: it knows all that it came through
                        del end
                self._begin_wait()
                raise anyio.WouldBlock
            entry = self._ready.popleft()
            self.bytes_ready -= entry.size
            self.due += 1
            self._end_wait()
            self._changed.notify_all()
        self._receive(entry)
        return entry.result

    def errand(self) -> Callable[[], None] | None:
        """Return something to do while the next batch is not here."""
        return self.source.errand()

    def wait(self, timeout: float) -> None:
        """Block until there is something to take, or for `timeout` seconds."""
        with self._changed:
            self._refuse(any(thread == threading.get_ident() for thread, _ in self._paused_by))
            super().wait(timeout)

    def call_when_ready(self, waker: Callable[[], object]) -> None:
        """Have a callable called once, from any thread, when there is something to take."""
        with self._changed:
            self._refuse(who() in self._paused_by)  # a task that waits does not hold up its neighbours
            super().call_when_ready(waker)

    def close(self, error: Exception | None = None) -> None:
        """Let every take fail from now on, and drop what waits here. The first reason is kept."""
        with self._changed:
            if self._closed is None:
                self._closed = error or ClosedError("it was closed; make a new one to go on")
            # what is still being copied to is the copy stream's: it hands that out again after these copies
            self._ready.clear()
            self.bytes_ready = 0
            self.wake()
        self.source.close()

    def _receive(self, entry: Entry) -> None:
        """Make what a batch needs of the device good for the calling thread's stream."""
        if entry.done is None:
            return
        device, stream = self._device, self._device.current_stream()
        self.marks.append(device.record(stream))
        if not entry.done.query():
            before = device.record(stream, timed=True)
            device.wait(stream, entry.done)
            self.stalls.append((before, device.record(stream, timed=True)))
        for block in entry.blocks:
            device.keep(block, stream)

    def _has_news(self) -> bool:
        return bool(self._ready) or self.over or self.source.calls

    def _refuse(self, paused: bool) -> None:
        """Raise where whoever would wait has paused the copies itself."""
        if paused and not self._has_news():
            raise ConfigError("no batch is ready while copies are paused; take it before or after pause()")

    def _begin_wait(self) -> None:
        if self._waits is None:
            self._waits = time.perf_counter(), self._starved_so_far()

    def _end_wait(self) -> None:
        """Count what of a wait was for the copy thread, and not for what comes before it."""
        if self._waits is not None:
            (since, starved), self._waits = self._waits, None
            waited = time.perf_counter() - since - (self._starved_so_far() - starved)
            self._counters.add(device_wait_seconds=max(waited, 0.0))

    def _starved_so_far(self) -> float:
        since = self.starving_since
        return self.starved + (0.0 if since is None else time.perf_counter() - since)
