"""Engine: an event loop in a thread of its own, and the passes over the data that run in it.

The user's thread trains; a step there must not hold up a read here. The two meet at a `Handover` and nowhere
else.

A pass is one task group. Its producer admits runs in the order of need: each waits for its window, then for
its memory, then walks by itself. The walk is the library's only catch-all: whatever goes wrong takes the
place of the steps it concerns, so earlier batches come out first and the error comes bare, at its own step.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import cloudpickle
import numpy as np

from .._workers.arena import Arena, ArenaHandle
from .._workers.layout import align
from .._workers.pool import WorkerPool
from .._workers.task import Recipe, Worker
from ..errors import AioloadError, ClosedError
from ..stats import Counters
from ..storage.threads import DaemonExecutor
from .decode import Decoder
from .deliver import Delivery, Made, Output, deliver
from .fetch import fetch
from .inline import InlineRunner
from .memory import Lease, Memory
from .plan import Plan, Run, plan_run
from .reorder import Handover
from .sizes import Sizes

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from anyio.streams.memory import MemoryObjectSendStream

    from .._workers.pool import Order, Runner
    from ..storage import Storage

__all__ = ["Engine", "Item", "Settings"]

_log = logging.getLogger("aioload.engine")

_MAX_READ_BYTES = 4 << 20  # a thread hop costs nothing that can be measured at this size
_MAX_GAP_BYTES = 64 << 10  # reading so much in vain costs less than another read
_READS_IN_FLIGHT = 4
_CLOSE_SECONDS = 5.0

Item = Delivery | AioloadError
"""What a step of a pass turns out to be."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an engine runs with."""

    open_storage: Callable[[], Storage]
    recipe: Recipe
    num_workers: int
    prefetch: int | None  # batches; None adapts
    memory_limit: int
    output: Output
    on_kept: Callable[[], None]  # warns that batches kept by the user fill the memory


