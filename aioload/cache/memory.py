"""Memory: samples that are kept in memory which this process shares with its workers, and with other ranks.

It is one anonymous file (memfd), so it has no name and goes with the last process that has it open, however
they end. A page costs memory from the moment it is first written.

    head      how far the room for samples is given out, and whether any more is
    index     an `ENTRY` for each record of all sets
    samples   one behind the other

Writers take room in chunks, under a lock that the system ends with its holder, and write an entry after what
it speaks of. Readers take no lock: an entry that was read while it was written, or a sample that somebody's
death has left half done, does not have its sum, and counts as not kept.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import time

import numpy as np
from numpy.typing import NDArray

from .entries import ENTRY, entry
from .packed import Packed

__all__ = ["MemoryStore"]

_HEAD_BYTES = 4096
_HEAD = struct.Struct("<8sQQQQ")  # magic, records, limit, next byte to be given out, closed
_MAGIC = b"aioload1"
_NEXT, _CLOSED = 24, 32  # where in the head
_LEAST_CHUNK, _MOST_CHUNK = 4096, 4 << 20
_CHUNK_SHARE = 1024  # of the limit: what workers leave unused of their last chunks stays below a hundredth
_PATIENCE, _POLL_SECONDS = 0.2, 0.0002  # for the head's lock, which is held for microseconds


class MemoryStore:
    """Samples in shared memory.

    Args:
        fd: of the memory; it becomes this object's own, and is closed if that fails.

    Raises:
        OSError: it cannot be mapped.
        ValueError: it is no such memory.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        try:
            self.records, self.limit = _parse_head(fd)
            mapping = mmap.mmap(fd, self.limit)
        except BaseException:
            os.close(fd)
            raise
        self._head = np.frombuffer(mapping, np.uint64, 3, _NEXT - 8)  # limit, next, closed
        self.index: NDArray[np.void] = np.frombuffer(mapping, ENTRY, self.records, _HEAD_BYTES)
        """[records] where each lies; others write to it."""
        self._places = self.index["place"]
        self._bytes: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)  # of all, to read from
        self._bytes.flags.writeable = False
        self._chunk = min(max(self.limit // _CHUNK_SHARE, _LEAST_CHUNK), _MOST_CHUNK)
        self._room = (0, 0)
        self._is_full = False

    @classmethod
    def create(cls, records: int, limit: int) -> MemoryStore:
        """Make an empty one.

        Args:
            records: of all sets.
            limit: bytes that it may take in all.

        Raises:
            OSError: the system gives no such memory.
        """
        fd = _open(limit)
        try:
            os.pwrite(fd, _HEAD.pack(_MAGIC, records, limit, _first(records), 0), 0)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    @staticmethod
    def least(records: int) -> int:
        """Return the bytes that the index of so many records takes."""
        return _first(records)

    @property
    def used(self) -> int:
        """Bytes that samples and the index may have taken so far."""
        return int(self._head[1])

    @property
    def may_take(self) -> bool:
        """Whether there may be room for another sample, as far as this process knows."""
        return not (self._is_full or self._head[2])

    def close_admission(self, closed: bool) -> None:
        """Give out no more room, or some again."""
        self._head[2] = int(closed)

    def entry(self, slot: int) -> tuple[int, int, int]:
        """Return place, size and sum of what is kept of a record; place 0: nothing is."""
        # hot: once per record that is made
        if not len(self._places) or not self._places[slot]:
            return 0, 0, 0
        place, size, sum_ = self.index[slot].tolist()
        return place, size, sum_

    def put(self, slot: int, packed: Packed) -> bool:
        """Keep a sample, if there is room.

        Args:
            slot: of the record in the index.
            packed: the sample.
        """
        if not self.may_take:
            return False
        if self._places[slot]:  # another pass, or another rank, was faster
            return True
        start = self._take(packed.size)
        if start is None:
            return False
        try:
            written = os.pwritev(self.fd, packed.pieces, start)  # type: ignore[arg-type]  # arrays are buffers, too
        except OSError:  # the system has no memory left for it
            written = 0
        if written < packed.size:
            self._is_full = True
            return False
        os.pwrite(self.fd, entry(start, packed.size, packed.sum), _HEAD_BYTES + ENTRY.itemsize * slot)
        return True

    def get(self, start: int, data: NDArray[np.uint8]) -> bool:
        """Fill an array with the bytes that lie at a place; False where there are not so many."""
        # not by preadv: looking up each page in the file costs as much again as the bytes
        found = self._bytes[start : start + len(data)]
        if len(found) < len(data):
            return False
        data[:] = found
        return True

    def forget(self, slots: NDArray[np.int64]) -> None:
        """Keep these no more; their room stays as it is."""
        self.index["place"][slots] = 0

    def close(self) -> None:
        """Give the memory back, unless others have it open; twice is free."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        # a mapping keeps all of it, and who holds this object may be found by a garbage collection only
        self.index, self._head = np.zeros(0, ENTRY), np.zeros(3, np.uint64)
        self._bytes = np.zeros(0, np.uint8)
        self._places = self.index["place"]

    def _take(self, size: int) -> int | None:
        """Return where a sample may be written."""
        start, stop = self._room
        if stop - start < size:
            room = self._grant(max(size, self._chunk)) or self._grant(size)
            if room is None:
                self._is_full = size <= self._chunk
                return None
            start, stop = room
        self._room = start + size, stop
        return start

    def _grant(self, size: int) -> tuple[int, int] | None:
        """Take room that nobody else has."""
        size = -(-size // 64) * 64
        if not self._lock():
            return None
        try:
            start = int.from_bytes(os.pread(self.fd, 8, _NEXT), "little")
            if start + size > self.limit:
                return None
            os.pwrite(self.fd, (start + size).to_bytes(8, "little"), _NEXT)
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN, _HEAD_BYTES)
        return start, start + size

    def _lock(self) -> bool:
        """Lock the head; False where somebody has it for so long that they must have been stopped."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, _HEAD_BYTES)
            except OSError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(_POLL_SECONDS)
            else:
                return True


def _parse_head(fd: int) -> tuple[int, int]:
    """Return the records that a memory is for, and its limit."""
    head = os.pread(fd, _HEAD.size, 0).ljust(_HEAD.size, b"\0")
    magic, records, limit, *_ = _HEAD.unpack(head)
    if magic != _MAGIC or os.fstat(fd).st_size != limit:
        raise ValueError("this is no memory of kept samples")
    return records, limit


def _first(records: int) -> int:
    """Return where samples begin."""
    return -(-(_HEAD_BYTES + ENTRY.itemsize * records) // mmap.PAGESIZE) * mmap.PAGESIZE


def _open(size: int) -> int:
    """Open memory without a name, of a fixed size."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile(prefix="aioload-", buffering=0) as file:
            file.truncate(size)
            return os.dup(file.fileno())
    fd = os.memfd_create("aioload-cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError:
        os.close(fd)
        raise
    return fd
