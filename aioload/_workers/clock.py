"""Clock: how long a process has computed, or waited for a CPU to compute on.

What is left of a stretch of time went into waiting for something else: a disk, a server, another process.
Waiting for a CPU must not count as that, or a crowded machine would be given more processes still.
"""

from __future__ import annotations

import os
import time

__all__ = ["CpuClock"]

_FILE = "/proc/thread-self/schedstat"  # nanoseconds on a CPU, nanoseconds ready for one, and a count


class CpuClock:
    """Counts the seconds in which the process of the thread that first asks needed a CPU."""

    _fd: int | None = None

    def seconds(self) -> tuple[float, float]:
        """Return seconds of all threads on CPUs, and those that the first thread asked for one in vain."""
        if self._fd is None:
            self._fd = _open()
        computed = time.process_time()
        if self._fd < 0:
            return computed, 0.0
        return computed, int(os.pread(self._fd, 100, 0).split()[1]) / 1e9


def _open() -> int:
    """Open the kernel's account of this thread; -1 where it keeps none."""
    try:
        fd = os.open(_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    if len(os.pread(fd, 100, 0).split()) < 2:
        os.close(fd)
        return -1
    return fd
