"""Counters: waits that go on are counted too, and snapshots are of one moment."""

from __future__ import annotations

import pytest

from aioload import stats
from aioload.stats import Counters


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test turns."""
    now = [100.0]
    monkeypatch.setattr(stats.time, "perf_counter", lambda: now[0])
    return now


def test_a_wait_that_goes_on_counts(clock: list[float]) -> None:
    """Before, during and after a wait; what the user does between two is none."""
    counters, waited = Counters(), []

    waited.append(counters.waited)
    arrived = counters.arrive()
    clock[0] += 2
    waited.append(counters.waited)
    counters.leave(arrived, samples=8, size=100)
    clock[0] += 5
    waited.append(counters.waited)
    counters.arrive()
    clock[0] += 1
    waited.append(counters.waited)
    counters.pause()
    waited.append(counters.waited)

    assert waited == [0, 2, 2, 3, 2]
    assert counters.snapshot().consumer_seconds == 5
