"""Bulk: records that nobody changes, from where they lie to their columns of a batch, many at a time.

Where no user code runs, a record's numbers, bytes and arrays go to their places as they are. Cutting records
one by one would cost ten times what the copying does; so all records of a batch are cut at once, with arrays
of places.

This is a fast path and nothing else. Whatever is not as it should be (a sum, a length, an array of another
shape) makes it give up before anybody has seen a result, and the records are then made one by one, where the
error is found and named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from .. import decode
from ..decode.array import npy_layout
from ..shard.format import NativeFormat
from ..tree import flatten
from .layout import RowWriter
from .stretches import Members, Piece, Stretches, copy_rows

if TYPE_CHECKING:
    from .jobs import Recipe

__all__ = ["LEAST_ROWS", "Bulk", "columns_of"]

LEAST_ROWS = 16  # below, cutting one by one is as fast

Write = Callable[["_Cut", int, int, RowWriter, int], bool]


class Bulk:
    """Writes whole columns.

    Args:
        recipe: what the worker does with records.
        arrays: the memory that a shard's records lie in.
    """

    def __init__(self, recipe: Recipe, arrays: Callable[[int, bool], NDArray[np.uint8]]) -> None:
        self._recipe = recipe
        self._arrays = arrays
        self.check_seconds = 0.0  # that went into comparing sums so far
        self._fields = tuple(field for field, _ in recipe.decoders)
        plain = all(type(decoder) in _WRITERS for _, decoder in recipe.decoders)
        self.possible = recipe.decodes_alone and recipe.stock is None and plain
        self._writers: tuple[Write, ...] = (
            tuple(_WRITERS[type(decoder)] for _, decoder in recipe.decoders) if self.possible else ()
        )

    def write(self, rows: NDArray[Any], writer: RowWriter, first: int) -> bool:
        """Write records to the rows of a batch from `first` on.

        Args:
            rows: of the table; all of them, or none, lie in mapped files.
            writer: to whose targets and texts they go.
            first: row of the batch.

        Returns:
            Whether they were written; if not, rows and texts of the writer are undefined.

        Raises:
            Unmapped: a file cannot be mapped.
        """
        # hot: guarded by benchmarks/tiny.py and benchmarks/tensors.py
        source = int(rows["source"][0])
        format = self._recipe.formats[source]
        if type(format) is not NativeFormat or (rows["source"] != source).any():
            return False
        columns = columns_of(writer.structure, self._fields)
        if columns is None:
            return False
        pieces = [(self._arrays(shard, mapped), members) for shard, mapped, members in _by_shard(rows)]
        if any(int(rows["stop"][members].max()) > len(array) for array, members in pieces):
            return False
        if self._recipe.checked[source] and not self._are_right(pieces, rows):
            return False
        cut = _Cut(pieces, rows, format)
        if not cut.sound:
            return False
        names = [name for name, _ in format.fields]
        return all(
            write(cut, names.index(field), column, writer, first)
            for field, write, column in zip(self._fields, self._writers, columns, strict=True)
        )

    def _are_right(self, pieces: list[Piece], rows: NDArray[Any]) -> bool:
        """Compare the records with their sums."""
        began = time.perf_counter()
        right = all(_sums_are_right(array, rows[members]) for array, members in pieces)
        self.check_seconds += time.perf_counter() - began
        return right


def _by_shard(rows: NDArray[Any]) -> Iterator[tuple[int, bool, Members]]:
    """Group rows by the memory that they lie in."""
    shards, mapped = rows["shard"], bool(rows["mapped"][0])
    if not mapped or (shards == shards[0]).all():
        yield int(shards[0]), mapped, slice(None)
        return
    for shard in np.unique(shards).tolist():
        yield shard, mapped, np.flatnonzero(shards == shard)


class _Cut:
    """Records cut into their values.

    Args:
        pieces: the memory they lie in, and which of them.
        rows: of the table.
        format: of the records.
    """

    def __init__(self, pieces: list[Piece], rows: NDArray[Any], format: NativeFormat) -> None:
        self.pieces = pieces
        head = format.header_bytes
        starts, stops = rows["start"].astype(np.int64), rows["stop"].astype(np.int64)
        self.sound = bool((stops - starts >= head).all())
        if not self.sound:
            return
        ends = self.gather(starts, head).view("<u4").astype(np.int64)
        self.ends = ends + (starts + head)[:, None]
        grows = (np.diff(ends, axis=1) >= 0).all()
        self.sound = bool(grows and (self.ends[:, -1] == stops).all())
        if self.sound and ends[:, 0].any():  # keys go nowhere, but one that is no text is an error
            self.sound = self.are_texts(starts + head, self.ends[:, 0])

    def values(self, field: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where each record's value of a field begins and ends."""
        return self.ends[:, field], self.ends[:, field + 1]

    def gather(self, starts: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """Return the `size` bytes from each record's place on: (records, size)."""
        found = np.empty((len(starts), size), np.uint8)
        copy_rows(self.pieces, starts, size, found)
        return found

    def first(self, starts: NDArray[np.int64], size: int) -> memoryview:
        """Return the `size` bytes from the first record's place on."""
        array, members = self.pieces[0]
        start = int(starts[members][0])
        return array[start : start + size].data

    def are_texts(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> bool:
        """Tell whether each of these stretches is UTF-8."""
        try:
            for array, members in self.pieces:
                memory = array.data
                for start, stop in zip(starts[members].tolist(), stops[members].tolist(), strict=True):
                    str(memory[start:stop], "utf-8")
        except UnicodeDecodeError:
            return False
        return True


def _sums_are_right(array: NDArray[np.uint8], rows: NDArray[Any]) -> bool:
    value = google_crc32c.value
    places = zip(rows["start"].tolist(), rows["stop"].tolist(), strict=True)
    sums: list[int] = rows["sum"].tolist()
    return [value(array[start:stop]) for start, stop in places] == sums


def _numbers(dtype: str) -> Write:
    """Return what writes numbers of 8 bytes."""

    def write(cut: _Cut, field: int, column: int, writer: RowWriter, first: int) -> bool:
        starts, stops = cut.values(field)
        target = writer.targets[column]
        if (stops - starts != 8).any() or target.dtype.str != dtype or target.ndim != 1:
            return False
        target[first : first + len(starts)] = cut.gather(starts, 8).view(dtype)[:, 0]
        return True

    return write


def _arrays(cut: _Cut, field: int, column: int, writer: RowWriter, first: int) -> bool:
    """Write arrays that all say of themselves what the first one says."""
    starts, stops = cut.values(field)
    size = int(stops[0] - starts[0])
    target = writer.targets[column]
    if (stops - starts != size).any():
        return False
    header = npy_layout(cut.first(starts, size))
    if header is None:
        return False
    fits = header.order == "C" and header.dtype.str == target.dtype.str and header.shape == target.shape[1:]
    begin = size - header.data_bytes
    if not fits or begin <= 0 or not header.data_bytes:
        return False
    heads = cut.gather(starts, begin)
    if (heads != heads[0]).any():
        return False
    raw = target[first : first + len(starts)].reshape(len(starts), -1).view(np.uint8)
    copy_rows(cut.pieces, starts + begin, header.data_bytes, raw)
    return True


def _bytes(cut: _Cut, field: int, column: int, writer: RowWriter, first: int) -> bool:
    """Note where bytes lie; they are copied when all is known to be well."""
    starts, stops = cut.values(field)
    writer.take(column, Stretches(cut.pieces, starts, stops - starts))
    return True


def _texts(cut: _Cut, field: int, column: int, writer: RowWriter, first: int) -> bool:
    starts, stops = cut.values(field)
    if not cut.are_texts(starts, stops):
        return False
    writer.take(column, Stretches(cut.pieces, starts, stops - starts))
    return True


_WRITERS: dict[type, Write] = {
    decode.Int: _numbers("<i8"),
    decode.Float: _numbers("<f8"),
    decode.NDArray: _arrays,
    decode.Bytes: _bytes,
    decode.Str: _texts,
}


@lru_cache(maxsize=64)
def columns_of(structure: Any, fields: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the column of each field in a layout's order; None if its samples are no such dicts."""
    leaves, own = flatten(dict.fromkeys(fields, 0))
    return tuple(range(len(leaves))) if own == structure else None
