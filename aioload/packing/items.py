"""Items: records to be, as a source names them before any of their files is opened."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ..dataset import Dataset

__all__ = ["Item", "Source", "Unreadable", "printable", "shuffled"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item:
    """One record to be."""

    name: str
    """What messages call it: a path, or a place in an archive."""
    key: str
    """The record's key."""
    values: dict[str, Any]
    """Fields whose values are known."""
    raw: dict[str, bytes | str]
    """Fields still to be read: the bytes of a file, or the path of the file that has them."""
    cost: int = 1
    """Its share of the source's `cost`."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be packed; `items` can be gone through once."""

    kind: str
    """One of `SOURCE_KINDS`."""
    fields: dict[str, str]
    """Names and kinds of the fields."""
    items: Iterable[Item | Unreadable]
    """The records, in the order in which they are packed; what is known to be bad stands in its place."""
    cost: int
    """Sum over all items: how many there are, or their bytes where only those are known ahead."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What the manifest keeps."""
    notes: tuple[str, ...] = ()
    """What was left out, in a sentence each."""
    index_fields: tuple[str, ...] = ()
    """Numeric fields whose values its own index keeps."""
    dataset: Dataset | None = None
    """The set whose records these are, each of which can be read by itself."""
    all_fields: bool = True
    """Of a set: whether no field of an archive may be left out."""

    @property
    def noun(self) -> str:
        """What messages call an item."""
        return "file" if self.kind in ("folder", "flat", "csv", "jsonl") else "record"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An item that cannot be packed."""

    name: str
    """What messages call it."""
    reason: str
    """What is wrong with it."""
    cost: int = 1
    """Its share of the source's `cost`."""
    trace: str = ""
    """Where the user's code failed."""


def printable(path: str) -> str:
    """Return a path as text that UTF-8 can say: bytes of a name that is no UTF-8 are written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def shuffled(values: list[T], seed: int | None) -> list[T]:
    """Return the values in an order drawn from the seed, or as they are without one."""
    if seed is not None:
        random.Random(seed).shuffle(values)
    return values
