"""Entries: where a kept sample lies, as an index in memory and a list on disk tell it; pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["ENTRY", "LISTED", "listed", "parse_list"]

ENTRY = np.dtype([("place", "<u8"), ("size", "<u4"), ("sum", "<u4")])
"""One for each record of a set: its first byte (0: it is not kept), its bytes, and their CRC-32C."""

LISTED = np.dtype([("record", "<u8"), ("start", "<u8"), ("size", "<u4"), ("sum", "<u4"), ("check", "<u4")])
"""One for each sample that was written to a file, in the order of writing; `check` is of the others."""


def listed(record: int, start: int, size: int, sum_: int) -> bytes:
    """Return an entry as it is appended to a list."""
    entry = np.zeros(1, LISTED)
    entry["record"], entry["start"], entry["size"], entry["sum"] = record, start, size, sum_
    entry["check"] = _checks(entry)
    return entry.tobytes()


def parse_list(data: bytes) -> tuple[NDArray[np.void], int]:
    """Return the entries of a list that are as they were written, and the bytes that were looked at."""
    whole = len(data) // LISTED.itemsize
    entries = np.frombuffer(data, LISTED, whole)
    return entries[_checks(entries) == entries["check"]], whole * LISTED.itemsize


def _checks(entries: NDArray[np.void]) -> NDArray[np.uint32]:
    """Mix all numbers of an entry; a list of zeros does not pass."""
    mixed = entries["record"] * np.uint64(0x9E3779B97F4A7C15) + entries["start"]
    mixed = mixed * np.uint64(0xC2B2AE3D27D4EB4F) + entries["size"]
    mixed = mixed * np.uint64(0x165667B19E3779F9) + entries["sum"] + np.uint64(0x5EED)
    found: NDArray[np.uint32] = (mixed ^ mixed >> np.uint64(32)).astype(np.uint32)
    return found
