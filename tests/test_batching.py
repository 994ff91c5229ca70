"""Batches by size: every position once, never over the budget, equally many on every rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.batching import Budget, BudgetPart
from aioload.errors import ConfigError

COSTS = st.lists(st.integers(0, 40), min_size=1, max_size=300).map(lambda values: np.array(values, float))


def parts(costs, budget, world_size, start=0, *, drop_last=False, pad=True):
    """Return every rank's part."""
    return [
        BudgetPart.cut(
            len(costs),
            budget,
            costs.__getitem__,
            rank=rank,
            world_size=world_size,
            start=start,
            drop_last=drop_last,
            pad=pad,
        )
        for rank in range(world_size)
    ]


def global_steps(ranks):
    """Return the positions of each step, rank after rank."""
    return [[rank.positions(step, step + 1).tolist() for rank in ranks] for step in range(ranks[0].steps)]


@given(COSTS, st.integers(1, 8), st.booleans(), st.sampled_from([None, 1, 5]))
def test_every_position_comes_once_and_no_batch_exceeds_the_budget(costs, world_size, padded, max_rows):
    """Batches cover the epoch in order, each within cost and rows; only padding repeats."""
    budget = Budget(40, padded=padded, max_rows=max_rows)
    ranks = parts(costs, budget, world_size)

    steps = global_steps(ranks)

    batches = [rows for step in steps for rows in step]
    padding = sum(rank.padded for rank in ranks)
    own = batches[: len(batches) - padding]
    assert [position for rows in own for position in rows] == list(range(len(costs)))
    assert all(cost_of(costs[rows], padded=padded) <= 40 for rows in own)
    assert max_rows is None or max(map(len, own)) <= max_rows
    assert padding < world_size
    assert all(len(rows) == 1 for rows in batches[len(own) :])


def cost_of(costs, *, padded):
    """Return what a batch costs."""
    return costs.max() * len(costs) if padded else costs.sum()


@given(COSTS, st.integers(1, 8))
def test_every_rank_has_equally_many_batches(costs, world_size):
    """Counts agree by padding, or by leaving the last step out."""
    padded = parts(costs, Budget(50), world_size)
    dropped = parts(costs, Budget(50), world_size, drop_last=True)

    assert len({rank.steps for rank in padded}) == 1
    assert len({rank.steps for rank in dropped}) == 1
    assert dropped[0].steps <= padded[0].steps


@given(COSTS, st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_resumed_run_goes_on_at_the_very_next_position(costs, before, after, data):
    """What was handed out and what is left make the epoch, also for another number of ranks."""
    budget = Budget(60)
    ranks = parts(costs, budget, before)
    steps = data.draw(st.integers(0, ranks[0].steps))
    position = ranks[0].position_after(steps)

    rest = parts(costs, budget, after, start=position)

    done = [p for step in global_steps(ranks)[:steps] for rows in step for p in rows][:position]
    left = [p for step in global_steps(rest) for rows in step for p in rows]
    assert done + left[: len(costs) - position] == list(range(len(costs)))


def test_without_padding_ranks_end_unevenly_and_nothing_repeats():
    """pad=False gives exactly the positions there are."""
    ranks = parts(np.full(5, 10.0), Budget(10), 4, pad=False)

    taken = [rank.positions(0, rank.steps).tolist() for rank in ranks]

    assert taken == [[0, 4], [1], [2], [3]]


def test_a_record_over_the_budget_is_named():
    """No batch can hold it: the error says where it is and what to do."""
    with pytest.raises(ConfigError, match=r"position 2 .* costs 99") as caught:
        parts(np.array([1.0, 2.0, 99.0]), Budget(10), 1)

    assert caught.value.position == 2


@pytest.mark.parametrize(
    "wrong", [{"max_cost": 0}, {"max_cost": float("nan")}, {"max_cost": 5, "max_rows": 0}]
)
def test_a_budget_that_cannot_be_is_refused(wrong):
    """Numbers must be positive."""
    with pytest.raises(ConfigError):
        Budget(**wrong)


def test_windows_are_cut_alone_whatever_their_number():
    """An epoch of several windows has every position once, and knows its batches without their payload."""
    costs = np.random.default_rng(0).integers(1, 30, 40_000).astype(float)

    part = parts(costs, Budget(1000), 3)

    assert sum(len(rank.positions(0, rank.steps)) - rank.padded for rank in part) == len(costs)
    assert part[0].batch_size > 40
