"""Plan: every record of a run lies where its table says, brought by few and bounded reads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload._pipeline.plan import Plan, Run, plan_run
from aioload.shard.index import Index


@dataclass(frozen=True, slots=True, eq=False)
class AnyOrder(Plan):
    """A plan over records in an order that the test chooses, also with some of them twice."""

    order: tuple[int, ...] = ()

    def records(self, first_step: int, stop_step: int) -> Any:
        return np.array(self.order, np.int64)

    def rows(self, step: int) -> int:
        return len(self.order)


def index_of(shards: list[list[int]], heads: list[int]) -> Index:
    """Make the index of shards with records of these sizes, behind heads of these sizes."""
    sizes = [size for shard in shards for size in shard]
    totals = [sum(shard) for shard in shards]
    return Index(
        tuple(f"shard-{number}" for number in range(len(shards))),
        np.cumsum([0, *map(len, shards)], dtype=np.int64),
        np.cumsum([0, *totals]).astype(np.uint64),
        np.array(heads, np.uint64),
        np.array([head + total for head, total in zip(heads, totals, strict=True)], np.uint64),
        np.cumsum([0, *sizes]).astype(np.uint64),
        np.arange(len(sizes), dtype=np.uint32) + 100,
    )


def files_of(index: Index) -> list[np.ndarray]:
    """Make shards in which every byte tells where it is."""
    return [
        (np.arange(int(size)) * 7 + number * 13).astype(np.uint8)
        for number, size in enumerate(index.shard_bytes)
    ]


def fetched(run: Run, files: list[np.ndarray]) -> np.ndarray:
    """Do the reads of a run; what none of them brings stays 255."""
    raw = np.full(run.raw_bytes, 255, np.uint8)
    for read in run.reads:
        data = files[read.shard][read.start : read.stop]
        assert len(data) == read.stop - read.start, "a read beyond the end of its file"
        raw[read.place : read.place + len(data)] = data
    return raw


indexes = st.lists(
    st.tuples(st.integers(0, 40), st.lists(st.integers(1, 60), max_size=12)), min_size=1, max_size=4
).map(lambda pairs: index_of([sizes for _, sizes in pairs], [head for head, _ in pairs]))


@st.composite
def runs(draw: Any) -> tuple[Index, tuple[int, ...], Run, int, int]:
    """Draw an index, records of it in any order, bounds, and the run that is planned."""
    index = draw(indexes.filter(len))
    records = tuple(draw(st.lists(st.integers(0, len(index) - 1), min_size=1, max_size=20)))
    gap, most = draw(st.integers(0, 80)), draw(st.integers(1, 200))
    plan = AnyOrder(index, 0, len(records), False, records)
    run = plan_run(plan, 0, 1, order=(1, 0), max_gap_bytes=gap, max_read_bytes=most)
    return index, records, run, gap, most


@given(runs())
def test_every_record_lies_where_its_table_says(drawn: Any) -> None:
    """What the reads bring is, at the place the table tells, exactly the record's bytes."""
    index, records, run, _, _ = drawn
    files = files_of(index)

    raw = fetched(run, files)

    located = index.locate(np.array(records))
    for row, (shard, start, stop) in enumerate(zip(located.shard, located.start, located.stop, strict=True)):
        entry = run.table[row]
        assert raw[entry["start"] : entry["stop"]].tolist() == files[shard][int(start) : int(stop)].tolist()
        assert (entry["record"], entry["shard"]) == (records[row], shard)
        assert entry["sum"] == records[row] + 100
        assert run.offsets[row] == start


@given(runs())
def test_reads_stay_within_their_bounds(drawn: Any) -> None:
    """No read is longer than asked, and none brings more unwanted bytes in one piece than the gap allows."""
    index, records, run, gap, most = drawn
    located = index.locate(np.array(records))

    for read in run.reads:
        wanted = np.zeros(read.stop - read.start, bool)
        for start, stop in zip(located.start[list(read.rows)], located.stop[list(read.rows)], strict=True):
            wanted[max(int(start) - read.start, 0) : max(int(stop) - read.start, 0)] = True
        unwanted = "".join(" x"[not want] for want in wanted).split()
        assert read.stop - read.start <= most
        assert max(map(len, unwanted), default=0) <= gap


@given(runs())
def test_each_read_names_all_records_that_lie_in_it(drawn: Any) -> None:
    """A read that fails tells exactly which records it would have brought, in whole or in part."""
    index, records, run, _, _ = drawn
    located = index.locate(np.array(records))

    for read in run.reads:
        inside = (located.shard == read.shard) & (located.start < read.stop) & (located.stop > read.start)
        assert sorted(read.rows) == np.flatnonzero(inside).tolist()


@given(runs())
def test_raw_places_are_apart(drawn: Any) -> None:
    """No two reads write to the same byte."""
    _, _, run, _, _ = drawn

    spans = sorted((read.place, read.place + read.stop - read.start) for read in run.reads)

    assert all(left[1] <= right[0] for left, right in pairwise(spans))
    assert spans[-1][1] <= run.raw_bytes


def test_shards_of_different_size_are_merged_each_by_itself() -> None:
    """Far-apart records of a small shard are not read together because a larger shard lies before it."""
    index = index_of([[1000], [10] * 50], [0, 0])
    plan = AnyOrder(index, 0, 3, False, (0, 1, 50))

    run = plan_run(plan, 0, 1, order=(1, 0), max_gap_bytes=64, max_read_bytes=1 << 20)

    assert [(read.shard, read.start, read.stop) for read in run.reads] == [
        *((0, 0, 1000), (1, 0, 10), (1, 490, 500)),
    ]


def test_consecutive_records_are_one_read() -> None:
    """Steps that walk together are brought by one read, each with its own rows."""
    plan = Plan(index_of([[10] * 10], [24]), 3, 4, False)

    run = plan_run(plan, 0, 3, order=(1, 0), max_gap_bytes=0, max_read_bytes=1 << 20)

    assert [(read.start, read.stop, read.rows) for read in run.reads] == [(24, 124, tuple(range(10)))]
    assert (run.rows, list(run.steps)) == ((4, 4, 2), [0, 1, 2])


@pytest.mark.parametrize(
    ("records", "batch_size", "drop_last", "rows"),
    [
        (0, 4, False, []),
        (0, 4, True, []),
        (1, 4, False, [1]),
        (1, 4, True, []),
        (8, 4, False, [4, 4]),
        (9, 4, False, [4, 4, 1]),
        (9, 4, True, [4, 4]),
        (3, 1, False, [1, 1, 1]),
    ],
)
def test_an_epoch_is_cut_into_batches(
    records: int, batch_size: int, drop_last: bool, rows: list[int]
) -> None:
    """Every record is in one batch; a last one that is not full is kept or left out."""
    plan = Plan(index_of([[5] * records], [0]), 0, batch_size, drop_last)

    found = [plan.rows(step) for step in range(plan.steps)]

    assert found == rows
    assert plan.records(0, plan.steps).tolist() == list(range(sum(rows)))


def test_a_set_without_sums_has_none_in_its_table() -> None:
    """Formats that carry no sums are planned all the same."""
    index = index_of([[5, 6]], [0])
    bare = Index(
        index.shards,
        index.shard_records,
        index.shard_starts,
        index.shard_data,
        index.shard_bytes,
        index.positions,
    )

    run = plan_run(Plan(bare, 0, 2, False), 0, 1, order=(1, 0), max_gap_bytes=0, max_read_bytes=99)

    assert run.table["sum"].tolist() == [0, 0]
