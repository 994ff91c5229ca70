"""Tables made of tables: each record lies where it lay, blocks stay together, and content is known again."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixes import make_table
from orders import make_index

import aioload.table
from aioload.concat import ConcatTable
from aioload.order import Blocks, Shuffle
from aioload.subset import SubsetTable
from aioload.table import IndexTable, RecordTable

sizes = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=30), min_size=1, max_size=4)
block_bytes = st.sampled_from([1, 50, 200, 10_000])


@st.composite
def tables(draw: st.DrawFn) -> tuple[RecordTable, list[tuple[int, int]]]:
    """A table of sets, and the set and number of each of its records."""
    parts = [IndexTable(make_index(each)) for each in draw(st.lists(sizes, min_size=1, max_size=3))]
    records = [(number, record) for number, part in enumerate(parts) for record in range(len(part))]
    return (parts[0] if len(parts) == 1 and draw(st.booleans()) else ConcatTable(parts)), records


@st.composite
def picked(draw: st.DrawFn, size: int) -> range | np.ndarray:
    """Some of so many records: a range, ascending numbers, or numbers in wild order."""
    kind = draw(st.sampled_from(["range", "ascending", "wild"]))
    if kind == "range":
        first, last = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
        up = 1 if last >= first else -1
        return range(first, last + up, up * draw(st.integers(1, 5)))
    wanted = draw(st.lists(st.integers(0, size - 1), unique=True, min_size=1))
    return np.array(sorted(wanted) if kind == "ascending" else wanted, np.int64)


def every(table: RecordTable) -> np.ndarray:
    """All records of a table."""
    return np.arange(len(table), dtype=np.int64)


# Where records lie ------------------------------------------------------------------------------------


@given(tables(), st.data())
def test_a_record_lies_where_it_lay(
    made: tuple[RecordTable, list[tuple[int, int]]], data: st.DataObject
) -> None:
    """A subset's records have set, number, shard, bytes and sum of those that were picked."""
    table, records = made
    picks = data.draw(picked(len(table)))
    subset = SubsetTable(table, picks)
    numbers = np.array(list(picks), np.int64)

    found = subset.places(every(subset))

    expected = table.places(numbers)
    assert list(zip(found.source.tolist(), found.record.tolist(), strict=True)) == [
        records[n] for n in numbers
    ]
    assert (found.shard == expected.shard).all()
    assert (found.start == expected.start).all()
    assert (found.stop == expected.stop).all()
    assert (found.sums == expected.sums).all()


@given(tables())
def test_shards_are_counted_over_all_sets(made: tuple[RecordTable, list[tuple[int, int]]]) -> None:
    """A record's shard belongs to its set, and shards have names and sets one for one."""
    table, _ = made

    found = table.places(every(table))

    assert len(table.shards) == len(table.shard_sources)
    assert np.array(table.shard_sources)[found.shard].tolist() == found.source.tolist()
    assert table.sets == len(set(table.shard_sources))


@given(tables(), st.data(), block_bytes)
def test_a_block_is_one_span_of_a_shard(
    made: tuple[RecordTable, list[tuple[int, int]]], data: st.DataObject, cell: int
) -> None:
    """Blocks cover the records in order; a block's span goes from its first byte to its last."""
    table, _ = made
    subset = SubsetTable(table, data.draw(picked(len(table))))

    blocks = subset.blocks(cell)

    assert blocks.firsts[0] == 0
    assert blocks.firsts[-1] == len(subset)
    assert (np.diff(blocks.firsts) > 0).all()
    spans, places = subset.spans(blocks.firsts[:-1], blocks.firsts[1:]), subset.places(every(subset))
    of_block = np.searchsorted(blocks.firsts, every(subset), side="right") - 1
    assert (spans.shard[of_block] == places.shard).all()
    assert (
        (np.minimum.reduceat(places.start, blocks.firsts[:-1]) == spans.start).all() if len(subset) else True
    )
    assert (np.maximum.reduceat(places.stop, blocks.firsts[:-1]) == spans.stop).all() if len(subset) else True