class Engine:
    """Runs passes until it is closed.

    Args:
        settings: what to run with.
        counters: told of everything.
    """

    def __init__(self, settings: Settings, counters: Counters) -> None:
        self._settings = settings
        self._counters = counters
        self._thread = threading.Thread(target=self._run, name="aioload-engine", daemon=True)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._orders: MemoryObjectSendStream[tuple[Plan, Handover[Item]]] | None = None
        self._house: _House | None = None
        self._handovers: list[Handover[Item]] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread and wait until its loop runs.

        Raises:
            ConfigError: there is no room for the memory limit.
        """
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def open_pass(self, plan: Plan, first_step: int) -> Handover[Item]:
        """Begin a pass; batches come out of the hand-over that is returned."""
        house, orders = self._house, self._orders
        if house is None or orders is None or self._loop is None:
            raise ClosedError("the loader was closed; make a new one to go on")
        handover: Handover[Item] = Handover(first_step, plan.steps, house.taken)
        with self._lock:
            self._handovers = [handover]
        try:
            self._loop.call_soon_threadsafe(orders.send_nowait, (plan, handover))
        except RuntimeError:  # its loop has just ended
            self.check()
        return handover

    def check(self) -> None:
        """Raise if the engine has died: whoever waits for it must not wait for ever."""
        if not self._thread.is_alive():
            raise self._failure or ClosedError("the loader was closed; make a new one to go on")

    def close(self) -> None:
        """End all work, processes and the thread, within `_CLOSE_SECONDS`; twice is free."""
        self._close_handovers(None)
        if self._loop is not None and self._orders is not None:
            with contextlib.suppress(RuntimeError):  # its loop has just ended
                self._loop.call_soon_threadsafe(self._orders.close)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():
                _log.warning("the engine did not end within %s s and is left behind", _CLOSE_SECONDS)

    def _run(self) -> None:
        """Be the thread."""
        try:
            anyio.run(self._main, backend_options={"use_uvloop": _have_uvloop()})
        except BaseException as error:  # whoever waits for this thread is told
            self._failure = error
            _log.debug("the engine failed", exc_info=True)
        finally:
            self._house = None
            self._started.set()
            failure = self._failure
            self._close_handovers(None if failure is None else _as_ours(failure))

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._orders, orders = anyio.create_memory_object_stream[tuple[Plan, Handover[Item]]](math.inf)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._orders)  # `close` closes it, but for an engine that does not get so far
            stack.enter_context(orders)
            house = await _House.open(self._settings, self._counters, stack)
            async with anyio.create_task_group() as group:
                house.move_in(group)
                self._house = house
                self._started.set()
                async for plan, handover in orders:  # until `close` closes the other end
                    house.begin(plan, handover)
                self._house = None
                group.cancel_scope.cancel()

    def _close_handovers(self, error: AioloadError | None) -> None:
        with self._lock:
            handovers, self._handovers = self._handovers, []
        for handover in handovers:
            handover.close(error)


class _House:
    """The parts of an engine, in its loop: arena, storage, pool, and the pass that runs."""

    def __init__(self, settings: Settings, counters: Counters, memory: Memory, storage: Storage) -> None:
        self.settings = settings
        self.counters = counters
        self.memory = memory
        self.storage = storage
        self.pool: WorkerPool | None = None
        self.limiter = anyio.CapacityLimiter(_READS_IN_FLIGHT)
        self.sizes: Sizes | None = None
        self.active: dict[Order, Run] = {}
        self._loop = asyncio.get_running_loop()
        self._passes = 0
        self._current: _Pass | None = None

    @classmethod
    async def open(cls, settings: Settings, counters: Counters, stack: contextlib.AsyncExitStack) -> _House:
        """Open all parts; the stack closes them in reverse."""
        arena = stack.enter_context(Arena(settings.memory_limit))
        counters.set(memory_limit=settings.memory_limit, num_workers=settings.num_workers)
        storage = settings.open_storage()
        aclose = getattr(storage, "aclose", None)
        if aclose is not None:
            stack.push_async_callback(aclose)
        house = cls(settings, counters, Memory(arena, settings.on_kept), storage)
        if settings.num_workers:
            # for each worker one that starts it, one that shuts it down, one that ends it by force
            threads = DaemonExecutor(3 * settings.num_workers, name="aioload-start")
            stack.callback(threads.shutdown, wait=False)
            recipe = cloudpickle.dumps(settings.recipe)
            house.pool = WorkerPool(settings.num_workers, ArenaHandle(arena), recipe, threads)
            stack.push_async_callback(house.pool.aclose)
        return house

    def move_in(self, group: TaskGroup) -> None:
        """Start what runs all the time."""
        self._group = group
        if self.pool is not None:
            group.start_soon(self.pool.start)

    def begin(self, plan: Plan, handover: Handover[Item]) -> None:
        """Begin a pass, and end the one before."""
        if self._current is not None:
            self._current.scope.cancel()
        self._passes += 1
        if self.sizes is None:
            index = plan.index
            mean = int(index.positions[-1]) / max(len(index), 1)
            self.sizes = Sizes(self.settings.num_workers, mean, self.memory.limit // 16)
        self._current = _Pass(self, self.sizes, self._passes, plan, handover)
        self._group.start_soon(self._current.run)

    def taken(self, item: Item) -> None:
        """Note, from the user's thread, that a step was taken."""
        with contextlib.suppress(RuntimeError):  # the loop has ended; what it held is gone with it
            self._loop.call_soon_threadsafe(self._note_taken, item)

    def _note_taken(self, item: Item) -> None:
        if isinstance(item, Delivery) and item.lease is not None:
            self.memory.hold(item.lease)
        if self._current is not None:
            self._current.room.set()
            self.move_head()

    def move_head(self) -> None:
        """Tell the memory what the user needs next: the first under way, if all before it was taken."""
        mine = [order for order in self.active if order[0] == self._passes]
        if self._current is None or not mine:
            return
        number, first = min(mine)
        due = self._current.handover.due >= self.active[number, first].first_step
        self.memory.move_head((number, first if due else first - 1))


