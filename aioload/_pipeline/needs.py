"""Needs: what a batch takes on its way, as far as that is known before anything was decoded; pure.

Raw records have their sizes in the index. What becomes of them is known where our own decoders make values of
a fixed make, or values as large as what is stored, and no code of the user's comes after. Elsewhere the first
batch has to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import decode
from .._workers.jobs import TABLE
from .._workers.layout import foreseen
from .._workers.space import ALIGNMENT

if TYPE_CHECKING:
    from .._workers.jobs import Recipe

__all__ = ["UNKNOWN", "Growth", "Need", "foresee"]

_LEAF = 128  # bytes that a value of a packed sample takes beside its own: its place and its name
_PART = 1024  # likewise each packed part of a batch
_STORED = (decode.Bytes, decode.Str, decode.NDArray)  # results are as large as what is stored
_FIXED = (decode.Int, decode.Float, decode.Image)  # where they have an example, results are of its size


@dataclass(frozen=True, slots=True)
class Growth:
    """At most what becomes of records in the arena, however they and the work on them are cut."""

    record_bytes: int
    """Of each record, whatever it holds."""
    shares: int
    """Times its stored bytes: 0 or 1."""
    part_bytes: int
    """Of each part that a batch is cut into."""
    parts: int
    """Of a batch, at most."""
    texts: int
    """Values of a record that are texts or bytes."""
    exact: bool
    """Whether what is stored beside the values is next to nothing, so that a guess would be no better."""

    def made(self, rows: int, raw_bytes: int) -> int:
        """Return what a batch of these records takes, as rows or packed samples."""
        return rows * self.record_bytes + self.shares * raw_bytes + self.parts * self.part_bytes

    def part(self, rows: int, raw_bytes: int) -> int:
        """Return what one part takes."""
        return rows * self.record_bytes + self.shares * raw_bytes + self.part_bytes

    def part_texts(self, rows: int, raw_bytes: int) -> int:
        """Return what the texts of one part take, beside its rows."""
        return raw_bytes + 8 * self.texts * rows + ALIGNMENT * (self.texts + 1)


@dataclass(frozen=True, slots=True)
class Need:
    """What any batch needs on its way, at most."""

    raw: int = 0
    """Its records and their table."""
    made: int | None = None
    """What becomes of them; None: nobody knows yet."""

    @classmethod
    def of(cls, rows: int, raw_bytes: int, growth: Growth | None) -> Need:
        """Return the need of a batch.

        Args:
            rows: of it, at most.
            raw_bytes: of its records, at most.
            growth: what becomes of them.
        """
        # each record may lie by itself in its shard, and so begin at a place of its own
        raw = raw_bytes + rows * (ALIGNMENT + TABLE.itemsize) + ALIGNMENT
        return cls(raw, None if growth is None else growth.made(rows, raw_bytes))

    @property
    def known(self) -> bool:
        """Whether it is all that a batch needs."""
        return self.made is not None

    @property
    def run(self) -> int:
        """What a run of one batch may need: its records, its samples, and the batch made of them."""
        return self.raw + 2 * (self.made or 0)

    def with_made(self, made: int) -> Need:
        """Return the need now that a batch has told what becomes of its records."""
        return Need(self.raw, made)


UNKNOWN = Need()
"""Nothing is known."""


def foresee(recipe: Recipe, num_workers: int, most_parts: int) -> Growth | None:
    """Return what becomes of records under a recipe, or None if only trying tells.

    Args:
        recipe: what is done with them.
        num_workers: a batch is cut into as many parts, or
        most_parts: if that is more.
    """
    if not recipe.decodes_alone:
        return None
    decoders = [decoder for _, decoder in recipe.decoders]
    examples = [getattr(decoder, "example", None) for decoder in decoders]
    if not all(map(_is_bounded, decoders, examples)):
        return None

    texts = sum(type(decoder) in (decode.Bytes, decode.Str) for decoder in decoders)
    shares = int(any(type(decoder) in _STORED for decoder in decoders))
    parts = max(num_workers, most_parts)
    exact = not any(type(decoder) is decode.Image for decoder in decoders)
    layout = foreseen(recipe.decoders)
    if layout is not None:
        row = sum(column.row_bytes for column in layout.columns) + 8 * texts
        return Growth(row, shares, ALIGNMENT * (len(decoders) + texts + 1), parts, texts, exact)
    row = _fixed_bytes(examples) + _LEAF * (len(decoders) + 1)
    return Growth(row, shares, _PART, parts, texts, exact)


def _is_bounded(decoder: Callable[..., Any], example: Any) -> bool:
    return type(decoder) in _STORED or (type(decoder) in _FIXED and example is not None)


def _fixed_bytes(examples: Sequence[Any]) -> int:
    return sum(np.asarray(example).nbytes for example in examples if example is not None)
