"""Packed: a tree of arrays, texts and objects that describes itself, whatever a transform or collate returns.

Leaves lie one behind the other, then a descriptor that says where they are. Only leaves that are neither
arrays nor texts are pickled, all of a tree in one go.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from ..tree import flatten, unflatten
from .leaf import Leaf, NoRoom, joined, view, write
from .space import Span, align
from .tensors import dtype_name, is_plain, raw_bytes

__all__ = [
    "Tree",
    "descriptor",
    "pack",
    "pickled",
    "structure_of",
    "tree_of",
    "unpack",
    "unpack_leaves",
]

_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})


@dataclass(frozen=True, slots=True)
class Tree:
    """A packed tree: its pickled structure, its leaves, and where its pickled objects lie."""

    structure: bytes
    leaves: tuple[Leaf, ...]
    objects: Span


def pack(tree: Any, place: NDArray[np.uint8]) -> tuple[Span, int]:
    """Lay a tree into a place.

    Returns:
        Where its descriptor lies in the place, and how many bytes of the place are used in all.

    Raises:
        NoRoom: the place is too small; nothing was written.
    """
    leaves, structure = flatten(tree, is_leaf=_is_texts)
    described: list[Leaf] = []
    objects: list[Any] = []
    stop = 0
    parts: list[tuple[int, Any]] = []
    for value in leaves:
        leaf, data = _measure(value, stop, objects)
        described.append(leaf)
        if data is not None:
            parts.append((leaf.start, data))
            stop = align(leaf.stop)

    blob = _pickled_objects(objects)
    objects_at = Span(stop, stop + len(blob))
    told = pickle.dumps(Tree(pickled(structure), tuple(described), objects_at), pickle.HIGHEST_PROTOCOL)
    used = objects_at.stop + len(told)
    if used > len(place):
        raise NoRoom(align(used))

    for start, data in parts:
        write(place, start, data)
    write(place, objects_at.start, [blob])
    write(place, objects_at.stop, [told])
    return Span(objects_at.stop, used), used


def unpack(place: NDArray[np.uint8], tree: Tree, *, tensors: bool = True) -> Any:
    """Return a packed tree as views over its place; texts and objects are made anew.

    Args:
        place: the bytes in which the tree lies.
        tree: its descriptor.
        tensors: make torch tensors of the leaves that were some; False leaves them to the caller.
    """
    return unflatten(structure_of(tree.structure), unpack_leaves(place, tree, tensors=tensors))


def unpack_leaves(place: NDArray[np.uint8], tree: Tree, *, tensors: bool = True) -> list[Any]:
    """Return the leaves of a packed tree, as `unpack` does."""
    objects: list[Any] = []
    if len(tree.objects):
        objects = pickle.loads(place[tree.objects.start : tree.objects.stop].data)  # written by our worker
    return [
        objects[leaf.start] if leaf.kind == "object" else view(place, leaf, tensors=tensors)
        for leaf in tree.leaves
    ]


def descriptor(place: NDArray[np.uint8], where: Span) -> Tree:
    """Read the descriptor of a packed tree."""
    return _descriptor(place[where.start : where.stop].tobytes())


def tree_of(tree: Tree, leaves: list[Any]) -> Any:
    """Return a packed tree's shape around other leaves."""
    return unflatten(structure_of(tree.structure), leaves)


@lru_cache(maxsize=256)
def pickled(structure: Any) -> bytes:
    """Pickle a structure; classes of `__main__` travel by value, which cloudpickle undoes on the way back."""
    pickled: bytes = cloudpickle.dumps(structure)
    return pickled


@lru_cache(maxsize=256)
def structure_of(data: bytes) -> Any:
    """Return a structure that was pickled."""
    return pickle.loads(data)


@lru_cache(maxsize=64)
def _descriptor(data: bytes) -> Tree:
    """Read a descriptor; batches of one loader mostly share theirs, so it is kept."""
    tree: Tree = pickle.loads(data)  # written by a worker of ours
    return tree


def _pickled_objects(objects: list[Any]) -> bytes:
    if not objects:
        return b""
    if all(type(value) in _PLAIN for value in objects):
        return pickle.dumps(objects, pickle.HIGHEST_PROTOCOL)
    pickled: bytes = cloudpickle.dumps(objects)
    return pickled


def _measure(value: Any, start: int, objects: list[Any]) -> tuple[Leaf, list[Any] | None]:
    """Return where a leaf will lie and what to write there; an object joins the list instead."""
    if type(value) is list:
        kind = "text" if type(value[0]) is str else "bytes"
        head, blobs, size = joined(kind, value)
        return Leaf(kind, "", (len(value),), start, start + size), [head, *blobs]
    if _is_numeric(value):
        native = value.dtype.newbyteorder("=")
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return Leaf(kind, native.str, value.shape, start, start + value.size * native.itemsize), [value]
    if is_plain(value):
        raw = raw_bytes(value)
        return Leaf("tensor", dtype_name(value), tuple(value.shape), start, start + len(raw)), [raw]
    objects.append(value)
    return Leaf("object", "", (), len(objects) - 1, 0), None


def _is_texts(value: Any) -> bool:
    """Tell a list of texts, which is one leaf of a batch."""
    if type(value) is not list or not value:
        return False
    kind = type(value[0])
    return kind in (str, bytes) and all(type(item) is kind for item in value)


def _is_numeric(value: Any) -> bool:
    """Tell arrays and numbers of numpy that are nothing but their bytes; a masked array is more."""
    if not isinstance(value, (np.ndarray, np.generic)) or isinstance(value, np.ma.MaskedArray):
        return False
    return value.dtype.kind in "biufc"
