"""A cached file: the bytes of one version of a remote file, as far as they are on this disk.

The bytes stand where they stand in the file, in a sparse one of its size; beside it grows the list of what is
there (`cachesums`). What this process has written, or has compared with its sum once, it *trusts*; what only
the list says, it *knows*. All that blocks is to be called in a thread.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .cachesums import ENTRY_BYTES, GRAIN_BYTES, Entries, Head, parse_entries, render_entries
from .extents import Extents, Range

__all__ = ["BLOCK_BYTES", "LIST_NAME", "CachedFile", "Grain"]

LIST_NAME = "sums"
BLOCK_BYTES = 4096  # that a file system gives out at least

_WRITE_BYTES = 256 << 10  # at a time: 4 MiB in one call cost ten times the CPU (ext4, kernel 6.18)
_AT_ONCE = 1 << 20  # bytes of a list that are read at a time


class Grain(NamedTuple):
    """A stretch of bytes that has a sum."""

    start: int
    stop: int
    sum: int


class CachedFile:
    """One version of a file, in a folder of its own.

    Args:
        root: what all names are relative to.
        folder: of this version, relative to the root.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: its list is damaged.
    """

    def __init__(self, root: Path, folder: str) -> None:
        self.folder = folder
        self._list = str(root / folder / LIST_NAME)
        with Path(self._list).open("rb") as file:
            text = file.read(_AT_ONCE)
        self.head, self._position = Head.parse(text)
        self.size = self.head.size
        self.tag = self.head.tag
        self.data = f"{folder}/{self.head.data}"
        self.served = False
        """Whether bytes of it were handed out."""
        self.gone = False
        """Whether somebody has removed it."""
        self._data = str(root / self.data)
        if Path(self._data).stat().st_size != self.size:
            raise ValueError("the file of cached bytes has another size")
        self._lock = threading.Lock()
        self._trusted = Extents()
        self._known = Extents()
        self._unchecked: Entries | None = None
        self.refresh()

    @property
    def complete(self) -> bool:
        """Whether all bytes are there, for all that is known."""
        return self.covers(0, self.size)

    def trusts(self, start: int, stop: int) -> bool:
        """Tell whether bytes can be handed out as they stand."""
        # hot: once per read
        with self._lock:
            return self._trusted.covers(start, stop)

    def covers(self, start: int, stop: int) -> bool:
        """Tell whether bytes are there, for all that is known."""
        with self._lock:
            return start >= stop or self._known.covers(start, stop)

    def gaps(self, start: int, stop: int) -> list[Range]:
        """Return what is not there of a range, for all that is known."""
        with self._lock:
            return self._known.gaps(start, stop)

    def unchecked(self, start: int, stop: int) -> list[Grain]:
        """Return the grains that bytes lie in which are known and not yet trusted."""
        with self._lock:
            rows, trusted = self._unchecked, self._trusted
            if rows is None or trusted.covers(start, stop):
                return []
            # sorted, and none is longer than a grain
            first, last = rows["start"].searchsorted((max(0, start - GRAIN_BYTES), stop))
            near = (
                Grain(begin, begin + length, total)
                for begin, length, total in rows[["start", "length", "sum"]][first:last].tolist()
                if begin + length > start
            )
            return [
                grain for grain in near if not trusted.covers(max(start, grain.start), min(stop, grain.stop))
            ]

    def trust(self, start: int, stop: int) -> None:
        """Take bytes for good that were written, or compared with their sum."""
        with self._lock:
            self._known.add(start, stop)
            self._trusted.add(start, stop)
            if len(self._trusted) == len(self._known) and list(self._trusted) == list(self._known):
                self._unchecked = None  # 24 KiB a shard that nobody asks for any more

    def lose(self) -> None:
        """Take the file for removed."""
        self.gone = True
        self.forget(0, self.size)

    def forget(self, start: int, stop: int) -> None:
        """Take bytes for missing: they are not what their sum says, or cannot be read."""
        with self._lock:
            self._known.remove(start, stop)
            self._trusted.remove(start, stop)
            if (rows := self._unchecked) is not None:
                self._unchecked = rows[(rows["start"] >= stop) | (rows["start"] + rows["length"] <= start)]

    def refresh(self) -> None:
        """Read what was added to the list, also by other processes."""
        if os.stat(self._list).st_size == self._position:  # noqa: PTH116 - a fifth of the time, at each miss
            return
        with Path(self._list).open("rb", buffering=0) as file, self._lock:
            while data := os.pread(file.fileno(), _AT_ONCE, self._position):
                rows, used = parse_entries(data, self.size)
                self._position += used
                self._learn(rows)
                if not used or len(data) < _AT_ONCE:
                    return

    def cost(self, start: int, length: int) -> int:
        """Return what bytes may take of the disk at most, with their entries."""
        stop = start + length
        blocks = -(-stop // BLOCK_BYTES) - start // BLOCK_BYTES
        return blocks * BLOCK_BYTES + ENTRY_BYTES * (1 + length // GRAIN_BYTES)

    def store(self, start: int, data: bytes) -> None:
        """Write bytes, then that they are there.

        What is written must be the file's own bytes, whatever happens: others may have them already and
        trust them. So `data` is a private copy.
        """
        _write(self._data, os.O_WRONLY, memoryview(data), start)
        entries = render_entries(start, memoryview(data))
        end = _write(self._list, os.O_WRONLY | os.O_APPEND, memoryview(entries), None)
        self.trust(start, start + len(data))
        with self._lock:
            if end - len(entries) == self._position:  # nobody has written in between
                self._position = end

    def touch(self) -> None:
        """Note the time of use, where that can be noted."""
        os.utime(self._list)

    def __repr__(self) -> str:
        return f"<CachedFile {self.head.shown!r} ranges={len(self._known)} of {self.size} bytes>"

    def _learn(self, rows: Entries) -> None:
        starts = rows["start"].astype(np.int64)
        stops = starts + rows["length"].astype(np.int64)
        fresh = np.ones(len(rows), np.bool_)
        if len(self._trusted):
            covered = map(self._trusted.covers, starts.tolist(), stops.tolist())
            fresh = ~np.fromiter(covered, np.bool_, len(rows))
        for start, stop in _merged(starts[fresh], stops[fresh]):
            self._known.add(start, stop)
        if fresh.any():
            old = [] if self._unchecked is None else [self._unchecked]
            both = np.concatenate([*old, rows[fresh]])
            self._unchecked = both[np.argsort(both["start"], kind="stable")]


def _merged(starts: np.ndarray, stops: np.ndarray) -> list[Range]:
    """Return the ranges that these make together, sorted."""
    if not len(starts):
        return []
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    begins = np.concatenate([[True], starts[1:] > stops[:-1]])
    ends = np.concatenate([begins[1:], [True]])
    return list(zip(starts[begins].tolist(), stops[ends].tolist(), strict=True))


def _write(path: str, flags: int, data: memoryview, place: int | None) -> int:
    """Write all of it, at a place or behind the end; return where the file stands then."""
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        while data:
            part = data[:_WRITE_BYTES]
            count = os.write(fd, part) if place is None else os.pwrite(fd, part, place)
            data = data[count:]
            place = None if place is None else place + count
        return os.lseek(fd, 0, os.SEEK_CUR)
    finally:
        os.close(fd)
