"""Stacking: what the values of one field become in a batch.

The rules are those of torch's `default_collate`. Where that one depends on which sample comes first, this one
does not: mixed dtypes are promoted over the whole set, as `torch.promote_types` does pair by pair. Torch is
only touched when values are its tensors, and then taken from where the user's import has put it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Literal

import numpy as np

from ..errors import SampleError

__all__ = ["Column", "Place", "Rule", "as_tensor", "describe", "leaf_rule", "stack"]

Rule = Literal["array", "int", "float", "bool", "text", "bytes", "tensor", "object"]
"""How a value is stacked; `object` stands for all that has no place in a batch, None too."""

_SCALARS = {"bool": np.dtype(np.bool_), "int": np.dtype(np.int64), "float": np.dtype(np.float64)}
_NUMERIC = frozenset({"array", *_SCALARS})
# torch stacks these, but promotes them only to floats
_WIDE_UNSIGNED = frozenset({"uint16", "uint32", "uint64"})
_DTYPES = _WIDE_UNSIGNED | {
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """What the values of one field have in common."""

    rule: Rule
    """How they are stacked."""
    dtype: Any
    """numpy's dtype of the batch, torch's for tensors; None for text and bytes."""
    shape: tuple[int, ...]
    """Shape of one value."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where values came from, for errors to name."""

    field: str = ""
    """Path of the field in a sample, as in `meta.boxes[2]`; empty for the sample itself."""
    keys: Sequence[object] | None = None
    """Key or number of each record, in order."""

    def name(self, position: int) -> str:
        """Name one record."""
        if self.keys is None or self.keys[position] is None:
            return f"sample {position} of the batch"
        key = self.keys[position]
        return f"record {key!r}" if isinstance(key, str) else f"record {key}"

    def fault(self, reason: str, *positions: int, cure: str, **facts: Any) -> SampleError:
        """Make the error that tells what is wrong with the values at these positions."""
        field = f"field '{self.field}'" if self.field else "the samples"
        names = tuple(self.name(position) for position in positions)
        where = f" ({', '.join(names)})" if names else ""
        facts |= {"field": self.field, "records": names, "positions": positions}
        return SampleError(f"cannot collate {field}: {reason}{where}; {cure}", **facts)


def leaf_rule(value: object) -> Rule:
    """Tell how a value is stacked, from its class alone."""
    kind: Any = type(value)  # Any: mypy takes classes for unhashable
    return _rule_of(kind)


def describe(values: Sequence[Any], place: Place | None = None) -> Column:
    """Find what the values of one field have in common, whatever their order.

    Raises:
        SampleError: they cannot become one batch: None or an unknown class, mixed classes, dtypes that
            torch does not promote, different shapes.
    """
    place = place or Place()
    rules = _rules(values)
    rule = rules.pop() if len(rules) == 1 else _common_rule(values, place)
    if rule == "object":
        raise _no_rule(values, place)
    if rule in ("text", "bytes"):
        return Column(rule, None, ())
    if rule in _SCALARS:
        return Column(rule, _SCALARS[rule], ())
    return Column(rule, _common_dtype(values, rule, place), _common_shape(values, place))


def stack(values: Sequence[Any], *, out: Any = None, place: Place | None = None) -> Any:
    """Stack the values of one field into an array, a tensor, or for text and bytes a list.

    Args:
        values: one per sample, at least one.
        out: array (tensor, where `describe` says so) to write into, of exactly the shape
            `(n, *column.shape)` and the dtype of the column; not for text and bytes.
        place: where the values came from, for errors.

    Returns:
        `out`, or what was made.

    Raises:
        SampleError: as `describe`, or an integer does not fit 64 bits.
        ValueError: `out` does not fit.
    """
    place = place or Place()
    column = describe(values, place)
    if column.rule == "text":
        return [str.__str__(value) for value in values]  # of subclasses, numpy's and enums, the plain text
    if column.rule == "bytes":
        return [bytes(value) for value in values]

    shape = (len(values), *column.shape)
    if out is not None and (tuple(out.shape) != shape or out.dtype != column.dtype):
        raise ValueError(f"out is {out.dtype} {tuple(out.shape)}, but the batch is {column.dtype} {shape}")
    if column.rule == "tensor":
        return _stack_tensors(values, column, out, place)
    return _stack_arrays(values, column, out, place)


