"""From member to member of a tar archive, by ranges of bytes.

Where members are small, windows of some MiB are looked through at once: numpy follows the chain of headers,
adds up their checksums and takes out their names. What is no ordinary file goes through `member_at`, one at a
time; a PAX header that gives a time and no more, as Python's `tarfile` writes it, is still ordinary. Where
members are large, the walk hops from header to header and reads only a little behind each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .tarheader import BLOCK, BadMember, Member
from .tarresync import GLANCE, Reader, find_header, where_to_go_on

__all__ = ["End", "Visitor", "walk"]

_WINDOW = 4 << 20  # large enough for a network, small beside what a job holds
_HOP = 1 << 20  # a network reads this much in about the time of one more request

_EDGE = 3 * BLOCK  # an extended header, what it says, and the header of its file

_EIGHTS = 8.0 ** np.arange(10, -1, -1)
_FILE, _TIME = ord("0"), ord("x")
_MTIME = np.frombuffer(b" mtime=", np.uint8)

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Walk = Generator[tuple[int, int], memoryview, "End"]


class Visitor(Protocol):
    """Who is told what is met, in order."""

    def files(self, names: list[bytes], starts: Array, stops: Array) -> None:
        """Take ordinary files: paths, the bytes where their first headers begin and their data end."""

    def member(self, member: Member) -> None:
        """Take any other member."""

    def hole(self, start: int, stop: int, name: bytes) -> None:
        """Take it that what lies there cannot be read; the name is that of a damaged header."""


@dataclass(frozen=True, slots=True)
class End:
    """Why a walk ended."""

    place: int
    """The byte where the next member would begin."""
    marked: bool = False
    """Whether the archive says there that it ends."""
    damage: BadMember | None = None
    """What is wrong there."""


def walk(size: int, visitor: Visitor) -> Walk:
    """Ask for the headers of an archive of some size, and tell the visitor what they say."""
    reader, window, at = Reader(size), GLANCE, 0
    while at < size:
        table = _Table(at, (yield from reader.read(at, min(at + window, size))), size)
        met = yield from _visit(table, at, reader, visitor)
        if isinstance(met, End):
            return met
        last, at = met
        small = at - last <= _HOP and at + _EDGE >= table.stop  # else: large members, or numbers were odd
        window = min(2 * window, _WINDOW) if small else GLANCE
    return End(at)


class _Table:
    """The headers that lie in a window, as far as each leads to the next."""

    def __init__(self, base: int, view: memoryview, size: int) -> None:
        count = len(view) // BLOCK
        blocks = np.frombuffer(view, np.uint8)[: count * BLOCK].reshape(count, BLOCK)
        sizes = _octal(blocks[:, 124:136])
        after = np.arange(1, count + 1) + (sizes + BLOCK - 1) // BLOCK
        after[sizes < 0] = -1

        self.chain = _follow(after.tolist())
        places = np.array(self.chain, np.int64)
        heads = blocks[places]
        self.base, self.stop = base, base + len(view)
        self.starts = base + places * BLOCK
        self.data_stops = self.starts + BLOCK + sizes[places]
        self.next = base + after[places] * BLOCK

        names = np.ascontiguousarray(heads[:, :100])
        whole = (sizes[places] >= 0) & _sums_right(heads) & (self.data_stops <= size)
        times = whole & _is_time(blocks, places, heads[:, 156], sizes)
        self.files = whole & (heads[:, 156] == _FILE) & (heads[:, 345] == 0) & _ends_clean(names)
        times[:-1] &= self.files[1:]
        times[-1:] = False
        self.names: list[bytes] = names.view("S100")[:, 0].tolist()
        self.starts[1:][times[:-1]] = self.starts[:-1][times[:-1]]  # a file begins with its first header
        self.odd: list[int] = np.flatnonzero(~(self.files | times)).tolist()


def _visit(
    table: _Table, at: int, reader: Reader, visitor: Visitor
) -> Generator[tuple[int, int], memoryview, tuple[int, int] | End]:
    """Tell of the members of a table; return where the last began and ends, or that there are no more."""
    row, rows, last = 0, len(table.chain), at
    while row < rows or not rows:
        until = bisect_left(table.odd, row)
        stop = table.odd[until] if until < len(table.odd) else rows
        if row < stop:
            chosen = row + np.flatnonzero(table.files[row:stop])
            names = [table.names[number] for number in chosen.tolist()]
            visitor.files(names, table.starts[chosen], table.data_stops[chosen])
            last, at, row = int(table.starts[stop - 1]), int(table.next[stop - 1]), stop
            continue

        at = table.base + BLOCK * table.chain[row] if rows else table.base
        if row and row == rows - 1 and at + _EDGE > table.stop:
            break  # most likely an extended header whose file is in the next window
        last, met = at, (yield from _meet(at, reader, visitor))
        if isinstance(met, End):
            return met
        at = met
        number = (at - table.base) // BLOCK
        row = bisect_left(table.chain, number)
        if row == rows or table.chain[row] != number:
            break  # the chain of sizes alone has led elsewhere
    return last, at


def _meet(at: int, reader: Reader, visitor: Visitor) -> Generator[tuple[int, int], memoryview, int | End]:
    """Tell of a member that is read on its own; return where it ends, or that there are no more."""
    try:
        member = yield from reader.member(at)
    except BadMember as damage:
        stop, name = yield from where_to_go_on(damage, reader)
        if stop is None:
            return End(at, damage=damage)
        visitor.hole(at, stop, name)
        return stop
    if member is not None:
        visitor.member(member)
        return member.stop
    # the end mark, if nothing but what fills the archive follows
    found = yield from find_header(reader, at + BLOCK, reader.size)
    if found is not None:
        reason = f"zeros where a header should be, as at an archive's end, but a header at byte {found}"
        return End(at, damage=BadMember(reason, at))
    return End(at, marked=at + BLOCK <= reader.size)


def _octal(digits: Array) -> npt.NDArray[np.int64]:
    """Return the sizes that headers give in the usual way; -1 where they do not."""
    values = digits[:, :11] - np.uint8(48)
    right = (values < 8).all(axis=1) & ((digits[:, 11] == 0) | (digits[:, 11] == 32))
    return np.where(right, values.astype(np.float64) @ _EIGHTS, -1).astype(np.int64)


def _follow(after: list[int]) -> list[int]:
    """Return the headers of a window: the first, and those that each leads to."""
    chain, place, count = [], 0, len(after)
    while 0 <= place < count:
        chain.append(place)
        place = after[place]
    return chain


def _sums_right(heads: Array) -> Flags:
    """Tell which headers have the sum of their bytes written as usual: six digits, zero or space behind."""
    values = heads[:, 148:154] - np.uint8(48)
    usual = (values < 8).all(axis=1) & ((heads[:, 154] == 0) | (heads[:, 154] == 32))
    told = values.astype(np.float64) @ _EIGHTS[-6:]
    sums = heads.sum(axis=1, dtype=np.int64) - heads[:, 148:156].sum(axis=1, dtype=np.int64) + 8 * 32
    right: Flags = usual & (told == sums)
    return right


def _is_time(blocks: Array, places: Array, kinds: Array, sizes: Array) -> Flags:
    """Tell which headers are PAX headers with one record, that of a time."""
    found: Flags = (kinds == _TIME) & (places + 1 < len(blocks))
    rows = np.flatnonzero(found)
    if not len(rows):
        return found

    data, size = blocks[places[rows] + 1, :100], sizes[places[rows]]
    tens, ones = (data[:, column].astype(np.int64) - 48 for column in (0, 1))
    right = (tens > 0) & (tens < 10) & (ones >= 0) & (ones < 10) & (10 * tens + ones == size)
    right &= (data[:, 2:9] == _MTIME).all(axis=1)
    right &= data[np.arange(len(rows)), np.clip(size - 1, 0, 99)] == 10
    found[rows] = right
    return found


def _ends_clean(names: Array) -> Flags:
    """Tell which names are not empty and have nothing behind their first zero."""
    zeros = names == 0
    clean: Flags = ~(zeros[:, 0] | (zeros[:, :-1] > zeros[:, 1:]).any(axis=1))
    return clean
