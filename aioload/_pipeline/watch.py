"""Watch: what the engine was at while the user waited; in the engine's loop.

Which stage keeps a user waiting is seen at the batch that is waited for, and at what stands idle meanwhile.
So whoever is about to change one of the two (a run's bytes are all there, a worker gets a job, somebody waits
for memory) has the time since the last change added up first. That costs a look at a clock and a few
additions for each change, of which there are about a dozen for a run of batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._workers.borrowed import Borrowed
    from .._workers.pool import WorkerPool
    from ..stats import Counters
    from .memory import Memory
    from .tuner import Tuner

__all__ = ["Watch"]


class Watch:
    """Adds up the user's time by what goes on meanwhile.

    Args:
        counters: told of it, and asked for the user's time.
        memory: the arena's.
        tuner: knows whether batches are held back.
    """

    def __init__(self, counters: Counters, memory: Memory, tuner: Tuner) -> None:
        self.pool: WorkerPool | Borrowed | None = None
        # "read" or "work", by what the wanted batch needs next; "" where it has not been begun, or is ready
        self.wanted: Callable[[], str] = str
        self.late: Callable[[], bool] = bool  # whether later batches are ready, and the wanted one is not
        self._counters = counters
        self._memory = memory
        self._tuner = tuner
        self._waited = self._looped = 0.0
        self._pauses = 0

    def look(self) -> None:
        """Add up the time since the last look; called before anything changes."""
        # hot: a dozen times for a run; guarded by benchmarks/stats_cost.py
        pauses = self._counters.pauses
        waited, looped = self._counters.loop()
        if looped > self._looped:
            self._counters.add(**self._amounts(waited - self._waited, looped - self._looped))
            self._waited, self._looped = max(waited, self._waited), looped
        elif pauses != self._pauses:  # what was taken for the loop's time, after its end, was not: begin anew
            self._waited, self._looped = waited, looped
        self._pauses = pauses

    def levels(self) -> dict[str, float]:
        """Return the counts as they would be after a look, from any thread."""
        waited, looped = self._counters.loop()
        amounts = self._amounts(waited - self._waited, max(looped - self._looped, 0.0))
        return {name: self._counters[name] + amount for name, amount in amounts.items()}

    def _amounts(self, waited: float, looped: float) -> dict[str, float]:
        """Return what to add for a stretch of the user's time, of which some went into waiting."""
        amounts = {}
        if self.pool is not None:
            amounts["worker_seconds"] = self.pool.ready * looped
            amounts["busy_seconds"] = self.pool.busy * looped
        if waited <= 0:
            return amounts
        wanted, short_of_room = self.wanted(), self._tuner.short_of_room
        if wanted:
            amounts[f"wait_{wanted}_seconds"] = waited
        if self._memory.short or short_of_room:
            amounts["wait_memory_seconds"] = waited
        if self._tuner.holds and not short_of_room:
            amounts["wait_held_seconds"] = waited
        if self.late():
            amounts["wait_late_seconds"] = waited
        return amounts
