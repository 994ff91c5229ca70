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
import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALIGNMENT", "Kept", "Packer", "Unkeepable", "size_of", "unpack"]

ALIGNMENT = 64
_HEAD = struct.Struct("<4siIf")
_MAGIC = b"aiS1"
_KINDS = "biufcmMSU"  # of dtypes whose values are nothing but their bytes
_MOST_WORK = 1000  # in telling whether two arrays have memory in common
_LARGE = frozenset("anbt")  # in a description: what lies in the bytes
_PLAIN = frozenset({str, int, float, bool, type(None)})
_to_json = json.JSONEncoder(separators=(",", ":")).encode


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
        describer = _Describer()
        tree = _to_json(describer.tree(sample, "sample")).encode()
        values, sizes = describer.values, describer.sizes
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
    describer = _Describer()
    try:
        tree = describer.tree(sample, "")
    except (Unkeepable, ValueError, RecursionError):
        return 0
    return _aligned(_HEAD.size + len(str(tree))) + sum(map(_aligned, describer.sizes))


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
        found = self._take(_extent(shape, strides, kind.itemsize))
        return np.ndarray(shape, kind, found, _offset(shape, strides), strides)

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
    if found.kind not in _KINDS:
        raise ValueError(f"{name} is no dtype of a packed sample")
    return found


class _Describer:
    """Describes the values of one sample, and gathers those that are large."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        """What is to be written, one behind the other."""
        self.sizes: list[int] = []
        """The bytes of each."""
        self._known: dict[int, int] = {}  # by id of an array: its number
        self._holders: set[int] = set()  # ids of lists and dicts
        self._places: list[tuple[int, int, Any]] = []  # first byte, the one after the last, and the array
        self._longest = 0  # bytes of these

    def tree(self, value: Any, where: str) -> Any:
        """Return a value as JSON.

        Args:
            value: the sample, or what is in it.
            where: names the value in errors.

        Raises:
            Unkeepable: it is, or holds, something else than plain values.
        """
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is dict or kind is list or kind is tuple:
            return self._holder(value, where)
        if kind is bytes:
            self._add(value, len(value))
            return ["b", len(value)]
        if id(value) in self._known:
            return ["=", self._known[id(value)]]
        if kind is np.ndarray and _is_plain(value):
            self._note(value, value.__array_interface__["data"][0], value.strides, value.itemsize, where)
            return self._array(value)
        if isinstance(value, np.generic) and _is_plain(value):
            self._add(np.asarray(value), value.dtype.itemsize)
            return ["n", value.dtype.str]
        if _is_tensor(value):
            item = value.element_size()
            self._note(value, value.data_ptr(), [item * step for step in value.stride()], item, where)
            return self._tensor(value)
        raise Unkeepable(f"{where} is a {kind.__module__}.{kind.__qualname__}{_beside(value)}")

    def _holder(self, value: Any, where: str) -> Any:
        if type(value) is tuple:
            return ["(", *(self.tree(item, f"{where}[{at}]") for at, item in enumerate(value))]
        if id(value) in self._holders:
            raise Unkeepable(f"{where} is another value too, and a transform might write to it; copy it")
        self._holders.add(id(value))
        if type(value) is list:
            return ["[", *(self.tree(item, f"{where}[{at}]") for at, item in enumerate(value))]
        if all(type(name) is str for name in value):
            return {name: self.tree(item, f"{where}[{name!r}]") for name, item in value.items()}
        pairs = [part for pair in value.items() for part in pair]
        return ["d", *(self.tree(part, where) for part in pairs)]

    def _array(self, value: NDArray[Any]) -> list[Any]:
        described = ["a", value.dtype.str, list(value.shape)]
        if value.flags.c_contiguous or not value.size:
            self._add(value, value.nbytes)
            return described
        strides = _tight(value.shape, value.strides, value.itemsize)
        room = np.zeros(_extent(value.shape, strides, value.itemsize), np.uint8)
        lying: NDArray[Any] = np.ndarray(
            value.shape, value.dtype, room, _offset(value.shape, strides), strides
        )
        once = _once(strides)
        lying[once] = value[once]
        self._add(room, room.nbytes)
        return [*described, strides]

    def _tensor(self, value: Any) -> list[Any]:
        torch = sys.modules["torch"]
        shape = list(value.shape)
        strides = None
        if value.is_contiguous() or not value.numel():
            raw = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        else:
            strides = _tight(shape, value.stride(), 1)
            room = torch.zeros(_extent(shape, strides, 1), dtype=value.dtype)
            once = _once(strides)
            room.as_strided(shape, strides)[once] = value[once]
            raw = room.view(torch.uint8).numpy()
        self._add(raw, raw.nbytes)
        described = ["t", str(value.dtype).removeprefix("torch."), shape, raw.nbytes]
        return described if strides is None else [*described, strides]

    def _add(self, value: Any, size: int) -> None:
        self.values.append(value)
        self.sizes.append(size)

    def _note(self, value: Any, first: int, strides: Sequence[int], item: int, where: str) -> None:
        """Note where an array lies, and its number.

        Raises:
            Unkeepable: it has memory in common with another.
        """
        self._known[id(value)] = len(self.values)
        shape = value.shape
        if 0 in shape:
            return
        start = first - _offset(shape, strides)
        stop = start + _extent(shape, strides, item)
        at = bisect_left(self._places, stop, key=itemgetter(0))
        for other_start, other_stop, other in reversed(self._places[:at]):
            if other_start + self._longest <= start:
                break  # nor do those before it reach so far
            if other_stop > start and _may_share(value, other):
                raise Unkeepable(f"{where} has memory in common with another value; copy it")
        self._places.insert(at, (start, stop, value))
        self._longest = max(self._longest, stop - start)


def _tight(shape: Sequence[int], strides: Sequence[int], item: int) -> list[int]:
    """Return strides under which axes lie as under these, with no more room between them than tells so.

    Which axis is the inner one, which way each goes, and whether it follows the one within without a gap:
    on these the order of a sum depends.
    """
    tight = [item] * len(shape)
    span = true_span = item
    for axis in sorted(range(len(shape)), key=lambda axis: (abs(strides[axis]), -axis)):
        stride = strides[axis]
        if not stride or shape[axis] == 1:
            tight[axis] = 0 if shape[axis] > 1 else span
            continue
        step = span if abs(stride) == true_span else span + item
        tight[axis] = step if stride > 0 else -step
        span, true_span = step * shape[axis], abs(stride) * shape[axis]
    return tight


def _extent(shape: Sequence[int], strides: Sequence[int], item: int) -> int:
    """Return how many bytes an array spans."""
    return item + sum((length - 1) * abs(step) for length, step in zip(shape, strides, strict=True))


def _offset(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return where in these its first item lies: behind those of axes that go backwards."""
    return sum((length - 1) * -step for length, step in zip(shape, strides, strict=True) if step < 0)


