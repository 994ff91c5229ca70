"""Deliver: finished bytes in the arena become the batch that the user gets.

Arrays become torch tensors over the arena's memory, without a copy; the lease goes back when the last tensor
over it has gone. A batch that may not stay in the arena (it lies in the head's zone, or the user keeps so
many that the pipeline would starve) becomes a private copy first. Either way what was handed over never
changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._workers.layout import Layout, Leaf, Tree, batch_tree, tensor, tree_of, unpack_leaves, view
from ..errors import SampleError
from ..tree import flatten, unflatten

if TYPE_CHECKING:
    from ..policy import Skips
    from .memory import Lease, Memory

__all__ = ["Among", "Delivery", "Made", "Output", "deliver", "to_numpy", "to_torch", "without_rows"]

Output = Callable[[NDArray[Any]], Any]
"""What becomes of an array over the arena."""


@dataclass(frozen=True, slots=True)
class Among:
    """The rows of several batches that lie together, and where in them a batch begins."""

    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class Made:
    """A batch that workers have finished: its memory, and what lies where."""

    step: int
    rows: int
    lease: Lease
    size: int  # bytes in use
    tree: Tree | None  # a packed batch, or
    layout: Layout | None  # one of rows
    texts: tuple[list[Any], ...]  # with a layout: the text columns, whole
    skipped: Skips = field(default_factory=list)
    among: Among | None = None  # with a layout of arrays: not alone in its memory


@dataclass(frozen=True, slots=True)
class Delivery:
    """A batch on the hand-over."""

    batch: Any  # None if it has no rows
    rows: int
    size: int
    lease: Lease | None  # the user's from the moment it is taken
    skipped: Skips = field(default_factory=list)


def to_torch(array: NDArray[Any]) -> Any:
    """Return an array as a tensor over the same memory."""
    import torch

    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise SampleError(
            f"torch has no dtype for arrays of {array.dtype}; convert them in the transform", cause=str(error)
        ) from error


def to_numpy(array: NDArray[Any]) -> Any:
    """Return an array as it is."""
    return array


def deliver(made: Made, memory: Memory, output: Output, on_copy: Callable[[], None]) -> Delivery:
    """Turn a finished batch into what the user gets. The made batch's lease is used up."""
    start = made.lease.span.start
    copied = memory.crowded or made.lease.private  # in this order: it warns
    lease: Lease | None = made.lease
    if not made.size:
        place = np.empty(0, np.uint8)
        made.lease.release()
        lease = None
    elif copied:
        try:
            place = memory.arena.array[start : start + made.size].copy()
        finally:
            made.lease.release()
        on_copy()
        lease = None
    else:
        memory.finish(made.lease)
        place = memory.arena.borrow(start, start + made.size, made.lease.release_soon)
    size = made.size if made.among is None else made.size * made.rows // made.among.rows
    return Delivery(_build(made, place, output), made.rows, size, lease, made.skipped)


def without_rows(batch: Any, rows: int) -> Any:
    """Return a batch of the same make with nothing in it.

    Args:
        batch: as handed to the user.
        rows: samples in it. Where a leaf has not as many, nobody knows what it would be without them, and the
            batch becomes an empty dict.
    """
    leaves, structure = flatten(batch, is_leaf=lambda part: _is_column(part, rows))
    if not all(_is_column(leaf, rows) or _has_rows(leaf, rows) for leaf in leaves):
        return {}
    return unflatten(structure, [[] if isinstance(leaf, list) else _no_rows(leaf) for leaf in leaves])


def _is_column(part: Any, rows: int) -> bool:
    """Tell whether a list holds a value for each row, and not a tensor for each item of a sample."""
    return (
        isinstance(part, list)
        and len(part) == rows
        and not all(_has_rows(leaf, rows) for leaf in flatten(part)[0])
    )


def _has_rows(leaf: Any, rows: int) -> bool:
    return hasattr(leaf, "dtype") and tuple(getattr(leaf, "shape", ())[:1]) == (rows,)


def _no_rows(leaf: Any) -> Any:
    shape = (0, *leaf.shape[1:])
    return leaf.new_empty(shape) if hasattr(leaf, "new_empty") else np.empty(shape, leaf.dtype)


def _build(made: Made, place: NDArray[np.uint8], output: Output) -> Any:
    """Return the batch over its bytes."""
    if made.layout is not None:
        texts, among = iter(made.texts), made.among
        leaves = [
            next(texts) if leaf.kind in ("text", "bytes") else _leaf(place, leaf, output, made)
            for leaf in made.layout.leaves(made.rows if among is None else among.rows)
        ]
        return batch_tree(made.layout, leaves)

    if made.tree is None:
        return None  # a batch without rows: what it should look like is known where batches are handed out
    try:
        found = unpack_leaves(place, made.tree, tensors=False)
    except Exception as error:  # classes of the user's, which may raise anything
        raise SampleError(
            f"an object in batch {made.step} cannot be made again from its pickle ({error!r}); "
            "make arrays, numbers or texts of it in the transform or collate",
            cause=repr(error),
        ) from error
    leaves = [_finish(value, leaf, output) for value, leaf in zip(found, made.tree.leaves, strict=True)]
    return tree_of(made.tree, leaves)


def _leaf(place: NDArray[np.uint8], leaf: Leaf, output: Output, made: Made) -> Any:
    value = view(place, leaf, tensors=False)
    if made.among is not None:
        value = value[made.among.first : made.among.first + made.rows]
    return _finish(value, leaf, output)


def _finish(value: Any, leaf: Leaf, output: Output) -> Any:
    """Return one leaf as the user gets it."""
    if leaf.kind in ("array", "scalar"):
        return output(np.asarray(value))
    return tensor(value, leaf) if leaf.kind == "tensor" else value