def _rules(values: Sequence[Any]) -> set[Rule]:
    """Return the rules that occur, looking once at each class."""
    kinds: set[Any] = set(map(type, values))
    return {_rule_of(kind) for kind in kinds}


@lru_cache(maxsize=4096)
def _rule_of(kind: type) -> Rule:
    """Find the rule of a class; numpy's float64 and str_ are subclasses of Python's, so the order matters."""
    rules: list[tuple[Rule, tuple[type, ...]]] = [
        ("array", (np.ndarray, np.number, np.bool_)),
        ("text", (str,)),
        ("bytes", (bytes, bytearray, memoryview)),
        ("bool", (bool,)),
        ("int", (int,)),
        ("float", (float,)),
    ]
    for rule, kinds in rules:
        if issubclass(kind, kinds):
            return rule
    is_tensor = any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in kind.__mro__)
    return "tensor" if is_tensor else "object"


def _common_rule(values: Sequence[Any], place: Place) -> Rule:
    """Find the rule of values of several classes: numbers are arrays, and tensors take arrays in."""
    rules = [leaf_rule(value) for value in values]
    if "object" in rules:
        return "object"
    if _NUMERIC.issuperset(rules):
        return "array"
    if (_NUMERIC | {"tensor"}).issuperset(rules):
        return "tensor"
    other = next(position for position, rule in enumerate(rules) if rule != rules[0])
    kinds = f"{type(values[0]).__name__} and {type(values[other]).__name__}"
    raise place.fault(f"it mixes {kinds}", 0, other, cure=_cure(place, "make them alike in the transform"))


def _no_rule(values: Sequence[Any], place: Place) -> SampleError:
    """Make the error for a value that has no place in a batch."""
    position = next(i for i, value in enumerate(values) if leaf_rule(value) == "object")
    if values[position] is None:
        cure = _cure(place, "fill it in or leave it out in the transform")
        return place.fault("it is None", position, cure=cure)
    cure = _cure(place, "make it an array, a number or text in the transform")
    return place.fault(f"it holds a {_class_name(type(values[position]))}", position, cure=cure)


def _common_shape(values: Sequence[Any], place: Place) -> tuple[int, ...]:
    """Return the one shape of all values."""
    first = tuple(np.shape(values[0]))
    if _rules(values) <= {"array", "tensor"} and len({value.shape for value in values}) == 1:
        return first
    for position, value in enumerate(values):
        shape = tuple(np.shape(value))
        if shape != first:
            raise place.fault(
                f"its shapes differ, {first} and {shape}",
                *(0, position),
                cure=_cure(place, f"{_alike(value)}, pad with aioload.collate.pad()"),
                shapes=(first, shape),
            )
    return first


def _alike(value: Any) -> str:
    """Tell how values get one shape; pictures had best get theirs while they are decoded."""
    if np.ndim(value) == 3 and getattr(value, "dtype", None) == np.uint8:
        return "crop pictures alike with decode={…: aioload.decode.Image(size=…, crop='center')}"
    return "make them alike in the transform"


def _common_dtype(values: Sequence[Any], rule: Rule, place: Place) -> Any:
    """Return the one dtype that holds all values."""
    dtypes: dict[Any, int] = {}
    try:
        if _rules(values) == {"array"} and len(found := {value.dtype for value in values}) == 1:
            return _promote(frozenset(found))
        for position, value in enumerate(values):
            dtypes.setdefault(_dtype(value) if rule == "array" else _torch_dtype(value), position)
        return (_promote if rule == "array" else _promote_torch)(frozenset(dtypes))
    except TypeError as error:
        names = sorted(str(dtype) for dtype in dtypes)
        cure = _cure(place, "convert it in the transform")
        raise place.fault(str(error), *sorted(dtypes.values()), cure=cure, dtypes=names) from error


