"""Sparse files of tar archives: only what is between their holes is stored, and a map says where it goes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Sparse", "assemble", "room_for"]

# what the sparse files of a sample may become: a map of a few bytes can ask for any amount
_MAX_SPARSE = 1 << 30
_FREE = 256 << 20  # of that, for a sample of however few bytes, since a batch can have many of them
_MAX_RATIO = 1000  # beyond that


@dataclass(frozen=True, slots=True)
class Sparse:
    """How the stored bytes of a sparse file lie in it."""

    size: int
    """Bytes of the file."""
    pieces: tuple[tuple[int, int], ...] | None
    """Where each piece begins and how long it is; None: the stored bytes begin with a list of that."""


def room_for(num_bytes: int) -> int:
    """Return what the sparse files of a sample of so many bytes may become together."""
    return min(_FREE + _MAX_RATIO * num_bytes, _MAX_SPARSE)


def assemble(sparse: Sparse, stored: memoryview, room: int = _MAX_SPARSE) -> memoryview:
    """Return the bytes of a sparse file.

    Args:
        sparse: how they lie.
        stored: those between the holes.
        room: as many bytes it may become.

    Raises:
        ValueError: its map fits neither its size nor what is stored.
    """
    if not 0 <= sparse.size <= room:
        raise ValueError(
            f"a sparse file of {sparse.size} bytes, where those of its sample may have {room} more"
        )

    pieces, at = (sparse.pieces, 0) if sparse.pieces is not None else _stored_map(stored)
    if at + sum(length for _, length in pieces) != len(stored):
        raise ValueError("the map of a sparse file does not fit what is stored of it")

    whole, reached = bytearray(sparse.size), 0
    for start, length in pieces:
        if not reached <= start <= start + length <= sparse.size:
            raise ValueError("the map of a sparse file leads back, or beyond its end")
        reached = start + length
        whole[start:reached] = stored[at : at + length]
        at += length
    return memoryview(whole).toreadonly()


def _stored_map(stored: memoryview) -> tuple[list[tuple[int, int]], int]:
    """Return the map with which the bytes of a sparse file of version 1.0 begin, and where it ends."""
    numbers: list[int] = []
    count, at = 1, 0
    while len(numbers) < count:
        line = bytes(stored[at : at + 21]).partition(b"\n")
        if not (line[1] and line[0].isdigit()):
            raise ValueError("the map of a sparse file is damaged")
        numbers.append(int(line[0]))
        at += len(line[0]) + 1
        count = 1 + 2 * numbers[0]
    return list(zip(numbers[1::2], numbers[2::2], strict=True)), -(-at // 512) * 512
