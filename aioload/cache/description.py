"""Description: what a sample looks like, as JSON, and which of its values are written beside that; pure.

Paths of values are made only where one cannot be kept, and what has memory in common is looked for only where
there is more than one array: this runs once for each sample, between two that have cleared the caches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .pattern import SMALL

__all__ = ["KINDS", "Description", "Unkeepable", "extent", "offset"]

KINDS = "biufcmMSU"
"""Of dtypes whose values are nothing but their bytes."""

_MOST_WORK = 1000  # in telling whether two arrays have memory in common
_TEXT = {str}


class Unkeepable(Exception):
    """A sample holds something that cannot be kept; its text says what and where.

    Args:
        what: is the matter with a value.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self._what = what
        self._place = ""

    def within(self, place: str) -> None:
        """Note where the value, or what it is in, lies."""
        self._place = place + self._place

    def __str__(self) -> str:
        return f"sample{self._place} {self._what}"


class Description:
    """What one sample looks like.

    Args:
        sample: to be described; it must stay as it is until its values were taken.

    Raises:
        Unkeepable: it is, or holds, something else than plain values, or arrays with memory in common.
    """

    def __init__(self, sample: Any) -> None:
        self.values: list[Any] = []
        """What is to be written, one behind the other: bytes and arrays."""
        self._known: dict[int, int] = {}  # by id of an array: its number
        self._arrays: list[Any] = []
        self._holders: set[int] = set()  # ids of lists and dicts
        self.tree = self._tree(sample)
        """The sample as JSON: values that are small, and in place of large ones what they look like."""
        if len(self._arrays) > 1:
            self._refuse_overlaps(sample)

    def _tree(self, value: Any) -> Any:
        kind = type(value)
        if kind in SMALL:
            return value
        if kind is dict or kind is list or kind is tuple:
            return self._holder(value)
        if kind is bytes:
            self.values.append(value)
            return ["b", len(value)]
        if id(value) in self._known:
            return ["=", self._known[id(value)]]
        if kind is np.ndarray and _is_plain(value):
            self._note(value)
            return self._array(value)
        if isinstance(value, np.generic) and _is_plain(value):
            self.values.append(np.asarray(value))
            return ["n", value.dtype.str]
        if _is_tensor(value):
            self._note(value)
            return self._tensor(value)
        raise Unkeepable(f"is a {kind.__module__}.{kind.__qualname__}{_beside(value)}")

    def _holder(self, value: Any) -> Any:
        if type(value) is tuple:
            return ["(", *self._items(value)]
        if id(value) in self._holders:
            raise Unkeepable("is another value too, and a transform might write to it; copy it")
        self._holders.add(id(value))
        if type(value) is list:
            return ["[", *self._items(value)]
        if not set(map(type, value)) <= _TEXT:
            return ["d", *[self._tree(part) for pair in value.items() for part in pair]]
        tree, name = {}, ""
        try:
            for name, item in value.items():
                tree[name] = self._tree(item)
        except Unkeepable as error:
            error.within(f"[{name!r}]")
            raise
        return tree

    def _items(self, values: Sequence[Any]) -> list[Any]:
        items: list[Any] = []
        try:
            for value in values:
                items.append(self._tree(value))  # noqa: PERF401 - how many there are names the one that fails
        except Unkeepable as error:
            error.within(f"[{len(items)}]")
            raise
        return items

    def _array(self, value: NDArray[Any]) -> list[Any]:
        described = ["a", value.dtype.str, list(value.shape)]
        if value.flags.c_contiguous or not value.size:
            self.values.append(value)
            return described
        strides = _tight(value.shape, value.strides, value.itemsize)
        room = np.zeros(extent(value.shape, strides, value.itemsize), np.uint8)
        lying: NDArray[Any] = np.ndarray(
            value.shape, value.dtype, room, offset(value.shape, strides), strides
        )
        once = _once(strides)
        lying[once] = value[once]
        self.values.append(room)
        return [*described, strides]

    def _tensor(self, value: Any) -> list[Any]:
        torch = sys.modules["torch"]
        shape = list(value.shape)
        strides = None
        if value.is_contiguous() or not value.numel():
            raw = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        else:
            strides = _tight(shape, value.stride(), 1)
            room = torch.zeros(extent(shape, strides, 1), dtype=value.dtype)
            once = _once(strides)
            room.as_strided(shape, strides)[once] = value[once]
            raw = room.view(torch.uint8).numpy()
        self.values.append(raw)
        described = ["t", str(value.dtype).removeprefix("torch."), shape, raw.nbytes]
        return described if strides is None else [*described, strides]

    def _note(self, value: Any) -> None:
        self._known[id(value)] = len(self.values)
        self._arrays.append(value)

    def _refuse_overlaps(self, sample: Any) -> None:
        """Raise if arrays have memory in common: what is written to one would not change the other."""
        under: list[tuple[int, int, Any]] = []  # that reach to where the next begins
        lying = [(*_lies(array), number) for number, array in enumerate(self._arrays)]
        for start, stop, number in sorted(lying):
            under = [other for other in under if other[0] > start]
            for _, other, array in under if stop > start else ():
                if _may_share(self._arrays[number], array):
                    fault = Unkeepable("has memory in common with another value; copy it")
                    fault.within(_place_of(self._arrays[max(number, other)], sample) or "")
                    raise fault
            under.append((stop, number, self._arrays[number]))


def _lies(value: Any) -> tuple[int, int]:
    """Return the first byte of an array or tensor, and the one after the last; none where it is empty."""
    strides: Sequence[int]
    if isinstance(value, np.ndarray):
        first, strides, item = value.__array_interface__["data"][0], value.strides, value.itemsize
    else:
        item = value.element_size()
        first, strides = value.data_ptr(), [item * step for step in value.stride()]
    if 0 in value.shape:
        return first, first
    start = first - offset(value.shape, strides)
    return start, start + extent(value.shape, strides, item)


def _place_of(wanted: Any, value: Any) -> str | None:
    """Return where in a sample a value is; None where it is not in there."""
    if value is wanted:
        return ""
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list | tuple):
        pairs = enumerate(value)
    for name, item in pairs:
        place = _place_of(wanted, item)
        if place is not None:
            return f"[{name!r}]{place}"
    return None


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


def extent(shape: Sequence[int], strides: Sequence[int], item: int) -> int:
    """Return how many bytes an array spans."""
    return item + sum((length - 1) * abs(step) for length, step in zip(shape, strides, strict=True))


def offset(shape: Sequence[int], strides: Sequence[int]) -> int:
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


def _is_plain(value: Any) -> bool:
    return value.dtype.kind in KINDS and value.dtype.names is None and value.dtype.metadata is None


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
