"""Sizes: how work is cut follows what was measured, within its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload._pipeline.needs import Growth
from aioload._pipeline.sizes import Sizes
from aioload._workers.jobs import Answer
from aioload._workers.layout import Layout, learn

MEASURES = st.lists(
    st.tuples(
        st.integers(0, 300),
        st.floats(0, 10, allow_nan=False),
        st.integers(0, 1 << 30),
        st.integers(0, 1 << 30),
    ),
    max_size=5,
)


def layout() -> Layout:
    """Make some layout."""
    found = learn([{"x": np.zeros(3)}])
    assert found is not None
    return found


@given(
    workers=st.integers(0, 64),
    record_bytes=st.floats(0, 1e9),
    run_bytes=st.integers(0, 1 << 30),
    measures=MEASURES,
    rows=st.integers(1, 4096),
)
def test_whatever_was_measured_work_is_cut_into_something(
    workers: int, record_bytes: float, run_bytes: int, measures: list[tuple[int, float, int, int]], rows: int
) -> None:
    """A run has a batch at least, a batch at least one part and no more than rows, room is never nothing."""
    sizes = Sizes(workers, record_bytes, run_bytes)
    for records, seconds, size, raw_bytes in measures:
        sizes.took(records, seconds)
        sizes.outcome(records, size, raw_bytes)
        sizes.texts(records, size)

    assert 1 <= sizes.parts(rows) <= rows
    assert 1 <= sizes.steps_per_run(rows) <= 1 << 18
    assert sizes.room(rows, 0) % 64 == 0 < sizes.room(rows, 0)
    assert sizes.text_room(rows, 0) % 64 == 0 < sizes.text_room(rows, 0)
    assert sizes.made(rows, 0) >= 0


def test_tiny_batches_walk_together() -> None:
    """Many batches of tiny, cheap records make one run."""
    sizes = Sizes(2, 100, 1 << 20)
    sizes.took(1000, 0.001)

    assert sizes.steps_per_run(4) == 256


def test_costly_batches_walk_alone() -> None:
    """A batch that keeps a worker busy is a run of its own, in several parts."""
    sizes = Sizes(2, 100_000, 1 << 20)
    sizes.took(10, 0.1)

    assert sizes.steps_per_run(64) == 1
    assert sizes.parts(64) == 4


def test_before_anything_is_known_all_workers_share_a_batch() -> None:
    """The first batch comes fast: it is cut into as many parts as there are workers."""
    assert Sizes(8, 100_000, 1 << 20).parts(64) == 8
    assert Sizes(8, 100_000, 1 << 20).parts(3) == 3
    assert Sizes(0, 100_000, 1 << 20).parts(64) == 1


def test_samples_that_are_made_of_no_record_begin_with_one_batch() -> None:
    """No size tells of their cost: one batch is tried first, with room that most will not exceed."""
    sizes = Sizes(2, 0, 1 << 20)
    before = sizes.steps_per_run(1), sizes.first_steps(1)
    room, text_room = sizes.room(16, 0), sizes.text_room(16, 0)

    sizes.took(1000, 0.001)

    assert before == (1, 1)
    assert room >= 16 << 20
    assert text_room >= 16 << 10
    assert sizes.steps_per_run(4) == 256


def test_a_run_stays_within_its_raw_bytes() -> None:
    """However cheap records are, a run brings in no more than it may."""
    sizes = Sizes(2, 1000, 1 << 20)
    sizes.took(1000, 0.0)

    assert sizes.steps_per_run(100) * 100 * 1000 <= 1 << 20


def test_room_follows_the_largest_outcome() -> None:
    """A guess has a margin over the largest outcome per record so far."""
    sizes = Sizes(2, 1000, 1 << 20)
    sizes.outcome(10, 100_000, 10_000)
    sizes.outcome(10, 50_000, 10_000)

    assert sizes.room(20, 0) > 200_000 * 1.2


def test_what_is_made_of_records_may_follow_their_number_or_their_bytes() -> None:
    """Before anything is known it is nothing; then the lesser of both, as one large record says little."""
    sizes = Sizes(2, 1000, 1 << 20)
    before = sizes.made(10, 10_000)
    sizes.outcome(10, 500_000, 250_000)

    assert before == 0
    assert sizes.made(10, 1_000_000) == 500_000
    assert sizes.made(10, 1000) == 2000
    assert sizes.made(20, 0) == 1_000_000


def test_what_is_known_beforehand_is_asked_for_at_once() -> None:
    """Where it is known how far records grow, rooms are neither guesses nor learnt."""
    growth = Growth(record_bytes=8, shares=1, part_bytes=64, parts=4, texts=1, exact=True)
    sizes = Sizes(2, 1000, 1 << 20, growth)
    sizes.outcome(1, 1 << 30, 1)
    sizes.texts(1, 1 << 30)

    assert sizes.made(10, 1000) == 80 + 1000 + 4 * 64
    assert sizes.room(10, 1000) == 1152  # 80 + 1000 + 64, up to a multiple of 64
    assert sizes.text_room(10, 1000) == 1216  # a table of ends, and where the second leaf would begin


def test_a_layout_is_learnt_once_and_given_up_after_misfits() -> None:
    """Samples that keep changing their make are packed from then on."""
    sizes = Sizes(2, 1000, 1 << 20)
    learning = []
    for _ in range(3):
        sizes.learn(layout())
        learning.append(sizes.layout is not None)
        sizes.misfit()

    sizes.learn(layout())

    assert learning == [True, True, True]
    assert sizes.layout is None
    assert not sizes.learning


@pytest.mark.parametrize("records", [0, 1])
def test_an_empty_job_measures_nothing(records: int) -> None:
    """A job without records does not divide by their number."""
    sizes = Sizes(1, 10, 1 << 20)

    sizes.took(0, 5.0)
    sizes.outcome(records, 0, 0)

    assert sizes.parts(1) == 1


@given(st.permutations([True] * 20 + [False] * 44))
def test_single_costly_samples_hardly_change_how_batches_are_cut(costly: list[bool]) -> None:
    """One sample in fifty costs twenty times as much, wherever they fall: a batch of 64 stays a few jobs."""
    sizes = Sizes(2, 2000, 1 << 20)
    parts = []
    for number in range(256):
        rows = [0.003 / 1.38] * 16
        rows[0] *= 20 if costly[number % 64] else 1
        sizes.took(16, sum(rows))
        parts.append(sizes.parts(64))

    assert max(parts[64:]) <= min(parts[64:]) + 1


def test_a_change_in_cost_is_followed() -> None:
    """Samples that become dear are noticed at the first of them, that they are cheap soon after."""
    sizes = Sizes(2, 2000, 1 << 20)
    for _ in range(100):
        sizes.took(64, 64 * 0.0001)
    cheap = sizes.parts(64)

    sizes.took(64, 64 * 0.1)
    dear = sizes.parts(64)
    for _ in range(200):
        sizes.took(64, 64 * 0.0001)

    assert (cheap, dear, sizes.parts(64)) == (1, 4, 1)


def test_what_a_batch_holds_is_records_and_what_was_made_of_them() -> None:
    """By the mean record, and by the layout once it is known."""
    sizes = Sizes(2, 1000, 1 << 20)

    raw = sizes.batch_bytes(64)
    sizes.outcome(64, 64 * 500, 64_000)
    packed = sizes.batch_bytes(64)
    sizes.learn(layout())
    stacked = sizes.batch_bytes(64)

    assert raw == 64_000
    assert packed == 64_000 + 64 * 500
    assert stacked == 64_000 + 64 * 3 * 8


@pytest.mark.parametrize(
    ("records", "answer", "expected"),
    [
        (8, Answer((), transform_seconds=0.08, longest_seconds=0.01), 0),  # as all others
        (8, Answer((), transform_seconds=0.57, longest_seconds=0.5), 0.49),
        (8, Answer((), decode_seconds=0.07, transform_seconds=0.5, longest_seconds=0.5), 0.49),
        (8, Answer((), transform_seconds=0.57, longest_seconds=0.5, queued_seconds=0.5), 0),  # it had no CPU
        (8, Answer((), transform_seconds=0.0085, longest_seconds=0.008), 0),  # too short to matter
        (8, Answer((), decode_seconds=2.0), 0),  # not made one by one
        (1, Answer((), transform_seconds=0.5, longest_seconds=0.5), 0.49),  # against those before
    ],
)
def test_by_how_much_the_longest_record_stands_out(records: int, answer: Answer, expected: float) -> None:
    """Against those beside it and before it, if it took long, and several times as long as they."""
    sizes = Sizes(2, 1000, 1 << 20)
    sizes.took(100, 1.0)

    assert sizes.excess(records, answer) == pytest.approx(expected)


def test_nothing_stands_out_where_nothing_is_known() -> None:
    """A record alone, the first of all."""
    assert Sizes(2, 1000, 1 << 20).excess(1, Answer((), transform_seconds=5.0, longest_seconds=5.0)) == 0