def _once(strides: Sequence[int]) -> tuple[slice, ...]:
    """Return what selects each item once, where an axis repeats them."""
    return tuple(slice(None) if step else slice(1) for step in strides)


def _may_share(one: Any, other: Any) -> bool:
    """Tell whether arrays between each other's bytes may have some in common; of tensors it is assumed."""
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return True
    try:
        return np.shares_memory(one, other, max_work=_MOST_WORK)  # type: ignore[call-overload,arg-type,unused-ignore]  # numpy knows only two
    except (np.exceptions.TooHardError, OverflowError):
        return True


def _beside(value: Any) -> str:
    """Return what of an array or a tensor is more than its values."""
    if isinstance(value, np.ndarray):
        return f" of dtype {value.dtype}"
    if type(value).__name__ == "Tensor":
        return f" that has more than its values (a gradient, say, or a place on {value.device})"
    return ""


def _bytes_of(value: Any) -> NDArray[np.uint8]:
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if not value.nbytes:
        return np.zeros(0, np.uint8)
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _is_plain(value: Any) -> bool:
    return value.dtype.kind in _KINDS and value.dtype.names is None and value.dtype.metadata is None


def _is_tensor(value: Any) -> bool:
    """Tell tensors that are nothing but their values."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return (
        tensor is not None
        and type(value) is tensor
        and str(value.layout) == "torch.strided"
        and value.device.type == "cpu"
        and not (value.requires_grad or value.is_quantized or value.is_nested)
        and not (value.is_conj() or value.is_neg())
    )


def _aligned(place: int) -> int:
    return -(-place // ALIGNMENT) * ALIGNMENT
