"""Packed: a sample as one stretch of bytes that can be kept, and be made into the sample again.

Only what is nothing but its values can be kept: arrays and numbers of numpy, plain tensors, texts, bytes,
Python's own numbers, None, and lists, tuples and dicts of these. Nothing is pickled, so nothing that is read
back can run code. What the values looked like in memory comes back too: dtype, byte order, and the order of
an array's axes, since a sum over an array that lies otherwise may differ in its last bit.

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
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALIGNMENT", "Kept", "Packer", "Unkeepable", "size_of", "unpack"]

ALIGNMENT = 64
_HEAD = struct.Struct("<4siIf")
_MAGIC = b"aiS1"
_KINDS = "biufcmMSU"  # of dtypes whose values are nothing but their bytes
_PLAIN = frozenset({str, int, float, bool, type(None)})


class Unkeepable(Exception):
    """A sample holds something that cannot be kept; its text says what and where."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept of a record."""

    key: str | None
    """The record's."""
    sample: Any
    """Its arrays lie over the bytes that were given."""
    seconds: float
    """What making it took."""


class Packer:
    """Packs samples, one after the other, into memory of its own."""

    def __init__(self) -> None:
        self._memory = np.zeros(1 << 16, np.uint8)

    def pack(self, sample: Any, key: str | None, seconds: float) -> NDArray[np.uint8]:
        """Return a sample's bytes, which are right until the next is packed.

        Raises:
            Unkeepable: it holds something else than plain values.
        """
        values: list[Any] = []
        sizes: list[int] = []
        tree = json.dumps(_described(sample, values, sizes, "sample"), separators=(",", ":")).encode()
        name = b"" if key is None else key.encode("utf-8", "surrogatepass")
        start = _aligned(_HEAD.size + len(name) + len(tree))
        total = start + sum(map(_aligned, sizes))
        if total > len(self._memory):
            self._memory = np.zeros(_aligned(total * 5 // 4), np.uint8)
        memory = self._memory
        head = _HEAD.pack(_MAGIC, -1 if key is None else len(name), len(tree), seconds) + name + tree
        memory[: len(head)] = np.frombuffer(head, np.uint8)
        memory[len(head) : start] = 0
        for value, size in zip(values, sizes, strict=True):
            stop = _aligned(start + size)
            memory[start : start + size] = _bytes_of(value)
            memory[start + size : stop] = 0
            start = stop
        return memory[:total]


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
    return Kept(key, _Reader(data, _aligned(stop)).value(tree), seconds)


def size_of(sample: Any) -> int:
    """Return about how many bytes a sample takes when it is kept; 0 where it cannot be."""
    sizes: list[int] = []
    try:
        tree = _described(sample, [], sizes, "")
    except (Unkeepable, ValueError, RecursionError):
        return 0
    return _aligned(_HEAD.size + len(str(tree))) + sum(map(_aligned, sizes))


class _Reader:
    """Makes values again; those that lie in the bytes come in the order in which they were described."""

    def __init__(self, data: NDArray[np.uint8], start: int) -> None:
        self._data = data
        self._start = start

    def value(self, tree: Any) -> Any:
        kind = type(tree)
        if kind is dict:
            return {name: self.value(item) for name, item in tree.items()}
        if kind is not list:
            return tree
        what, *rest = tree
        if what == "a":
            return self._array(*rest)
        if what == "n":
            number = _dtype(rest[0])
            return self._take(number.itemsize).view(number)[0]
        if what == "b":
            return self._take(rest[0]).tobytes()
        if what == "t":
            return self._tensor(*rest)
        items = [self.value(item) for item in rest]
        if what == "d":
            return dict(zip(items[::2], items[1::2], strict=True))
        return tuple(items) if what == "(" else items

    def _take(self, size: int) -> NDArray[np.uint8]:
        start = self._start
        self._start = _aligned(start + size)
        found = self._data[start : start + size]
        if len(found) < size:
            raise ValueError("a packed sample ends early")
        return found

    def _array(self, dtype: str, shape: list[int], axes: list[int] | None = None) -> NDArray[Any]:
        kind = _dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        found = self._take(size)
        lying = shape if axes is None else [shape[axis] for axis in axes]
        array: NDArray[Any] = np.ndarray(lying, kind, found) if size else np.empty(lying, kind)
        return array if axes is None else array.transpose(np.argsort(axes))

    def _tensor(self, dtype: str, shape: list[int], size: int) -> Any:
        torch = importlib.import_module("torch")  # only where user code made tensors
        kind = getattr(torch, dtype)
        if not size:
            return torch.empty(shape, dtype=kind)
        return torch.from_numpy(self._take(size)).view(kind).reshape(shape)


def _dtype(name: str) -> np.dtype[Any]:
    """Return a dtype of values that are nothing but their bytes, whatever a damaged description says."""
    found = np.dtype(name)
    if found.kind not in _KINDS:
        raise ValueError(f"{name} is no dtype of a packed sample")
    return found


def _described(value: Any, values: list[Any], sizes: list[int], where: str) -> Any:
    """Return a value as JSON; what is large joins the list of values, with its size."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        if all(type(name) is str for name in value):
            return {
                name: _described(item, values, sizes, f"{where}[{name!r}]") for name, item in value.items()
            }
        pairs = [part for pair in value.items() for part in pair]
        return ["d", *(_described(part, values, sizes, where) for part in pairs)]
    if kind is list or kind is tuple:
        items = (_described(item, values, sizes, f"{where}[{at}]") for at, item in enumerate(value))
        return ["(" if kind is tuple else "[", *items]
    if kind is bytes:
        values.append(value)
        sizes.append(len(value))
        return ["b", len(value)]
    if kind is np.ndarray and _is_plain(value):
        return _array(value, values, sizes)
    if isinstance(value, np.generic) and _is_plain(value):
        values.append(np.asarray(value))
        sizes.append(value.dtype.itemsize)
        return ["n", value.dtype.str]
    if _is_tensor(value):
        raw = value.contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
        values.append(raw)
        sizes.append(raw.nbytes)
        return ["t", str(value.dtype).removeprefix("torch."), list(value.shape), raw.nbytes]
    raise Unkeepable(f"{where} is a {kind.__module__}.{kind.__qualname__}")


def _array(value: NDArray[Any], values: list[Any], sizes: list[int]) -> list[Any]:
    sizes.append(value.nbytes)
    shape = list(value.shape)
    if value.flags.c_contiguous:
        values.append(value)
        return ["a", value.dtype.str, shape]
    strides = [abs(stride) for stride in value.strides]
    axes = sorted(range(value.ndim), key=lambda axis: -strides[axis])
    values.append(value.transpose(axes))
    return ["a", value.dtype.str, shape, axes]


def _bytes_of(value: Any) -> NDArray[np.uint8]:
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if not value.nbytes:
        return np.zeros(0, np.uint8)
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _is_plain(value: Any) -> bool:
    return value.dtype.kind in _KINDS and value.dtype.names is None and value.dtype.metadata is None


def _is_tensor(value: Any) -> bool:
    """Tell tensors that are nothing but their values, in an order that `contiguous` does not change."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return (
        tensor is not None
        and type(value) is tensor
        and str(value.layout) == "torch.strided"
        and value.device.type == "cpu"
        and not (value.requires_grad or value.is_quantized or value.is_nested)
        and not (value.is_conj() or value.is_neg())
        and value.is_contiguous()
    )


def _aligned(place: int) -> int:
    return -(-place // ALIGNMENT) * ALIGNMENT
