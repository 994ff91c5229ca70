"""Reorder buffer: finished steps in, in any order; steps out, in order.

`ReorderBuffer` is the pure part. `Handover` puts a lock around it and is where the engine's thread and the
user meet: the engine puts, the user takes, and the ready case is a lock and a dictionary, with no trip
through an event loop.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio

from ..errors import AioloadError, ClosedError
from ..wake import Awaited

__all__ = ["Handover", "ReorderBuffer"]

T = TypeVar("T")


class ReorderBuffer(Generic[T]):
    """Steps that are finished but not yet due.

    Args:
        first: the step that is due first.
    """

    def __init__(self, first: int = 0) -> None:
        self.due = first
        self._early: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._early)

    def push(self, step: int, item: T) -> None:
        """Keep a finished step until it is due.

        Raises:
            ValueError: the step was pushed or popped before.
        """
        if step < self.due or step in self._early:
            raise ValueError(f"step {step} came twice; step {self.due} is due")
        self._early[step] = item

    @property
    def ready(self) -> bool:
        """Whether the step that is due is here."""
        return self.due in self._early

    def pop(self) -> T:
        """Return the step that is due.

        Raises:
            LookupError: it is not here.
        """
        item = self._early.pop(self.due)
        self.due += 1
        return item


class Handover(Awaited, Generic[T]):
    """Where one pass over the data changes hands.

    Args:
        first: the first step.
        stop: the step after the last.
        on_take: called in the thread that takes, with each item.
    """

    def __init__(self, first: int, stop: int, on_take: Callable[[T], None]) -> None:
        super().__init__(threading.Condition())
        self._buffer: ReorderBuffer[T] = ReorderBuffer(first)
        self._stop = stop
        self._on_take = on_take
        self._errands: deque[Callable[[], None]] = deque()
        self._closed: AioloadError | None = None
        # called with each errand, where another thread than the user's takes here and should not wake for it
        self.on_errand: Callable[[], object] | None = None

    @property
    def due(self) -> int:
        """The step that the user gets next."""
        return self._buffer.due

    @property
    def stop(self) -> int:
        """The step after the last."""
        return self._stop

    @property
    def ready(self) -> int:
        """Steps that wait here."""
        return len(self._buffer)

    @property
    def is_ready(self) -> bool:
        """Whether the step that is due waits here."""
        return self._buffer.ready

    @property
    def late(self) -> bool:
        """Whether later steps wait here, and the one that is due does not."""
        return bool(self._buffer) and not self._buffer.ready

    def put(self, step: int, *items: T) -> None:
        """Bring finished steps that follow each other, from `step` on."""
        with self._changed:
            if self._closed is not None:
                return
            for place, item in enumerate(items, step):
                self._buffer.push(place, item)
            if self._buffer.ready:
                self.wake()

    def ask(self, errand: Callable[[], None], *, first: bool = False) -> None:
        """Have the user's thread do something while it waits here: the work of a loader without workers.

        Args:
            errand: what to do; forgotten when the hand-over is closed.
            first: before all others.
        """
        with self._changed:
            if self._closed is not None:
                return
            if first:
                self._errands.appendleft(errand)
            else:
                self._errands.append(errand)
            if self.on_errand is None:
                self.wake()
        if self.on_errand is not None:
            self.on_errand()

    def close(self, error: AioloadError | None = None) -> None:
        """Let every take fail from now on, and drop what waits here. The first reason is kept."""
        with self._changed:
            if self._closed is None:
                self._closed = error or ClosedError("the loader was closed")
            self._buffer = ReorderBuffer(self._buffer.due)
            self._errands.clear()
            self.wake()

    def take_nowait(self) -> T:
        """Return the step that is due.

        Raises:
            anyio.WouldBlock: it is not here yet.
            anyio.EndOfStream: the last step has been taken.
            AioloadError: the hand-over was closed for this reason.
        """
        with self._changed:
            if self._closed is not None:
                raise self._closed
            if self._buffer.due >= self._stop:
                raise anyio.EndOfStream
            if not self._buffer.ready:
                raise anyio.WouldBlock
            item = self._buffer.pop()
        self._on_take(item)
        return item

    @property
    def has_errands(self) -> bool:
        """Whether there is something for the user's thread to do."""
        return bool(self._errands)

    def errand(self) -> Callable[[], None] | None:
        """Return something to do while the next step is not here."""
        with self._changed:
            return self._errands.popleft() if self._errands else None

    def _has_news(self) -> bool:
        over = self._closed is not None or self._buffer.due >= self._stop
        return over or self._buffer.ready or (self.on_errand is None and self.has_errands)
