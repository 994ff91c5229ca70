"""Locks: what `multiprocessing`'s queues need between one parent and one worker, without names in /dev/shm.

`multiprocessing` makes semaphores under a name. That needs a /dev/shm that can be written to, leaves the
names there when the parent is killed, and prints a warning when they are then cleared up. A queue between
one writer and one reader needs less: each end is used by one process, so a lock of that process is enough,
and what bounds the queue is counted by an `eventfd`, which has no name.
"""

from __future__ import annotations

import os
import select
import threading
from multiprocessing import context, reduction
from typing import Any

__all__ = ["OneProcessLock", "Slots"]


class OneProcessLock:
    """A lock between the threads of one process; in another process, what arrives is a lock of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return OneProcessLock, ()


class Slots:
    """A semaphore between two processes, with the face that `multiprocessing.Queue` looks for.

    Args:
        value: how many may be taken before one must be given back.
    """

    def __init__(self, value: int) -> None:
        self._own(os.eventfd(value, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take one; tell whether that was possible in time."""
        while True:
            try:
                os.eventfd_read(self._fd)
            except BlockingIOError:
                if not block or not self._wait(timeout):
                    return False
            else:
                return True

    def release(self) -> None:
        """Give one back."""
        os.eventfd_write(self._fd, 1)

    def __reduce__(self) -> tuple[Any, ...]:
        context.assert_spawning(self)
        return _arrive, (reduction.DupFd(self._fd),)

    def __del__(self) -> None:
        os.close(self._fd)

    def _own(self, fd: int) -> None:
        self._fd = fd
        self._semlock = _Look(fd)

    def _wait(self, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(None if timeout is None else max(timeout, 0) * 1000))


class _Look:
    """How a queue asks its semaphore whether it is full."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def _is_zero(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return not poll.poll(0)


def _arrive(duplicate: Any) -> Slots:
    slots = Slots.__new__(Slots)
    fd = duplicate.detach()
    os.set_inheritable(fd, False)
    slots._own(fd)
    return slots
