"""One member of a tar archive: what its headers say, whichever dialect wrote them.

Read are ustar with its prefix, GNU (long names and links, numbers to the base 256, sparse files), PAX (local
headers, sparse files of all three versions) and the bare headers of version 7. A header counts only with a
right checksum, signed or not. Extensions that come twice for one member: the first wins, as in `tarfile`.
A global PAX header may say what it likes but where members begin and what they are called: a member is read
alone, by its place, and would not know.

Names stay bytes: archives say nothing sure about their encoding, and only equality matters until a name is
shown. Sizes are compared with what there is before anything is made of them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from .tarsparse import Sparse

__all__ = ["BLOCK", "NO_DATA", "BadMember", "Member", "header_sums", "member_at", "ordinary", "padded"]

BLOCK = 512
"""Bytes of a header; what follows it is padded to a multiple."""
NO_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")
"""Types of links, devices and folders, behind whose headers nothing lies; of all others the size counts."""

_MAX_EXTENSION = 16 << 20  # of a long name or a PAX header: maps of sparse files can be large, names are not
_PIECE = struct.Struct("12s12s")
_FILES = (b"0", b"\0", b"7", b"S")
_PLACES = (b"path", b"linkpath", b"size")


class BadMember(Exception):
    """A member cannot be read, and nothing behind it.

    Args:
        reason: what is wrong.
        offset: the byte of the header that it is about.
        member: what the header said, where only the bytes behind it are missing.
    """

    def __init__(self, reason: str, offset: int, member: Member | None = None) -> None:
        super().__init__(reason)
        self.offset, self.member = offset, member


@dataclass(frozen=True, slots=True)
class Member:
    """What the headers of a member say."""

    start: int
    """Where its first header begins."""
    name: bytes
    """Its path."""
    kind: str
    """`file`, `link` (hard), `symlink` or `other`."""
    data_start: int
    """Where its bytes begin."""
    data_stop: int
    """Where they end."""
    link: bytes = b""
    """The path that a link leads to."""
    sparse: Sparse | None = None
    """How to put the bytes together, where that is needed."""

    @property
    def stop(self) -> int:
        """Where the next member begins."""
        return self.data_start + padded(self.data_stop - self.data_start)


@dataclass(slots=True)
class _Extension:
    """What extended headers have said about the member that comes."""

    name: bytes | None = None
    link: bytes | None = None
    size: int | None = None
    sparse: dict[bytes, bytes] = field(default_factory=dict)
    pieces: list[int] = field(default_factory=list)  # version 0.0: places and lengths in turn


def padded(size: int) -> int:
    """Return a size that ends where a block ends."""
    return -(-size // BLOCK) * BLOCK


def header_sums(head: bytes) -> tuple[int, int]:
    """Return the sums that a header may give of itself: of unsigned bytes, and of signed ones."""
    right = sum(head) - sum(head[148:156]) + 8 * 32
    return right, right - 256 * sum(byte > 127 for byte in head[:148] + head[156:])


def ordinary(record: memoryview, at: int) -> tuple[bytes, int, int] | None:
    """Return name, place and size of an ordinary file's bytes; None for all that is not, or not surely, one.

    It may have a PAX header that gives its time and no more, as Python's `tarfile` writes by default.
    """
    # hot: once a file in `split`; guarded by benchmarks/index_tar.py
    head = bytes(record[at : at + BLOCK])
    if head[156:157] == b"x":
        size = _simple_size(head)
        data = bytes(record[at + BLOCK : at + 2 * BLOCK])
        if not (10 <= size <= 99 and data[:9] == b"%d mtime=" % size and data[size - 1 : size] == b"\n"):
            return None
        at += 2 * BLOCK
        head = bytes(record[at : at + BLOCK])
    if head[156:157] != b"0" or head[345:346] != b"\0":
        return None
    size = _simple_size(head)
    return (head[:100].partition(b"\0")[0], at + BLOCK, size) if size >= 0 else None


def member_at(start: int, size: int) -> Generator[tuple[int, int], memoryview, Member | None]:
    """Ask for what is needed of the headers from `start` on; return the member, or None at the archive's end.

    Args:
        start: where its first header should be.
        size: bytes that there are in all.

    Raises:
        BadMember: it is damaged or cut.
    """
    extension, at = _Extension(), start
    while True:
        head = bytes((yield at, min(at + BLOCK, size))) if at < size else b""
        if at == start and head.count(0) == len(head):
            return None

        kind, length = _check(head, at)
        if kind not in b"LKxXg":
            return (yield from _member(head, at, size, start, extension))

        stop = at + BLOCK + length
        if length > _MAX_EXTENSION or stop > size:
            raise BadMember(f"an extended header of {length} bytes, beyond the file or all reason", at)
        data = (yield at + BLOCK, stop) if length else memoryview(b"")
        _extend(extension, kind, bytes(data), at)
        at += BLOCK + padded(length)


def _simple_size(head: bytes) -> int:
    """Return the size of a whole header with the usual numbers and a right sum; -1: look more closely."""
    if len(head) != BLOCK or head[135] not in (0, 32) or head[154] not in (0, 32):
        return -1
    size, total = head[124:135], head[148:154]
    if not (size.isdigit() and total.isdigit()):
        return -1
    # half of an Adler sum is the sum of the bytes but for multiples of 65521, and no byte's damage is as much
    sums = zlib.adler32(head[156:], zlib.adler32(head[:148])) & 0xFFFF
    try:
        return int(size, 8) if (int(total, 8) - 255) % 65521 == sums else -1
    except ValueError:  # digits that are not octal
        return -1


def _check(head: bytes, at: int) -> tuple[bytes, int]:
    """Return the type of a header, and the size that it gives, if its sum is right."""
    if len(head) < BLOCK:
        raise BadMember("the file ends where a header should be", at)
    size = _simple_size(head)
    if size >= 0:
        return head[156:157], size
    try:
        total, size = _number(head[148:156]), _number(head[124:136])
    except ValueError:
        raise BadMember("a damaged header: its numbers are none", at) from None  # the cause says no more

    if total not in header_sums(head):
        right = header_sums(head)[0]
        raise BadMember(f"a damaged header: its checksum is {total}, it should be {right}", at)
    return head[156:157], size


def _number(text: bytes) -> int:
    """Return a number of a header: octal digits, or to the base 256 with the first bit set."""
    if text[0] & 0x80:
        value = int.from_bytes(text) - (0x80 << 8 * (len(text) - 1))
        if text[0] & 0x40:
            raise ValueError("negative")
        return value
    digits = text.partition(b"\0")[0].strip(b" ")
    if digits and not digits.isdigit():
        raise ValueError("no digits")
    return int(digits or b"0", 8)


def _extend(extension: _Extension, kind: bytes, data: bytes, at: int) -> None:
    """Take in one extended header."""
    if kind == b"L":
        extension.name = data.partition(b"\0")[0] if extension.name is None else extension.name
    elif kind == b"K":
        extension.link = data.partition(b"\0")[0] if extension.link is None else extension.link
    elif kind == b"g":
        for keyword, _ in _pax(data, at):
            if keyword in _PLACES or keyword.startswith(b"GNU.sparse."):
                raise BadMember(f"a global header that sets {keyword.decode()} for all that follow", at)
    else:
        _extend_pax(extension, data, at)


def _extend_pax(extension: _Extension, data: bytes, at: int) -> None:
    """Take in a local PAX header; within one, the last word counts."""
    records = list(_pax(data, at))
    values = dict(records)
    if extension.name is None:
        extension.name = values.get(b"GNU.sparse.name", values.get(b"path"))
    if extension.link is None:
        extension.link = values.get(b"linkpath")
    if extension.size is None and b"size" in values:
        extension.size = _decimal(values[b"size"], at)
    if not extension.sparse:
        prefix = b"GNU.sparse."
        extension.sparse = {k.removeprefix(prefix): v for k, v in records if k.startswith(prefix)}
        pairs = (b"GNU.sparse.offset", b"GNU.sparse.numbytes")
        extension.pieces = [_decimal(value, at) for keyword, value in records if keyword in pairs]


def _pax(data: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a PAX header: length, space, keyword, equals sign, value, new line."""
    start = 0
    while start < len(data) and data[start]:
        space = data.find(b" ", start, start + 20)
        length = data[start:space] if space > 0 else b""
        stop = start + int(length) if length.isdigit() else 0
        equals = data.find(b"=", space, max(stop - 1, 0))
        if stop > len(data) or equals < 0 or data[stop - 1] != 10:
            raise BadMember("a damaged PAX header", at)
        yield data[space + 1 : equals], data[equals + 1 : stop - 1]
        start = stop


