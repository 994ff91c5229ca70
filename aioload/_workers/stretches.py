"""Stretches: values that lie in memory already, each somewhere else, copied to where they belong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

__all__ = ["ROW_BY_ROW", "Members", "Piece", "Stretches", "copy_rows"]

ROW_BY_ROW = 8192  # bytes from which copying values one by one costs less than gathering all of them

Members = slice | NDArray[np.int64]
"""Which rows: all of them, or these."""
Piece = tuple[NDArray[np.uint8], Members]
"""A stretch of memory, and the rows whose values lie there."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Texts or bytes that lie in memory already, each somewhere else."""

    pieces: list[Piece]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def write(self, place: NDArray[np.uint8]) -> None:
        """Write them to a place, end to end."""
        size = int(self.sizes[0]) if len(self) else 0
        if (self.sizes == size).all():
            copy_rows(self.pieces, self.starts, size, place.reshape(len(self), size))
            return
        found: list[Any] = [b""] * len(self)
        for array, members in self.pieces:
            memory, begin, stop = array.data, self.starts[members], (self.starts + self.sizes)[members]
            rows = np.arange(len(self))[members].tolist()
            for row, first, last in zip(rows, begin.tolist(), stop.tolist(), strict=True):
                found[row] = memory[first:last]
        place[:] = np.frombuffer(b"".join(found), np.uint8)


def copy_rows(pieces: list[Piece], starts: NDArray[np.int64], size: int, target: NDArray[np.uint8]) -> None:
    """Copy the `size` bytes from each of these places on to a row of the target.

    Args:
        pieces: the memory that the places are in.
        starts: the places, (rows,).
        size: bytes of each.
        target: (rows, size).
    """
    for array, members in pieces if size else ():
        own = starts[members]
        if size >= ROW_BY_ROW:
            rows = range(len(target)) if isinstance(members, slice) else members.tolist()
            for row, start in zip(rows, own.tolist(), strict=True):
                target[row] = array[start : start + size]
            continue
        step = int(own[1] - own[0]) if len(own) > 1 else 0
        if step > 0 and (np.diff(own) == step).all():  # in the order of the file: no second copy
            shape, strides = (len(own), size), (step, 1)
            target[members] = as_strided(array[own[0] :], shape, strides, writeable=False)
            continue
        every = as_strided(array, (len(array) - size + 1, size), (1, 1), writeable=False)
        target[members] = every[own]
