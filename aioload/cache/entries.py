"""Entries: where a kept sample lies, as an index in memory and a list on disk tell it; pure."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ENTRY", "LISTED", "entry", "listed", "parse_list"]

ENTRY = np.dtype([("place", "<u8"), ("size", "<u4"), ("sum", "<u4")])
"""One for each record of a set: its first byte (0: it is not kept), its bytes, and their CRC-32C."""

LISTED = np.dtype([("record", "<u8"), ("start", "<u8"), ("size", "<u4"), ("sum", "<u4"), ("check", "<u4")])
"""One for each sample that was written to a file, in the order of writing; `check` is of the others."""

_ENTRY, _LISTED = struct.Struct("<QII"), struct.Struct("<QQIII")  # the same, of one
_WORD = (1 << 64) - 1


def entry(place: int, size: int, sum_: int) -> bytes:
    """Return an entry as it stands in an index."""
    return _ENTRY.pack(place, size, sum_)


def listed(record: int, start: int, size: int, sum_: int) -> bytes:
    """Return an entry as it is appended to a list."""
    return _LISTED.pack(record, start, size, sum_, _check(record, start, size, sum_))


def parse_list(data: bytes) -> tuple[NDArray[np.void], int]:
    """Return the entries of a list that are as they were written, and the bytes that were looked at."""
    whole = len(data) // LISTED.itemsize
    entries = np.frombuffer(data, LISTED, whole)
    found = _check(*(entries[name] for name in ("record", "start", "size", "sum")))
    return entries[found == entries["check"]], whole * LISTED.itemsize


def _check(record: Any, start: Any, size: Any, sum_: Any) -> Any:
    """Mix all numbers of an entry, or of many; a list of zeros does not pass."""
    mixed = record * 0x9E3779B97F4A7C15 + start & _WORD
    mixed = mixed * 0xC2B2AE3D27D4EB4F + size & _WORD
    mixed = mixed * 0x165667B19E3779F9 + sum_ + 0x5EED & _WORD
    return (mixed ^ mixed >> 32) & 0xFFFFFFFF
