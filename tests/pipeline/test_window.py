"""A piece is read once, kept until the last run that needs it, and never waited for."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import numpy as np
import pytest
from anyio.abc import TaskGroup
from orders import make_index

from aioload import ShardError
from aioload._pipeline.memory import Memory
from aioload._pipeline.needs import UNKNOWN
from aioload._pipeline.plan import Plan, Run, plan_run
from aioload._pipeline.window import Window
from aioload._pipeline.zones import divide
from aioload._workers.arena import Arena
from aioload._workers.ticket import Order
from aioload.order import Shuffle
from aioload.part import Part
from aioload.table import IndexTable

ROOM = 1 << 16


@dataclass
class Shelf:
    """Bytes that say where they come from, with a note of every read, and a gate."""

    reads: list[tuple[int, int, int]] = field(default_factory=list)
    opened: anyio.Event = field(default_factory=anyio.Event)
    failure: Exception | None = None

    async def read_into(self, shard: int, start: int, out: memoryview, order: Order) -> None:
        self.reads.append((shard, start, len(out)))
        await self.opened.wait()
        if self.failure is not None:
            raise self.failure
        out[:] = bytes((shard + place) % 251 for place in range(start, start + len(out)))


@pytest.fixture
async def memory() -> AsyncIterator[Memory]:
    """1 MiB with a window of 64 KiB."""
    with Arena(1 << 20) as arena:
        yield Memory(arena, lambda: None, divide(1 << 20, UNKNOWN, window=ROOM))


@pytest.fixture
def plan() -> Plan:
    """60 records of 100 bytes in two shards, shuffled in blocks of 500 bytes and two lanes."""
    table = IndexTable(make_index([[100] * 40, [100] * 20]))
    part = Part(60, 10, interleaved=True)
    return Plan(table, table.order(Shuffle("block", 1, 2, 500), 0), part, 0, ())


def runs(plan: Plan) -> list[Run]:
    """Return a run for each step."""
    return [plan_run(plan, step, step + 1, order=(1, step)) for step in range(plan.steps)]


async def inside(use: Callable[[TaskGroup], Awaitable[None]]) -> None:
    """Run a test's middle in a task group, as a pass does."""
    async with anyio.create_task_group() as group:
        await use(group)


async def test_a_piece_is_read_once(memory: Memory, plan: Plan) -> None:
    """Six runs share twelve blocks: every byte is read once, and each record is where the table says."""
    shelf = Shelf()
    shelf.opened.set()
    wrong: list[int] = []

    async def use(group: TaskGroup) -> None:
        window = Window(memory, shelf.read_into, group)
        for run in runs(plan):
            chunks, apart = window.admit(run)
            for chunk in chunks:
                await chunk.ready.wait()
            wrong.extend(misplaced(memory, run))
            assert len(apart) == 0
            for chunk in chunks:
                chunk.lease.release()
        window.close()

    await inside(use)
    gc.collect()

    assert wrong == []
    assert sum(size for _, _, size in shelf.reads) == 6000
    assert len(set(shelf.reads)) == len(shelf.reads)
    probe = memory.window_nowait(1)
    assert probe is not None
    assert memory.used == len(probe)


async def test_pieces_go_when_the_last_run_has_been(memory: Memory, plan: Plan) -> None:
    """After each run only pieces that a later one needs are kept; at the end there is none."""
    shelf = Shelf()
    shelf.opened.set()
    kept: list[int] = []

    async def use(group: TaskGroup) -> None:
        window = Window(memory, shelf.read_into, group)
        for run in runs(plan):
            chunks, _ = window.admit(run)
            for chunk in chunks:
                await chunk.ready.wait()
                chunk.lease.release()
            kept.append(len(window._open))
        window.close()

    await inside(use)

    assert kept[-1] == 0
    assert max(kept) <= 2 * 2


async def test_without_room_records_come_by_themselves(plan: Plan) -> None:
    """A window of no room admits no piece: all rows are read apart, and nothing waits."""
    shelf = Shelf()
    with Arena(1 << 20) as arena:
        memory = Memory(arena, lambda: None)

        async def use(group: TaskGroup) -> None:
            window = Window(memory, shelf.read_into, group)
            for run in runs(plan):
                chunks, apart = window.admit(run)
                assert (chunks, apart.tolist()) == ([], list(range(10)))
            window.close()

        await inside(use)

    assert shelf.reads == []


async def test_a_piece_that_came_too_late_is_not_taken_up(memory: Memory, plan: Plan) -> None:
    """Once records of a piece came by themselves the others do too: no byte is read twice."""
    shelf = Shelf()
    shelf.opened.set()
    whole = memory.window_nowait(ROOM)
    aparts: list[int] = []

    async def use(group: TaskGroup) -> None:
        window = Window(memory, shelf.read_into, group)
        for number, run in enumerate(runs(plan)):
            if number == 1 and whole is not None:
                whole.release()
            chunks, apart = window.admit(run)
            aparts.append(len(apart))
            for chunk in chunks:
                await chunk.ready.wait()
                chunk.lease.release()
        window.close()

    await inside(use)

    read = sum(size for _, _, size in shelf.reads)
    assert aparts[0] == 10
    assert aparts[-1] == 0
    assert read + 100 * sum(aparts) == 6000


async def test_a_failed_read_is_told_to_all_who_need_it(memory: Memory, plan: Plan) -> None:
    """A piece that cannot be read is ready with its failure, which keeps no memory, and the pass goes on."""
    shelf = Shelf(failure=ShardError("cut"))
    shelf.opened.set()
    failures: set[str] = set()
    kept: list[BaseException | None] = []

    async def use(group: TaskGroup) -> None:
        window = Window(memory, shelf.read_into, group)
        chunks, _ = window.admit(runs(plan)[0])
        for chunk in chunks:
            await chunk.ready.wait()
            failures.add(str(chunk.failure))
            kept.append(chunk.failure)
            chunk.lease.release()
        window.close()

    await inside(use)
    memory.move_head((1, 1))

    assert failures == {"cut"}
    assert (len(kept), memory.used) == (2, 0)


async def test_a_cancelled_read_keeps_its_memory_while_it_may_write(memory: Memory, plan: Plan) -> None:
    """Cancelled, a piece gives its memory back only when whoever fills it has let go."""
    shelf = Shelf()
    held: list[memoryview] = []

    async def keep(shard: int, start: int, out: memoryview, order: Order) -> None:
        held.append(out)
        await shelf.read_into(shard, start, out, order)

    async def use(group: TaskGroup) -> None:
        window = Window(memory, keep, group)
        chunks, _ = window.admit(runs(plan)[0])
        await anyio.wait_all_tasks_blocked()
        for chunk in chunks:
            chunk.lease.release()
        window.close()
        group.cancel_scope.cancel()

    await inside(use)
    gc.collect()
    during = memory.window_nowait(1)
    used = memory.used
    held.clear()
    gc.collect()
    after = memory.window_nowait(1)

    assert during is not None
    assert after is not None
    assert used >= 1000
    assert memory.used == len(during) + len(after)


def misplaced(memory: Memory, run: Run) -> list[int]:
    """Return the records of a run whose bytes are not where its table says."""
    found = []
    for row, at, size in zip(run.table, run.offsets, run.sizes, strict=True):
        data = memory.arena.array[int(row["start"]) : int(row["stop"])]
        wanted = (int(row["shard"]) + np.arange(at, at + size)) % 251
        if not np.array_equal(data, wanted):
            found.append(int(row["record"]))
    return found
