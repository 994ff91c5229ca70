"""Leaf: one array, tensor or list of texts, as it lies in a stretch of shared memory.

Arrays start at multiples of `ALIGNMENT` bytes. Texts are a table of u64 ends, then their bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .space import align
from .stretches import ROW_BY_ROW, Stretches
from .tensors import from_bytes

__all__ = ["TEXTS", "Leaf", "NoRoom", "joined", "pack_texts", "texts", "view", "write"]

TEXTS = ("text", "bytes")
_AT_ONCE_BYTES = 128 << 10  # of texts that become objects without a break


class NoRoom(Exception):
    """The given stretch is too small for what should lie there; no error, the answer says how much is enough.

    Args:
        need: bytes that are enough.
    """

    def __init__(self, need: int) -> None:
        super().__init__(need)
        self.need = need


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where one leaf lies, relative to the beginning of its place."""

    kind: str  # "array", "scalar", "tensor", "text", "bytes"; "object": `start` counts the pickled ones
    dtype: str  # numpy's for arrays, torch's name for tensors
    shape: tuple[int, ...]
    start: int
    stop: int


def view(place: NDArray[np.uint8], leaf: Leaf, *, tensors: bool = True) -> Any:
    """Return one leaf: an array over the place, a tensor over it, a number, or a list of texts."""
    if leaf.kind in TEXTS:
        return texts(place, leaf)
    target = place[leaf.start : leaf.stop]
    if leaf.kind == "tensor":
        return from_bytes(target, leaf.dtype, leaf.shape) if tensors else target
    if leaf.kind == "scalar":
        return target.view(leaf.dtype)[0]
    return target.view(leaf.dtype).reshape(leaf.shape)


def texts(place: NDArray[np.uint8], leaf: Leaf, between: Callable[[], object] = int) -> list[Any]:
    """Return the texts or bytes of a leaf as a list of objects.

    Args:
        place: the memory that holds them.
        leaf: where in it.
        between: called now and then: many take long.
    """
    # hot: the one step for each record that the parent does; guarded by benchmarks/tiny.py
    count = leaf.shape[0]
    head = leaf.start + 8 * count
    table = place[leaf.start : head].view(np.uint64)
    size = (leaf.stop - head) // count if count else 0
    if leaf.kind == "bytes" and size and int(table[0]) == size and (np.diff(table) == size).all():
        values, some = place[head : leaf.stop].view(f"V{size}"), _AT_ONCE_BYTES // size + 1
        found: list[bytes] = []
        for first in range(0, count, some):
            found += values[first : first + some].tolist()
            between()
        return found
    ends = table.tolist()
    starts = [0, *ends][:-1]
    if size >= ROW_BY_ROW:  # a second copy of all would cost more than many small ones
        memory, encoding = place[head : leaf.stop].data, ("utf-8", "surrogatepass")
        pieces = [memory[start:stop] for start, stop in zip(starts, ends, strict=True)]
        return [bytes(piece) if leaf.kind == "bytes" else str(piece, *encoding) for piece in pieces]
    data = place[head : leaf.stop].tobytes()
    if leaf.kind == "bytes":
        return [data[start:stop] for start, stop in zip(starts, ends, strict=True)]
    return [
        data[start:stop].decode("utf-8", "surrogatepass") for start, stop in zip(starts, ends, strict=True)
    ]


def pack_texts(
    columns: list[tuple[str, list[Any] | Stretches]], place: NDArray[np.uint8]
) -> tuple[Leaf, ...]:
    """Write columns of texts to a place, each a kind and its values; return where they lie.

    Raises:
        NoRoom: the place is too small; nothing was written.
    """
    leaves: list[Leaf] = []
    parts: list[list[Any]] = []
    start = 0
    for kind, values in columns:
        head, blobs, size = _measured(values) if isinstance(values, Stretches) else joined(kind, values)
        leaves.append(Leaf(kind, "", (len(values),), start, start + size))
        parts.append([head, *blobs])
        start = align(start + size)
    if start > len(place):
        raise NoRoom(start)
    for leaf, data in zip(leaves, parts, strict=True):
        write(place, leaf.start, data)
    return tuple(leaves)


def joined(kind: str, values: list[Any]) -> tuple[NDArray[np.uint64], list[bytes], int]:
    """Return the table of ends, the bytes, and the size of both."""
    # surrogatepass: JSON may hold halves of pairs, and what a decoder gave must arrive
    blobs = [str.encode(value, "utf-8", "surrogatepass") for value in values] if kind == "text" else values
    ends = np.cumsum(np.fromiter(map(len, blobs), np.uint64, len(blobs)), dtype=np.uint64)
    size = int(ends[-1]) if len(blobs) else 0
    whole = blobs if size >= ROW_BY_ROW * len(blobs) else [b"".join(blobs)]
    return ends, whole, 8 * len(blobs) + size


def write(place: NDArray[np.uint8], start: int, data: list[Any]) -> None:
    """Write arrays, bytes and stretches to a place, one behind the other."""
    for item in data:
        if isinstance(item, (np.ndarray, np.generic)):
            native = item.dtype.newbyteorder("=")
            stop = start + item.size * native.itemsize
            place[start:stop].view(native).reshape(item.shape)[...] = item
        elif isinstance(item, Stretches):
            stop = start + int(item.sizes.sum())
            item.write(place[start:stop])
        else:
            stop = start + len(item)
            place[start:stop] = np.frombuffer(item, np.uint8)
        start = stop


def _measured(values: Stretches) -> tuple[NDArray[np.uint64], list[Any], int]:
    """Return the table of ends, what is to be written, and the size of both."""
    ends = np.cumsum(values.sizes, dtype=np.uint64)
    size = int(ends[-1]) if len(values) else 0
    return ends, [values], 8 * len(values) + size
