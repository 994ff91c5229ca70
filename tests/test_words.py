"""Numbers in words: short, with a unit that fits, and the same wherever they are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioload
from aioload.words import byte_rate, clock, count, number, share, size, time_text

amounts = st.floats(0, 1e15, allow_nan=False)


@pytest.mark.parametrize(
    ("num_bytes", "told"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (7 << 30, "7.0 GiB"),
        (3 << 40, "3.0 TiB"),
        (5 << 50, "5,120.0 TiB"),
    ],
)
def test_sizes(num_bytes: int, told: str) -> None:
    """A number of bytes is told in the largest unit of 1024 that fits."""
    assert size(num_bytes) == told


@pytest.mark.parametrize(
    ("rate", "told"),
    [(0, "0 B/s"), (999, "999 B/s"), (1500, "1.5 kB/s"), (99.96e6, "100 MB/s"), (1.5e9, "1.5 GB/s")],
)
def test_rates(rate: float, told: str) -> None:
    """A rate of bytes is told in units of 1000, as those of disks and networks are."""
    assert byte_rate(rate) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0.00 s"),
        (0.004, "4 ms"),
        (0.35, "0.35 s"),
        (16.4, "16 s"),
        (198, "3.3 min"),
        (9000, "2.5 h"),
    ],
)
def test_times(seconds: float, told: str) -> None:
    """How long something takes is told to two or three digits."""
    assert time_text(seconds) == told


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0:00"), (59.6, "1:00"), (75, "1:15"), (3600, "1:00:00"), (90_061, "25:01:01")]
)
def test_clocks(seconds: float, told: str) -> None:
    """Minutes and seconds, and hours where there are any."""
    assert clock(seconds) == told


def test_counts_and_shares() -> None:
    """One is one, all else are several; small numbers have a tenth; parts are percentages."""
    assert [count(1, "record"), count(0, "record"), count(3000, "record")] == [
        "1 record",
        "0 records",
        "3,000 records",
    ]
    assert [number(0.25), number(9.96), number(1234.5)] == ["0.2", "10", "1,234"]
    assert share(0.333) == "33%"


@given(amounts)
def test_all_of_them_are_short(amount: float) -> None:
    """No number that occurs takes more room than a column has."""
    assert max(map(len, (size(amount), byte_rate(amount), number(amount)))) <= 25
    assert len(byte_rate(min(amount, 9e11))) <= 10


def test_units_are_told_in_one_place() -> None:
    """No other module writes numbers of bytes or rates in units of its own."""
    package = Path(aioload.__file__).parent
    writes_a_unit = re.compile(r"""\} ?([kMGT]i?B)\b|["']([KMGT]iB|[kMG]B)["']""")

    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if writes_a_unit.search(path.read_text())
    }

    assert found == {"words.py"}
