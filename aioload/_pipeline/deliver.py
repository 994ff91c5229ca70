"""Deliver: finished bytes in the arena become the batch that the user gets.

Arrays become torch tensors over the arena's memory, or stay numpy's, without a copy; the lease goes back when
the last of them has gone. A batch that may not stay in the arena (it lies in the head's zone, or the user
keeps so many that the pipeline would starve) becomes a private copy first. Either way what was handed over
never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._workers.layout import Layout, batch_tree
from .._workers.leaf import Leaf, view
from .._workers.packed import Tree, tree_of, unpack_leaves
from .._workers.tensors import from_bytes
from ..errors import ConfigError, SampleError
from ..tree import flatten, unflatten

if TYPE_CHECKING:
    from ..policy import Skips
    from .memory import Charge, Lease, Memory

__all__ = [
    "OUTPUTS",
    "Delivery",
    "Joined",
    "Made",
    "Output",
    "deliver",
    "deliver_joined",
    "to_numpy",
    "to_torch",
    "without_rows",
]


@dataclass(frozen=True, slots=True)
class Output:
    """What becomes of what lies in the arena."""

    of_array: Callable[[NDArray[Any]], Any]
    """Of an array, or a number as an array without dimensions."""
    of_tensor: Callable[[NDArray[np.uint8], Leaf], Any]
    """Of the bytes of a tensor that user code made."""


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
    text_bytes: int = 0  # of them
    skipped: Skips = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Joined:
    """Batches that workers have finished as if they were one: their rows lie end to end in each column."""

    made: Made  # all of them; it has a layout
    rows: tuple[int, ...]  # of each


@dataclass(frozen=True, slots=True)
class Delivery:
    """A batch on the hand-over."""

    batch: Any  # None if it has no rows
    rows: int
    size: int
    lease: Lease | None  # the user's from the moment it is taken
    skipped: Skips = field(default_factory=list)
    outside: Charge | None = None  # for what lies outside of the arena while it waits
    place: NDArray[np.uint8] | None = None  # where all of it lies, if it lies in one piece
    batch_id: tuple[int, int] | None = None  # pass and step, for a trace


def _torch_of_array(array: NDArray[Any]) -> Any:
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            f'torch cannot be imported ({error}); install it, or have arrays with output="numpy"',
            cause=repr(error),
        ) from error
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise SampleError(
            f"torch has no dtype for arrays of {array.dtype}; convert them in the transform", cause=str(error)
        ) from error


def _array_as_it_is(array: NDArray[Any]) -> Any:
    return array


def _torch_of_tensor(raw: NDArray[np.uint8], leaf: Leaf) -> Any:
    return from_bytes(raw, leaf.dtype, leaf.shape)


def _array_of_tensor(raw: NDArray[np.uint8], leaf: Leaf) -> Any:
    try:
        dtype = np.dtype(leaf.dtype)  # numpy and torch agree in the names of all dtypes that both have
    except TypeError as error:
        raise SampleError(
            f"numpy has no dtype for torch's {leaf.dtype}; convert such tensors in the transform",
            cause=str(error),
        ) from error
    return raw.view(dtype).reshape(leaf.shape)


to_torch = Output(_torch_of_array, _torch_of_tensor)
"""Tensors of torch, over the same memory."""

to_numpy = Output(_array_as_it_is, _array_of_tensor)
"""Arrays of numpy; nothing here imports torch for them."""

OUTPUTS = {"torch": to_torch, "numpy": to_numpy}
"""What users can ask for, by name."""


def deliver(made: Made, memory: Memory, output: Output, on_copy: Callable[[], None]) -> Delivery:
    """Turn a finished batch into what the user gets. The made batch's lease is used up."""
    place, lease = _place(made, memory, on_copy)
    outside = _outside(made, place, lease)
    charge = memory.charge(outside) if outside else None
    return Delivery(_build(made, place, output), made.rows, made.size, lease, made.skipped, charge, place)


def deliver_joined(
    joined: Joined, memory: Memory, output: Output, on_copy: Callable[[], None]
) -> list[Delivery]:
    """Turn batches that were finished together into what the user gets; their lease is used up."""
    # hot: once per small batch; guarded by benchmarks/tiny.py
    made = joined.made
    assert made.layout is not None
    place, lease = _place(made, memory, on_copy)
    outside = _outside(made, place, lease)
    charge = memory.charge(outside) if outside else None
    leaves = made.layout.leaves(made.rows)
    texts = iter(made.texts)
    columns = [
        next(texts) if leaf.kind in ("text", "bytes") else view(place, leaf, tensors=False) for leaf in leaves
    ]
    found, first = [], 0
    for rows in joined.rows:
        parts = [column[first : first + rows] for column in columns]
        finished = [
            part if type(part) is list else _finish(part, leaf, output)
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        batch, size = batch_tree(made.layout, finished), made.size * rows // made.rows
        # counted once: all as the user's from the first on, and as waiting until the last has been taken
        mine, first = None if first else lease, first + rows
        found.append(Delivery(batch, rows, size, mine, outside=charge if first == made.rows else None))
    return found


def _place(made: Made, memory: Memory, on_copy: Callable[[], None]) -> tuple[NDArray[np.uint8], Lease | None]:
    """Return the bytes that the user gets, and the lease that they keep, if they are the arena's."""
    start = made.lease.span.start
    copied = memory.crowded or made.lease.private  # in this order: it warns
    if not made.size:
        made.lease.release()
        return np.empty(0, np.uint8), None
    if copied:
        try:
            place = memory.arena.array[start : start + made.size].copy()
        finally:
            made.lease.release()
        on_copy()
        return place, None
    memory.finish(made.lease)
    return memory.arena.borrow(start, start + made.size, made.lease.release_soon), made.lease


def _outside(made: Made, place: NDArray[np.uint8], lease: Lease | None) -> int:
    """Return the bytes of a batch that lie outside of the arena: texts, and the copy if it is one."""
    size = made.text_bytes if made.tree is None else _text_bytes(made.tree)
    return size if lease is not None else size + len(place)


def _text_bytes(tree: Tree) -> int:
    texts = sum(leaf.stop - leaf.start for leaf in tree.leaves if leaf.kind in ("text", "bytes"))
    return texts + len(tree.objects)


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
        texts = iter(made.texts)
        leaves = [
            next(texts)
            if leaf.kind in ("text", "bytes")
            else _finish(view(place, leaf, tensors=False), leaf, output)
            for leaf in made.layout.leaves(made.rows)
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


def _finish(value: Any, leaf: Leaf, output: Output) -> Any:
    """Return one leaf as the user gets it."""
    if leaf.kind in ("array", "scalar"):
        return output.of_array(np.asarray(value))
    return output.of_tensor(value, leaf) if leaf.kind == "tensor" else value
