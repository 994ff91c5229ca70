"""House: the parts that passes share, in the engine's loop, and which passes are under way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import cloudpickle

from .._workers.arena import Arena, ArenaHandle
from .._workers.pool import WorkerPool
from .._workers.task import Recipe, Worker
from ..storage.threads import DaemonExecutor
from .deliver import Delivery, Output
from .fetch import Reader
from .inline import InlineRunner
from .memory import Memory
from .passes import Item, Pass
from .sizes import Sizes

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from .._workers.pool import Order, Runner
    from ..stats import Counters
    from ..storage import Storage
    from .plan import Plan
    from .reorder import Handover

__all__ = ["Announce", "House", "Settings"]

Announce = Callable[["Plan", int], "Handover[Item] | None"]
"""Makes the hand-over of a pass that begins ahead; None if the user has asked for another pass since the numbered."""

_READS_IN_FLIGHT = 4
_MAX_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """What an engine runs with."""

    open_storages: Callable[[], list[Storage]]  # one for each set
    shards: Sequence[str]  # names, relative to the storage of their set
    sources: Sequence[int]  # the set of each shard
    labels: Sequence[str]  # what errors call each shard
    record_bytes: float  # mean size of a record
    recipe: Recipe
    num_workers: int
    prefetch: int | None  # batches; None adapts
    memory_limit: int
    window_bytes: int  # of it, for pieces that are read whole
    output: Output
    on_kept: Callable[[], None]  # warns that batches kept by the user fill the memory


class House:
    """What lives as long as the engine: arena, storages, pool.

    Args:
        settings: what to run with.
        counters: told of everything.
        memory: the arena's.
        storages: one for each set.
        group: where passes run.
        announce: told of a pass that has begun ahead of the user.
    """

    def __init__(
        self,
        settings: Settings,
        counters: Counters,
        memory: Memory,
        storages: list[Storage],
        group: TaskGroup,
        announce: Announce,
    ) -> None:
        self.settings = settings
        self.counters = counters
        self.memory = memory
        self.labels = settings.labels
        self.sizes = Sizes(settings.num_workers, settings.record_bytes, memory.limit // 16)
        limiter = anyio.CapacityLimiter(_READS_IN_FLIGHT)
        self.reader = Reader(storages, settings.shards, settings.sources, limiter, _MAX_READ_BYTES, counters)
        self.pool: WorkerPool | None = None
        self._group = group
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self._active: set[Order] = set()
        self._passes = 0
        self._current: Pass | None = None
        self._ahead: Pass | None = None
        self._following: Plan | None = None
        self._begun = 0

    @classmethod
    async def open(
        cls,
        settings: Settings,
        counters: Counters,
        stack: contextlib.AsyncExitStack,
        group: TaskGroup,
        announce: Announce,
    ) -> House:
        """Open all parts; the stack closes them in reverse."""
        arena = stack.enter_context(Arena(settings.memory_limit))
        counters.set(memory_limit=settings.memory_limit, num_workers=settings.num_workers)
        storages = settings.open_storages()
        for storage in storages:
            aclose = getattr(storage, "aclose", None)
            if aclose is not None:
                stack.push_async_callback(aclose)
        memory = Memory(arena, settings.on_kept, settings.window_bytes)
        house = cls(settings, counters, memory, storages, group, announce)
        if settings.num_workers:
            # three threads a worker: one may still wait for its start, and ending takes two
            threads = DaemonExecutor(3 * settings.num_workers, name="aioload-start")
            stack.callback(threads.shutdown, wait=False)
            recipe = cloudpickle.dumps(settings.recipe)
            house.pool = WorkerPool(settings.num_workers, ArenaHandle(arena), recipe, threads)
            stack.push_async_callback(house.pool.aclose)
            group.start_soon(house.pool.start)
        return house

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
        self._current = self._start(plan, handover, None)

    def advance(self, following: Plan | None) -> None:
        """Take the pass that has begun ahead for the current one: its turn has come."""
        self._current, self._ahead = self._ahead, None
        self._following = following
        if self._current is not None and self._current.produced:
            self._go_ahead(self._current)

    def taken(self, item: Item) -> None:
        """Note, from the user's thread, that a step was taken."""
        with contextlib.suppress(RuntimeError):  # the loop has ended; what it held is gone with it
            self._loop.call_soon_threadsafe(self._note_taken, item)

    def enter(self, order: Order) -> None:
        """Note that a run is under way."""
        self._active.add(order)
        self.memory.move_head(min(self._active))

    def leave(self, order: Order) -> None:
        """Note that a run is done."""
        self._active.discard(order)
        self.memory.move_head(min(self._active, default=(order[0], order[1] + 1)))
        self.counters.set(memory_peak=self.memory.peak)

    def _note_taken(self, item: Item) -> None:
        if isinstance(item, Delivery) and item.lease is not None:
            self.memory.hold(item.lease)
        for one in (self._current, self._ahead):
            if one is not None:
                one.look_again()

    def _start(self, plan: Plan, handover: Handover[Item], before: Handover[Item] | None) -> Pass:
        self._passes += 1
        started = Pass(self, self._passes, plan, handover, self._runner(handover), before)
        self._group.start_soon(started.run, self._go_ahead)
        return started

    def _go_ahead(self, produced: Pass) -> None:
        """Begin the next epoch while the present one's last batches are made."""
        if produced is self._current and self._ahead is None and self._following is not None:
            plan = self._following
            handover = self._announce(plan, self._begun)
            if handover is not None:
                self._ahead = self._start(plan, handover, produced.handover)

    def _runner(self, handover: Handover[Item]) -> Runner:
        """Return who decodes: the pool, or the user's thread where it waits for this pass."""
        if self.pool is not None:
            return self.pool
        recipe = self.settings.recipe
        worker = Worker(self.memory.arena.array, recipe, caught=Exception)
        return InlineRunner(worker, handover, seeded=recipe.seeded and recipe.seed_globals)
