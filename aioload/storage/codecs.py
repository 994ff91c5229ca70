"""Compressed files, unpacked in pieces of bounded size, whatever they claim or hide.

gzip, zlib, bzip2 and xz are taken as they come, part by part. What unpacks zstd, brotli, snappy and lz4 here
(cramjam) takes whole files only, into memory of a given size: for these the packed file is spooled to the
disk, and unpacked from there to a file that has all its room beforehand, so that a full disk is an error and
no signal.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ..errors import ConfigError

__all__ = [
    "SIZED",
    "BadData",
    "Stream",
    "allocate",
    "check_codec",
    "open_stream",
    "unpack_file",
    "unpack_whole",
]

_PIECE_BYTES = 1 << 20  # unpacked at a time, at most
_SLICE_BYTES = 256 << 10  # of what is packed, given at a time
_WHOLE = {
    "zstd": ("zstd", "decompress_into"),
    "brotli": ("brotli", "decompress_into"),
    "snappy": ("snappy", "decompress_raw_into"),
    "lz4": ("lz4", "decompress_into"),
}
SIZED = frozenset(_WHOLE)
"""Codecs that must be told how long a file becomes."""

_ALIASES = {"gz": "gzip", "br": "brotli", "zst": "zstd", "bzip2": "bz2"}
_FRAMED = ("zstd", "lz4")  # whose files say where they end


class BadData(Exception):
    """Packed bytes are cut short, damaged, or followed by others; for callers to translate."""


class Stream(Protocol):
    """A compressed file that comes in parts."""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Unpack the next part, in pieces.

        Raises:
            BadData: it is damaged.
        """

    def finish(self) -> None:
        """Say that there are no more parts.

        Raises:
            BadData: some are missing.
        """


def check_codec(name: str) -> str:
    """Return the plain name of a codec, which can be unpacked here.

    Raises:
        ConfigError: it is unknown, or what it needs is not installed.
    """
    plain = _ALIASES.get(name, name)
    if plain not in _STREAMS and plain not in _WHOLE:
        known = ", ".join(name for name in (*_STREAMS, *_WHOLE) if name != "plain")
        raise ConfigError(f"files compressed with {name!r} cannot be read; known are {known}")
    if plain in _WHOLE:
        _package(plain)
    return plain


def open_stream(codec: str) -> Stream | None:
    """Begin to unpack a file in parts; None where the codec takes whole files only."""
    return _STREAMS[codec]() if codec in _STREAMS else None


def unpack_whole(codec: str, packed: int, unpacked: int, size: int) -> int:
    """Unpack a file into another.

    Args:
        codec: a name from `check_codec` for which there is no stream.
        packed: descriptor of the packed file.
        unpacked: descriptor of the other, which is empty and open for reading, too.
        size: most bytes that it may become.

    Returns:
        How many bytes it became.

    Raises:
        BadData: the file is damaged, or becomes longer.
        OSError: the disk is full.
    """
    module, function = _WHOLE[codec]
    package = _package(codec)
    source_bytes = os.fstat(packed).st_size
    if not source_bytes:
        raise BadData("it is empty")
    allocate(unpacked, size)
    with mmap.mmap(packed, source_bytes, access=mmap.ACCESS_READ) as source, _room(unpacked, size) as room:
        try:
            return int(getattr(getattr(package, module), function)(source, room))
        except (package.DecompressionError, OSError, ValueError) as error:
            raise BadData(str(error)) from error


def unpack_file(codec: str | None, parts: Iterable[bytes], target: Path) -> None:
    """Unpack a file whose length nobody knows into another, which the disk alone bounds.

    Args:
        codec: a name from `check_codec`; None: it is not packed.
        parts: its bytes.
        target: the other file.

    Raises:
        BadData: it is damaged.
        ConfigError: what it is packed with needs to know the length.
        OSError: the disk is full.
    """
    stream = None if codec is None else open_stream(codec)
    if codec is not None and stream is None and codec not in _FRAMED:
        raise ConfigError(f"files compressed with {codec} cannot be unpacked without knowing their length")
    spool = target if codec is None or stream is not None else target.with_name(f"{target.name}.packed")
    with spool.open("wb") as file:
        for part in parts:
            file.writelines([part] if stream is None else stream.feed(part))
    if stream is not None:
        stream.finish()
    elif codec is not None:
        _unpack_framed(codec, spool, target)
        spool.unlink()