@given(tables(), st.data(), block_bytes)
def test_neighbours_of_a_block_stay_in_one(
    made: tuple[RecordTable, list[tuple[int, int]]], data: st.DataObject, cell: int
) -> None:
    """Picks that ascend within a block of the table are one block of the subset."""
    table, _ = made
    picks = np.array(sorted(data.draw(st.sets(st.integers(0, len(table) - 1), min_size=1))), np.int64)

    found = SubsetTable(table, picks).blocks(cell)

    theirs = np.searchsorted(table.blocks(cell).firsts, picks, side="right")
    assert len(found) == len(set(theirs.tolist()))


@given(tables(), st.data())
def test_bytes_of_picked_records_are_exact(
    made: tuple[RecordTable, list[tuple[int, int]]], data: st.DataObject
) -> None:
    """Picked numbers, and ranges without gaps, know the bytes before each of their records."""
    table, _ = made
    picks = data.draw(picked(len(table)).filter(lambda it: not isinstance(it, range) or abs(it.step) == 1))
    subset = SubsetTable(table, picks)

    found = subset.bytes_before(np.arange(len(subset) + 1, dtype=np.int64))

    places = subset.places(every(subset))
    assert found.tolist() == [0, *np.cumsum(places.stop - places.start).tolist()]
    assert subset.data_bytes == found[-1]


@pytest.mark.parametrize("step", [2, 3, -2])
def test_a_range_with_gaps_is_not_dense(step: int) -> None:
    """Of a range that leaves records out it is told that its spans hold more than its records."""
    table = make_table(1000)
    subset = SubsetTable(table, range(1000)[::step])
    firsts = subset.blocks(2000).firsts

    spans = subset.spans(firsts[:-1], firsts[1:])

    several = np.diff(firsts) > 1
    assert several.any()
    assert (spans.stop - spans.start > 1.2 * spans.record_bytes)[several].all()


