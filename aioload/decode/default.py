"""Defaults: values that samples have where their records lack a field."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError, SampleError
from ..shard.absent import ABSENT
from ..shard.features import render
from ..shard.kinds import encode
from .kinds import for_encoding, for_kind

__all__ = ["Defaulted", "fitting"]


@dataclass(frozen=True, slots=True, eq=False)
class Defaulted:
    """Decode a field that some records lack."""

    decode: Callable[..., Any]
    """Decodes what is there."""
    default: Any
    """What the others have; each gets a copy, for a transform may change it."""

    @property
    def example(self) -> Any:
        """A value of the make that all results have; None where that is not known."""
        return getattr(self.decode, "example", None)

    @property
    def draws(self) -> bool:
        """Whether random numbers are wanted."""
        return bool(getattr(self.decode, "draws", False))

    def __call__(self, data: memoryview, **options: Any) -> Any:
        """Decode one value, or return the default."""
        if data is ABSENT:
            return copy.deepcopy(self.default)
        return self.decode(data, **options)


def fitting(field: str, kind: str, encoding: str | None, value: Any) -> Any:
    """Return a default as the field's own decoder would make it, so that it stacks with what others have.

    Args:
        field: its name.
        kind: its kind.
        encoding: what its bytes are, where not as its kind says.
        value: what the user gave.

    Raises:
        ConfigError: the field's decoder never makes such a value.
    """
    try:
        if encoding is not None and encoding.startswith("example:"):
            return for_encoding(encoding)(memoryview(render(encoding, value)))
        if kind in ("image", "audio"):
            return _pixels(value) if kind == "image" else _sound(value)
        return for_kind(kind)(memoryview(encode(kind, value, field)))
    except (TypeError, ValueError, OverflowError, SampleError) as error:
        raise ConfigError(
            f"the default of field {field!r} is not what its decoder gives ({encoding or kind}): {error}",
            field=field,
        ) from error


def _pixels(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.ndim not in (2, 3) or value.dtype.kind not in "uif":
        raise TypeError("an array of pixels is expected")
    return value


def _sound(value: Any) -> Any:
    if not isinstance(value, dict) or value.keys() != {"samples", "rate"}:
        raise TypeError("a dict of 'samples' and 'rate' is expected")
    if not isinstance(value["samples"], np.ndarray) or value["samples"].ndim != 2:
        raise TypeError("samples are an array of channels")
    return {"samples": value["samples"].astype(np.float32), "rate": int(value["rate"])}
