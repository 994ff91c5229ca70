"""Reading on behind a damaged header of a tar archive, where that can give no wrong samples.

Looking for the next block with a right sum, as some readers do, would take headers inside of a file, which
may be an archive itself, for members. So only sizes are believed that the damaged header may have had: what
it gives, and that with one digit changed by as much as the sum is wrong. Reading goes on where exactly one
of them leads to a right header or to the archive's end, and over none. So damage to one byte is never
misread, wherever it is. What may be an extended header takes the next member with it, whose name or size it
may have told.
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
_MOST_FILLING = 1 << 20  # behind an archive's last file
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
    name, size = head[:100].partition(b"\0")[0], _size(head[124:136])
    stop = yield from _behind(at, _lengths(head, size), reader)
    if stop is None or not _may_speak_of_the_next(head, name, size):
        return stop, name
    try:
        member = yield from reader.member(stop)
    except BadMember:
        return None, name
    if member is None or member.data_start != stop + BLOCK:
        return None, name  # more of extended headers
    return (yield from _behind(stop, {member.stop - member.data_start}, reader)), member.name


def find_header(reader: Reader, start: int, stop: int) -> Asking[int | None]:
    """Return the first block with the right sum of a header between two places, if there is one."""
    for at in range(start, stop - BLOCK + 1, _WINDOW):
        view = yield from reader.read(at, min(at + _WINDOW, stop))
        found = _first_header(view)
        if found is not None:
            return at + found
    return None


def _lengths(head: bytes, size: int | None) -> set[int]:
    """Return how many bytes may follow a damaged header, if no more than one byte of it is damaged.

    That none follow a file's header is not believed: what comes may be the first header of an inner archive.
    """
    if size == 0 and head[156:157] in _NO_DATA:
        return {0}
    told, sizes = _told_sum(head[148:156]), {size}
    for change in {told - right for right in header_sums(head)} if told is not None else ():
        for place in range(124, 135):
            if 0 <= head[place] + change < 256:
                sizes.add(_size(head[124:place] + bytes([head[place] + change]) + head[place + 1 : 136]))
    return {padded(size) for size in sizes if size}


def _size(field: bytes) -> int | None:
    """Return the size in a field; None where it is not in the usual form."""
    digits = field[:11]
    return int(digits, 8) if field[11] in (0, 32) and set(digits) <= _DIGITS else None


def _may_speak_of_the_next(head: bytes, name: bytes, size: int | None) -> bool:
    kind = head[156:157]
    alone = kind in _FILES or (kind in _NO_DATA and size == 0)
    return not alone or any(word in name for word in _EXTENDED)


def _behind(at: int, lengths: set[int], reader: Reader) -> Asking[int | None]:
    """Return where a member ends, if that is sure.

    Args:
        at: where its header lies.
        lengths: bytes of it that there may be behind that.
        reader: of the archive.
    """
    stops = []
    for stop in sorted(at + BLOCK + length for length in lengths):
        if stop <= reader.size and (yield from _goes_on(stop, reader)):
            stops.append(stop)  # noqa: PERF401 - a comprehension cannot ask
    if len(stops) != 1 or (yield from find_header(reader, at + BLOCK, stops[0])) is not None:
        return None
    return stops[0]


def _goes_on(stop: int, reader: Reader) -> Asking[bool]:
    """Tell whether a header, or what ends an archive, lies at a place."""
    if stop == reader.size:
        return True
    view = yield from reader.read(stop, min(stop + 2 * BLOCK, reader.size))
    if _first_header(view[:BLOCK]) == 0:
        return True
    return not any(view) and reader.size - stop <= _MOST_FILLING


def _first_header(view: memoryview) -> int | None:
    """Return where the first block with the right sum of a header lies in some bytes."""
    count = len(view) // BLOCK
    blocks = np.frombuffer(view, np.uint8)[: count * BLOCK].reshape(count, BLOCK)
    for row in np.flatnonzero(_say_numbers(blocks[:, 148:156])).tolist():
        head = blocks[row].tobytes()
        if _told_sum(head[148:156]) in header_sums(head):
            return int(row) * BLOCK
    return None


def _told_sum(field: bytes) -> int | None:
    digits = field.strip(b" \0").partition(b"\0")[0].strip(b" ")
    return int(digits, 8) if digits and set(digits) <= _DIGITS else None


def _say_numbers(fields: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell which fields hold octal digits, spaces and zeros alone, and a digit among them."""
    digits = (fields >= 48) & (fields < 56)
    numbers: npt.NDArray[np.bool_] = (digits | (fields == 32) | (fields == 0)).all(axis=1) & digits.any(
        axis=1
    )
    return numbers
