"""Fetch: all bytes of a run, or the error of exactly those records that cannot be had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import numpy as np
import pytest
from fakes import FaultyStorage
from orders import make_index

from aioload._pipeline.fetch import Failures, Fetcher, Reader
from aioload._pipeline.memory import Memory
from aioload._pipeline.needs import UNKNOWN
from aioload._pipeline.plan import Plan, Run, merge, plan_run
from aioload._pipeline.slots import Slots
from aioload._pipeline.window import Window
from aioload._pipeline.zones import divide
from aioload._workers.arena import Arena
from aioload.errors import ClosedError, NotFoundError, ShardError, StorageError
from aioload.order import Shuffle
from aioload.part import Part
from aioload.stats import Counters
from aioload.storage import MemoryStorage
from aioload.table import IndexTable

RECORD = 10
HEAD = 32  # bytes of a shard before its first record
FIRST, SECOND = "shard-00000.aio", "shard-00001.aio"


def planned(records: int = 8, *, shards: int = 1, mode: Any = "none") -> Run:
    """Plan one batch of records of 10 bytes, spread evenly over shards; blocks have four of them."""
    table = IndexTable(make_index([[RECORD] * (records // shards)] * shards))
    part = Part(records, records, interleaved=mode == "block")
    plan = Plan(table, table.order(Shuffle(mode, 1, 2, 4 * RECORD), 0), part, 0, ())
    return plan_run(plan, 0, 1, order=(1, 0))


def shard(records: int) -> bytes:
    """Make a shard's file whose bytes count up; its records begin behind the head."""
    return bytes(range(HEAD + RECORD * records))


def record(number: int) -> bytes:
    """Return the bytes of a shard's record."""
    return shard(number + 1)[-RECORD:]


@dataclass
class Fetched:
    """What a fetch brought."""

    rows: list[bytes]  # what lies where the table says
    failures: Failures
    reads: int  # that were planned


async def fetched(
    run: Run,
    *storages: Any,
    shards: Sequence[str] = (FIRST, SECOND),
    sources: Sequence[int] = (0, 0),
    most: int = 1 << 20,
    counters: Counters | None = None,
    window: int = 0,
) -> Fetched:
    """Fetch a run into an arena; what was leased for it must come back."""
    slots = Slots(2)
    with Arena(1 << 20) as arena:
        memory = Memory(arena, int, divide(1 << 20, UNKNOWN, window=window))
        reader = Reader(storages, shards, sources, slots, [1 << 20] * len(storages), counters or Counters())
        async with anyio.create_task_group() as group:
            pieces = Window(memory, reader.read_into, group)
            chunks, alone = pieces.admit(run)
            reads, size = merge(run, alone, max_gap_bytes=0, max_read_bytes=most)
            raw = await memory.lease(size, run.order)
            run.table["start"][alone] += np.uint64(raw.span.start)
            run.table["stop"][alone] += np.uint64(raw.span.start)

            failures = await Fetcher(run, reader, memory).fetch(reads, raw, chunks)

            found = [bytes(arena.memory[row["start"] : row["stop"]]) for row in run.table]
            pieces.close()
            [lease.release() for lease in (raw, *(chunk.lease for chunk in chunks))]
        memory.move_head((9, 0))
        assert memory.used == 0, "leases were lost"
    return Fetched(found, failures, len(reads))


async def test_all_bytes_come_to_their_place() -> None:
    """A run over several shards is read whole, and counted."""
    counters = Counters()

    found = await fetched(
        planned(8, shards=2), MemoryStorage({FIRST: shard(4), SECOND: shard(4)}), counters=counters
    )

    assert found.failures == {}
    assert found.rows == [record(number) for number in range(4)] * 2
    assert (counters.snapshot().reads, counters.snapshot().read_bytes) == (2, 80)


async def test_each_shard_is_read_from_its_own_set() -> None:
    """Two sets whose shards have the same name do not get into each other's way."""
    first, second = MemoryStorage({FIRST: shard(4)}), MemoryStorage({FIRST: shard(4)[::-1]})

    found = await fetched(planned(8, shards=2), first, second, shards=(FIRST, FIRST), sources=(0, 1))

    backwards = shard(4)[::-1][HEAD:]
    assert found.rows[:4] == [record(number) for number in range(4)]
    assert b"".join(found.rows[4:]) == backwards


async def test_a_record_over_the_border_of_two_reads_is_whole() -> None:
    """A long stretch is read in pieces, wherever records begin."""
    found = await fetched(planned(8), MemoryStorage({FIRST: shard(8)}), most=33)

    assert found.rows == [record(number) for number in range(8)]
    assert (found.failures, found.reads) == ({}, 3)


