"""Pack: how the tensors of a batch lie on the host, and where they will lie in one block of the device.

A batch of the loader lies in one stretch of memory, so it travels by one copy and its tensors are views of
the block. What others hand over is a tensor here and a tensor there: what is page-locked and large is copied
from where it is, the rest is put together in a staging buffer first, so that there are few copies. Either way
tensors keep dtype, shape and, where they have no gaps or overlaps, their strides.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..tree import LEAF, Structure, flatten, unflatten

__all__ = [
    "ALIGNMENT",
    "LARGE_BYTES",
    "Move",
    "Parcel",
    "Place",
    "View",
    "as_bytes",
    "dense",
    "is_plain",
    "pack",
    "spread",
    "stays_whole",
    "storages_in",
    "tensors_in",
    "view_of",
]

ALIGNMENT = 256  # of tensors in a block: what kernels with vector loads like
_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
LARGE_BYTES = 256 << 10  # from which a copy of its own costs less than a trip through a staging buffer


@dataclass(frozen=True, slots=True)
class View:
    """A tensor, but for its memory."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In items."""

    @property
    def size(self) -> int:
        """Bytes from its first item to its last."""
        if 0 in self.shape:
            return 0
        last = sum((count - 1) * stride for count, stride in zip(self.shape, self.strides, strict=True))
        return int((last + 1) * self.dtype.itemsize)

    def over(self, block: Any, start: int) -> Any:
        """Return the tensor over a block, from a byte on; to autograd it is no relation of others there."""
        part = block[start : start + self.size].view(self.dtype).as_strided(self.shape, self.strides)
        return part.data  # a view shares a count of writes, and backward would find all of them overwritten


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies in a block."""

    leaf: int
    """Its number among the leaves of the batch."""
    view: View
    start: int


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes of the host that go to one place of a block."""

    source: Any
    """As a flat uint8 tensor."""
    start: int
    size: int
    staged: bool
    """Whether it is put into a staging buffer first, as it may not be copied from where it is."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A batch, ready to be copied."""

    leaves: list[Any]
    structure: Structure
    places: list[Place]
    moves: list[Move]
    foreign: list[int]
    """Leaves that have a `to` of their own, which knows how they travel."""
    there: list[int]
    """Leaves that are on the device already, in whole or in part."""
    size: int
    """Bytes of the block."""

    def build(self, found: dict[int, Any]) -> Any:
        """Return the batch with other leaves in the place of some."""
        leaves = [found.get(number, leaf) for number, leaf in enumerate(self.leaves)]
        return unflatten(self.structure, leaves)


def pack(
    batch: Any, holds: Callable[[Any], bool], is_locked: Callable[[Any], bool], whole: Any = None
) -> Parcel:
    """Plan the way of a batch.

    Args:
        batch: a tree.
        holds: tells tensors that are on the device already.
        is_locked: tells tensors that may be copied from where they are.
        whole: the one stretch of memory in which the batch's tensors lie, as a flat uint8 tensor, if known.
    """
    leaves, structure = flatten(batch, is_leaf=stays_whole)
    tensors, foreign, there = _sort(leaves, holds)
    if whole is not None and whole.numel() and tensors and _fills(tensors, whole):
        places = [Place(number, view_of(tensor), _start(tensor, whole)) for number, tensor in tensors]
        moves = [Move(whole, 0, whole.numel(), staged=not is_locked(whole))]
        return Parcel(leaves, structure, places, moves, foreign, there, whole.numel())
    return _apart(leaves, structure, tensors, (foreign, there), is_locked)


def _start(tensor: Any, whole: Any) -> int:
    return int(tensor.data_ptr() - whole.data_ptr()) if tensor.numel() else 0  # nothing may lie anywhere


def view_of(tensor: Any) -> View:
    """Return what a tensor is, but for its memory."""
    return View(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))