def _unpack_framed(codec: str, packed: Path, target: Path) -> None:
    package = _package(codec)
    module, function = _WHOLE[codec]
    target.touch()
    try:
        # both files open as one that is changed, which this package asks for
        source, out = (
            package.File(str(path), read=True, write=True, truncate=False) for path in (packed, target)
        )
        getattr(getattr(package, module), function)(source, out)
    except package.DecompressionError as error:
        raise BadData(str(error)) from error


class _Members:
    """A file of one member, or of several end to end, with zeros behind the last at most.

    Args:
        make: begins a member.
        several: whether there may be more than one.
    """

    def __init__(self, make: Callable[[], Any], several: bool) -> None:
        self._make = make
        self._several = several
        self._member: Any = None
        self._begun = 0
        self._padded = False

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Unpack the next part, in pieces."""
        view = memoryview(data)
        try:
            for start in range(0, len(view), _SLICE_BYTES):
                yield from self._take(view[start : start + _SLICE_BYTES])
        except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
            raise BadData(str(error)) from error

    def finish(self) -> None:
        """Say that there are no more parts."""
        if self._member is not None or not self._begun:
            raise BadData("it ends before its last byte")

    def _take(self, rest: bytes | memoryview) -> Iterator[bytes]:
        while rest:
            if self._member is None:
                rest = self._begin(rest)
                continue
            member, given = self._member, rest
            while True:
                if piece := member.decompress(given, _PIECE_BYTES):
                    yield piece
                if member.eof or member.needs_input:
                    break
                given = b""
            rest = b""
            if member.eof:
                rest, self._member = member.unused_data, None

    def _begin(self, data: bytes | memoryview) -> bytes | memoryview:
        """Begin the next member, and return its first bytes."""
        if self._begun:
            rest = bytes(data).lstrip(b"\0")
            self._padded = self._padded or len(rest) < len(data)
            if not rest:
                return b""
            if self._padded or not self._several:
                raise BadData("other bytes follow its end")
            data = rest
        self._begun += 1
        self._member = self._make()
        return data


class _Plain:
    """A file that is not compressed at all: it is but brought to this disk."""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Return the next part, in pieces."""
        for start in range(0, len(data), _PIECE_BYTES):
            yield bytes(data[start : start + _PIECE_BYTES])

    def finish(self) -> None:
        """Say that there are no more parts: how many there are, who reads them knows."""


class _Inflate:
    """A member of gzip or zlib, with the face of `bz2.BZ2Decompressor`."""

    def __init__(self, window_bits: int) -> None:
        self._inner = zlib.decompressobj(window_bits)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        """Whether the end of the member was reached."""
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        """What follows the member."""
        return self._inner.unused_data

    def decompress(self, data: bytes | memoryview, max_length: int) -> bytes:
        """Return the next piece."""
        tail = self._inner.unconsumed_tail
        piece = self._inner.decompress(tail + data if tail else data, max_length)
        self.needs_input = not self._inner.unconsumed_tail and len(piece) < max_length
        return piece


_STREAMS: dict[str, Callable[[], Stream]] = {
    "gzip": lambda: _Members(lambda: _Inflate(31), several=True),
    "zlib": lambda: _Members(lambda: _Inflate(15), several=False),
    "bz2": lambda: _Members(bz2.BZ2Decompressor, several=True),
    "xz": lambda: _Members(lzma.LZMADecompressor, several=True),
    "plain": _Plain,
}


def _package(codec: str) -> Any:
    try:
        return importlib.import_module("cramjam")
    except ImportError as error:
        raise ConfigError(
            f"files compressed with {codec} need the package cramjam; install it with "
            "pip install 'torch-aioload[mds]'"
        ) from error


def allocate(fd: int, size: int) -> None:
    """Give a file its size and its room on the disk."""
    if not size:
        return
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    for start in range(0, size, _PIECE_BYTES):
        os.pwrite(fd, bytes(min(_PIECE_BYTES, size - start)), start)


@contextmanager
def _room(fd: int, size: int) -> Iterator[mmap.mmap | bytearray]:
    """Give the memory of a file, which may be empty."""
    if not size:
        yield bytearray()
        return
    with mmap.mmap(fd, size) as room:
        yield room
