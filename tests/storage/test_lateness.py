"""Which reads are late, and how many of them may be asked again."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.storage.lateness import Allowance, Latencies

SECONDS = st.floats(0.001, 30.0)


def test_nothing_is_late_before_there_are_enough_reads() -> None:
    """Nineteen reads say nothing, twenty do."""
    latencies = Latencies()
    _note(latencies, 1000, [1.0] * 19)
    before = latencies.late(1000)

    latencies.note(1000, 1.0)

    assert before is None
    assert latencies.late(1000) == 2.0


@given(st.lists(SECONDS, min_size=20, max_size=128))
def test_few_recent_reads_were_late(seconds: list[float]) -> None:
    """At most one of twenty recent reads took longer than what is late, rounded up."""
    latencies = Latencies()
    _note(latencies, 1 << 20, seconds)
    _note(latencies, 1 << 20, seconds[:8])  # whatever was kept back from the figures is in them now

    late = latencies.late(1 << 20)

    row = [*seconds, *seconds[:8]][-128:]
    assert late is not None
    assert late >= 0.05
    assert sum(one > late for one in row) <= math.ceil(len(row) / 20) + 8


@pytest.mark.parametrize(("seconds", "late"), [(0.001, 0.05), (0.04, 0.08), (1.0, 2.0)])
def test_reads_of_about_the_same_time_are_not_late(seconds: float, late: float) -> None:
    """Late is at least twice what is usual, and never below 50 ms."""
    latencies = Latencies()

    _note(latencies, 1000, [seconds] * 100)

    assert latencies.late(1000) == pytest.approx(late)


def test_each_size_is_measured_by_its_own_kind() -> None:
    """A large read is not late because small ones are fast."""
    latencies = Latencies()
    _note(latencies, 1 << 12, [0.1] * 20)
    _note(latencies, 8 << 20, [1.0] * 20)

    assert latencies.late(1 << 12) == pytest.approx(0.2)
    assert latencies.late(8 << 20) == pytest.approx(2.0)
    assert latencies.late(1 << 20) == pytest.approx(2.0)  # none of its own: no later than a larger one
    assert latencies.late(16 << 20) is None


def test_old_reads_are_forgotten() -> None:
    """A link that has become slow is slow, not late."""
    latencies = Latencies()
    _note(latencies, 1000, [0.1] * 500)

    _note(latencies, 1000, [1.0] * 128)

    assert latencies.late(1000) == pytest.approx(2.0)


@given(st.lists(st.booleans(), max_size=2000), st.integers(1, 30), st.integers(1, 10))
def test_extra_requests_are_a_small_share(asks: list[bool], every: int, most: int) -> None:
    """At any time there were at most one in `every`, and never more than `most` in a row."""
    allowance, spent, in_a_row = Allowance(every, most), 0, 0

    for number, is_late in enumerate(asks, 1):
        allowance.earn()
        in_a_row = 0
        while is_late and allowance.is_left:
            allowance.spend()
            spent, in_a_row = spent + 1, in_a_row + 1
        assert spent <= number / every
        assert in_a_row <= most


def _note(latencies: Latencies, size: int, seconds: list[float]) -> None:
    for one in seconds:
        latencies.note(size, one)
