"""Locks on bytes of a file, between processes and within one; the system ends them with their holder.

An open file description holds them (`F_OFD_SETLK`), not the process: so two readers in one process exclude
each other as two processes do, closing one file ends its own locks only, and so does a SIGKILL. Where the
system has no such locks, all is granted: files are then fetched twice or evicted while in use, which costs
requests and never changes bytes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Busy", "ByteLock", "locked_file"]

_SET: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_GET: int | None = getattr(fcntl, "F_OFD_GETLK", None)
_FLOCK = "hhqqi"  # l_type, l_whence, l_start, l_len, l_pid, which must be 0
_HELD = frozenset({errno.EAGAIN, errno.EACCES})
_POLL_SECONDS = 0.002


class Busy(OSError):
    """A lock was not to be had in time."""


class ByteLock:
    """A file whose bytes are locked; what is in it does not matter.

    Args:
        path: of the file, which is made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # enough for shared locks

    def share(self, start: int, length: int = 1) -> bool:
        """Lock bytes together with others that share them; False where somebody has them alone."""
        return self._set(fcntl.F_RDLCK, start, length)

    def take(self, start: int, length: int = 1) -> bool:
        """Lock bytes alone; False where anybody else has one of them."""
        return self._set(fcntl.F_WRLCK, start, length)

    def is_free(self, start: int, length: int = 1) -> bool:
        """Tell whether `take` would succeed, without disturbing anybody."""
        if _GET is None:
            return True
        answer = fcntl.fcntl(
            self._fd, _GET, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        )
        return bool(struct.unpack(_FLOCK, answer)[0] == fcntl.F_UNLCK)

    def release(self, start: int, length: int = 1) -> None:
        """Let bytes go."""
        self._set(fcntl.F_UNLCK, start, length)

    def close(self) -> None:
        """Let all go; twice is free."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _set(self, kind: int, start: int, length: int) -> bool:
        if _SET is None:
            return True
        try:
            fcntl.fcntl(self._fd, _SET, struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0))
        except OSError as error:
            if error.errno not in _HELD:
                raise
            return False
        return True


@contextmanager
def locked_file(path: Path, patience: float) -> Iterator[int]:
    """Open a file for reading and writing, locked whole against all others.

    Args:
        path: of the file, which is made if it is not there.
        patience: seconds to wait: a holder that was stopped must not stop the others.

    Raises:
        Busy: somebody else had it all that time.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise Busy(error.errno, "somebody else holds its lock", str(path)) from error
                time.sleep(_POLL_SECONDS)
        yield fd
    finally:
        os.close(fd)
