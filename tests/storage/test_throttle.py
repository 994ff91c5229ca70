"""When a server that says "slow down" means everybody."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.storage.throttle import Throttle


def test_few_slow_downs_are_no_reason_to_rest() -> None:
    """At 2% of the answers, some minutes of 500 reads a second bring next to no rest."""
    throttle, rng, rests = Throttle(), Random(7), 0

    for number in range(100_000):
        now = number / 500
        if rng.random() < 0.02:
            rests += throttle.throttled(now, None)
        else:
            throttle.answered(now)

    assert rests <= 5


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_many_slow_downs_are(share: float) -> None:
    """A server that refuses a fifth or more of 100 requests is left alone for a moment."""
    throttle, rng, rests = Throttle(), Random(7), 0

    for number in range(100):
        if rng.random() < share:
            rests += throttle.throttled(number / 500, None)
        else:
            throttle.answered(number / 500)

    assert rests >= 1
    assert throttle.is_on(0.2)


def test_rests_grow_while_nothing_gets_through() -> None:
    """Each rest is twice the one before, up to 5 s."""
    throttle, now, rests = Throttle(), 0.0, list[float]()

    for _ in range(20):
        if throttle.throttled(now, None):
            rests.append(throttle.rest(now))
        now += throttle.rest(now)

    assert rests[:6] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
    assert max(rests) == pytest.approx(5.0)


def test_one_rest_at_a_time() -> None:
    """What was under way when a rest began does not make the next one longer."""
    throttle = Throttle()
    began = [throttle.throttled(1.0, None) for _ in range(50)]

    assert began.count(True) == 1
    assert throttle.rest(1.0) == pytest.approx(0.1)


def test_calm_ends_it() -> None:
    """Good answers end it, and the next rest is a short one."""
    throttle = Throttle()
    for number in range(10):
        throttle.throttled(float(number), None)

    for _ in range(200):
        throttle.answered(20.0)

    assert not throttle.is_on(20.0)
    assert [throttle.throttled(20.0, None) for _ in range(7)].count(True) == 1
    assert throttle.rest(20.0) == pytest.approx(0.1)


def test_time_ends_it_too() -> None:
    """Without any answer it is over after a minute."""
    throttle = Throttle()
    for _ in range(10):
        throttle.throttled(0.0, None)

    assert throttle.is_on(1.0)
    assert not throttle.is_on(60.0)


@given(st.floats(0, 1e6))
def test_server_is_left_alone_for_as_long_as_it_asks(retry_after: float) -> None:
    """Retry-After counts for all, up to a minute; beyond, it is the matter of the read that got it."""
    throttle = Throttle()

    for _ in range(10):
        throttle.throttled(5.0, retry_after)

    assert min(retry_after, 60.0) <= throttle.rest(5.0) + 1e-9 <= 60.1
