"""Guard: what scarce memory stops first and second, and when all is good again."""

from __future__ import annotations

from pathlib import Path

import pytest

from aioload import cgroup
from aioload.cache.guard import Guard, Pressure, Reading, affordable

TOTAL = 100 << 30


def pressures(*readings: tuple[float, float | None]) -> list[Pressure]:
    """Return what a guard says of shares of memory that are left, and of stalls, a second apart."""
    given = [Reading(int(share * TOTAL), TOTAL, stalled) for share, stalled in readings]
    clock = iter(range(100))
    guard = Guard(iter(given).__next__, clock=lambda: next(clock))
    return [guard.look() for _ in given]


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(0.5, 0.0)], [0]),
        ([(0.5, None)], [0]),
        ([(0.07, 0.0)], [1]),
        ([(0.5, 12.0)], [1]),
        ([(0.03, 0.0)], [2]),
        ([(0.5, 40.0)], [2]),
        ([(0.07, 0.0)] * 4, [1, 1, 2, 2]),
        ([(0.03, 0.0), (0.1, 0.0), (0.2, 0.0)], [2, 2, 0]),
        ([(0.07, 0.0), (0.2, 7.0), (0.2, 1.0), (0.07, 0.0)], [1, 1, 0, 1]),
    ],
)
def test_pressure(readings: list[tuple[float, float | None]], expected: list[int]) -> None:
    """Prefetch first, then admission; it ends only when memory is plainly there again."""
    assert pressures(*readings) == expected


def test_the_system_is_asked_once_a_second() -> None:
    """Whoever asks more often gets the last answer."""
    asked: list[int] = []
    now = [0.0]

    def ask() -> Reading:
        asked.append(1)
        return Reading(TOTAL, TOTAL, 0.0)

    guard = Guard(ask, clock=lambda: now[0])
    for now[0] in (0.0, 0.4, 0.9, 1.0, 1.9):
        guard.look()

    assert len(asked) == 2


def test_a_limit_leaves_memory_for_all_else() -> None:
    """What pipelines may take is left out, and a tenth of all memory."""
    reading = Reading(60 << 30, TOTAL, None)

    assert affordable(reading, 10 << 30) == 40 << 30
    assert affordable(reading, 99 << 30) == 0


def test_stalls_are_read_as_the_kernel_tells_them(tmp_path: Path) -> None:
    """The worst of the process's groups and the machine counts; where nobody tells, none is known."""
    machine = tmp_path / "memory"
    machine.write_text("some avg10=12.50 avg60=1.00 avg300=0.00 total=1\nfull avg10=99.0 avg60=0 total=0\n")

    assert cgroup.memory_stall(tmp_path, machine) == 12.5
    assert cgroup.memory_stall(tmp_path, tmp_path / "none") is None
