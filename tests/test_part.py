"""Ranks share an epoch without talking: all of it, once, in equal steps, from any position on."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orders import WORLDS, own, ranks, steps_of

from aioload import ConfigError
from aioload.part import Part, is_worth_sharing, readers_of_piece

SIZES = st.integers(0, 120)
ROWS = st.integers(1, 9)
WORLD = st.sampled_from(WORLDS)


@given(
    size=SIZES, start=SIZES, batch_size=ROWS, world_size=WORLD, interleaved=st.booleans(), pad=st.booleans()
)
def test_every_position_comes_once(
    size: int, start: int, batch_size: int, world_size: int, interleaved: bool, pad: bool
) -> None:
    """Over all ranks each position from the start on comes once, and padding beside it is counted."""
    start = min(start, size)
    parts = ranks(world_size, size=size, start=start, batch_size=batch_size, interleaved=interleaved, pad=pad)

    taken = Counter(position for part in parts for position in part.positions(0, part.steps).tolist())
    handed_out = [own(part) for part in parts]

    assert sorted(itertools.chain(*handed_out)) == list(range(start, size))
    assert taken.total() == size - start + sum(part.padded for part in parts)
    assert all(part.padded in ((0, 1) if pad else (0,)) for part in parts)


@given(size=SIZES, start=SIZES, batch_size=ROWS, world_size=WORLD, interleaved=st.booleans())
def test_padding_evens_the_last_step(
    size: int, start: int, batch_size: int, world_size: int, interleaved: bool
) -> None:
    """With `pad` every rank has as many steps and rows; what fills up is the epoch's first positions."""
    start = min(start, size)
    parts = ranks(world_size, size=size, start=start, batch_size=batch_size, interleaved=interleaved)

    shapes = {tuple(part.rows(step) for step in range(part.steps)) for part in parts}
    padding = [part.positions(0, part.steps)[-1].item() for part in parts if part.padded]

    assert len(shapes) == 1
    assert len(padding) == -(size - start) % world_size * bool(size - start)
    assert padding == [number % max(size, 1) for number in range(len(padding))]


@given(
    size=SIZES, start=SIZES, batch_size=ROWS, world_size=WORLD, interleaved=st.booleans(), pad=st.booleans()
)
def test_dropping_leaves_out_the_same_step_everywhere(
    size: int, start: int, batch_size: int, world_size: int, interleaved: bool, pad: bool
) -> None:
    """With `drop_last` all ranks have whole batches only, and as many of them."""
    start = min(start, size)
    parts = ranks(
        world_size,
        size=size,
        start=start,
        batch_size=batch_size,
        interleaved=interleaved,
        pad=pad,
        drop_last=True,
    )

    steps = (size - start) // (batch_size * world_size)
    handed_out = sorted(position for part in parts for position in own(part))

    assert [part.steps for part in parts] == [steps] * world_size
    assert [part.padded for part in parts] == [0] * world_size
    assert handed_out == list(range(start, start + steps * batch_size * world_size))


@given(size=SIZES, batch_size=ROWS, world_size=WORLD, interleaved=st.booleans())
def test_uneven_ranks_differ_by_one_row(
    size: int, batch_size: int, world_size: int, interleaved: bool
) -> None:
    """Without padding the last step is shared as evenly as can be, and no rank ends after rank 0."""
    parts = ranks(world_size, size=size, batch_size=batch_size, interleaved=interleaved, pad=False)

    rows = [len(own(part)) for part in parts]

    assert max(rows) - min(rows) <= 1
    assert rows == sorted(rows, reverse=True)
    assert [part.steps for part in parts] == sorted((part.steps for part in parts), reverse=True)