def _decimal(text: bytes, at: int) -> int:
    if not (text.isdigit() and len(text) < 20):
        raise BadMember("a damaged PAX header: a number that is none", at)
    return int(text)


def _member(
    head: bytes, at: int, size: int, start: int, extension: _Extension
) -> Generator[tuple[int, int], memoryview, Member]:
    """Return a member from its last header and the extended ones before it."""
    kind = head[156:157]
    name = extension.name if extension.name is not None else _name(head)
    link = extension.link if extension.link is not None else head[157:257].partition(b"\0")[0]
    if kind == b"\0" and name.endswith(b"/"):
        kind = b"5"  # version 7 has no type for folders

    length = _number(head[124:136]) if extension.size is None else extension.size
    sparse, data_start = _pax_sparse(extension, at), at + BLOCK
    if kind == b"S":
        sparse, data_start = yield from _old_sparse(head, at, size)

    word = "file" if kind in _FILES else {b"1": "link", b"2": "symlink"}.get(kind, "other")
    data_stop = data_start + (0 if kind in NO_DATA else length)
    member = Member(start, name, word, data_start, data_stop, link, sparse if word == "file" else None)
    if data_stop > size:
        raise BadMember(f"the file ends before the {length} bytes of a member", start, member)
    return member


def _name(head: bytes) -> bytes:
    """Return the path that a header itself has room for."""
    name = head[:100].partition(b"\0")[0]
    prefix = head[345:500].partition(b"\0")[0] if head[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax_sparse(extension: _Extension, at: int) -> Sparse | None:
    """Return the map of a sparse file of version 0.0, 0.1 or 1.0."""
    words = extension.sparse
    if not words:
        return None
    if words.get(b"major") == b"1":
        return Sparse(_decimal(words.get(b"realsize", b""), at), None)

    numbers = extension.pieces
    if b"map" in words:
        numbers = [_decimal(number, at) for number in words[b"map"].split(b",") if number]
    if len(numbers) % 2:
        raise BadMember("a damaged PAX header: half a piece of a sparse file", at)
    return Sparse(_decimal(words.get(b"size", b""), at), tuple(zip(numbers[::2], numbers[1::2], strict=True)))


def _old_sparse(
    head: bytes, at: int, size: int
) -> Generator[tuple[int, int], memoryview, tuple[Sparse, int]]:
    """Return the map of an old GNU sparse file, and where its bytes begin."""
    try:
        pieces, more, whole = _pieces(head[386:482]), head[482], _number(head[483:495])
        at += BLOCK
        most = at + _MAX_EXTENSION
        while more and at < most:
            block = bytes((yield at, min(at + BLOCK, size))) if at < size else b""
            if len(block) < BLOCK:
                raise BadMember("the file ends inside of the map of a sparse file", at)
            pieces += _pieces(block[:504])
            more, at = block[504], at + BLOCK
        if more:
            raise BadMember(
                f"the map of a sparse file of more than {_MAX_EXTENSION} bytes, beyond all reason", at
            )
    except ValueError:
        raise BadMember("a damaged header: the map of a sparse file", at) from None  # the cause says no more
    return Sparse(whole, tuple(pieces)), at


def _pieces(data: bytes) -> list[tuple[int, int]]:
    """Return the used entries of a map."""
    return [(_number(start), _number(length)) for start, length in _PIECE.iter_unpack(data) if any(length)]
