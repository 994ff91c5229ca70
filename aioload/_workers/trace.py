"""Trace: where a process that does not answer is, written down by the process itself.

A signal makes the worker's `faulthandler` write the stacks of its threads into a nameless file that both
processes have open. It works while Python code runs or waits, and needs nothing installed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import tempfile
import time
from multiprocessing import reduction
from typing import Any

__all__ = ["STACK_SIGNAL", "StackFile", "StackFileHandle"]

STACK_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + (7 if hasattr(signal, "SIGRTMIN") else 0)
"""Asks a worker for its stack: one that user code hardly has a use for."""

_MOST_BYTES = 1 << 16  # of a stack that are told


class StackFileHandle:
    """A stack file on its way to the process being started."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (reduction.DupFd(self._fd),)

    def listen(self) -> None:
        """Write this process's stacks there when it is asked."""
        os.set_inheritable(self._fd, False)
        faulthandler.register(STACK_SIGNAL, file=self._fd, all_threads=True, chain=False)


class StackFile:
    """The parent's end."""

    def __init__(self) -> None:
        self._fd = _open()

    def handle(self) -> StackFileHandle:
        """Return what a process to be started is given."""
        return StackFileHandle(self._fd)

    def clear(self) -> None:
        """Forget what was written before."""
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)  # the writer's place too: both have the same open file

    def read(self, timeout: float) -> str:
        """Return what the process has written within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        text, is_last = b"", False
        while not is_last:
            is_last = time.monotonic() >= deadline  # then there is one look more: this process may have slept
            seen, text = text, os.pread(self._fd, _MOST_BYTES, 0)
            if text and text == seen:
                break  # nothing new since the last look
            time.sleep(0.05)
        return text.decode(errors="replace")

    def close(self) -> None:
        """Close the file; twice is free."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _open() -> int:
    """Open a file without a name, in memory where that is to be had: there may be no folder to write to."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            return os.memfd_create("aioload-stack", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix="aioload-", buffering=0) as file:
        return os.dup(file.fileno())


def _arrive(duplicate: Any) -> StackFileHandle:
    return StackFileHandle(duplicate.detach())
