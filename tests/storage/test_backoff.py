"""Waits between attempts: bounded, different for each client, never less than what the server asked for."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.storage.backoff import Backoff

SEEDS = st.integers(0, 1 << 32)


@given(SEEDS, st.integers(1, 40))
def test_waits_stay_below_a_bound_that_doubles(seed: int, count: int) -> None:
    """The n-th wait is at most base times 2 to the n, and never more than the cap."""
    backoff = Backoff(Random(seed), base=0.1, cap=15.0)

    waits = [backoff.next() for _ in range(count)]

    assert all(0 <= wait <= min(0.1 * 2**number, 15.0) for number, wait in enumerate(waits))


def test_waits_are_spread_over_all_of_their_range() -> None:
    """Full jitter: of many clients, some come at once and some at the bound."""
    waits = [_nth(seed, 5) for seed in range(1000)]

    assert min(waits) < 0.1
    assert max(waits) > 3.1
    assert sum(waits) / len(waits) == pytest.approx(1.6, rel=0.1)


@given(SEEDS)
def test_waits_grow_while_the_server_throttles(seed: int) -> None:
    """Each wait is at least as long as the one before, until the cap."""
    backoff = Backoff(Random(seed))

    waits = [backoff.next(throttled=True) for _ in range(8)]

    assert waits == sorted(waits)


@given(SEEDS, st.floats(0.0, 100.0), st.booleans())
def test_server_is_given_the_time_it_asks_for(seed: int, retry_after: float, throttled: bool) -> None:
    """Whatever is drawn comes on top of Retry-After."""
    backoff = Backoff(Random(seed))

    waits = [backoff.next(retry_after=retry_after, throttled=throttled) for _ in range(10)]

    assert min(waits) >= retry_after
    assert max(waits) <= retry_after + 15.0


@given(SEEDS, st.integers(0, 20))
def test_progress_begins_again(seed: int, failures: int) -> None:
    """After something got through, the next wait is as short as the first."""
    backoff = Backoff(Random(seed))
    for _ in range(failures):
        backoff.next()

    backoff.reset()

    assert backoff.next() <= 0.1


def test_lower_cap_holds_for_later_waits_too() -> None:
    """Who looks whether a server is back does so every few seconds, however long that takes."""
    backoff = Backoff(Random(1))

    waits = [backoff.next(cap=2.0) for _ in range(50)]

    assert 1.0 < max(waits) <= 2.0


def test_clients_differ() -> None:
    """Two clients that failed together come back at different times."""
    assert _nth(1, 3) != _nth(2, 3)


def _nth(seed: int, number: int) -> float:
    backoff = Backoff(Random(seed))
    return [backoff.next() for _ in range(number + 1)][-1]
