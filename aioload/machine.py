"""The machine: how many CPUs and how much memory this process may use, and sizes as people write them."""

from __future__ import annotations

import math
import os
import re
from fractions import Fraction
from pathlib import Path
from typing import SupportsIndex

from .errors import ConfigError

__all__ = ["available_memory", "local_world_size", "parse_bytes", "usable_cpus"]

_PREFIXES = ("", "k", "m", "g", "t")
_UNITS = {name: 1000**power for power, name in enumerate(_PREFIXES)} | {
    f"{name}i": 1024**power for power, name in enumerate(_PREFIXES) if name
}
_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)
_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_MEMORY = (  # limit and use, in the new hierarchy and the old one
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def parse_bytes(size: object, *, name: str) -> int:
    """Return a size in bytes: 4096, "256MiB", "1.5 GB".

    Raises:
        ConfigError: it is none, or not positive; names the option.
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match is None:
            raise ConfigError(f'{name} must be a number of bytes or a text such as "256MiB", got {size!r}')
        size = int(Fraction(match[1]) * _UNITS[(match[2] or "").lower()])
    if isinstance(size, bool) or not isinstance(size, SupportsIndex) or size.__index__() <= 0:
        raise ConfigError(f"{name} must be a positive number of bytes, got {size!r}")
    return size.__index__()


def local_world_size() -> int:
    """Return how many ranks share this machine, as torchrun says it; 1 where nobody does."""
    value = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(value) if value.isdecimal() and int(value) > 0 else 1


def usable_cpus() -> int:
    """Return the CPUs this process may use: what affinity and the cgroup's quota leave, at least 1."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota()
    return max(1, cpus if quota is None else min(cpus, math.ceil(quota)))


def available_memory() -> int:
    """Return the bytes that can still be had: free memory, or what the cgroup has left if that is less."""
    left = [_meminfo_available()]
    for limit, used in _CGROUP_MEMORY:
        most, now = _number(limit), _number(used)
        if most is not None and now is not None:
            left.append(max(most - now + _reclaimable(), 0))
    return min(left)


def _cpu_quota() -> float | None:
    """Return the CPUs that the cgroup grants, or None where it sets no bound."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    quota_us, period_us = _number("cpu/cpu.cfs_quota_us"), _number("cpu/cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us and quota_us > 0 else None


def _reclaimable() -> int:
    """Return the bytes of the cgroup's page cache, which it gives up when asked for memory."""
    try:
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    found = dict(line.split(None, 1) for line in lines if line)
    return int(found.get("inactive_file", 0))


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _number(name: str) -> int | None:
    """Return a number that the cgroup tells; None where it tells none ("max", no such file)."""
    try:
        value = int((_CGROUP / name).read_text())
    except (OSError, ValueError):
        return None
    return value if value < 1 << 60 else None  # the old way of saying "no bound" is a huge number
