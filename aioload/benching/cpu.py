"""CPU: what a process and all below it have computed, where the system tells."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

__all__ = ["tree_cpu"]


def tree_cpu(root: int | None = None) -> float:
    """Return the CPU seconds of a process tree since it began; without /proc, those of this process alone.

    Args:
        root: its topmost process; by default this one.
    """
    if not Path("/proc/self/stat").exists():
        return time.process_time()
    ticks = 0
    for pid in _tree(os.getpid() if root is None else root):
        with contextlib.suppress(OSError):
            values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, values[11:15]))  # user and system, and those of children waited for
    return ticks / os.sysconf("SC_CLK_TCK")


def _tree(root: int) -> list[int]:
    found = [root]
    for pid in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found