@pytest.mark.parametrize("most", [1 << 20, 33, 7])
async def test_a_file_cut_short_fails_only_behind_the_cut(most: int) -> None:
    """Of a merged read that fails, every record that can be had is had; the others are named."""
    found = await fetched(planned(8), MemoryStorage({FIRST: shard(8)[: HEAD + 55]}), most=most)

    assert sorted(found.failures) == [5, 6, 7]
    assert found.rows[:5] == [record(number) for number in range(5)]
    assert {type(error) for error in found.failures.values()} == {ShardError}
    assert [(error.shard, error.record) for _, error in sorted(found.failures.items())] == [
        *((FIRST, 5), (FIRST, 6), (FIRST, 7)),
    ]


async def test_a_missing_shard_fails_its_own_records() -> None:
    """A shard that is not there takes no other shard's records with it."""
    found = await fetched(planned(8, shards=2), MemoryStorage({SECOND: shard(4)}))

    assert sorted(found.failures) == [0, 1, 2, 3]
    assert isinstance(found.failures[0], NotFoundError)
    assert found.rows[4:] == [record(number) for number in range(4)]


async def test_a_merged_read_that_fails_once_costs_nobody() -> None:
    """A fault that is gone at the second try is nobody's error."""
    storage = FaultyStorage(MemoryStorage({FIRST: shard(8)}), {0: StorageError("once")})

    found = await fetched(planned(8), storage)

    assert found.rows == [record(number) for number in range(8)]
    assert (found.failures, len(storage.reads)) == ({}, 9)


async def test_a_read_of_one_record_is_not_tried_again() -> None:
    """Trying again is the storage's matter; here it only finds out who is concerned."""
    storage = FaultyStorage(MemoryStorage({FIRST: shard(8)}), {0: StorageError("for good")})

    found = await fetched(planned(1), storage)

    assert list(found.failures) == [0]
    assert found.failures[0].__notes__ == ["while reading record 0"]
    assert len(storage.reads) == 1


async def test_other_errors_end_the_run() -> None:
    """What is no fault of data or storage, such as closing, is not blamed on records."""
    storage = FaultyStorage(MemoryStorage({FIRST: shard(8)}), {0: ClosedError("closed")})

    with pytest.raises(ExceptionGroup) as caught:
        await fetched(planned(8), storage)

    assert caught.group_contains(ClosedError, match="closed")


async def test_records_of_a_piece_come_with_it() -> None:
    """Where there is room for pieces, each is one read, and no record is read by itself."""
    run = planned(8, mode="block")
    counters = Counters()

    found = await fetched(run, MemoryStorage({FIRST: shard(8)}), counters=counters, window=1 << 16)

    assert found.rows == [record(number) for number in run.table["record"].tolist()]
    assert (found.failures, found.reads) == ({}, 0)
    assert (counters.snapshot().reads, counters.snapshot().read_bytes) == (2, 80)


async def test_a_piece_cut_short_fails_only_behind_the_cut() -> None:
    """Of a piece that fails, every record that can be had is had; the others are named."""
    run = planned(8, mode="block")
    records = run.table["record"].tolist()

    found = await fetched(run, MemoryStorage({FIRST: shard(8)[: HEAD + 65]}), window=1 << 16)

    failed = {records[row]: error for row, error in found.failures.items()}
    assert sorted(failed) == [6, 7]
    assert [(type(failed[number]), failed[number].record) for number in (6, 7)] == [
        *((ShardError, 6), (ShardError, 7)),
    ]
    assert [found.rows[records.index(number)] for number in range(6)] == [
        record(number) for number in range(6)
    ]


async def test_a_piece_that_fails_once_costs_nobody() -> None:
    """The records of a piece whose read failed are had one by one, into the piece's own memory."""
    run = planned(8, mode="block")
    storage = FaultyStorage(MemoryStorage({FIRST: shard(8)}), {0: StorageError("once")})

    found = await fetched(run, storage, window=1 << 16)

    assert found.rows == [record(number) for number in run.table["record"].tolist()]
    assert (found.failures, len(storage.reads)) == ({}, 2 + 4)


@pytest.mark.parametrize(("most", "reads"), [(80, 1), (79, 2), (33, 3), (1, 80)])
async def test_a_reader_asks_for_no_more_than_it_may(most: int, reads: int) -> None:
    """A longer read becomes several, each counted, and the bytes are the same."""
    counters, out = Counters(), bytearray(80)
    storage = FaultyStorage(MemoryStorage({FIRST: shard(8)}), {})
    reader = Reader([storage], [FIRST], [0], Slots(2), [most], counters)

    await reader.read_into(0, HEAD, memoryview(out), (0, 0))

    assert out == shard(8)[HEAD:]
    assert max(read.stop - read.start for read in storage.reads) <= most
    assert (len(storage.reads), counters.snapshot().reads) == (reads, reads)
    assert counters.snapshot().read_bytes == 80
