"""Reading the parts of a set at rest: what `verify` and `rebuild` ask of a storage, and a local one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from ..errors import NotFoundError, ShardError, StorageError
from .footer import Footer, parse_footer
from .format import DATA_START, SHARD_HEADER, SHARD_TRAILER, shard_name

__all__ = [
    "LocalReader",
    "Reader",
    "read_exactly",
    "read_footer",
    "read_header",
    "read_trailer",
    "read_whole",
]


class Reader(Protocol):
    """Files by name, without an event loop."""

    def size(self, name: str) -> int:
        """Return the size of a file.

        Raises:
            NotFoundError: there is none.
            StorageError: the storage failed.
        """

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return bytes of a file, fewer where it ends early.

        Raises:
            NotFoundError: there is no such file.
            StorageError: the storage failed.
        """


class LocalReader:
    """Files of a local folder.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    def size(self, name: str) -> int:
        """Return the size of a file."""
        try:
            return (self._folder / name).stat().st_size
        except OSError as error:
            raise _translated(error, self._folder / name) from error

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return bytes of a file, fewer where it ends early."""
        try:
            with (self._folder / name).open("rb", buffering=0) as file:
                file.seek(start)
                return _read_full(file.fileno(), stop - start)
        except OSError as error:
            raise _translated(error, self._folder / name) from error


def read_whole(reader: Reader, name: str) -> bytes:
    """Return a whole file."""
    return read_exactly(reader, name, 0, reader.size(name))


def read_exactly(reader: Reader, name: str, start: int, stop: int) -> bytes:
    """Return bytes of a file.

    Raises:
        ShardError: the file ends before `stop`.
    """
    data = reader.read(name, start, stop) if stop > start else b""
    if len(data) != stop - start:
        place = start + len(data)
        raise ShardError(f"{name} ends at byte {place}, before byte {stop}", shard=name, offset=place)
    return data


def read_header(reader: Reader, number: int) -> dict[str, int]:
    """Return what the header of a shard says, having checked it."""
    name = shard_name(number)
    header = SHARD_HEADER.unpack(read_exactly(reader, name, 0, DATA_START), name)
    _check_number(header["shard"], number, name, 0)
    return header


def read_trailer(reader: Reader, number: int) -> dict[str, int]:
    """Return what the trailer of a shard says, having checked it."""
    name = shard_name(number)
    size = reader.size(name)
    start = max(size - SHARD_TRAILER.size, 0)

    trailer = SHARD_TRAILER.unpack(read_exactly(reader, name, start, size), name, start)
    _check_number(trailer["shard"], number, name, start)
    if not DATA_START <= trailer["footer_start"] <= start:
        place = trailer["footer_start"]
        raise ShardError(f"{name}: the footer cannot begin at byte {place}", shard=name, offset=start)
    return trailer


def read_footer(reader: Reader, number: int, trailer: dict[str, int]) -> Footer:
    """Return the footer of a shard, having checked it."""
    name = shard_name(number)
    stop = reader.size(name) - SHARD_TRAILER.size
    return parse_footer(read_exactly(reader, name, trailer["footer_start"], stop), trailer, name)


def _check_number(found: int, number: int, name: str, start: int) -> None:
    if found != number:
        raise ShardError(
            f"{name} holds shard {found}: it was renamed, or copied over another", shard=name, offset=start
        )


def _read_full(descriptor: int, size: int) -> bytes:
    """Read on after short reads; stop at the end of the file."""
    parts = []
    while size and (part := os.read(descriptor, size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _translated(error: OSError, path: Path) -> StorageError:
    kind = NotFoundError if isinstance(error, (FileNotFoundError, NotADirectoryError)) else StorageError
    return kind(f"cannot read {path}: {error.strerror or error}", path=str(path))