def test_many_picks_sum_up_their_bytes() -> None:
    """The bytes before a pick are right beyond the number that is summed up at once."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 9, 200_000)
    table = IndexTable(make_index([lengths.tolist()]))
    picks = rng.permutation(200_000)[:150_000].astype(np.int64)

    before = SubsetTable(table, picks).bytes_before(np.array([0, 1, 63, 64, 65_536, 149_999, 150_000]))

    sums = np.cumsum([0, *lengths[picks]])
    assert before.tolist() == sums[[0, 1, 63, 64, 65_536, 149_999, 150_000]].tolist()


# Orders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shuffle", [Shuffle("none"), Shuffle("full", 1), Shuffle("block", 1, 6, 300)], ids=str
)
@given(tables(), st.data())
def test_every_picked_record_comes_once(
    shuffle: Shuffle, made: tuple[RecordTable, list[tuple[int, int]]], data: st.DataObject
) -> None:
    """An epoch of a subset gives each picked record once, in the order of the picks if it is not shuffled."""
    table, _ = made
    picks = data.draw(picked(len(table)))
    subset = SubsetTable(table, picks)

    found = np.array(list(picks), np.int64)[subset.order(shuffle, 2).records(every(subset))].tolist()

    assert sorted(found) == sorted(picks)
    assert shuffle.mode != "none" or found == list(picks)


def test_concatenated_sets_are_shuffled_together() -> None:
    """A block shuffle draws from the blocks of all sets at once."""
    table = ConcatTable([make_table(3000), make_table(3000)])

    order = table.order(Shuffle("block", 0, 96, 1000), 0)

    source = table.places(order.records(np.arange(400))).source
    assert 120 < source.sum() < 280


def test_blocks_are_cut_once() -> None:
    """Epochs share the blocks, so an epoch begins at once."""
    table = ConcatTable([SubsetTable(make_table(300), range(10, 200)), make_table(50)])

    first = table.blocks(500)

    assert table.blocks(500) is first
    assert isinstance(table.blocks(600), Blocks)
    assert table.blocks(600) is not first


def test_a_range_takes_no_memory() -> None:
    """A range of a million records, its blocks and spans take no array of a million."""
    table = make_table(1 << 20, size=8, shard_records=1 << 18)
    table.blocks(1 << 16)
    tracemalloc.start()

    subset = SubsetTable(table, range(5, 1 << 20, 3))
    firsts = subset.blocks(1 << 16).firsts
    subset.spans(firsts[:-1], firsts[1:])
    subset.fingerprint()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 200_000


# Fingerprints -----------------------------------------------------------------------------------------


def test_content_is_known_by_its_records() -> None:
    """The same picks of the same content have one name; other picks, order, parts or content another."""
    table, same, other = make_table(100), make_table(100), make_table(100, size=101)
    picks = np.array([3, 1, 7], np.int64)

    names = [
        SubsetTable(table, picks).fingerprint(),
        SubsetTable(table, picks[::-1].copy()).fingerprint(),
        SubsetTable(table, range(0, 10, 3)).fingerprint(),
        SubsetTable(table, range(0, 12)).fingerprint(),
        SubsetTable(other, picks).fingerprint(),
        ConcatTable([table]).fingerprint(),
        ConcatTable([table, other]).fingerprint(),
        ConcatTable([other, table]).fingerprint(),
        table.fingerprint(),
    ]

    assert len(set(names)) == len(names)
    assert SubsetTable(same, picks).fingerprint() == names[0]
    assert SubsetTable(same, range(0, 12, 3)).fingerprint() == names[2]
    assert ConcatTable([same, other]).fingerprint() == names[6]


def test_empty_sets_do_no_harm() -> None:
    """No picks, and sets without records among others, are tables too."""
    empty = SubsetTable(make_table(10), range(0))

    table = ConcatTable([empty, make_table(4), SubsetTable(make_table(3), np.zeros(0, np.int64))])

    assert len(empty) == 0
    assert empty.data_bytes == 0
    assert len(empty.blocks(10)) == 0
    assert len(table) == 4
    assert table.data_bytes == 400
    assert table.places(every(table)).source.tolist() == [1] * 4
    assert table.blocks(200).firsts.tolist() == [0, 2, 4]


# The largest batch ------------------------------------------------------------------------------------


@given(tables(), st.integers(1, 40), st.data())
def test_no_batch_is_larger_than_the_largest(
    made: tuple[RecordTable, list[tuple[int, int]]], rows: int, data: st.DataObject
) -> None:
    """Of neighbours it is the largest sum of so many in a row, else that of the largest records."""
    whole, _ = made
    table = data.draw(st.sampled_from([whole, SubsetTable(whole, data.draw(picked(len(whole))))]))
    places = table.places(every(table))
    sizes = places.stop - places.start
    sums = [int(sizes[first : first + rows].sum()) for first in range(max(len(sizes) - rows, 0) + 1)]

    assert np.concatenate(list(table.sizes())).tolist() == sizes.tolist()
    assert table.largest(rows, as_they_lie=True) == max(sums)
    assert table.largest(rows, as_they_lie=False) == np.sort(sizes)[-rows:].sum()


def test_the_largest_batch_may_cross_what_is_looked_at_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes come some at a time; sums and largest records do not depend on how many."""
    monkeypatch.setattr(aioload.table, "_AT_A_TIME", 3)
    table = IndexTable(make_index([[1, 1, 9, 8, 7, 1, 1, 5, 6, 1]]))

    assert table.largest(4, as_they_lie=True) == 9 + 8 + 7 + 1
    assert table.largest(5, as_they_lie=False) == 9 + 8 + 7 + 6 + 5
    assert table.largest(99, as_they_lie=True) == 40
    assert IndexTable(make_index([[9, 8, 1, 5, 1, 1]])).largest(3, as_they_lie=False) == 9 + 8 + 5
