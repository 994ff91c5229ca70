"""Room for unpacked files: part of the cache folder's limit, and made by giving up what was used longest ago.

What other processes use, and what is being read here, is never given up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StorageError
from .cachefolder import CacheFolder

__all__ = ["UnpackedRoom"]

_log = logging.getLogger("aioload.storage")

_POLL = 0.01  # seconds, between two looks whether reads have ended
_PATIENCE = 30.0  # for reads of files on this disk


class UnpackedRoom:
    """The room of one reader's unpacked files. Its methods are called in any thread.

    Args:
        folder: the cache folder.
        limit_bytes: what it may take of the disk; None: nothing is reserved, and nothing given up.
        forget: called with the name of a file that is given up.
    """

    def __init__(self, folder: Path, limit_bytes: int | None, forget: Callable[[str], object]) -> None:
        self._limit = limit_bytes
        self._cache = None if limit_bytes is None else CacheFolder(folder, limit_bytes)
        self._forget = forget
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = (
            OrderedDict()
        )  # of files that are there, least recently read first
        self._reading: Counter[str] = Counter()
        self._making: set[str] = set()  # that have room, or wait for it
        self._known: dict[str, int] = {}
        self._warned = self._closed = False

    @property
    def is_bounded(self) -> bool:
        """Whether there is a limit."""
        return self._cache is not None

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Keep a file from being given up while it is read, or made to be read."""
        self.keep(name)
        try:
            yield
        finally:
            with self._lock:
                self._reading[name] -= 1

    def keep(self, name: str) -> None:
        """Keep a file from being given up."""
        with self._lock:
            self._reading[name] += 1
            if name in self._sizes:
                self._sizes.move_to_end(name)

    @contextmanager
    def making(self, name: str) -> Iterator[None]:
        """Take it that a file is being made, whose room will be free again if that fails."""
        with self._lock:
            self._making.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._making.discard(name)

    def came(self, name: str, num_bytes: int) -> None:
        """Take it that a file is there."""
        with self._lock:
            self._sizes[name] = self._known[name] = num_bytes

    def reserve(self, name: str, num_bytes: int, spend: Callable[[], object] | None) -> None:
        """Take room for bytes of a file. It blocks.

        Args:
            name: of the file.
            num_bytes: so many.
            spend: sets the room aside on the disk.

        Raises:
            StorageError: there is none, whatever is given up.
        """
        if self._cache is None or self._limit is None:
            return
        if num_bytes > self._limit:
            raise self._full(name, num_bytes)
        if self._cache.reserve(num_bytes, spend=spend):
            return
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and not self._closed:
            idle = self._give_up()
            if idle is None:
                with self._lock:
                    if not self._sizes and self._making <= {name}:
                        break
                time.sleep(_POLL)  # all that is here is being read or made, which ends soon
            if self._cache.reserve(num_bytes, again=True, spend=spend):
                return
        raise self._full(name, num_bytes)

    def close(self) -> None:
        """Give back what was promised; twice is free."""
        self._closed = True
        if self._cache is not None:
            self._cache.close()

    def _give_up(self) -> str | None:
        """Give up the file that was used longest ago and is not being read; return its name."""
        with self._lock:
            name = next((name for name in self._sizes if not self._reading[name]), None)
            if name is None:
                return None
            del self._sizes[name]
            needed, self._warned, told = sum(self._known.values()), True, self._warned
        self._forget(name)
        if not told:
            _log.warning(
                "cache_bytes (%d) does not hold all files that are unpacked to be read (%d bytes so far): %s "
                "is given up, and unpacked again when it is needed",
                self._limit,
                needed,
                name,
            )
        return name

    def _full(self, name: str, num_bytes: int) -> StorageError:
        return StorageError(
            f"{name} cannot be unpacked: it needs {num_bytes} bytes more, and cache_bytes ({self._limit}) "
            "has no such room beside what other programs use; give more, or end these",
            shard=name,
            needed=num_bytes,
            final=True,
        )
