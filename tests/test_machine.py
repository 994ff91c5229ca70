"""Machine: sizes as people write them, and what this process may use as the system tells it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload import machine
from aioload.errors import ConfigError
from aioload.machine import available_memory, local_world_size, parse_bytes, usable_cpus


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the system's, empty."""
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    return tmp_path


def tell(cgroup: Path, **values: str) -> None:
    """Write what the system would tell; two underscores stand for a folder, one for a dot."""
    for name, value in values.items():
        path = cgroup / name.replace("__", "/").replace("_D_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *((4096, 4096), ("4096", 4096), (" 4096 B ", 4096), ("1k", 1000), ("1 kB", 1000), ("1KiB", 1024)),
        *(("256MiB", 256 << 20), ("256mib", 256 << 20), ("1.5 GB", 1_500_000_000), ("2GiB", 2 << 30)),
        *(("0.5Ti", 1 << 39), (np.int64(7), 7), ("9007199254740993", 9007199254740993)),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str | int, size: int) -> None:
    """Decimal and binary units, with or without the B, in any case, and exactly."""
    assert parse_bytes(text, name="memory_limit") == size


@given(st.integers(1, 1 << 60))
def test_a_number_is_itself(size: int) -> None:
    """A number of bytes and the same as text are the same size."""
    assert parse_bytes(size, name="x") == parse_bytes(str(size), name="x") == size


@pytest.mark.parametrize(
    "size", ["", "MiB", "-1", "1.GB", "1 PB", "1e3", "two", "0", "0.1", 0, -5, True, 1.5, None, "9" * 400]
)
def test_what_is_no_size_is_refused_by_name(size: object) -> None:
    """The error names the option and shows what was given."""
    with pytest.raises(ConfigError, match="memory_limit must be"):
        parse_bytes(size, name="memory_limit")


@pytest.mark.parametrize(
    ("value", "size"), [("4", 4), ("1", 1), ("0", 1), ("", 1), ("-2", 1), ("many", 1), ("²", 1)]
)
def test_the_local_world_is_at_least_one(value: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torchrun says counts; nonsense counts as being alone."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", value)

    assert local_world_size() == size


def test_without_a_launcher_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to set anything."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)

    assert local_world_size() == 1


@pytest.mark.parametrize(
    ("told", "cpus"),
    [
        ({}, 16),
        ({"cpu_D_max": "max 100000"}, 16),
        ({"cpu_D_max": "250000 100000"}, 3),
        ({"cpu_D_max": "10000 100000"}, 1),
        ({"cpu_D_max": "9900000 100000"}, 16),
        ({"cpu_D_max": "damaged"}, 16),
        ({"cpu__cpu_D_cfs_quota_us": "400000", "cpu__cpu_D_cfs_period_us": "100000"}, 4),
        ({"cpu__cpu_D_cfs_quota_us": "-1", "cpu__cpu_D_cfs_period_us": "100000"}, 16),
    ],
)
def test_cpus_are_what_affinity_and_quota_leave(
    told: dict[str, str], cpus: int, cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's quota counts, a part of a CPU as a whole one; never less than one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    tell(cgroup, **told)

    assert usable_cpus() == cpus


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ({}, 8 << 30),
        ({"memory_D_max": "max", "memory_D_current": "5"}, 8 << 30),
        ({"memory_D_max": str(1 << 30), "memory_D_current": str(1 << 29)}, 1 << 29),
        ({"memory_D_max": "100", "memory_D_current": "500"}, 0),
        (
            {"memory_D_max": "100", "memory_D_current": "60", "memory_D_stat": "anon 9\ninactive_file 25\n"},
            65,
        ),
        ({"memory__memory_D_limit_in_bytes": "100", "memory__memory_D_usage_in_bytes": "30"}, 70),
        ({"memory__memory_D_limit_in_bytes": str(1 << 62), "memory__memory_D_usage_in_bytes": "30"}, 8 << 30),
    ],
)
def test_memory_is_what_the_machine_and_the_group_leave(
    told: dict[str, str], left: int, cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smaller of the two counts; a cache that would be given up counts as free."""
    monkeypatch.setattr(machine, "_meminfo_available", lambda: 8 << 30)
    tell(cgroup, **told)

    assert available_memory() == left


def test_this_machine_tells_something() -> None:
    """On whatever runs this test there is a CPU and some memory."""
    assert usable_cpus() >= 1
    assert available_memory() > 1 << 20
