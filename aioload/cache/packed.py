"""Packed: a sample as one stretch of bytes that can be kept, and be made into the sample again.

Only what is nothing but its values can be kept: arrays and numbers of numpy, plain tensors, texts, bytes,
Python's own numbers, None, and lists, tuples and dicts of these. Nothing is pickled, so nothing that is read
back can run code. What the values looked like in memory comes back too: dtype, byte order, and how the axes
of an array lie, since a sum over an array that lies otherwise may differ in its last bit; and which of them
are one and the same array, since a transform may write to it.

    head      16 bytes: magic, bytes of the key (-1: the record has none), of the description, seconds it cost
    key       UTF-8
    tree      the description, as JSON: values that are small, and places of those that are not
    values    each at a multiple of 64 bytes
"""

from __future__ import annotations

import importlib
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from .description import KINDS, Description, Unkeepable, extent, offset
from .pattern import Pattern, to_json

__all__ = ["ALIGNMENT", "Kept", "Packed", "Packer", "Piece", "Unkeepable", "size_of", "unpack"]

ALIGNMENT = 64
_HEAD = struct.Struct("<4siIf")
_MAGIC = b"aiS1"
_LARGE = frozenset("anbt")  # in a description: what lies in the bytes
_MOST_PIECES = 64  # of a sample: each is a buffer of one system call
_MOST_PATTERNS = 64  # that are looked for: where samples never look alike it takes time and brings nothing
_ZEROS = bytes(ALIGNMENT)

Piece = bytes | NDArray[Any]
"""Bytes, or a C-contiguous array, that are written as they are."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept of a record."""

    key: str | None
    """The record's."""
    sample: Any
    """Its arrays lie over the bytes that were given."""
    seconds: float
    """What making it took."""
    size: int
    """Bytes that were given."""


class Packed(NamedTuple):  # a frozen dataclass takes 3 us to make, out of the caches
    """A sample that is about to be kept."""

    pieces: Sequence[Piece]
    """To be written one behind the other."""
    size: int
    """Bytes of all."""
    sum: int
    """CRC-32C of these."""


class Packer:
    """Packs one sample after the other."""

    def __init__(self) -> None:
        self._pattern: Pattern | None = None  # of a sample that was packed
        self._patterns = 0

    def pack(self, sample: Any, key: str | None, seconds: float) -> Packed:
        """Return a sample's bytes: what comes before its values, and these.

        Args:
            sample: what `prepare` returned; the pieces lie over its arrays.
            key: the record's.
            seconds: what making it took.

        Raises:
            Unkeepable: it holds something else than plain values.
        """
        # hot: once per record that is kept
        tree, values = self._described(sample)
        text = tree.encode()
        name = b"" if key is None else key.encode("utf-8", "surrogatepass")
        first = _HEAD.pack(_MAGIC, -1 if key is None else len(name), len(text), seconds) + name + text
        first += _ZEROS[: -len(first) % ALIGNMENT]
        pieces: list[Piece] = [first]
        size = len(first)
        for value in values:
            of_value = _length(value)
            if of_value:
                pieces.append(value)
                size += of_value
                if size % ALIGNMENT:
                    pieces.append(_ZEROS[: -size % ALIGNMENT])
                    size += -size % ALIGNMENT
        if len(pieces) > _MOST_PIECES:
            pieces = [b"".join(pieces)]  # type: ignore[arg-type]  # arrays are buffers, too
        sum_ = 0
        for piece in pieces:
            sum_ = google_crc32c.extend(sum_, piece)
        return Packed(pieces, size, sum_)

    def _described(self, sample: Any) -> tuple[str, Sequence[Any]]:
        """Return a sample's description, and the values that are written beside it."""
        found = None if self._pattern is None else self._pattern.describe(sample)
        if found is not None:
            return found
        described = Description(sample)
        if self._patterns < _MOST_PATTERNS:
            self._patterns += 1
            self._pattern = Pattern.of(sample)
        return to_json(described.tree), [_bytes_of(value) for value in described.values]