def as_bytes(tensor: Any, size: int) -> Any:
    """Return the bytes of a tensor without gaps, so many, as a flat uint8 tensor."""
    torch: Any = sys.modules["torch"]
    return tensor.as_strided((size // tensor.dtype.itemsize,), (1,)).view(torch.uint8)


def tensors_in(thing: Any, depth: int = 4) -> list[Any]:
    """Return the tensors that a thing is made of: in containers, and in the attributes of objects."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return []
    if isinstance(thing, torch.Tensor):
        leaves = _parts(thing)
        if leaves[0] is thing:
            return leaves
    else:
        leaves, structure = flatten(thing)
        if structure is LEAF:
            leaves = _attributes(thing) if depth else []
    return [tensor for leaf in leaves for tensor in tensors_in(leaf, depth - 1)]


def storages_in(thing: Any, holds: Callable[[Any], bool]) -> list[Any]:
    """Return all memory of a device that a thing is made of, each piece as a flat uint8 tensor."""
    torch: Any = sys.modules.get("torch")
    found = [tensor for tensor in tensors_in(thing) if holds(tensor)]
    storages = {storage.data_ptr(): storage for storage in (tensor.untyped_storage() for tensor in found)}
    return [
        torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        for storage in storages.values()
        if storage.nbytes()
    ]


def _parts(tensor: Any) -> list[Any]:
    """Return the tensors that a sparse or a composed tensor is made of; itself if it is one of its own."""
    torch: Any = sys.modules["torch"]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if hasattr(type(tensor), "__tensor_flatten__"):
        return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return [tensor]


def _attributes(thing: Any) -> list[Any]:
    """Return the values of an object's attributes, also of those in slots."""
    found = list(getattr(thing, "__dict__", {}).values())
    for kind in type(thing).__mro__:
        names = vars(kind).get("__slots__", ())
        names = (names,) if isinstance(names, str) else names
        found += [getattr(thing, name) for name in names if name != "__dict__" and hasattr(thing, name)]
    return found


def spread(start: int, borders: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Cut bytes that lie at an address where page-locked pieces border on each other.

    Args:
        start: the address.
        borders: addresses, sorted.
        size: bytes.

    Returns:
        Ranges relative to `start`, none of which crosses a border.
    """
    cuts = [0, *(border - start for border in borders if start < border < start + size), size]
    return list(itertools.pairwise(cuts))


def _apart(
    leaves: list[Any],
    structure: Structure,
    tensors: list[tuple[int, Any]],
    others: tuple[list[int], list[int]],
    is_locked: Callable[[Any], bool],
) -> Parcel:
    """Plan for tensors that lie apart: staged ones first, so that they are one copy."""
    staged: list[tuple[int, Any, View, int]] = []
    direct: list[tuple[int, Any, View, int]] = []
    for number, tensor in tensors:
        tight = dense(tensor)
        view = view_of(tight)
        size = view.size
        kind = direct if size >= LARGE_BYTES and is_locked(tight) else staged
        kind.append((number, tight, view, size))

    places, moves, start = [], [], 0
    for number, tensor, view, size in (*staged, *direct):
        places.append(Place(number, view, start))
        if size:
            moves.append(Move(as_bytes(tensor, size), start, size, staged=len(places) <= len(staged)))
        start += -(-size // ALIGNMENT) * ALIGNMENT
    return Parcel(leaves, structure, places, moves, *others, start)


def _sort(
    leaves: list[Any], holds: Callable[[Any], bool]
) -> tuple[list[tuple[int, Any]], list[int], list[int]]:
    """Tell apart plain tensors of the host, what knows itself how to travel, what is there, and all else."""
    torch: Any = sys.modules.get("torch")
    tensors, foreign, there = [], [], []
    for number, leaf in enumerate(leaves):
        if torch is not None and isinstance(leaf, torch.Tensor):
            if is_plain(leaf) and not holds(leaf):
                tensors.append((number, leaf))
                continue
        elif not _has_way(leaf):
            continue
        found = [holds(tensor) for tensor in tensors_in(leaf)]
        if any(found):
            there.append(number)
        if not (found and all(found) and isinstance(leaf, torch.Tensor)):
            foreign.append(number)
    return tensors, foreign, there


def stays_whole(part: Any) -> bool:
    """Tell containers that say themselves how they get to a device, and lists that have nothing to bring."""
    return _has_way(part) or (type(part) is list and _PLAIN.issuperset(map(type, part)))


def _has_way(thing: Any) -> bool:
    return callable(getattr(type(thing), "to", None))


def is_plain(tensor: Any) -> bool:
    """Tell tensors of the host that are nothing but their bytes."""
    torch: Any = sys.modules["torch"]
    return bool(
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and not tensor.requires_grad
    )


def _fills(tensors: list[tuple[int, Any]], whole: Any) -> bool:
    """Tell whether tensors lie in a stretch and take half of it or more: the rest travels for nothing."""
    first, last = whole.data_ptr(), whole.data_ptr() + whole.numel()
    used = 0
    for _, tensor in tensors:
        size, start = view_of(tensor).size, tensor.data_ptr()
        if not size:
            continue
        if not first <= start <= start + size <= last or (start - first) % tensor.dtype.itemsize:
            return False
        used += size
    return 2 * used >= int(whole.numel())


def dense(tensor: Any) -> Any:
    """Return a tensor that has no gaps or overlaps, with the same values; mostly the same one."""
    return tensor if tensor.is_contiguous() or _is_permuted(tensor) else tensor.contiguous()


def _is_permuted(tensor: Any) -> bool:
    """Tell whether the strides are those of a contiguous tensor with its dimensions in another order."""
    expected = 1
    for stride, count in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if count != 1 and stride != expected:
            return False
        expected *= count
    return True
