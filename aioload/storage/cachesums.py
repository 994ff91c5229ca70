"""The list of what a cached file holds: a head, then an entry for each stretch of bytes, with its sum.

Entries are only ever appended, each after its bytes were written. So a process that is killed in between has
cached nothing; after a power failure, which may keep an entry and lose its bytes, the sum tells. Each entry
closes with a check of itself: whatever else stands in the list is passed over.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..shard.format import crc32c

__all__ = ["ENTRY_BYTES", "GRAIN_BYTES", "Entries", "Head", "parse_entries", "render_entries"]

GRAIN_BYTES = 256 << 10  # of one sum at most: what the first read of a byte after opening may have to read

Entries = npt.NDArray[Any]
"""Rows of `start`, `length` and `sum`."""

_MAGIC = b"aiocach1"
_HEAD = struct.Struct("<8sII")  # magic, bytes of the JSON behind it, their sum
_MARK = 0x6E6F6961
_ENTRY = np.dtype(
    [("mark", "<u4"), ("sum", "<u4"), ("start", "<u8"), ("length", "<u8"), ("check", "<u8")]
)  # 32 bytes: a page holds a whole number of them, so a short write leaves no half one
ENTRY_BYTES = _ENTRY.itemsize
_PRIMES = tuple(np.uint64(prime) for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


@dataclass(frozen=True, slots=True)
class Head:
    """What is cached here."""

    shown: str
    """The file's address, for people; without secrets."""
    size: int
    """Bytes of the whole file."""
    tag: str | None
    """Which version of it, as its storage tells."""
    data: str
    """Name of the file beside the list that holds the bytes; another one whenever it is made anew."""
    made: float
    """When, in seconds of the epoch."""

    def render(self) -> bytes:
        """Return the bytes of the head."""
        text = json.dumps(asdict(self)).encode()
        head = _HEAD.pack(_MAGIC, len(text), crc32c(text)) + text
        return head + bytes(-len(head) % ENTRY_BYTES)

    @classmethod
    def parse(cls, data: bytes) -> tuple[Head, int]:
        """Return a head and the number of its bytes.

        Raises:
            ValueError: it is damaged, or of a later version.
        """
        if len(data) < _HEAD.size:
            raise ValueError("the list ends inside its head")
        magic, length, expected = _HEAD.unpack_from(data)
        text = data[_HEAD.size : _HEAD.size + length]
        if magic != _MAGIC or len(text) != length or crc32c(text) != expected:
            raise ValueError("the list's head is damaged")
        stop = _HEAD.size + length
        try:
            return cls(**json.loads(text)), stop + -stop % ENTRY_BYTES
        except TypeError as error:
            raise ValueError("the list's head is of another version") from error


def render_entries(start: int, data: memoryview) -> bytes:
    """Return the entries of a stretch of bytes."""
    starts = range(0, len(data), GRAIN_BYTES)
    rows = np.zeros(len(starts), _ENTRY)
    rows["mark"] = _MARK
    rows["start"] = start + np.arange(len(starts), dtype=np.uint64) * GRAIN_BYTES
    rows["length"] = [min(GRAIN_BYTES, len(data) - place) for place in starts]
    rows["sum"] = [crc32c(data[place : place + GRAIN_BYTES]) for place in starts]
    rows["check"] = _check(rows)
    return rows.tobytes()


def parse_entries(data: bytes, size: int) -> tuple[Entries, int]:
    """Return the entries in a part of a list, and how many bytes to go on behind.

    Args:
        data: of the list, from the head or an earlier end on.
        size: of the file whose bytes they are of.
    """
    whole = len(data) // ENTRY_BYTES * ENTRY_BYTES
    rows = np.frombuffer(data, _ENTRY, whole // ENTRY_BYTES)
    good = _good(rows, size)
    if good.all():
        return rows, whole
    if whole == len(data) and not (rows["mark"][~good] != 0).any():
        return rows[good], whole  # zeros, as a power failure leaves them
    return _search(data, size)


def _search(data: bytes, size: int) -> tuple[Entries, int]:
    """Find entries wherever they stand, as behind a write that was cut."""
    found: list[Entries] = []
    mark = struct.pack("<I", _MARK)
    place = data.find(mark)
    while 0 <= place <= len(data) - ENTRY_BYTES:
        row = np.frombuffer(data, _ENTRY, 1, place)
        good = bool(_good(row, size)[0])
        found += [row] * good
        place = data.find(mark, place + (ENTRY_BYTES if good else 1))
    end = place if place >= 0 else len(data)  # an entry whose end is not there yet
    return np.concatenate([np.zeros(0, _ENTRY), *found]), end


def _good(rows: Entries, size: int) -> npt.NDArray[np.bool_]:
    # the lengths first: a sum of two numbers that are not believed could overflow
    sane = (rows["length"] > 0) & (rows["length"] <= GRAIN_BYTES) & (rows["start"] < size)
    inside = rows["start"] + rows["length"] <= size
    good: npt.NDArray[np.bool_] = (rows["mark"] == _MARK) & (rows["check"] == _check(rows)) & sane & inside
    return good


def _check(rows: Entries) -> npt.NDArray[np.uint64]:
    numbers = (rows["start"], rows["length"], rows["sum"].astype(np.uint64))
    first, second, third = (column * prime for column, prime in zip(numbers, _PRIMES, strict=True))
    mixed: npt.NDArray[np.uint64] = first ^ (second + third)
    return mixed ^ (mixed >> np.uint64(31))
