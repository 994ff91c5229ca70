"""Fetch: all bytes of a run, or the error of exactly those records that cannot be had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import numpy as np
import pytest
from fakes import FaultyStorage

from aioload._pipeline.fetch import fetch
from aioload._pipeline.plan import Plan, Run, plan_run
from aioload.errors import AioloadError, ClosedError, NotFoundError, ShardError, StorageError
from aioload.stats import Counters
from aioload.storage import MemoryStorage

from .test_plan import index_of

RECORD = 10


def planned(records: int = 8, *, shards: int = 1, most: int = 1 << 20) -> tuple[Run, tuple[str, ...]]:
    """Plan one batch of records of 10 bytes, spread evenly over shards."""
    index = index_of([[RECORD] * (records // shards)] * shards, [0] * shards)
    plan = Plan(index, 0, records, False)
    return plan_run(plan, 0, 1, order=(1, 0), max_gap_bytes=0, max_read_bytes=most), index.shards


def files(shards: tuple[str, ...], size: int) -> dict[str, bytes]:
    """Make files whose bytes count up."""
    return {name: bytes(range(size)) for name in shards}


async def fetched(
    run: Run, shards: tuple[str, ...], storage: Any, counters: Counters | None = None
) -> tuple[bytes, Mapping[int, AioloadError]]:
    """Fetch a run; return its memory and what failed."""
    raw = np.zeros(run.raw_bytes, np.uint8)
    failures = await fetch(run, storage, shards, raw, anyio.CapacityLimiter(2), counters or Counters())
    return raw.tobytes(), failures


async def test_all_bytes_come_to_their_place() -> None:
    """A run over several shards is read whole, and counted."""
    run, shards = planned(8, shards=2)
    counters = Counters()

    raw, failures = await fetched(run, shards, MemoryStorage(files(shards, 40)), counters)

    assert failures == {}
    assert raw[:40] == raw[64:104] == bytes(range(40))
    assert (counters.snapshot().reads, counters.snapshot().read_bytes) == (2, 80)


async def test_a_record_over_the_border_of_two_reads_is_whole() -> None:
    """A long stretch is read in pieces, wherever records begin."""
    run, shards = planned(8, most=33)

    raw, failures = await fetched(run, shards, MemoryStorage(files(shards, 80)))

    assert (raw[:80], failures, len(run.reads)) == (bytes(range(80)), {}, 3)


@pytest.mark.parametrize("most", [1 << 20, 33, 7])
async def test_a_file_cut_short_fails_only_behind_the_cut(most: int) -> None:
    """Of a merged read that fails, every record that can be had is had; the others are named."""
    run, shards = planned(8, most=most)

    raw, failures = await fetched(run, shards, MemoryStorage(files(shards, 55)))

    assert sorted(failures) == [5, 6, 7]
    assert raw[:50] == bytes(range(50))
    assert {type(error) for error in failures.values()} == {ShardError}
    assert [(error.shard, error.record) for _, error in sorted(failures.items())] == [
        *(("shard-0", 5), ("shard-0", 6), ("shard-0", 7)),
    ]


async def test_a_missing_shard_fails_its_own_records() -> None:
    """A shard that is not there takes no other shard's records with it."""
    run, shards = planned(8, shards=2)

    raw, failures = await fetched(run, shards, MemoryStorage({"shard-1": bytes(range(40))}))

    assert sorted(failures) == [0, 1, 2, 3]
    assert isinstance(failures[0], NotFoundError)
    assert raw[64:104] == bytes(range(40))


async def test_a_merged_read_that_fails_once_costs_nobody() -> None:
    """A fault that is gone at the second try is nobody's error."""
    run, shards = planned(8)
    storage = FaultyStorage(MemoryStorage(files(shards, 80)), {0: StorageError("once")})

    raw, failures = await fetched(run, shards, storage)

    assert (raw[:80], failures, len(storage.reads)) == (bytes(range(80)), {}, 9)


async def test_a_read_of_one_record_is_not_tried_again() -> None:
    """Trying again is the storage's matter; here it only finds out who is concerned."""
    run, shards = planned(1)
    storage = FaultyStorage(MemoryStorage(files(shards, 80)), {0: StorageError("for good")})

    _, failures = await fetched(run, shards, storage)

    assert list(failures) == [0]
    assert failures[0].__notes__ == ["while reading record 0"]
    assert len(storage.reads) == 1


async def test_other_errors_end_the_run() -> None:
    """What is no fault of data or storage, such as closing, is not blamed on records."""
    run, shards = planned(8)
    storage = FaultyStorage(MemoryStorage(files(shards, 80)), {0: ClosedError("closed")})

    with pytest.raises(ClosedError):
        await fetched(run, shards, storage)
