"""The machine: how many CPUs and how much memory this process may use, and sizes as people write them."""

from __future__ import annotations

import math
import os
import re
from fractions import Fraction
from pathlib import Path
from typing import SupportsIndex

from . import cgroup
from .errors import ConfigError

__all__ = [
    "available_memory",
    "is_local",
    "local_world_size",
    "parse_bytes",
    "total_memory",
    "usable_cpus",
]

_LOCAL_FILESYSTEMS = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
)

_PREFIXES = ("", "k", "m", "g", "t")
_UNITS = {name: 1000**power for power, name in enumerate(_PREFIXES)} | {
    f"{name}i": 1024**power for power, name in enumerate(_PREFIXES) if name
}
_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


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
    quota = cgroup.cpus()
    return max(1, cpus if quota is None else min(cpus, math.ceil(quota)))


def available_memory() -> int:
    """Return the bytes that can still be had: free memory, or what the process's limits leave of it."""
    left = cgroup.memory_left()
    free = _meminfo_available()
    return free if left is None else min(free, left)


def total_memory() -> int:
    """Return the bytes of memory that this process and its page cache may take: the machine's, or a limit."""
    limit, total = cgroup.memory_limit(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total if limit is None else min(total, limit)


def is_local(path: str, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Tell whether a file lies on a disk of this machine, as far as can be known.

    Args:
        path: of the file.
        mounts: where the kernel tells what is mounted.
    """
    real = Path(os.path.realpath(path))
    kind, deepest = "", 0
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        before, _, after = line.partition(" - ")
        place = Path(cgroup.unescaped(before.split()[4]))
        if real.is_relative_to(place) and len(place.parts) >= deepest:  # the last mount covers the others
            kind, deepest = after.split()[0], len(place.parts)
    return kind in _LOCAL_FILESYSTEMS


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