@given(
    size=SIZES, start=SIZES, batch_size=ROWS, world_size=WORLD, interleaved=st.booleans(), pad=st.booleans()
)
def test_steps_can_be_asked_for_in_any_grouping(
    size: int, start: int, batch_size: int, world_size: int, interleaved: bool, pad: bool
) -> None:
    """The positions of several steps are those of each, and `rows` tells how many."""
    for part in ranks(
        world_size, size=size, start=min(start, size), batch_size=batch_size, interleaved=interleaved, pad=pad
    ):
        singly = [part.positions(step, step + 1).tolist() for step in range(part.steps)]

        assert part.positions(0, part.steps).tolist() == list(itertools.chain(*singly))
        assert part.positions(part.steps // 2, part.steps).tolist() == list(
            itertools.chain(*singly[part.steps // 2 :])
        )
        assert [len(one) for one in singly] == [part.rows(step) for step in range(part.steps)]
        assert all(singly)


@given(size=SIZES, start=SIZES, interleaved=st.booleans(), pad=st.booleans())
def test_a_global_batch_does_not_depend_on_the_world_size(
    size: int, start: int, interleaved: bool, pad: bool
) -> None:
    """At 24 positions a step, 1, 2, 3, 4 and 8 ranks share the same global batches."""
    start = min(start, size)
    worlds = [
        ranks(world, size=size, start=start, batch_size=24 // world, interleaved=interleaved, pad=pad)
        for world in WORLDS
    ]

    found = [list(steps_of(parts)) for parts in worlds]

    assert found == [
        [list(range(low, min(low + 24, size))) for low in range(start, size, 24)] for _ in worlds
    ]


@given(size=st.integers(1, 60), start=st.integers(0, 60), batch_size=ROWS, world_size=WORLD)
def test_interleaved_ranks_keep_their_lanes(size: int, start: int, batch_size: int, world_size: int) -> None:
    """Interleaved, a rank's positions are those that are `rank` after the start, by the world size."""
    start = min(start, size)
    parts = ranks(world_size, size=size, start=start, batch_size=batch_size, interleaved=True)

    lanes = [{(position - start) % world_size for position in own(part)} for part in parts]

    assert all(lane <= {rank} for rank, lane in enumerate(lanes))


@given(size=st.integers(1, 60), batch_size=ROWS, world_size=WORLD)
def test_neighbouring_rows_lie_together(size: int, batch_size: int, world_size: int) -> None:
    """Not interleaved, a rank's rows of a step are neighbours, in the order of the ranks."""
    parts = ranks(world_size, size=size, batch_size=batch_size)

    steps = [
        [own(part, step + 1)[len(own(part, step)) :] for part in parts] for step in range(parts[0].steps)
    ]

    assert [list(itertools.chain(*rows)) for rows in steps] == list(steps_of(parts))


@given(
    size=st.integers(0, 60),
    interleaved=st.booleans(),
    first=st.tuples(ROWS, WORLD),
    second=st.tuples(ROWS, WORLD),
    third=st.tuples(ROWS, WORLD),
)
def test_resume_at_every_position_goes_on_exactly(
    size: int,
    interleaved: bool,
    first: tuple[int, int],
    second: tuple[int, int],
    third: tuple[int, int],
) -> None:
    """After any number of steps, twice, at other sizes: nothing is lost, nothing comes again."""
    for stop in range(_steps(size, 0, first) + 1):
        taken, position = _run(size, 0, first, stop, interleaved=interleaved)
        again, place = _run(size, position, second, (stop + 1) // 2, interleaved=interleaved)
        rest, last = _run(size, place, third, None, interleaved=interleaved)

        assert sorted(taken) == list(range(position))
        assert sorted(again) == list(range(position, place))
        assert sorted(rest) == list(range(place, size))
        assert last == size


@pytest.mark.parametrize("shape", [(4, 1), (5, 1), (1, 2), (5, 3), (4, 4), (1, 8), (5, 8)])
@pytest.mark.parametrize("before", [(1, 1), (5, 2), (8, 3), (1, 4), (5, 8)])
def test_resume_at_the_same_global_batch_gives_the_same_batches(
    before: tuple[int, int], shape: tuple[int, int]
) -> None:
    """Wherever a state was taken, what follows depends on its position and the new sizes alone."""
    batch_size, world_size = shape
    positions = [
        Part(41, *before_sizes(before)).position_after(step) for step in range(_steps(41, 0, before) + 1)
    ]

    found = [list(steps_of(ranks(world_size, size=41, batch_size=batch_size, start=at))) for at in positions]

    step = batch_size * world_size
    assert found == [
        [list(range(low, min(low + step, 41))) for low in range(at, 41, step)] for at in positions
    ]


def test_one_record_and_many_ranks() -> None:
    """With a single record each rank has one batch of it; without padding only rank 0 has."""
    padded = ranks(4, size=1, batch_size=8)
    bare = ranks(4, size=1, batch_size=8, pad=False)

    assert [part.positions(0, part.steps).tolist() for part in padded] == [[0]] * 4
    assert [part.padded for part in padded] == [0, 1, 1, 1]
    assert [part.steps for part in bare] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"rank": -1, "world_size": 2}, "rank -1 of 2"),
        ({"start": 11}, "10 records cannot begin at position 11"),
        ({"start": -1}, "position -1"),
    ],
)
def test_a_part_that_cannot_be(options: dict[str, int], told: str) -> None:
    """A rank outside its world, or a start outside its epoch, is a ConfigError."""
    with pytest.raises(ConfigError, match=told):
        Part(10, 2, **options)  # type: ignore[arg-type]


def before_sizes(shape: tuple[int, int]) -> tuple[int, int, int]:
    """Return batch size, rank and world size of the first rank."""
    return shape[0], 0, shape[1]


def _steps(size: int, start: int, shape: tuple[int, int]) -> int:
    return Part(size, *before_sizes(shape), start=start).steps


def _run(
    size: int, start: int, shape: tuple[int, int], stop: int | None, *, interleaved: bool
) -> tuple[list[int], int]:
    """Return what all ranks are handed out in some steps, and the position of the state after them."""
    parts = ranks(shape[1], size=size, start=start, batch_size=shape[0], interleaved=interleaved)
    steps = parts[0].steps if stop is None else min(stop, parts[0].steps)
    positions = {part.position_after(steps) for part in parts}
    assert len(positions) == 1
    return [position for part in parts for position in own(part, steps)], positions.pop()


@pytest.mark.parametrize(
    ("world_size", "lanes", "readers"), [(1, 192, 1), (8, 192, 1), (256, 192, 4), (100, 192, 25), (7, 1, 7)]
)
def test_readers_of_a_piece(world_size: int, lanes: int, readers: int) -> None:
    """They are as many as positions of a lane go to: one where the world size divides the lanes."""
    ranks = {place * lanes % world_size for place in range(world_size)}

    assert readers_of_piece(world_size, lanes) == len(ranks) == readers


@pytest.mark.parametrize(
    ("readers", "record_bytes", "shared"),
    [(1, 1 << 40, True), (64, 2048, True), (5, 1 << 18, True), (5, 300_000, False), (125, 100_000, False)],
)
def test_pieces_that_waste_a_mebibyte_are_not_read_whole(
    readers: int, record_bytes: int, shared: bool
) -> None:
    """For each record of its own a rank reads so many of others, which may be less than a mebibyte."""
    assert is_worth_sharing(readers, record_bytes) is shared
