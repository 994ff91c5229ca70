"""Indexes of shards of others in a cache folder: how large, since when, and whether one is being made."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..bytelocks import ByteLock

__all__ = ["KeptIndex", "KeptIndexes"]

_WAITED_FOR = 3600.0  # seconds: nobody waits at the lock of an index that was made before


@dataclass(frozen=True, slots=True)
class KeptIndex:
    """One index, or what a killed process has left of one."""

    path: Path
    """Where it lies."""
    num_bytes: int
    """What it takes of the disk."""
    used: float
    """When it was made or last read, in seconds of the epoch, as far as the disk keeps that."""


class KeptIndexes:
    """All indexes in a cache folder. Every method blocks.

    Args:
        folder: the cache folder.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "indexes"

    def files(self) -> Iterator[KeptIndex]:
        """Look at every index."""
        with contextlib.suppress(OSError):  # there are none
            for path in sorted(self.root.iterdir()):
                with contextlib.suppress(OSError):  # gone meanwhile
                    status = path.stat()
                    if ".index" in path.name:
                        used = max(status.st_mtime, status.st_atime)
                        yield KeptIndex(path, status.st_blocks * 512, used)

    def in_use(self, index: KeptIndex) -> bool:
        """Tell whether a live process is making an index."""
        try:
            with self._lock(index) as lock:
                return lock is not None and not lock.is_free(0)
        except OSError:  # not ours to look at
            return True

    def prune(self, keep_bytes: int, *, older_than: float | None = None) -> list[KeptIndex]:
        """Remove the least recently used of what nobody makes; return what has gone.

        Args:
            keep_bytes: as much may stay.
            older_than: remove only what was last used before that time.
        """
        every = sorted(self.files(), key=lambda each: each.used)
        left = sum(each.num_bytes for each in every)
        gone: list[KeptIndex] = []
        for each in every:
            if left <= keep_bytes or (older_than is not None and each.used >= older_than):
                break
            if self._remove(each):
                gone.append(each)
                left -= each.num_bytes
        return gone

    def _remove(self, index: KeptIndex) -> bool:
        """Remove an index that nobody makes; tell whether it has gone."""
        try:
            with self._lock(index) as lock:
                if lock is not None and not lock.take(0):
                    return False
                index.path.unlink()
                # its lock goes too, unless somebody has just come to wait for it
                if lock is not None and time.time() - index.used > _WAITED_FOR:
                    self._lock_path(index).unlink(missing_ok=True)
        except OSError:  # not ours to remove
            return False
        return True

    @contextlib.contextmanager
    def _lock(self, index: KeptIndex) -> Iterator[ByteLock | None]:
        path = self._lock_path(index)
        if not path.exists():
            yield None
            return
        with contextlib.closing(ByteLock(path)) as lock:
            yield lock

    def _lock_path(self, index: KeptIndex) -> Path:
        return index.path.with_name(f"{index.path.name.partition('.')[0]}.lock")
