"""Padding: arrays of different shapes become one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

import numpy as np

from ..errors import ConfigError
from .samples import collate_by, keys_of
from .stacking import Column, Place, as_tensor, describe, leaf_rule, stack

__all__ = ["Pad", "pad"]

_SHAPELESS = frozenset({"text", "bytes", "object"})


def pad(*, value: Any = 0, fields: Mapping[str, Any] | None = None, lengths: str | None = None) -> Pad:
    """Make a collate that pads arrays of different shapes at the end of each axis to the batch's largest.

    Args:
        value: what to pad with.
        fields: other values for single fields, by path: `{"labels": -100}`.
        lengths: name for an additional int64 array with the true lengths of axis 0 of each array field at the
            top of a sample, as in `"{}_length"`; with `fields`, for the fields named there alone.

    Raises:
        ConfigError: `lengths` has no place for the field's name, or a value is no number.
    """
    for name, fill in {"value": value, **(fields or {})}.items():
        if not isinstance(fill, Number | np.bool_):
            raise ConfigError(f"pad with a number; got {type(fill).__name__} for {name!r}")
    if lengths is not None and "{}" not in lengths:
        raise ConfigError(
            f"lengths must hold {{}} for the field's name, as in '{{}}_length'; got {lengths!r}"
        )
    return Pad(value=value, fields=dict(fields or {}), lengths=lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pad:
    """The collate that `pad` makes."""

    value: Any = 0
    """What to pad with."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other values, by path."""
    lengths: str | None = None
    """Name of the additional arrays of lengths."""

    def __call__(self, samples: list[Any], *, keys: Sequence[object] | None = None, path: str = "") -> Any:
        """Pad and stack samples, or the values of one field."""
        batch = collate_by(samples, keys, path, self._join)
        if self.lengths is not None:
            batch |= self._lengths(samples, self.lengths, Place(path, keys_of(samples, keys)))
        return batch

    def _join(self, values: Sequence[Any], place: Place) -> Any:
        """Stack one field's values, padded where their shapes differ."""
        if not _SHAPELESS.isdisjoint(map(leaf_rule, values)):
            return stack(values, place=place)
        shapes = {tuple(np.shape(value)) for value in values}
        if len(shapes) == 1:
            return stack(values, place=place)
        if len({len(shape) for shape in shapes}) > 1:
            raise _axes_fault(values, place)
        column = describe([value[(slice(0, 0),) * value.ndim] for value in values], place)
        return _padded(values, column, self.fields.get(place.field, self.value), place)

    def _lengths(self, samples: list[Any], pattern: str, place: Place) -> dict[str, Any]:
        """Make the arrays of lengths of the array fields of the samples."""
        if not isinstance(samples[0], dict):
            raise place.fault("lengths= needs samples that are dicts", cure="leave lengths= out")
        arrays = [name for name, value in samples[0].items() if getattr(value, "ndim", 0) > 0]
        names = {name: pattern.format(name) for name in arrays if not self.fields or name in self.fields}
        for name in names.values():
            if name in samples[0]:
                raise place.fault(f"lengths= would overwrite the field {name!r}", cure="give it another name")
        return {
            name: np.array([sample[source].shape[0] for sample in samples], np.int64)
            for source, name in names.items()
        }


def _axes_fault(values: Sequence[Any], place: Place) -> Exception:
    """Make the error for arrays that padding cannot bring together."""
    axes = [np.ndim(value) for value in values]
    other = next(position for position, number in enumerate(axes) if number != axes[0])
    return place.fault(
        f"padding keeps the number of axes, but here are {axes[0]} and {axes[other]}",
        *(0, other),
        cure="add the missing axis in the transform",
        shapes=(tuple(np.shape(values[0])), tuple(np.shape(values[other]))),
    )


def _padded(values: Sequence[Any], column: Column, fill: Any, place: Place) -> Any:
    """Copy each value into the low corner of its row."""
    name = str(column.dtype).removeprefix("torch.")
    if not _holds(name, fill):
        raise place.fault(
            f"{name} cannot hold the padding {fill!r}", cure="pad this field with another value"
        )

    shape = (len(values), *map(max, zip(*(value.shape for value in values), strict=True)))
    if column.rule == "tensor":
        values = [as_tensor(value) for value in values]
        out = values[0].new_full(shape, fill, dtype=column.dtype)
    else:
        out = np.full(shape, fill, column.dtype)
    for row, value in zip(out, values, strict=True):
        row[tuple(map(slice, value.shape))] = value
    return out


def _holds(dtype: str, fill: Any) -> bool:
    """Tell whether an integer or bool dtype holds a number unchanged; floats round, as everywhere."""
    if dtype == "bool":
        return fill in (0, 1)
    if "int" not in dtype:
        return True
    info = np.iinfo(dtype)
    return bool(info.min <= fill <= info.max and fill == int(fill))
