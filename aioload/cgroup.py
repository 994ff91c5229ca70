"""Cgroup: the memory and CPUs that the groups of this process leave it, wherever in the tree they are set.

A limit counts for all groups below it, so the tightest one on the way from the process's own group up to the
root decides. Both hierarchies are read, since machines run either, or half of each; where a container sees
only its own part of the tree, the mounts tell where that part begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["cpus", "memory_left", "memory_limit", "memory_stall", "unescaped"]

_PROCESS = Path("/proc/self")
_STALL = re.compile(r"^some .*?avg10=([0-9.]+)", re.MULTILINE)
_NO_LIMIT = 1 << 60  # the old hierarchy says "no limit" with a huge number


def memory_left(process: Path = _PROCESS) -> int | None:
    """Return the bytes that may still be taken; None where nothing bounds them.

    Args:
        process: where the kernel tells about the process.
    """
    left: list[int] = []
    for group in _groups(process, "memory"):
        limits = [_number(group / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
        used = _first(group, "memory.current", "memory.usage_in_bytes") or 0
        bounds = [limit for limit in limits if limit is not None and limit < _NO_LIMIT]
        left += [max(bound - used + _reclaimable(group), 0) for bound in bounds]
    return min(left, default=None)


def memory_limit(process: Path = _PROCESS) -> int | None:
    """Return the bytes that the groups may have in all, page cache included; None where nothing bounds them.

    Args:
        process: where the kernel tells about the process.
    """
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = [_number(group / name) for group in _groups(process, "memory") for name in names]
    return min((limit for limit in limits if limit is not None and limit < _NO_LIMIT), default=None)


def memory_stall(process: Path = _PROCESS, machine: Path = Path("/proc/pressure/memory")) -> float | None:
    """Return for how many per cent of the last ten seconds somebody waited for memory; None: nobody tells.

    Args:
        process: where the kernel tells about the process.
        machine: where it tells about all of them.
    """
    files = [*(group / "memory.pressure" for group in _groups(process, "memory")), machine]
    found = [_STALL.search(_text(file)) for file in files]
    return max((float(match[1]) for match in found if match is not None), default=None)


def cpus(process: Path = _PROCESS) -> float | None:
    """Return how many CPUs' time may be used; None where nothing bounds it.

    Args:
        process: where the kernel tells about the process.
    """
    granted: list[float] = []
    for group in _groups(process, "cpu"):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if not quota:
            quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            granted.append(int(quota) / int(period))
    return min(granted, default=None)


@dataclass(frozen=True, slots=True)
class _Mount:
    """A place where a part of a hierarchy can be seen."""

    place: Path
    """The folder."""
    root: str
    """The group that is seen there."""
    controllers: frozenset[str]
    """What it governs; empty in the new hierarchy, which governs all."""

    def governs(self, controllers: frozenset[str]) -> bool:
        """Tell whether it is of the hierarchy of these controllers; of none: of the new one."""
        return bool(controllers & self.controllers) if controllers else not self.controllers


def _groups(process: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the process's group and of those above it, in each hierarchy that governs this."""
    mounts = list(_mounts(_text(process / "mountinfo")))
    for line in _text(process / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        wanted = frozenset() if number == "0" else frozenset({controller}) & frozenset(names.split(","))
        if number != "0" and not wanted:
            continue
        mount = next((mount for mount in mounts if mount.governs(wanted)), None)
        if mount is not None:
            yield from _up(mount, path)


def _up(mount: _Mount, path: str) -> Iterator[Path]:
    """Yield a group's folder and those above it, as far as they can be seen."""
    group, root = PurePosixPath(path), PurePosixPath(mount.root)
    below = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
    while below.parts and ".." not in below.parts:
        yield mount.place / below
        below = below.parent
    yield mount.place


def _mounts(mountinfo: str) -> Iterator[_Mount]:
    """Yield where hierarchies are mounted."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = frozenset(kind[2].split(",")) - {"rw", "ro"} if kind[0] == "cgroup" else frozenset()
        yield _Mount(Path(unescaped(fields[4])), unescaped(fields[3]), controllers)


def unescaped(name: str) -> str:
    """Return a path as it is: the kernel writes blanks in it as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), name)


def _reclaimable(group: Path) -> int:
    """Return the bytes of page cache that a group gives up when asked for memory."""
    lines = [line.split() for line in _text(group / "memory.stat").splitlines()]
    found = {words[0]: words[1] for words in lines if len(words) == 2 and words[1].isdecimal()}
    return int(found.get("total_inactive_file", found.get("inactive_file", "0")))


def _first(group: Path, *names: str) -> int | None:
    """Return the first number there is."""
    return next((number for name in names if (number := _number(group / name)) is not None), None)


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""
