"""House: the parts that all passes share, in the engine's loop: arena, storages, workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import cloudpickle

from .._workers.arena import Arena, ArenaHandle
from .._workers.borrowed import FAR_JOB_SECONDS, Borrowed
from .._workers.executors import is_near, shares_memory
from .._workers.jobs import MARK
from .._workers.layout import foreseen
from .._workers.parcel import make_kit
from .._workers.pool import PoolOptions, WorkerPool
from .._workers.space import align
from .._workers.task import Worker
from .._workers.transport import Far, Near
from ..cache.guard import Guard
from ..cache.guard import read as read_memory
from ..cache.shelf import Holding, Shelf
from ..machine import usable_cpus
from ..storage import LocalStorage, close
from ..storage.threads import DaemonExecutor
from .afar import Afar
from .caching import Caching
from .careful import Suspects
from .deliver import Output
from .fetch import Reader
from .manners import Manners
from .mapped import Mapped, choose
from .memory import Memory
from .needs import UNKNOWN, Growth, Need
from .sizes import JOB_SECONDS, Sizes
from .slots import Slots
from .tuner import FIRST_READS, Tuner
from .watch import Watch
from .zones import divide, least, too_small

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from anyio.abc import TaskGroup
    from numpy.typing import NDArray

    from .._device.convert import Convert
    from .._device.interface import Device
    from .._workers.jobs import Recipe
    from .._workers.pool import Order
    from .._workers.reach import Reach
    from ..errors import AioloadError, ConfigError
    from ..stats import Counters
    from ..storage import Storage
    from .reorder import Handover

__all__ = ["MAX_READ_BYTES", "Adopt", "House", "Settings"]

Adopt = Callable[["NDArray[Any]", Callable[[int, int], None]], None]
"""Takes memory, and what makes its pages present."""

# in the user's thread: what signal handlers raise to end the program is not the transform's
CAUGHT = (Exception, GeneratorExit, asyncio.CancelledError)

_MOST_READS = 64  # at once, where a storage does not say
MAX_READ_BYTES = 4 << 20  # a thread hop costs nothing that can be measured at this size
_MAX_SENT_BYTES = 8 << 20  # raw, in a run whose records are sent: each job is a message of its own


@dataclass(frozen=True, slots=True)
class Settings:
    """What an engine runs with."""

    open_storages: Callable[[], list[Storage]]  # one for each set
    shards: Sequence[str]  # names, relative to the storage of their set
    sources: Sequence[int]  # the set of each shard
    labels: Sequence[str]  # what errors call each shard
    record_bytes: float  # mean size of a record
    data_bytes: int  # of all records
    reads: str  # "auto", "file" or "mmap"
    recipe: Recipe
    workers: PoolOptions
    decide: Callable[[AioloadError], Any] | None  # what becomes of a record that fails; see `careful`
    prefetch: int | None  # batches; None adapts
    memory_limit: int
    window_bytes: int  # of it, for pieces that are read whole
    output: Output
    on_kept: Callable[[], None]  # warns that batches kept by the user fill the memory
    device: Device | None = None  # where batches are copied
    convert: Convert | None = None  # and what becomes of them there
    need: Need = UNKNOWN  # of any batch, as far as it is known
    growth: Growth | None = None  # what becomes of records, if that is known
    extents: Callable[[], Sequence[tuple[int, int]]] = tuple  # where records begin and end in each shard
    holding: Holding | None = None  # what is kept of samples
    executor: Executor | None = None  # somebody else's in place of a pool; `workers` counts its workers
    reach: Reach | None = None  # reads records where they are decoded


class House:
    """What lives as long as the engine: arena, storages, pool.

    Args:
        settings: what to run with.
        counters: told of everything.
        memory: the arena's.
        storages: one for each set.
        mapped: shards that workers map; None if all are read.
    """

    def __init__(
        self,
        settings: Settings,
        counters: Counters,
        memory: Memory,
        storages: list[Storage],
        mapped: Mapped | None,
    ) -> None:
        self.settings = settings
        self.counters = counters
        self.memory = memory
        self.labels = settings.labels
        self.need = settings.need
        self.manners = Manners(counters)
        executor = settings.executor
        self.travels = executor is not None and not shares_memory(executor)
        """Whether what workers make has to be sent here."""
        self.sizes = Sizes(
            settings.workers.num_workers,
            settings.record_bytes,
            self._run_bytes,
            settings.growth,
            job_seconds=JOB_SECONDS if executor is None or is_near(executor) else FAR_JOB_SECONDS,
        )
        recipe = settings.recipe
        if recipe.decodes_alone:
            layout = foreseen(recipe.decoders)
            if layout is not None:
                self.sizes.learn(layout)
        most_reads = max((getattr(storage, "max_reads", _MOST_READS) for storage in storages), default=1)
        first_reads = max((getattr(storage, "first_reads", FIRST_READS) for storage in storages), default=1)
        slots = Slots(min(first_reads, most_reads))
        self.tuner = Tuner(
            settings.workers, settings.prefetch, most_reads, counters, self.sizes, memory, slots
        )
        self.mapped = mapped
        self.reader = Reader(
            storages,
            settings.shards,
            settings.sources,
            slots,
            [getattr(storage, "max_read_bytes", MAX_READ_BYTES) for storage in storages],
            counters,
            on_read=self.tuner.look,
        )
        self.suspects = Suspects()
        self.caching: Caching | None = None
        self.worker: Worker | None = None  # does jobs in the user's thread
        self.pool: WorkerPool | Borrowed | None = None
        self.handover: Handover[Any] | None = None  # where the user takes
        self._active: dict[Order, Callable[[], bool]] = {}
        self._brought: set[Order] = set()  # runs whose bytes are all there
        self.watch = Watch(counters, memory, self.tuner)
        self.watch.wanted, self.watch.late = self._wanted, self._late
        memory.on_wait = self.tuner.on_hold = self.watch.look
        memory.follow(self._head)

    @classmethod
    async def open(
        cls,
        settings: Settings,
        counters: Counters,
        stack: contextlib.AsyncExitStack,
        group: TaskGroup,
        adopt: Adopt | None = None,
    ) -> House:
        """Open all parts; the stack closes them in reverse.

        Args:
            settings: what to run with.
            counters: told of everything.
            stack: of what has to be closed.
            group: where parts run.
            adopt: given the memory in which batches will lie, to page-lock it.
        """
        zones = divide(
            settings.memory_limit,
            settings.need,
            window=settings.window_bytes,
            reserved=reserved_bytes(settings.workers),
        )
        arena = stack.enter_context(Arena(settings.memory_limit, spare=settings.memory_limit))
        storages = settings.open_storages()
        stack.push_async_callback(_close, storages)
        mapped = choose(
            settings.reads,
            storages,
            settings.shards,
            settings.sources,
            data_bytes=settings.data_bytes,
            # a file that is cut ends who maps it, and only workers of our own are replaced
            num_workers=0 if settings.executor else settings.workers.num_workers,
            checked=all(settings.recipe.checked),
            extents=settings.extents,
        )
        if settings.reach is not None:
            mapped = Afar()
        if mapped is not None and not mapped.reads:
            zones = replace(zones, shared=zones.head)  # nothing is read
        counters.set(
            memory_limit=settings.memory_limit,
            num_workers=settings.workers.num_workers,
            window_bytes=zones.shared - zones.head,
            mapped=mapped is not None and not mapped.reads,
            cpus=usable_cpus(),
        )
        if adopt is not None:
            first = zones.shared
            adopt(
                arena.array[first : zones.limit], lambda start, stop: arena.touch(first + start, first + stop)
            )
        memory = Memory(arena, settings.on_kept, zones)
        if settings.need.known:
            memory.settle()
        house = cls(settings, counters, memory, storages, mapped)
        shelf = house._open_shelf(stack)
        if not settings.workers.num_workers:
            kept = None if shelf is None else shelf.memory
            house.worker = Worker(arena.array, house._recipe(), memory=kept, caught=CAUGHT)
            stack.callback(house.worker.close)
        if settings.workers.num_workers:
            pool = house._open_pool(stack, shelf) if settings.executor is None else house._borrow(stack)
            house.pool = house.tuner.pool = house.watch.pool = pool
            pool.on_change = house.watch.look
            stack.push_async_callback(house.end_workers)
            group.start_soon(house.pool.serve)
        return house

    async def end_workers(self) -> None:
        """End all worker processes, whoever is cancelled meanwhile; twice is free."""
        if self.pool is not None:
            with anyio.CancelScope(shield=True):
                await self.pool.aclose()

    def enough(self, need: Need) -> int:
        """Return a limit that is enough for what a batch has told of its need."""
        return least(need, reserved=reserved_bytes(self.settings.workers), told=True)

    def refusal(self, need: Need) -> ConfigError:
        """Return the error of a limit that is not."""
        reserved = reserved_bytes(self.settings.workers)
        return too_small(self.memory.limit, need, reserved=reserved, told=True)

    def enter(self, order: Order, is_due: Callable[[], bool]) -> None:
        """Note that a run is under way.

        Args:
            order: its urgency.
            is_due: tells whether the user has taken all that comes before it.
        """
        self.watch.look()
        self._active[order] = is_due
        self.memory.look_again()

    def note_brought(self, order: Order) -> None:
        """Note that all bytes of a run are there."""
        self.watch.look()
        self._brought.add(order)

    def leave(self, order: Order) -> None:
        """Note that a run is done."""
        self.watch.look()
        del self._active[order]
        self._brought.discard(order)
        self.memory.look_again()
        self.counters.set(memory_peak=self.memory.peak, lease_waits=self.memory.waits)

    def levels(self) -> dict[str, float]:
        """Return how things are as of now, by their names in the stats; from any thread."""
        pool, handover = self.pool, self.handover
        return self.watch.levels() | {
            "memory_used": self.memory.used,
            "leases": self.memory.leases,
            "batches_ready": 0 if handover is None else handover.ready,
            "runs_under_way": len(self._active),
            "jobs_waiting": 0 if pool is None else pool.jobs_waiting,
            "jobs_running": 0 if pool is None else pool.jobs_running,
            "reads_running": self.reader.running,
        }

    def _wanted(self) -> str:
        """Return what the batch that the user waits for needs next; from any thread."""
        active = tuple(self._active)  # at once, as the engine may change it meanwhile
        if not active:
            return ""
        first = min(active)
        is_due = self._active.get(first)
        if is_due is None or not is_due() or (self.handover is not None and self.handover.is_ready):
            return ""
        return "work" if first in self._brought else "read"

    def _late(self) -> bool:
        return self.handover is not None and self.handover.late

    def _head(self) -> Order | None:
        """Return what the user needs next: the first run under way, if all before it was taken."""
        if not self._active:
            return None
        number, first = min(self._active)
        return number, first if self._active[number, first]() else first - 1

    def _open_shelf(self, stack: contextlib.AsyncExitStack) -> Shelf | None:
        """Open what samples are kept in; None where none are."""
        settings = self.settings
        if settings.holding is None:
            return None
        shelf = Shelf(settings.holding, read_memory())
        stack.callback(shelf.close)
        storage = None if shelf.folder is None else LocalStorage(shelf.folder)
        if storage is not None:
            stack.push_async_callback(_close, [storage])
        guard = Guard()
        self.caching = Caching(shelf, self.counters, self.tuner, guard, storage)
        return shelf

    def _recipe(self) -> Recipe:
        """Return the recipe as workers need it."""
        paths = () if self.mapped is None else self.mapped.paths
        stock = None if self.caching is None else self.caching.plan
        return replace(self.settings.recipe, paths=paths, stock=stock)

    @property
    def _run_bytes(self) -> int:
        """Raw bytes that a run may bring in."""
        most = self.memory.limit // 16
        return min(most, _MAX_SENT_BYTES) if self.travels else most

    def _borrow(self, stack: contextlib.AsyncExitStack) -> Borrowed:
        """Have the user's executor do the jobs."""
        executor, recipe = self.settings.executor, self.settings.recipe
        assert executor is not None
        num_workers = self.settings.workers.num_workers
        array = self.memory.arena.array
        threads = DaemonExecutor(2, name="aioload-executor")
        stack.callback(threads.shutdown, wait=False)
        self.counters.reasons["num_workers"] = "what the executor has"
        transport: Near | Far = Near(executor, array, recipe)
        if self.travels:
            reach = b"" if self.settings.reach is None else cloudpickle.dumps(self.settings.reach)
            kit = make_kit(cloudpickle.dumps(recipe), reach)
            transport = Far(executor, array, kit, num_workers)
        return Borrowed(transport, num_workers, threads, lambda: self.counters.add(restarts=1))

    def _open_pool(self, stack: contextlib.AsyncExitStack, shelf: Shelf | None) -> WorkerPool:
        options = self.settings.workers
        most = options.most_workers or options.num_workers
        # a worker may wait for its start while two before it end, and ending takes two threads
        threads = DaemonExecutor(6 * most + 2, name="aioload-start")
        stack.callback(threads.shutdown, wait=False)
        # all at once: later they would lie in the middle of what is free
        marks = [self.memory.reserve(MARK.itemsize) for _ in range(most)]
        recipe = cloudpickle.dumps(self._recipe())
        kept = None if shelf is None else shelf.memory
        handle = ArenaHandle(self.memory.arena, None if kept is None else kept.fd)
        restarted = partial(self.counters.add, restarts=1)
        return WorkerPool(options, handle, marks, recipe, threads, restarted, self._started)

    def _started(self, process: int, began: float) -> None:
        """Tell a trace of a worker that is up."""
        if (trace := self.counters.trace) is not None:
            trace.started(process, began)


def reserved_bytes(workers: PoolOptions) -> int:
    """Return the bytes of the arena that are set aside for good: the workers' marks."""
    return (workers.most_workers or workers.num_workers) * align(MARK.itemsize)


async def _close(storages: Sequence[Storage]) -> None:
    """Close storages side by side: one that is stuck must not use up the others' time."""
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as group:
            for storage in storages:
                group.start_soon(close, storage)
