"""Bulk: records that nobody changes come out as if each had been cut and decoded by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_array_equal
from worker_jobs import Bench, make_recipe

from aioload._workers import task
from aioload._workers.jobs import TABLE, Decode, Outcome, Segment
from aioload._workers.layout import Layout
from aioload._workers.leaf import texts, view
from aioload._workers.space import Span
from aioload._workers.task import Worker

FIELDS = {"n": "int", "x": "float", "name": "str", "blob": "bytes", "a": "ndarray"}
ROWS = 24


def sample(row: int, size: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """Make a sample whose bytes tell which it is."""
    return {
        "n": row - 3,
        "x": row / 7,
        "name": f"ä{row}",
        "blob": bytes([row]) * size,
        "a": np.full(shape, row, np.float32),
    }


def columns(bench: Bench, outcome: Outcome, layout: Layout, batch: Span, place: Span) -> list[list[Any]]:
    """Return what lies in each column."""
    assert bench.array is not None
    rows, beside = bench.array[batch.start : batch.stop], bench.array[place.start : place.stop]
    lists = iter([texts(beside, leaf) for leaf in outcome.texts])
    leaves = layout.leaves(len(bench.samples))
    return [next(lists) if leaf.kind in ("text", "bytes") else view(rows, leaf).tolist() for leaf in leaves]


def made(bench: Bench, worker: Worker) -> tuple[Outcome, list[list[Any]]]:
    """Have a batch written as rows, and return what lies there."""
    layout = worker.run(bench.whole(learn=True)).outcomes[0].layout
    assert layout is not None
    size, rows = layout.starts(len(bench.samples))[-1], len(bench.samples)
    batch = Span(bench.room.start, bench.room.start + size)
    place = Span(bench.size - (1 << 18), bench.size)
    segment = Segment(0, 0, rows, rows, place, layout, batch)
    outcome = worker.run(Decode(bench.table, (segment,))).outcomes[0]
    if outcome.failure is not None or outcome.need:
        return outcome, []
    return outcome, columns(bench, outcome, layout, batch, place)


@pytest.fixture
def cut_singly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each record cut by itself."""
    monkeypatch.setattr(task, "LEAST_ROWS", 1 << 30)


@given(
    sizes=st.one_of(
        st.integers(0, 40).map(lambda size: [size] * ROWS),
        st.lists(st.integers(0, 40), min_size=ROWS, max_size=ROWS),
    ),
    shape=st.sampled_from([(2, 3), (1,), (50, 60)]),
    keyed=st.booleans(),
)
def test_columns_are_those_of_records_cut_one_by_one(
    sizes: list[int], shape: tuple[int, ...], keyed: bool
) -> None:
    """Texts and bytes of equal or unequal length, arrays small and large, with and without keys."""
    samples = [sample(row, size, shape) for row, size in enumerate(sizes)]
    keys = [f"k{row}" for row in range(ROWS)] if keyed else ()
    bench = Bench(make_recipe(FIELDS), samples, keys, size=2 << 20)

    _, found = made(bench, bench.worker())

    assert found == [
        [one[field].tolist() if field == "a" else one[field] for one in samples] for field in FIELDS
    ]


@given(place=st.integers(0, 1 << 30), bit=st.integers(0, 7))
def test_damage_is_told_as_if_each_record_had_been_cut_by_itself(place: int, bit: int) -> None:
    """One flipped bit anywhere in the records: the same failure, of the same record."""
    bench = Bench(make_recipe(FIELDS), [sample(row, 9, (2, 3)) for row in range(ROWS)])
    worker, assert_array = bench.worker(), bench.array
    assert assert_array is not None
    layout = worker.run(bench.whole(learn=True)).outcomes[0].layout
    table = assert_array[bench.table.start : bench.table.stop].view(TABLE)
    at = place % int(table["stop"][-1])
    assert_array[at] ^= 1 << bit

    batch = Span(bench.room.start, bench.room.start + layout.starts(ROWS)[-1])  # type: ignore[union-attr]  # learnt
    segment = Segment(0, 0, ROWS, ROWS, Span(bench.size - (1 << 16), bench.size), layout, batch)
    outcome = worker.run(Decode(bench.table, (segment,))).outcomes[0]

    assert outcome.failure is not None
    assert outcome.failure.kind == "ShardError"
    record = int(np.searchsorted(table["stop"], at, side="right"))
    assert (outcome.failure.record, outcome.failure.row) == (record, record)