@lru_cache(maxsize=1024)
def _promote(dtypes: frozenset[np.dtype[Any]]) -> np.dtype[Any]:
    """Promote numpy dtypes as torch does: a float takes in integers of any size, a complex all floats."""
    dtypes = frozenset(dtype.newbyteorder("=") for dtype in dtypes)
    for dtype in dtypes:
        if dtype.name not in _DTYPES:
            raise TypeError(f"there is no tensor of dtype {dtype}")
    if len(dtypes) == 1:
        return next(iter(dtypes))

    wide = any(dtype.name in _WIDE_UNSIGNED for dtype in dtypes)
    kinds = {dtype.kind for dtype in dtypes}
    if wide and ("c" in kinds or "f" not in kinds):
        raise TypeError(f"torch does not promote {' with '.join(sorted(dtype.name for dtype in dtypes))}")
    inexact = [dtype for dtype in dtypes if dtype.kind in "fc"]
    return np.result_type(*(inexact or dtypes))


def _promote_torch(dtypes: frozenset[Any]) -> Any:
    """Promote torch dtypes, inexact ones first: once there is a float, integers change nothing."""
    torch: Any = sys.modules["torch"]
    ordered = sorted(
        dtypes, key=lambda dtype: (not dtype.is_complex, not dtype.is_floating_point, str(dtype))
    )
    try:
        return reduce(torch.promote_types, ordered)
    except RuntimeError as error:
        raise TypeError(f"torch does not promote {' with '.join(str(dtype) for dtype in ordered)}") from error


def _dtype(value: Any) -> np.dtype[Any]:
    """Return the dtype of an array or a number."""
    rule = leaf_rule(value)
    dtype: np.dtype[Any] = value.dtype if rule == "array" else _SCALARS[rule]
    return dtype


def _torch_dtype(value: Any) -> Any:
    """Return torch's dtype of a dense tensor, an array or a number."""
    if leaf_rule(value) != "tensor":
        return sys.modules["torch"].from_numpy(np.empty(0, _promote(frozenset({_dtype(value)})))).dtype
    if value.is_nested or str(value.layout) != "torch.strided":
        raise TypeError("sparse and nested tensors have no batch")
    return value.dtype


def _array(value: Any, place: Place, position: int) -> Any:
    """Return an array as it is, and a Python number as one."""
    if leaf_rule(value) == "array":
        return value
    try:
        return np.array(value, dtype=_dtype(value))
    except OverflowError as error:
        cure = _cure(place, "make it a float or text in the transform")
        raise place.fault("an integer does not fit 64 bits", position, cure=cure) from error


def _stack_arrays(values: Sequence[Any], column: Column, out: Any, place: Place) -> Any:
    """Stack arrays and numbers, each converted on its way to its row."""
    if out is None:
        out = np.empty((len(values), *column.shape), column.dtype)
    if column.rule in _SCALARS:
        try:
            out[...] = np.array(values, column.dtype)
        except OverflowError:
            for position, value in enumerate(values):
                _array(value, place, position)  # raises at the one that does not fit
        return out
    if _rules(values) != {"array"}:
        values = [_array(value, place, position) for position, value in enumerate(values)]
    np.stack(values, out=out, casting="same_kind")
    return out


def as_tensor(value: Any) -> Any:
    """Return a tensor as it is, and an array or number as one."""
    if leaf_rule(value) == "tensor":
        return value
    dtype = _promote(frozenset({_dtype(value)}))
    return sys.modules["torch"].from_numpy(np.array(value, dtype, order="C"))  # torch takes no flipped arrays


def _stack_tensors(values: Sequence[Any], column: Column, out: Any, place: Place) -> Any:
    """Stack tensors, and what else torch can take for one."""
    torch: Any = sys.modules["torch"]
    try:
        return torch.stack([as_tensor(value).to(column.dtype) for value in values], out=out)
    except RuntimeError as error:
        cure = _cure(place, "make them alike in the transform")
        raise place.fault(f"torch cannot stack it, {error}", cure=cure, cause=str(error)) from error


def _cure(place: Place, cure: str) -> str:
    """Say what to do, with the way out that always works."""
    top = place.field.split(".")[0].split("[")[0]
    if not top:  # of a tuple or list, which by_field does not take apart
        return f"{cure}, or take the samples as a list: collate=aioload.collate.as_list"
    return f"{cure}, or keep a list: collate=aioload.collate.by_field({{{top!r}: aioload.collate.as_list}})"


def _class_name(kind: type) -> str:
    """Name a class as users import it."""
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
