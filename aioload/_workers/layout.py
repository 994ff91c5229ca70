"""Layout: where all rows of a stacked batch lie, known once a sample has shown its shapes.

Every row of every later batch then has its place before it is decoded, and workers write rows there directly.
A sample that does not fit a layout says so and is packed instead (see `packed`), so what was seen first never
decides what comes out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..collate import batch_structure, describe, leaf_rule
from ..errors import SampleError
from ..tree import flatten, unflatten
from .leaf import TEXTS, Leaf, pack_texts
from .packed import pickled, structure_of
from .space import align
from .stretches import Stretches
from .tensors import NUMPYS, dtype_name, is_dense, item_bytes, lent, raw_bytes

__all__ = ["Column", "Layout", "RowWriter", "batch_tree", "foreseen", "learn"]

_SCALARS = {"int": "<i8", "float": "<f8", "bool": "|b1"}  # dtype of a column of Python numbers, by its rule
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Column:
    """One leaf of a sample, as it is in every row of a batch."""

    rule: str  # as `collate.leaf_rule` names it
    dtype: str
    shape: tuple[int, ...]  # of one row

    @property
    def row_bytes(self) -> int:
        """Bytes one row takes; 0 for texts, which lie elsewhere."""
        return 0 if self.rule in TEXTS else math.prod(self.shape) * self._item_bytes

    @property
    def _item_bytes(self) -> int:
        return item_bytes(self.dtype) if self.rule == "tensor" else np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of all rows of a stacked batch, known from one sample."""

    sample: bytes  # pickled structure of a sample
    batch: bytes  # pickled structure of the batch that `collate.default` makes
    columns: tuple[Column, ...]

    @property
    def has_texts(self) -> bool:
        """Whether a batch has texts, which lie beside its rows."""
        return any(column.rule in TEXTS for column in self.columns)

    def starts(self, rows: int) -> tuple[int, ...]:
        """Return where each column begins in a batch of `rows`; the last number is the size of the batch."""
        return _starts(self.columns, rows)

    def leaves(self, rows: int) -> tuple[Leaf, ...]:
        """Return the leaves of a batch of `rows`; those of texts are empty."""
        return _leaves(self.columns, rows)


class RowWriter:
    """Write samples into their rows of a batch in the arena.

    Args:
        layout: what every sample must look like.
        place: the whole batch's bytes.
        rows: rows of the whole batch.
    """

    def __init__(self, layout: Layout, place: NDArray[np.uint8], rows: int) -> None:
        self.structure = structure_of(layout.sample)
        self.targets = [_target(place, leaf) for leaf in layout.leaves(rows)]
        self._columns = layout.columns
        self.texts: list[list[Any] | Stretches] = []
        self.forget_texts()

    def write(self, row: int, sample: Any, placed: Mapping[str, NDArray[Any]] = _NONE) -> bool:
        """Write one sample; return False, with the row undefined, if it does not fit.

        Args:
            row: of the batch.
            sample: to be written.
            placed: values that may be in their places already.
        """
        # hot: once per record
        leaves, structure = flatten(sample)
        if structure != self.structure:
            return False

        text = 0
        for column, target, value in zip(self._columns, self.targets, leaves, strict=True):
            rule = column.rule
            if rule == "array":
                if not isinstance(value, (np.ndarray, np.generic)):
                    return False
                if value.shape != column.shape or value.dtype.str != column.dtype:
                    return False
                if not placed or not any(value is place for place in placed.values()):
                    target[row] = value
            elif leaf_rule(value) != rule:
                return False
            elif rule in TEXTS:
                known = self.texts[text]
                assert isinstance(known, list)
                known.append(value if rule == "text" else bytes(value))
                text += 1
            elif rule == "tensor":
                if tuple(value.shape) != column.shape or dtype_name(value) != column.dtype:
                    return False
                raw = lent(value) if column.dtype in NUMPYS else None
                if raw is None:
                    if not is_dense(value):
                        return False
                    raw = raw_bytes(value).view(target.dtype).reshape(target.shape[1:])
                target[row] = raw
            else:
                try:
                    target[row] = value
                except OverflowError:  # an integer of more than 64 bits: collate says so, with names
                    return False
        return True

    def forget_texts(self) -> None:
        """Begin anew with the texts."""
        self.texts = [[] for column in self._columns if column.rule in TEXTS]

    def take(self, column: int, values: Stretches) -> None:
        """Note where all texts of a column lie."""
        self.texts[sum(one.rule in TEXTS for one in self._columns[:column])] = values

    def pack_texts(self, place: NDArray[np.uint8]) -> tuple[Leaf, ...]:
        """Write the collected texts to a place of their own and return their leaves."""
        kinds = [column.rule for column in self._columns if column.rule in TEXTS]
        return pack_texts(list(zip(kinds, self.texts, strict=True)), place)


