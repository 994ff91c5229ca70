"""Pattern: what the descriptions of samples that look alike have in common; pure.

Samples of a data set mostly have the same names, with values of the same kinds. All that there is to tell of
one that follows another are its small values and the shapes of its arrays.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["SMALL", "Pattern", "to_json"]

to_json = json.JSONEncoder(separators=(",", ":")).encode
"""Return a value as it stands in a description."""

_KINDS = "biufc"  # of dtypes whose arrays are plain buffers


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else to_json(value)


# not `to_json` for all: to set up an encoder takes longer than all else
_TEXTS: dict[type, Callable[[Any], str]] = {
    str: to_json,
    int: repr,
    float: _number,
    bool: {False: "false", True: "true"}.__getitem__,
    type(None): {None: "null"}.__getitem__,
}

SMALL = frozenset(_TEXTS)
"""Of values that stand in a description themselves."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Samples that have the same names in the same order, with small values and arrays of the same kinds."""

    fields: tuple[tuple[str, type, np.dtype[Any] | None, str], ...]
    """Of each value: its name, its class, an array's dtype, and how its description begins."""
    arrays: int
    """How many of them are arrays."""

    @classmethod
    def of(cls, sample: Any) -> Pattern | None:
        """Return the pattern of a sample; None where it has none, as it has lists or tensors in it, say."""
        if type(sample) is not dict or not set(map(type, sample)) <= {str}:
            return None
        fields: list[tuple[str, type, np.dtype[Any] | None, str]] = []
        for name, value in sample.items():
            before = to_json(name) + ":"
            if type(value) in SMALL:
                fields.append((name, type(value), None, before))
            elif type(value) is np.ndarray and value.dtype.kind in _KINDS:
                fields.append((name, np.ndarray, value.dtype, f'{before}["a",{to_json(value.dtype.str)},'))
            else:
                return None
        return cls(tuple(fields), sum(kind is np.ndarray for _, kind, _, _ in fields))

    def describe(self, sample: Any) -> tuple[str, list[NDArray[Any]]] | None:
        """Return the description of a sample, and its arrays; None where it is not of this pattern.

        It is what `Description` gives. The arrays are C-contiguous, and have no memory in common.
        """
        # hot: once per record that is kept
        if type(sample) is not dict or len(sample) != len(self.fields):
            return None
        texts: list[str] = []
        arrays: list[NDArray[Any]] = []
        alone = self.arrays == 1
        for (name, value), (known, kind, dtype, before) in zip(sample.items(), self.fields, strict=True):
            found: type = type(value)
            if found is not kind or not (name is known or (type(name) is str and name == known)):
                return None
            if dtype is None:
                texts.append(before + _TEXTS[kind](value))
            elif (
                _is_same(value.dtype, dtype)
                and (flags := value.flags).c_contiguous
                and (alone or flags.owndata)
            ):
                texts.append(f"{before}[{','.join(map(str, value.shape))}]]")
                arrays.append(value)
            else:
                return None
        if not alone and len(set(map(id, arrays))) < len(arrays):  # one under two names
            return None
        return "{" + ",".join(texts) + "}", arrays


def _is_same(dtype: np.dtype[Any], known: np.dtype[Any]) -> bool:
    # not all that is equal is alike, and what came through a pickle is another object
    return dtype is known or (dtype == known and dtype.metadata is None)
