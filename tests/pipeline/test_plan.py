"""A plan says which records make a batch and which reads bring them, however it is cut into runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orders import every, make_index

from aioload._pipeline.plan import Plan, Run, merge, plan_run
from aioload.order import Shuffle
from aioload.part import Part
from aioload.table import IndexTable

SHARDS = st.lists(st.lists(st.integers(1, 60), max_size=30), min_size=1, max_size=4)
MODES = st.sampled_from(["none", "block", "full"])


def make_plan(
    shards: list[list[int]], mode: str = "none", *, batch_size: int, epoch: int = 2, **options: Any
) -> Plan:
    """Return a plan over an index without files, in blocks of 100 bytes and 6 lanes."""
    table = IndexTable(make_index(shards))
    part = Part(len(table), batch_size, interleaved=mode == "block", **options)
    return Plan(table, table.order(Shuffle(mode, 5, 6, 100), epoch), part, epoch, ())


def whole(plan: Plan) -> Run:
    """Return all steps as one run."""
    return plan_run(plan, 0, plan.steps, order=(1, 0))


def singly(plan: Plan) -> list[Run]:
    """Return a run for each step."""
    return [plan_run(plan, step, step + 1, order=(1, step)) for step in range(plan.steps)]


@given(shards=SHARDS, mode=MODES, batch_size=st.integers(1, 9), start=st.integers(0, 20))
def test_grouping_changes_no_batch(shards: list[list[int]], mode: str, batch_size: int, start: int) -> None:
    """One run of all steps holds what a run for each step holds, in their order, with their places."""
    start = min(start, sum(map(len, shards)))
    plan = make_plan(shards, mode, batch_size=batch_size, start=start)
    together, apart = whole(plan), singly(plan)

    records = [number for run in apart for number in run.table["record"].tolist()]
    offsets = [offset for run in apart for offset in run.offsets.tolist()]

    assert together.table["record"].tolist() == records
    assert together.offsets.tolist() == offsets
    assert together.rows == tuple(run.rows[0] for run in apart)
    assert records == plan.order.records(plan.part.positions(0, plan.steps)).tolist()


def test_the_table_says_where_a_record_is_and_what_it_goes_by() -> None:
    """Each row has record, shard, sum and epoch; its place in the file is beside it."""
    run = whole(make_plan([[5, 6], [], [7, 8]], batch_size=3))

    assert run.table["record"].tolist() == [0, 1, 2, 3]
    assert run.table["shard"].tolist() == [0, 0, 2, 2]
    assert run.table["sum"].tolist() == [0, 1, 2, 3]
    assert set(run.table["epoch"].tolist()) == {2}
    assert run.offsets.tolist() == [32, 37, 32, 39]
    assert run.sizes.tolist() == [5, 6, 7, 8]
    assert (run.rows, list(run.steps)) == ((3, 1), [0, 1])
    assert (run.first_position, run.stop_position) == (0, 4)


@given(shards=SHARDS, batch_size=st.integers(1, 9), start=st.integers(0, 20), world_size=st.integers(1, 4))
def test_pieces_hold_their_records(
    shards: list[list[int]], batch_size: int, start: int, world_size: int
) -> None:
    """A record that is said to be in a piece lies in its bytes; pieces begin at the start or later."""
    start = min(start, sum(map(len, shards)))
    plan = make_plan(shards, "block", batch_size=batch_size, start=start, world_size=world_size)
    run = whole(plan)

    inside = np.flatnonzero(run.piece >= 0)
    pieces = [run.pieces[number] for number in run.piece[inside]]

    assert [piece.shard for piece in pieces] == run.table["shard"][inside].tolist()
    assert all(piece.start <= at for piece, at in zip(pieces, run.offsets[inside], strict=True))
    assert all(at <= piece.stop for piece, at in zip(pieces, (run.offsets + run.sizes)[inside], strict=True))
    assert all(start <= piece.first_position <= piece.last_position for piece in run.pieces)
    assert len({piece.key for piece in run.pieces}) == len(run.pieces)


@given(shards=SHARDS, batch_size=st.integers(1, 9))
def test_every_record_of_a_fresh_epoch_is_in_a_piece(shards: list[list[int]], batch_size: int) -> None:
    """From the beginning, all but records that stand alone come with their piece: together all bytes."""
    run = whole(make_plan(shards, "block", batch_size=batch_size))

    alone = run.sizes[run.piece < 0].sum()
    together = sum(piece.stop - piece.start for piece in run.pieces)

    assert alone + together == sum(map(sum, shards))


def test_padding_is_read_by_itself() -> None:
    """Padding repeats the epoch's first records: the last step does not bring their pieces back."""
    plan = make_plan([[10] * 61], "block", batch_size=4, rank=3, world_size=4)
    first, last = singly(plan)[0], singly(plan)[-1]

    padding = last.table["record"][-1]

    assert plan.part.padded == 1
    assert last.piece[-1] == -1
    assert padding not in first.table["record"]
    assert padding == plan.order.records(np.array([2]))[0]


