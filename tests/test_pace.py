"""Paces: of a recent stretch of time."""

from __future__ import annotations

import pytest

from aioload.pace import Recent, pace
from aioload.stats import LoaderStats
from aioload.watched import Moment


def at(now: float, batches: int, *, waited: float = 0.0, own: float = 0.0) -> Moment:
    """A moment of a loader whose batches have 10 samples and 500,000 bytes."""
    stats = LoaderStats(
        batches=batches,
        samples=10 * batches,
        batch_bytes=500_000 * batches,
        wait_seconds=waited,
        consumer_seconds=own,
        decode_seconds=waited,
    )
    return Moment(now, 0, batches, batches, 100, stats)


def test_a_pace_is_of_what_lies_between() -> None:
    """Two moments tell batches, samples and bytes a second, and the share of the time in waits."""
    found = pace(at(10, 5, waited=1, own=9), at(14, 13, waited=2, own=12))

    assert found is not None
    assert (found.batches, found.samples, found.bytes, found.stall) == (2, 20, 1e6, 0.25)
    assert str(found).startswith("20 samples/s  1.0 MB/s  stall 25% (")


def test_nothing_is_told_of_no_time() -> None:
    """Of two moments at once there is no pace."""
    assert pace(at(10, 5), at(10, 6)) is None
    assert Recent(8).add(at(10, 5)) is None


def test_a_time_without_a_batch_is_all_waiting() -> None:
    """When nothing comes at all, the rate is zero, and the stall is what was waited."""
    found = pace(at(10, 5, waited=1), at(14, 5, waited=5))

    assert found is not None
    assert (found.samples, found.stall, found.stage) == (0, 1, "")


def test_old_moments_are_forgotten() -> None:
    """After a change of pace the recent one is soon the new one alone."""
    recent = Recent(8)
    for second in range(60):
        slow = recent.add(at(second, second))
    for second in range(60, 64):
        mixed = recent.add(at(second, 59 + 10 * (second - 59)))
    for second in range(64, 80):
        fast = recent.add(at(second, 59 + 10 * (second - 59)))

    assert slow is not None
    assert mixed is not None
    assert fast is not None
    assert (slow.batches, fast.batches) == (1, 10)
    assert 1 < mixed.batches < 10


@pytest.mark.parametrize(
    ("batches", "told"),
    [(1, "10 samples/s  500 kB/s"), (200, "2,000 samples/s  100 MB/s"), (4000, "40,000 samples/s  2.0 GB/s")],
)
def test_rates_are_short(batches: int, told: str) -> None:
    """Numbers have the unit that makes them short."""
    assert str(pace(at(0, 0), at(1, batches))).startswith(told)