def learn(samples: list[Any]) -> Layout | None:
    """Return the layout that all samples share when they are stacked, or None if they differ."""
    flat = [flatten(sample) for sample in samples]
    if not flat or any(structure != flat[0][1] for _, structure in flat):
        return None

    columns = [_column(values) for values in zip(*(leaves for leaves, _ in flat), strict=True)]
    known = [column for column in columns if column is not None]
    if not known or len(known) < len(columns):
        return None
    structure = flat[0][1]
    return Layout(pickled(structure), pickled(batch_structure(structure)), tuple(known))


def foreseen(decoders: Sequence[tuple[str, Any]]) -> Layout | None:
    """Return the layout of samples whose values' makes these decoders fix, by field; None if one does not."""
    sample = {field: getattr(decoder, "example", None) for field, decoder in decoders}
    if not sample or any(value is None for value in sample.values()):
        return None
    return learn([sample])


def batch_tree(layout: Layout, leaves: list[Any]) -> Any:
    """Return the batch of a layout around its finished leaves."""
    return unflatten(structure_of(layout.batch), leaves)


@lru_cache(maxsize=64)
def _starts(columns: tuple[Column, ...], rows: int) -> tuple[int, ...]:
    place, starts = 0, []
    for column in columns:
        starts.append(place)
        place = align(place + rows * column.row_bytes)
    return (*starts, place)


@lru_cache(maxsize=64)
def _leaves(columns: tuple[Column, ...], rows: int) -> tuple[Leaf, ...]:
    return tuple(
        Leaf(_kind(column), column.dtype, (rows, *column.shape), start, start + rows * column.row_bytes)
        for column, start in zip(columns, _starts(columns, rows)[:-1], strict=True)
    )


def _column(values: tuple[Any, ...]) -> Column | None:
    """Return the column all these leaves fit, or None."""
    columns = {_column_of(value) for value in values}
    return columns.pop() if len(columns) == 1 else None


def _column_of(value: Any) -> Column | None:
    rule = leaf_rule(value)
    if rule in TEXTS:
        return Column(rule, "", ())
    if rule in _SCALARS:
        return Column(rule, _SCALARS[rule], ())
    try:
        found = describe((value,))
    except SampleError:
        return None  # it has no place in a batch; collate says so, with names
    if rule == "tensor":
        return Column(rule, dtype_name(value), found.shape)
    return Column(rule, value.dtype.str, found.shape) if value.dtype == found.dtype else None


def _kind(column: Column) -> str:
    return column.rule if column.rule in ("tensor", *TEXTS) else "array"


def _target(place: NDArray[np.uint8], leaf: Leaf) -> NDArray[Any]:
    """Return the array whose rows a column's values go to."""
    if leaf.kind in TEXTS:
        return place[:0]
    target = place[leaf.start : leaf.stop]
    if leaf.kind == "tensor" and leaf.dtype not in NUMPYS:
        rows = leaf.shape[0]
        return target.reshape(rows, len(target) // rows if rows else 0)
    return target.view(leaf.dtype).reshape(leaf.shape)