@dataclass
class _Pass:
    """One pass over the data."""

    house: _House
    sizes: Sizes
    number: int
    plan: Plan
    handover: Handover[Item]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    room: anyio.Event = field(default_factory=anyio.Event)

    async def run(self) -> None:
        """Admit runs, one after the other, until all steps are under way; return when all are done."""
        with self.scope:
            try:
                async with anyio.create_task_group() as group:
                    await self._produce(group)
            except Exception as error:
                _log.debug("a pass failed", exc_info=True)
                self.handover.close(_as_ours(error))

    async def _produce(self, group: TaskGroup) -> None:
        decoder = self._decoder()
        step, number = self.handover.due, 0
        while step < self.handover.stop:
            together = self.sizes.steps_per_run(self.plan.batch_size)
            count = min(together, self._depth(), self.handover.stop - step)
            await self._window(step + count)
            order = (self.number, number)
            run = plan_run(
                self.plan,
                step,
                step + count,
                order=order,
                max_gap_bytes=_MAX_GAP_BYTES,
                max_read_bytes=_MAX_READ_BYTES,
            )
            self.house.active[order] = run
            self.house.move_head()
            try:
                raw = await self._lease(run)
            except AioloadError as error:
                self._leave(run)
                self.handover.put(step, error)
                return
            except BaseException:
                self._leave(run)
                raise
            group.start_soon(self._walk, run, raw, decoder)
            step, number = step + count, number + 1

    async def _lease(self, run: Run) -> Lease:
        """Wait for the memory that the raw records and their table take."""
        return await self.house.memory.lease(align(run.raw_bytes) + run.table.nbytes, run.order)

    async def _walk(self, run: Run, raw: Lease, decoder: Decoder) -> None:
        """Take a run through the pipeline."""
        open_steps = set(run.steps)

        def put(step: int, result: Made | AioloadError) -> None:
            open_steps.discard(step)
            item = self._deliver(result)
            if isinstance(item, AioloadError):
                item.step, item.facts = step, {**item.facts, "step": step}
            self.handover.put(step, item)

        try:
            table = await self._fetch(run, raw, put)
            if open_steps:
                await decoder.make(run, raw, table, self.plan.epoch, sorted(open_steps), put)
        except Exception as error:
            failure = _as_ours(error)
            for step in sorted(open_steps):
                put(step, failure)
        finally:
            raw.release()
            self._leave(run)

    async def _fetch(self, run: Run, raw: Lease, put: Callable[[int, AioloadError], None]) -> int:
        """Read the run's records and return where its table lies, behind them; steps that failed are put."""
        arena, start = self.house.memory.arena, raw.span.start
        table_start = start + align(run.raw_bytes)
        raw.keep()
        # a read that is stuck in a thread keeps this array, and so the lease, for as long as it may write
        target = arena.borrow(start, table_start, raw.release_soon)
        shards = self.plan.index.shards
        failures = await fetch(
            run, self.house.storage, shards, target, self.house.limiter, self.house.counters
        )
        for step, rows in _rows_of_steps(run) if failures else ():
            failed = [failures[row] for row in rows if row in failures]
            if failed:
                put(step, failed[0])

        table = run.table.copy()
        table["start"] += np.uint64(start)
        table["stop"] += np.uint64(start)
        arena.array[table_start : table_start + table.nbytes] = table.view(np.uint8)
        return table_start

    def _deliver(self, result: Made | AioloadError) -> Item:
        if isinstance(result, AioloadError):
            return result
        try:
            return deliver(result, self.house.memory, self.house.settings.output, self._count_copy)
        except Exception as error:
            return _as_ours(error)

    def _count_copy(self) -> None:
        self.house.counters.add(copies=1)

    def _leave(self, run: Run) -> None:
        """Let the next run be the head."""
        del self.house.active[run.order]
        self.house.move_head()
        self.house.counters.set(memory_peak=self.house.memory.peak)

    async def _window(self, stop_step: int) -> None:
        """Wait until so many steps were taken that the next run is not too early."""
        while stop_step - self.handover.due > self._depth():
            self.room = anyio.Event()
            if stop_step - self.handover.due > self._depth():
                await self.room.wait()

    def _depth(self) -> int:
        """Return how many batches may be ahead of the user."""
        if self.house.settings.prefetch is not None:
            return self.house.settings.prefetch
        workers = max(self.house.settings.num_workers, 1)
        return max(2, 2 * workers, 2 * (workers + 1) * self.sizes.steps_per_run(self.plan.batch_size))

    def _decoder(self) -> Decoder:
        house = self.house
        runner: Runner
        recipe = house.settings.recipe
        if house.pool is not None:
            runner = house.pool
        else:
            seeded = recipe.seeded and recipe.seed_globals
            worker = Worker(house.memory.arena.array, recipe, caught=Exception)
            runner = InlineRunner(worker, self.handover, seeded=seeded)
        return Decoder(
            runner,
            house.memory,
            self.sizes,
            self.plan.index.shards,
            stacks=recipe.collate is None,
            counters=house.counters,
        )


def _rows_of_steps(run: Run) -> Iterator[tuple[int, range]]:
    """Yield each step of a run with the rows of the table that it has."""
    first = 0
    for step, rows in zip(run.steps, run.rows, strict=True):
        yield step, range(first, first + rows)
        first += rows


def _as_ours(error: BaseException) -> AioloadError:
    """Return the error that the user meets for one that came up in here."""
    while isinstance(error, BaseExceptionGroup):  # of a task group inside; the first reason is the reason
        error = error.exceptions[0]
    if isinstance(error, AioloadError):
        return error
    message = f"aioload failed inside: {error!r}; this is a bug, please report it"
    ours = AioloadError(message, cause=repr(error))
    ours.__cause__ = error
    return ours


def _have_uvloop() -> bool:
    return importlib.util.find_spec("uvloop") is not None
