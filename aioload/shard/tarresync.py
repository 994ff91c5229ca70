"""Reading on behind a damaged header of a tar archive, where that can give no wrong samples.

Looking for the next block with a right sum, as some readers do, would take headers inside of a file, which
may be an archive itself, for members. So reading goes on only where the damaged header, by its own size, says
that the next member is, if a right header (or the archive's end) stands there, and none before it: damage to
the size leads elsewhere, or over headers. What may be an extended header takes the next member with it,
whose name or size it may have told.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .tarheader import BLOCK, BadMember, Member, header_sums, member_at, padded

__all__ = ["GLANCE", "Reader", "find_header", "where_to_go_on"]

T = TypeVar("T")

GLANCE = 64 << 10
"""What is read at least, where a little is wanted: a few headers, for the price of one."""

_WINDOW = 4 << 20
_DIGITS = set(b"01234567")
_FILES = (b"0", b"\0")
_NO_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders
_EXTENDED = (b"PaxHeader", b"@LongLink")  # in the names that writers give to extended headers

Asking = Generator[tuple[int, int], memoryview, T]
"""Asks for ranges of the archive, and returns something."""


class Reader:
    """Keeps what was read last, since an odd member asks for little again and again."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._start, self._view = 0, memoryview(b"")

    def read(self, start: int, stop: int) -> Asking[memoryview]:
        """Return bytes of the archive."""
        if not self._start <= start <= stop <= self._start + len(self._view):
            self._start = start
            self._view = yield start, min(max(stop, start + GLANCE), self.size)
        return self._view[start - self._start : stop - self._start]

    def member(self, at: int) -> Asking[Member | None]:
        """Return a member; None where the archive ends."""
        parser = member_at(at, self.size)
        try:
            start, stop = next(parser)
            while True:
                start, stop = parser.send((yield from self.read(start, stop)))
        except StopIteration as end:
            found: Member | None = end.value
            return found


def where_to_go_on(damage: BadMember, reader: Reader) -> Asking[tuple[int | None, bytes]]:
    """Return where the member behind a damaged one begins, and what the latter seems to be called.

    Args:
        damage: what is wrong.
        reader: of the archive.

    Returns:
        The place, or None where it is not sure; and the name, of which nothing is sure.
    """
    at = damage.offset
    if damage.member is not None or at + BLOCK > reader.size:
        return None, b""  # the file ends here
    head = bytes((yield from reader.read(at, at + BLOCK)))
    name, length = head[:100].partition(b"\0")[0], _length(head)
    stop = None if length is None else (yield from _behind(at, at + BLOCK + length, reader))
    if stop is None or not _may_speak_of_the_next(head, name, length):
        return stop, name
    try:
        member = yield from reader.member(stop)
    except BadMember:
        return None, name
    if member is None or member.data_start != stop + BLOCK:
        return None, name  # more of extended headers
    return (yield from _behind(stop, member.stop, reader)), member.name


def find_header(reader: Reader, start: int, stop: int) -> Asking[int | None]:
    """Return the first block with the right sum of a header between two places, if there is one."""
    for at in range(start, stop - BLOCK + 1, _WINDOW):
        view = yield from reader.read(at, min(at + _WINDOW, stop))
        found = _first_header(view)
        if found is not None:
            return at + found
    return None


def _length(head: bytes) -> int | None:
    """Return how many bytes a damaged header says that follow; None where that cannot be believed."""
    digits = head[124:135]
    size = int(digits, 8) if head[135] in (0, 32) and set(digits) <= _DIGITS else 0
    if size == 0 and head[156:157] not in _NO_DATA:
        # what much damage looks like; it would lead to the first header of an archive that the file may be
        return None
    return padded(size)


def _may_speak_of_the_next(head: bytes, name: bytes, length: int | None) -> bool:
    kind = head[156:157]
    alone = kind in _FILES or (kind in _NO_DATA and not length)
    return not alone or any(word in name for word in _EXTENDED)


def _behind(at: int, stop: int, reader: Reader) -> Asking[int | None]:
    """Return where a member ends, if a header or the end stands there, and no header before it."""
    if stop > reader.size or (yield from find_header(reader, at + BLOCK, stop)) is not None:
        return None
    if stop + BLOCK > reader.size:
        return stop
    head = yield from reader.read(stop, stop + BLOCK)
    return stop if _first_header(head) == 0 or not any(head) else None


def _first_header(view: memoryview) -> int | None:
    """Return where the first block with the right sum of a header lies in some bytes."""
    count = len(view) // BLOCK
    blocks = np.frombuffer(view, np.uint8)[: count * BLOCK].reshape(count, BLOCK)
    for row in np.flatnonzero(_say_numbers(blocks[:, 148:156])).tolist():
        head = blocks[row].tobytes()
        if int(head[148:156].strip(b" \0").partition(b"\0")[0].strip() or b"0", 8) in header_sums(head):
            return int(row) * BLOCK
    return None


def _say_numbers(fields: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell which fields hold octal digits, spaces and zeros alone, and a digit among them."""
    digits = (fields >= 48) & (fields < 56)
    numbers: npt.NDArray[np.bool_] = (digits | (fields == 32) | (fields == 0)).all(axis=1) & digits.any(
        axis=1
    )
    return numbers
