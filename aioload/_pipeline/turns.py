"""Turns: which pass the user takes from, and which begins ahead of its turn; in the engine's loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from .deliver import Delivery
from .inline import InlineRunner
from .passes import Item, Pass

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from .._workers.pool import Runner
    from .house import House
    from .plan import Plan
    from .reorder import Handover

__all__ = ["Announce", "Turns"]

Announce = Callable[["Plan", int], "Handover[Item] | None"]
"""Makes the hand-over of a pass that begins ahead; None if the user has gone elsewhere since."""


class Turns:
    """The passes that are under way: the one whose turn it is, and at most one ahead of its turn.

    Args:
        house: the parts that passes share.
        group: where they run.
        announce: told of a pass that has begun ahead of the user.
    """

    def __init__(self, house: House, group: TaskGroup, announce: Announce) -> None:
        self._house = house
        self._group = group
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self._passes = 0
        self._current: Pass | None = None
        self._ahead: Pass | None = None
        self._following: Plan | None = None
        self._begun = 0
        house.tuner.on_change = self._look_again
        house.manners.ready = self._ready

    def begin(self, plan: Plan, handover: Handover[Item], following: Plan | None, number: int) -> None:
        """Begin a pass, and end those before.

        Args:
            plan: what to bring.
            handover: where to.
            following: the next epoch's plan, to go on with when all of this one's runs are under way.
            number: of the passes that were asked for.
        """
        self._begun = number
        for old in (self._current, self._ahead):
            if old is not None:
                old.cancel()
        self._following = following
        self._ahead = None
        self._house.handover = handover
        self._current = self._start(plan, handover, None)

    def advance(self, following: Plan | None) -> None:
        """Take the pass that has begun ahead for the current one: its turn has come."""
        old, self._current, self._ahead = self._current, self._ahead, None
        self._following = following
        if old is not None:
            old.cancel()  # the user may have left it before its end
        if self._current is not None:
            self._house.handover = self._current.handover
            self._current.come_first()
            self._house.memory.look_again()
            self._go_ahead(self._current)

    def levels(self) -> dict[str, float]:
        """Return how things are as of now, by their names in the stats; from any thread."""
        return self._house.levels()

    def taken(self, item: Item) -> None:
        """Note, from the thread that takes (with a device the copy thread), that a step was taken."""
        memory, passes = self._house.memory, (self._current, self._ahead)
        trace = self._house.counters.trace
        if trace is not None and self._current is not None:
            trace.waiting(self._current.handover.ready)
        if isinstance(item, Delivery) and self._house.settings.device is None:
            if item.lease is not None:
                memory.hold_later(item.lease)
            if item.outside is not None:
                item.outside.end()
        # waking the loop costs more than all else that is done for a small batch
        gone_on = any(one is not None and one.may_go_on for one in passes)
        if memory.short or gone_on or self._house.tuner.due:
            with contextlib.suppress(RuntimeError):  # the loop has ended; what it held is gone with it
                self._loop.call_soon_threadsafe(self._note_taken)

    def _ready(self) -> int:
        """Return how many batches wait for the user."""
        return sum(one.handover.ready for one in (self._current, self._ahead) if one is not None)

    def _note_taken(self) -> None:
        self._house.memory.look_again()
        self._house.tuner.look()
        self._look_again()

    def _look_again(self) -> None:
        """Let passes see whether there is room for their next runs."""
        for one in (self._current, self._ahead):
            if one is not None:
                one.look_again()

    def _start(self, plan: Plan, handover: Handover[Item], before: Handover[Item] | None) -> Pass:
        self._passes += 1
        started = Pass(self._house, self._passes, plan, handover, self._runner(handover), before)
        self._group.start_soon(started.run, self._go_ahead)
        return started

    def _go_ahead(self, produced: Pass) -> None:
        """Begin the next epoch while the present one's last batches are made."""
        if produced is not self._current or not produced.produced or self._ahead is not None:
            return
        if self._following is not None:
            handover = self._announce(self._following, self._begun)
            if handover is not None:
                self._ahead = self._start(self._following, handover, produced.handover)

    def _runner(self, handover: Handover[Item]) -> Runner:
        """Return who decodes: the pool, or the user's thread where it waits for this pass."""
        if self._house.pool is not None:
            return self._house.pool
        assert self._house.worker is not None
        recipe = self._house.settings.recipe
        return InlineRunner(self._house.worker, handover, seeded=recipe.seeds)
