"""What a whole process tree costs: CPU seconds, and memory as the kernel shares it out (PSS).

Linux only: everything comes from /proc. CPU seconds are user plus system time of all processes that live
below one, and of those that have ended there. Memory is Pss_Anon plus Pss_Shmem: private memory, and shared
memory that no file stands behind, each page counted once over the tree. Pages of mapped files are the
kernel's to drop, and are told apart. Shared memory that nobody has mapped at the moment, such as a batch that
waits in torch's queue as a mere descriptor, is in no PSS, and so not counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["MIB", "Memory", "Watch", "backed", "tree", "tree_cpu", "tree_memory", "watching"]

_TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20

# of Linux's falloc.h
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a process tree."""

    anonymous: int
    """Private memory."""
    shared: int
    """Shared memory without a file."""
    file: int
    """Pages of mapped files, which the kernel may drop."""

    @property
    def total(self) -> int:
        """What the tree holds: without pages of files."""
        return self.anonymous + self.shared


def tree(root: int) -> list[int]:
    """Return the ids of a process and of all below it."""
    found = [root]
    for pid in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names, not paths
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def tree_cpu(root: int) -> float:
    """Return the CPU seconds that a tree has used since it began, ended processes included."""
    ticks = 0
    for pid in tree(root):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, and both of children that were waited for
    return ticks / _TICKS


def tree_memory(root: int, *, without: tuple[int, ...] = ()) -> Memory:
    """Return the memory of a tree at this moment.

    Args:
        root: its topmost process.
        without: processes that do not belong to what is measured.
    """
    sums = {"Pss_Anon:": 0, "Pss_Shmem:": 0, "Pss_File:": 0}
    for pid in tree(root):
        if pid not in without:
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    name, *rest = line.split()
                    if name in sums:
                        sums[name] += int(rest[0]) << 10
    return Memory(*sums.values())


@dataclass(slots=True)
class Watch:
    """The most memory that was seen."""

    peak: Memory = field(default_factory=lambda: Memory(0, 0, 0))
    """Where the total was highest."""
    shared: int = 0
    """The most shared memory, whatever the total was."""
    usual: int = 0
    """The median of shared memory."""
    samples: int = 0
    """How often was looked."""


@contextlib.contextmanager
def watching(interval: float = 0.05) -> Iterator[Watch]:
    """Watch the tree of this process from outside of it, as often as said, until the end of the block."""
    watch = Watch()
    command = [sys.executable, __file__, str(os.getpid()), str(interval)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is looking
        try:
            yield watch
        finally:
            out, _ = process.communicate()
            anonymous, shared, file, watch.shared, watch.usual, watch.samples = map(int, out.split())
            watch.peak = Memory(anonymous, shared, file)


def _watch(root: int, interval: float) -> None:
    """Look until standard input ends, then print what was the most."""
    os.set_blocking(0, False)
    watch, seen_shared = Watch(), [0]
    print("looking", flush=True)
    while os.getppid() == root:
        seen = tree_memory(root, without=(os.getpid(),))
        watch.samples += 1
        watch.shared = max(watch.shared, seen.shared)
        seen_shared.append(seen.shared)
        if seen.total >= watch.peak.total:
            watch.peak = seen
        with contextlib.suppress(BlockingIOError):
            if os.read(0, 1) == b"":
                break
        time.sleep(interval)
    peak = watch.peak
    usual = int(statistics.median(seen_shared))
    print(peak.anonymous, peak.shared, peak.file, watch.shared, usual, watch.samples)


@contextlib.contextmanager
def backed(free_bytes: int) -> Iterator[None]:
    """Have so much free memory at hand that the host of a virtual machine has given already.

    What no program has used lately may belong to the host again, and each of its pages then costs many times
    what it costs the system here: that would be a figure of the host. Twice as much is written to, and every
    other MiB of it given back: pieces so small do not grow together to what is returned to the host.
    """
    if not free_bytes:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    fd = os.memfd_create("backed")
    try:
        os.ftruncate(fd, 2 * free_bytes)
        for start in range(0, 2 * free_bytes, MIB):
            os.pwrite(fd, bytes(MIB), start)
        for start in range(0, 2 * free_bytes, 2 * MIB):
            if libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, start, MIB):
                raise OSError(ctypes.get_errno(), "no memory could be given back")
        yield
    finally:
        os.close(fd)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), float(sys.argv[2]))
