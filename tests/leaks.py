"""What a test may leave behind: nothing, and what is still there is told by name.

`observe()` is taken before and after every test and costs well under a millisecond, so that the check can
always be on. Only when the second look differs from the first does `leftovers()` wait, looking again until
all is gone or the grace is used up: ending takes processes and threads a moment, and promise M3 gives them
five seconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "GRACE_SECONDS",
    "LoopErrors",
    "Traces",
    "adopt_orphans",
    "copy_threads",
    "leftovers",
    "observe",
    "pending_tasks",
]

GRACE_SECONDS = 5.0
SHARED_MEMORY = Path("/dev/shm")

# The first use of multiprocessing keeps a few descriptors for the life of the process: the pipe to its
# resource tracker, and for the fork server a pipe and a listening socket.
SPARE_DESCRIPTORS = 4

# Where the process ids of those helpers stand. Our fork server differs from multiprocessing's in what it
# imports beforehand; what either forks is looked at like any child.
HELPERS = (
    ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
    ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
    ("aioload._workers.context", "_server", "_forkserver_pid"),
)


@dataclass(frozen=True, slots=True)
class Traces:
    """What this process holds at one moment."""

    processes: frozenset[int]
    """Children and their children, but for multiprocessing's own helpers."""

    threads: frozenset[threading.Thread]
    """Threads alive, as far as Python knows them."""

    segments: frozenset[str]
    """Names in /dev/shm."""

    files: frozenset[str]
    """Our names in the folder for temporary files."""

    descriptors: frozenset[int]
    """Open descriptors."""


class LoopErrors(logging.Handler):
    """Keeps what event loops log as errors: destroyed tasks, exceptions that nobody fetched."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> LoopErrors:
        logging.getLogger("asyncio").addHandler(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger("asyncio").removeHandler(self)


def observe() -> Traces:
    """Look at everything a test could forget to give back."""
    return Traces(
        processes=frozenset(_descendants(os.getpid())),
        threads=frozenset(threading.enumerate()),
        segments=frozenset(_names(SHARED_MEMORY)),
        files=frozenset(name for name in _names(tempfile.gettempdir()) if name.startswith("aioload")),
        descriptors=frozenset(fd for fd in map(int, _names("/proc/self/fd")) if _is_open(fd)),
    )


def leftovers(before: Traces, grace: float = GRACE_SECONDS) -> list[str]:
    """Tell what was not there `before` and stays, in a sentence each; waits only while there is something."""
    if not _compare(before, observe()):
        return []

    for _ in range(2):  # a cycle of the test's own that still holds a file is garbage, not a leak
        gc.collect()  # and what its end lets go may be a cycle itself
    deadline = time.monotonic() + grace
    while (found := _compare(before, observe())) and time.monotonic() < deadline:
        multiprocessing.active_children()  # collects those of its processes that have ended
        time.sleep(0.01)

    return found


def copy_threads() -> list[str]:
    """Tell which threads run that copy to a device."""
    return [thread.name for thread in threading.enumerate() if thread.name == "aioload-copy"]


def pending_tasks() -> list[str]:
    """Tell which tasks of the running loop have not ended, but for the one that asks."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return [f"pending task {task!r}" for task in others]


def adopt_orphans() -> None:
    """Become the parent of what a killed test process leaves behind, so that it counts as left behind."""
    if sys.platform == "linux":
        set_child_subreaper = 36  # <linux/prctl.h>
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def _compare(before: Traces, now: Traces) -> list[str]:
    """Sentences about what is in `now` and was not in `before`."""
    found = [f"process {pid}: {_command(pid)}" for pid in now.processes - before.processes if _runs(pid)]
    found += [f"thread {thread.name!r}" for thread in now.threads - before.threads if thread.is_alive()]
    found += [f"shared memory /dev/shm/{name}" for name in _ours(now.segments - before.segments)]
    found += [f"temporary file {name}" for name in now.files - before.files]
    if len(now.descriptors) > len(before.descriptors) + SPARE_DESCRIPTORS:
        found += [f"descriptor {fd}: {_target(fd)}" for fd in sorted(now.descriptors - before.descriptors)]
    return found


def _ours(names: frozenset[str]) -> list[str]:
    """Leave out semaphores that this process does not hold: /dev/shm is everybody's.

    One of ours that is not unlinked is still mapped, as multiprocessing unlinks it when its object goes.
    """
    if not any(name.startswith("sem.") for name in names):
        return sorted(names)
    mapped = Path("/proc/self/maps").read_text()
    return sorted(name for name in names if not name.startswith("sem.") or f"/dev/shm/{name}" in mapped)


def _descendants(pid: int) -> Iterator[int]:
    """Children of a process and theirs, without multiprocessing's helpers but with the children of those."""
    helpers = _helpers()
    for child in _children(pid):
        if child not in helpers:
            yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    """Read the children of all threads of a process; none where it has just ended."""
    found: list[int] = []
    for thread in _names(f"/proc/{pid}/task"):
        found += map(int, _read(Path(f"/proc/{pid}/task/{thread}/children").read_text).split())
    return found


def _helpers() -> set[int | None]:
    """Those kept for the life of this process: multiprocessing's resource tracker and the fork servers."""
    return {
        getattr(getattr(sys.modules.get(module), owner, None), pid, None) for module, owner, pid in HELPERS
    }


def _runs(pid: int) -> bool:
    """Whether a process still runs; one that has only not been waited for is waited for here."""
    status = _read(Path(f"/proc/{pid}/stat").read_text)
    if status.rpartition(")")[2].strip().startswith("Z"):
        _read(lambda: str(os.waitpid(pid, os.WNOHANG)))
        return False
    return bool(status)


def _is_open(fd: int) -> bool:
    """Whether a descriptor is still open: the one that listed them is among those listed."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _command(pid: int) -> str:
    """The start of a command line, which for a worker is long."""
    return (
        _read(Path(f"/proc/{pid}/cmdline").read_text).replace("\0", " ").strip()[:120] or "(no command line)"
    )


def _target(fd: int) -> str:
    return _read(lambda: str(Path(f"/proc/self/fd/{fd}").readlink())) or "(closed meanwhile)"


def _names(folder: str | Path) -> list[str]:
    """Names in a folder; none where there is no such folder."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - names, not paths: this runs twice a test
    except OSError:
        return []


def _read(look: Callable[[], str]) -> str:
    """What a look at a process tells; nothing where it has ended meanwhile."""
    try:
        return look()
    except OSError:
        return ""
