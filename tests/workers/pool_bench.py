"""A pool over records in an arena, as the pipeline would have it, and all that it needs."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import cloudpickle
import google_crc32c
import numpy as np

from aioload._workers.arena import Arena, ArenaHandle
from aioload._workers.jobs import MARK, TABLE, Answer, Decode, Outcome, Recipe, Segment
from aioload._workers.packed import descriptor, unpack
from aioload._workers.pool import PoolOptions, WorkerPool
from aioload._workers.space import Span, align
from aioload.decode import for_kind
from aioload.shard.format import NativeFormat
from aioload.shard.kinds import encode
from aioload.storage.threads import DaemonExecutor

__all__ = ["Done", "House", "house", "make_recipe", "opened", "until"]

ROWS = 4
ROOM = 1 << 16


def make_recipe(transform: Callable[..., Any] | None = None) -> Recipe:
    """Make what workers need for records with one whole number, `n`."""
    decoders = (("n", for_kind("int")),)
    return Recipe((NativeFormat((("n", "int"),)),), decoders, transform, None, 0, False, (True,), False)


class Done:
    """Counts how often a job was told to have ended, and lets a test wait for it."""

    def __init__(self) -> None:
        self.count = 0
        self.event = asyncio.Event()
        self.order: list[str] = []

    def __call__(self) -> None:
        self.count += 1
        self.event.set()

    def named(self, name: str) -> Callable[[], None]:
        """Return what notes a name when its job has ended."""
        return functools.partial(self.order.append, name)


class House:
    """A pool, and four records with the numbers 0 to 3."""

    def __init__(self, pool: WorkerPool, arena: Arena, table: Span, deaths: list[int]) -> None:
        self.pool = pool
        self.deaths = deaths
        self._array = arena.array
        self._table = table
        self._rooms = iter(range(align(table.stop), arena.size - ROOM, ROOM))

    async def run(self, order: tuple[int, int] = (0, 0), done: Callable[[], None] = int) -> Answer:
        """Have the batch of all rows made, each time in another place."""
        start = next(self._rooms)
        segment = Segment(0, 0, ROWS, ROWS, Span(start, start + ROOM))
        return await self.pool.run(Decode(self._table, (segment,)), order, done)

    async def numbers(self) -> list[int]:
        """Have the batch made, and read it."""
        start = next(self._rooms)
        place = Span(start, start + ROOM)
        job = Decode(self._table, (Segment(0, 0, ROWS, ROWS, place),))
        (outcome,) = (await self.pool.run(job, (0, 0), int)).outcomes
        return self._read(outcome, place)["n"].tolist()

    def _read(self, outcome: Outcome, place: Span) -> Any:
        assert outcome.descriptor is not None, outcome
        part = self._array[place.start : place.stop]
        return unpack(part, descriptor(part, outcome.descriptor))


@asynccontextmanager
async def house(
    workers: int,
    transform: Callable[..., Any] | None = None,
    *,
    pickled: bytes | None = None,
    start: bool = True,
    **options: Any,
) -> AsyncIterator[House]:
    """Open a pool, and close it whatever happens."""
    most = options.get("most_workers") or workers
    threads = DaemonExecutor(6 * most + 2, name="test-start")
    deaths: list[int] = []
    with Arena(4 << 20) as arena:
        width = align(MARK.itemsize)
        marks = [Span(width * seat, width * seat + MARK.itemsize) for seat in range(most)]
        table = _fill(arena.array, width * most)
        recipe = pickled or cloudpickle.dumps(make_recipe(transform))
        settings = PoolOptions(workers, **options)
        pool = WorkerPool(settings, ArenaHandle(arena), marks, recipe, threads, lambda: deaths.append(1))
        async with anyio.create_task_group() as group:
            if start:
                group.start_soon(pool.serve)
            try:
                yield House(pool, arena, table, deaths)
            finally:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await pool.aclose()
                threads.shutdown()


def _fill(array: np.ndarray, place: int) -> Span:
    """Write records and their table; return where that lies."""
    format_ = NativeFormat((("n", "int"),))
    table = np.zeros(ROWS, TABLE)
    for row in range(ROWS):
        data = b"".join(map(bytes, format_.join(f"k{row}", {"n": encode("int", row)})))
        array[place : place + len(data)] = np.frombuffer(data, np.uint8)
        table[row] = (place, place + len(data), row, 0, google_crc32c.value(data), 0, 0, 0, 0)
        place += len(data)
    start = align(place)
    array[start : start + table.nbytes] = table.view(np.uint8)
    return Span(start, start + table.nbytes)


async def until(happened: Callable[[], bool]) -> None:
    """Wait until something has happened that nobody tells of."""
    with anyio.fail_after(10):
        while not happened():  # noqa: ASYNC110  # processes come and go without an event
            await anyio.sleep(0.001)


async def opened(wait: Callable[[], None]) -> None:
    """Wait for a gate in a thread that ends with the wait."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: (wait(), loop.call_soon_threadsafe(event.set)))
    thread.start()
    await event.wait()
    thread.join()