def test_no_piece_without_a_block_shuffle() -> None:
    """In the other modes every record comes by itself, read together with its neighbours."""
    runs = [whole(make_plan([[10] * 20], mode, batch_size=7)) for mode in ("none", "full")]

    assert [run.pieces for run in runs] == [(), ()]
    assert all((run.piece == -1).all() for run in runs)


# Merging ----------------------------------------------------------------------------------------------


@given(
    shards=SHARDS,
    mode=MODES,
    max_gap_bytes=st.integers(0, 100),
    max_read_bytes=st.integers(1, 200),
    pad=st.integers(0, 3),
)
def test_reads_bring_every_record_to_its_place(
    shards: list[list[int]], mode: str, max_gap_bytes: int, max_read_bytes: int, pad: int
) -> None:
    """Done on bytes that tell where they are from, the reads put each record where the table says."""
    run = whole(make_plan(shards, mode, batch_size=16, rank=pad, world_size=pad + 1))
    reads, size = merge(
        run, every(len(run.table)), max_gap_bytes=max_gap_bytes, max_read_bytes=max_read_bytes
    )
    files = [np.random.default_rng(number).integers(0, 256, 4000, np.uint8) for number in range(len(shards))]
    memory = np.zeros(size, np.uint8)

    for read in reads:
        memory[read.place : read.place + read.stop - read.start] = files[read.shard][read.start : read.stop]

    assert all(0 < read.stop - read.start <= max_read_bytes for read in reads)
    assert all(
        np.array_equal(memory[row["start"] : row["stop"]], files[row["shard"]][at : at + length])
        for row, at, length in zip(run.table, run.offsets, run.sizes, strict=True)
    )


@given(shards=SHARDS, max_read_bytes=st.integers(1, 200))
def test_a_read_names_the_records_in_it(shards: list[list[int]], max_read_bytes: int) -> None:
    """Each read lists the rows that need some of its bytes, and no other."""
    run = whole(make_plan(shards, "full", batch_size=16))
    reads, _ = merge(run, every(len(run.table)), max_gap_bytes=20, max_read_bytes=max_read_bytes)
    stops = run.offsets + run.sizes

    found = [set(read.rows) for read in reads]

    assert found == [
        set(
            np.flatnonzero(
                (run.table["shard"] == read.shard) & (run.offsets < read.stop) & (stops > read.start)
            ).tolist()
        )
        for read in reads
    ]


@pytest.mark.parametrize(
    ("rows", "gap", "spans"),
    [
        ([0, 1, 2, 3], 0, [(32, 72)]),
        ([0, 2], 0, [(32, 42), (52, 62)]),
        ([0, 2], 10, [(32, 62)]),
        ([3, 0, 3], 0, [(32, 42), (62, 72)]),
        ([], 0, []),
    ],
)
def test_neighbours_are_read_together(rows: list[int], gap: int, spans: list[tuple[int, int]]) -> None:
    """Records side by side, or no further apart than the gap, are one read; a record twice is read once."""
    run = whole(make_plan([[10] * 4], batch_size=4))
    chosen = np.array(rows, np.int64)

    reads, _ = merge(run, chosen, max_gap_bytes=gap, max_read_bytes=1000)

    assert [(read.start, read.stop) for read in reads] == spans


def test_planning_a_long_run_pauses_now_and_then() -> None:
    """A run of thousands of records is planned in stretches, between which other threads may go on."""
    plan = make_plan([[1] * 3000], "block", batch_size=1000)
    pauses: list[None] = []

    run = plan_run(plan, 0, 3, order=(1, 0), between=lambda: pauses.append(None))

    assert len(pauses) >= 3000 // 512
    assert run.table["record"].tolist() == whole(plan).table["record"].tolist()