def unpack(data: NDArray[np.uint8]) -> Kept:
    """Return what was packed; arrays and tensors are views of `data`, and as writable as it is.

    Raises:
        ValueError: these are no such bytes.
    """
    # hot: once per record that was kept
    magic, name_bytes, tree_bytes, seconds = _HEAD.unpack_from(data.data)
    if magic != _MAGIC:
        raise ValueError("no packed sample")
    place = _HEAD.size + max(name_bytes, 0)
    key = None if name_bytes < 0 else str(data[_HEAD.size : place].data, "utf-8", "surrogatepass")
    stop = place + tree_bytes
    tree = json.loads(data[place:stop].tobytes())
    return Kept(key, _Reader(data, _aligned(stop)).value(tree), seconds, len(data))


def size_of(sample: Any) -> int:
    """Return about how many bytes a sample takes when it is kept; 0 where it cannot be."""
    try:
        described = Description(sample)
    except (Unkeepable, ValueError, RecursionError):
        return 0
    return _aligned(_HEAD.size + len(str(described.tree))) + sum(
        _aligned(_length(value)) for value in described.values
    )


class _Reader:
    """Makes values again; those that lie in the bytes come in the order in which they were described."""

    def __init__(self, data: NDArray[np.uint8], start: int) -> None:
        self._data = data
        self._start = start
        self._made: list[Any] = []  # of the values that lie in the bytes

    def value(self, tree: Any) -> Any:
        kind = type(tree)
        if kind is dict:
            return {name: self.value(item) for name, item in tree.items()}
        if kind is not list:
            return tree
        what, *rest = tree
        if what in _LARGE:
            found = self._large(what, *rest)
            self._made.append(found)
            return found
        if what == "=":
            return self._made[rest[0]]
        items = [self.value(item) for item in rest]
        if what == "d":
            return dict(zip(items[::2], items[1::2], strict=True))
        return tuple(items) if what == "(" else items

    def _large(self, what: str, *rest: Any) -> Any:
        if what == "a":
            return self._array(*rest)
        if what == "n":
            number = _dtype(rest[0])
            return self._take(number.itemsize).view(number)[0]
        return self._take(rest[0]).tobytes() if what == "b" else self._tensor(*rest)

    def _take(self, size: int) -> NDArray[np.uint8]:
        start = self._start
        self._start = _aligned(start + size)
        found = self._data[start : start + size]
        if len(found) < size:
            raise ValueError("a packed sample ends early")
        return found

    def _array(self, dtype: str, shape: list[int], strides: list[int] | None = None) -> NDArray[Any]:
        kind = _dtype(dtype)
        if not math.prod(shape):
            self._take(0)
            return np.empty(shape, kind)
        if strides is None:
            return np.ndarray(shape, kind, self._take(math.prod(shape) * kind.itemsize))
        found = self._take(extent(shape, strides, kind.itemsize))
        return np.ndarray(shape, kind, found, offset(shape, strides), strides)

    def _tensor(self, dtype: str, shape: list[int], size: int, strides: list[int] | None = None) -> Any:
        torch = importlib.import_module("torch")  # only where user code made tensors
        kind = getattr(torch, dtype)
        if not size:
            return torch.empty(shape, dtype=kind)
        found = torch.from_numpy(self._take(size)).view(kind)
        return found.reshape(shape) if strides is None else found.as_strided(shape, strides)


def _dtype(name: str) -> np.dtype[Any]:
    """Return a dtype of values that are nothing but their bytes, whatever a damaged description says."""
    found = np.dtype(name)
    if found.kind not in KINDS:
        raise ValueError(f"{name} is no dtype of a packed sample")
    return found


def _length(value: Any) -> int:
    """Return the bytes of a value that is written."""
    return len(value) if type(value) is bytes else int(value.nbytes)


def _bytes_of(value: Any) -> Piece:
    """Return a value as bytes: not all arrays can be written as they are."""
    if isinstance(value, bytes):
        return value
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _aligned(place: int) -> int:
    return -(-place // ALIGNMENT) * ALIGNMENT
