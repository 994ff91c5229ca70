"""Manners: the engine steps back now and then, so that the user's thread gets the interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..stats import Counters

__all__ = ["Manners"]

_LONGEST = 0.0004  # seconds of computing after which somebody else may have the interpreter
_PAUSE = 0.0001  # seconds: any will do, for a thread that waits for the lock has it as soon as it is let go
_BUSY_USER = 0.001  # seconds between two batches from which the user's thread has something to do


class Manners:
    """Knows when to step back.

    Args:
        counters: tell how long the user's thread is away between batches.
        clock: seconds that this thread has computed.
        sleep: lets other threads go on.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        clock: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.ready: Callable[[], int] = int  # batches that wait for the user
        self._counters = counters
        self._clock = clock
        self._sleep = sleep
        self._since = 0.0
        self._before = (0, 0.0)
        self.gentle = False

    def look(self) -> None:
        """See whether the user's thread has something to do of its own."""
        before, self._before = self._before, self._counters.pace
        batches, seconds = self._before[0] - before[0], self._before[1] - before[1]
        if batches > 0:
            self.gentle = seconds > batches * _BUSY_USER

    @property
    def between(self) -> Callable[[], None] | None:
        """What to call now and then in long work; None where nobody would go on meanwhile."""
        return self.give_way if self.gentle else None

    def give_way(self) -> None:
        """Let the user's thread go on, if this one has computed for a while and nobody waits for it."""
        if not self.gentle:
            return
        now = self._clock()
        if now - self._since < _LONGEST:
            return
        if self.ready():
            self._sleep(_PAUSE)
        self._since = now