@pytest.mark.parametrize(
    "odd",
    [
        {"a": np.zeros((3, 2), np.float32)},
        {"a": np.zeros((2, 3), np.float64)},
        {"a": np.asfortranarray(np.ones((2, 3), np.float32))},
    ],
)
def test_an_array_of_another_make_is_left_to_the_slow_way(odd: dict[str, Any]) -> None:
    """One array of another shape, dtype or order among equal ones: it does not fit, or comes out right."""
    samples = [sample(row, 4, (2, 3)) for row in range(ROWS)]
    bench = Bench(make_recipe(FIELDS), samples)
    worker = bench.worker()
    layout = worker.run(bench.whole(learn=True)).outcomes[0].layout
    other = Bench(make_recipe(FIELDS), [*samples[:-1], samples[-1] | odd])
    assert layout is not None

    batch = Span(other.room.start, other.room.start + layout.starts(ROWS)[-1])
    place = Span(other.size - (1 << 16), other.size)
    job = Decode(other.table, (Segment(0, 0, ROWS, ROWS, place, layout, batch),))
    outcome = other.worker().run(job).outcomes[0]

    if not outcome.misfit:
        found = columns(other, outcome, layout, batch, place)[-1]
        assert found == [one["a"].tolist() for one in other.samples]


@pytest.mark.parametrize("shape", [(2, 3), (50, 60)])
def test_no_record_is_cut_by_itself(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    """Where the layout is known and all is well, the slow way is never gone."""
    samples = [sample(row, row, shape) for row in range(ROWS)]
    bench = Bench(make_recipe(FIELDS), samples, size=2 << 20)
    worker = bench.worker()
    layout = worker.run(bench.whole(learn=True)).outcomes[0].layout
    assert layout is not None
    monkeypatch.setattr(Worker, "_guarded", None)

    batch = Span(bench.room.start, bench.room.start + layout.starts(ROWS)[-1])
    place = Span(bench.size - (1 << 16), bench.size)
    job = Decode(bench.table, (Segment(0, 0, ROWS, ROWS, place, layout, batch),))
    outcome = worker.run(job).outcomes[0]

    assert columns(bench, outcome, layout, batch, place)[0] == [one["n"] for one in samples]


def test_bad_utf8_is_found(cut_singly: None) -> None:
    """A text that is no UTF-8, though its sum is right, is the same failure both ways."""
    bench = Bench(make_recipe({"blob": "bytes"}), [{"blob": b"\xff" * 3} for _ in range(ROWS)])
    read_as_text = make_recipe({"blob": "str"})
    good = Bench(make_recipe({"blob": "str"}), [{"blob": "abc"} for _ in range(ROWS)])
    layout = good.worker().run(good.whole(learn=True)).outcomes[0].layout
    assert layout is not None
    segment = Segment(0, 0, ROWS, ROWS, bench.room, layout, Span(bench.room.start, bench.room.start))
    assert bench.array is not None

    slow = Worker(bench.array, read_as_text).run(Decode(bench.table, (segment,))).outcomes[0].failure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "LEAST_ROWS", 1)
        fast = Worker(bench.array, read_as_text).run(Decode(bench.table, (segment,))).outcomes[0].failure

    assert slow is not None
    assert fast is not None
    assert (fast.message, fast.record, fast.row) == (slow.message, 0, 0)


def test_records_of_several_files_come_to_their_rows(tmp_path: Path) -> None:
    """Records that lie in mapped files, taking turns."""
    samples = [sample(row, row % 5, (2, 3)) for row in range(ROWS)]
    bench = Bench(make_recipe(FIELDS), samples)
    assert bench.array is not None
    table = bench.array[bench.table.start : bench.table.stop].view(TABLE)
    shards = [bytearray(b"head"), bytearray(b"another head"), bytearray()]
    for row, entry in enumerate(table):
        shard = shards[row % 3]
        raw = bench.array[int(entry["start"]) : int(entry["stop"])].tobytes()
        entry["start"], entry["stop"] = len(shard), len(shard) + len(raw)
        entry["shard"], entry["mapped"] = row % 3, 1
        shard += raw
    paths = [tmp_path / f"{number}" for number in range(3)]
    for path, shard in zip(paths, shards, strict=True):
        path.write_bytes(shard)
    bench.array[: bench.table.start] = 0
    recipe = replace(bench.recipe, paths=tuple(map(str, paths)))

    _, found = made(bench, Worker(bench.array, recipe))

    assert found == [
        [one[field].tolist() if field == "a" else one[field] for one in samples] for field in FIELDS
    ]
    assert_array_equal(found[0], np.arange(ROWS) - 3)
