"""The pattern of an epoch's reads: it is what the engine does, and all that it must bring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import TinySet
from hypothesis import given, settings
from hypothesis import strategies as st

from aioload import Dataset
from aioload._pipeline import house, passes
from aioload.benching import Access, Setup, pattern_of, reading
from aioload.benching import pattern as planned
from aioload.benching.pattern import Ranges, ranges_of
from aioload.benching.shape import access_of, plan_of, plan_of_table
from aioload.shard.index import Index
from aioload.storage import MemoryStorage
from aioload.table import IndexTable


def table(sizes: list[int], shards: int = 1) -> IndexTable:
    """Return a table of records of these sizes."""
    positions = np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64)
    firsts = np.linspace(0, len(sizes), shards + 1).astype(np.int64)
    starts = positions[firsts]
    index = Index(
        shards=tuple(map(str, range(shards))),
        shard_records=firsts,
        shard_starts=starts,
        shard_data=np.full(shards, 32, np.uint64),
        shard_bytes=starts[1:] - starts[:-1] + 32,
        positions=positions,
    )
    return IndexTable(index)


sizes = st.lists(st.integers(1, 300_000), min_size=1, max_size=300)
orders = st.sampled_from([False, True, "full"])


@given(sizes, orders, st.integers(1, 5), st.integers(1, 70), st.booleans(), st.integers(10_000, 1 << 20))
@settings(max_examples=60)
def test_reads_bring_every_record(
    sizes: list[int], order: object, shards: int, batch: int, pieces: bool, most: int
) -> None:
    """Each byte of each record is in a read of an epoch, no read is too long, and no epoch needs less."""
    plan = plan_of_table(table(sizes, shards), Setup(batch, 0, shuffle=order))  # type: ignore[arg-type]

    ranges = ranges_of(plan, Access(pieces, most))

    places = plan.table.places(np.arange(len(sizes)))
    covered = [np.zeros(sum(sizes) + 32, bool) for _ in range(shards)]
    for shard, start, stop in zip(ranges.shard, ranges.start, ranges.stop, strict=True):
        covered[shard][start:stop] = True
    for shard, start, stop in zip(places.shard, places.start, places.stop, strict=True):
        assert covered[shard][start:stop].all()
    assert ranges.sizes.max() <= most
    assert 1 <= ranges.elsewhere.sum() <= len(ranges)


def test_in_order_a_shard_is_one_long_read() -> None:
    """Without a shuffle there is a seek for each shard, and each byte is read once."""
    plan = plan_of_table(table([1000] * 10_000, shards=4), Setup(64, 0, shuffle=False))

    pattern = pattern_of(plan, Access())

    assert (pattern.records, pattern.record_bytes, pattern.read_bytes) == (10_000, 10**7, 10**7)
    assert pattern.seeks == 4


def test_a_full_shuffle_reads_record_by_record() -> None:
    """Nearly each record is a read elsewhere."""
    plan = plan_of_table(table([50_000] * 2000), Setup(64, 0, shuffle="full"))

    assert pattern_of(plan, Access()).seeks > 1900


def test_a_block_shuffle_reads_pieces() -> None:
    """There are about as many reads as blocks and lanes, far fewer than records."""
    plan = plan_of_table(table([10_000] * 20_000), Setup(64, 0, shuffle=True))

    pattern = pattern_of(plan, Access())

    blocks, lanes = 200_000_000 // (256 << 10), 192
    assert blocks <= pattern.reads <= 1.1 * (blocks + lanes)
    assert pattern.read_bytes == 200_000_000


def test_long_reads_are_several_requests() -> None:
    """A network is asked for parts."""
    plan = plan_of_table(table([1 << 20] * 64), Setup(64, 0, shuffle=False))

    pattern = pattern_of(plan, Access(max_read_bytes=64 << 20, part_bytes=8 << 20))

    assert (pattern.reads, pattern.requests) == (1, 8)


@pytest.mark.parametrize("order", [False, True, "full"])
def test_windows_stand_for_a_long_epoch(order: object) -> None:
    """What is told from a part of an epoch is what all of it asks for, within a tenth."""
    plan = plan_of_table(table([8000] * 40_000, 3), Setup(64, 0, shuffle=order))  # type: ignore[arg-type]

    whole = ranges_of(plan, Access(), most_records=10**6)
    part = ranges_of(plan, Access(), most_records=20_000)

    def total(ranges: Ranges) -> tuple[float, float]:
        return float(ranges.weight.sum()), float((ranges.weight * ranges.sizes).sum())

    assert len(part) < len(whole)
    assert total(part) == pytest.approx(total(whole), rel=0.1)


def test_plans_are_made_with_the_numbers_of_the_engine() -> None:
    """What it reads in vain, how long its reads are and how many there are at once, told twice, are one."""
    assert planned._GAP_BYTES == passes._MAX_GAP_BYTES
    assert Access().max_read_bytes == house.MAX_READ_BYTES
    assert reading._MOST_READS == house._MOST_READS


@pytest.mark.parametrize("order", [False, True])
def test_a_loader_reads_what_was_told(tiny_set: TinySet, order: bool) -> None:
    """The bytes that an epoch really reads are those of its pattern."""
    files = {path.name: path.read_bytes() for path in Path(tiny_set.path).iterdir()}
    dataset, setup = Dataset(MemoryStorage(files)), Setup(5, 0, shuffle=order)

    pattern = pattern_of(plan_of(dataset, setup), access_of(dataset, setup))
    loader = setup.loader(dataset, num_workers=1)
    with loader.sync() as batches:
        rows = sum(len(batch["label"]) for batch in batches)
        read = loader.stats().read_bytes

    assert rows == pattern.records == 24
    assert pattern.read_bytes <= read <= 2 * pattern.read_bytes  # the next epoch's reads have begun
