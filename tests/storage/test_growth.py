"""The limit of bytes in flight follows what the link gives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.storage.growth import Growth

MIB = 1 << 20


@given(
    st.lists(
        st.tuples(st.integers(0, 64 * MIB), st.floats(0, 10), st.booleans(), st.booleans()), max_size=200
    )
)
def test_limit_stays_in_its_bounds(events: list[tuple[int, float, bool, bool]]) -> None:
    """Whatever is measured, the limit is between least and most."""
    growth, now = Growth(32 * MIB, 4 * MIB, 128 * MIB), 0.0

    for size, seconds, wanted, throttles in events:
        now += seconds
        growth.arrived(size, now, wanted=wanted)
        if throttles:
            growth.throttled(size, now)
        assert 4 * MIB <= growth.limit <= 128 * MIB


@given(st.floats(10 * MIB, 4000 * MIB), st.floats(0.005, 0.3))
def test_link_is_filled(rate: float, latency: float) -> None:
    """After half a minute on a steady link, nine tenths of what it or the largest limit can give come."""
    growth = Growth(8 * MIB, 4 * MIB, 128 * MIB)

    _run(growth, rate, latency, seconds=30)

    assert _throughput(growth.limit, rate, latency) >= 0.85 * _throughput(128 * MIB, rate, latency)


@given(st.floats(10 * MIB, 200 * MIB), st.floats(0.005, 0.1))
def test_full_link_gets_no_more_in_flight(rate: float, latency: float) -> None:
    """What only makes reads take longer is taken back."""
    growth = Growth(64 * MIB, 4 * MIB, 1024 * MIB)

    limits = _run(growth, rate, latency, seconds=120)

    assert growth.limit <= 128 * MIB
    assert len(set(limits)) <= 3
    assert sum(one != other for one, other in itertools.pairwise(limits)) <= 14


def test_room_that_nobody_waits_for_is_not_made() -> None:
    """Without waiters the limit stays as it is."""
    growth = Growth(8 * MIB, 4 * MIB, 128 * MIB)

    for number in range(1000):
        growth.arrived(MIB, number * 0.1, wanted=False)

    assert growth.limit == 8 * MIB


def test_throttling_halves_and_time_brings_it_back() -> None:
    """Each throttling halves the limit down to the least; later it grows again, in small steps."""
    growth = Growth(32 * MIB, 4 * MIB, 32 * MIB)
    limits = list[int]()
    for number in range(5):
        growth.throttled(64 * MIB, float(number))
        limits.append(growth.limit // MIB)

    later = _run(growth, 1000 * MIB, 0.1, seconds=60)

    assert limits == [16, 8, 4, 4, 4]
    assert max(after / before for before, after in itertools.pairwise(later)) < 1.26
    assert growth.limit == 32 * MIB


def test_throttling_halves_what_is_in_flight() -> None:
    """Where less is in flight than may be, half of the limit would change nothing."""
    growth = Growth(32 * MIB, 1 * MIB, 32 * MIB)

    growth.throttled(6 * MIB, 1.0)

    assert growth.limit == 3 * MIB


def test_fixed_limit_is_never_exceeded() -> None:
    """A user's own limit is where it begins and the most it will be."""
    growth = Growth(16 * MIB, 4 * MIB, 16 * MIB)

    limits = _run(growth, 1000 * MIB, 0.1, seconds=10)

    assert set(limits) == {16 * MIB}


@pytest.mark.parametrize("bounds", [(1, 2, 3), (4, 2, 3), (2, 0, 3)])
def test_impossible_bounds_are_refused(bounds: tuple[int, int, int]) -> None:
    """They are a mistake of whoever sets them."""
    with pytest.raises(ValueError, match="least"):
        Growth(*bounds)


def _throughput(limit: int, rate: float, latency: float) -> float:
    """What comes with so much in flight: all of it in a way there and back, but no more than the link has."""
    return min(rate, limit / latency)


def _run(growth: Growth, rate: float, latency: float, seconds: float) -> list[int]:
    """Read on and on in pieces of 1 MiB, with waiters; return the limits."""
    now, limits = 0.0, list[int]()
    while now < seconds:
        now += 16 * MIB / _throughput(growth.limit, rate, latency)
        for _ in range(16):
            growth.arrived(MIB, now, wanted=True)
        limits.append(growth.limit)
    return limits
