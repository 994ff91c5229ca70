"""Own: whether anybody else can change a sample.

User code may give the same memory each time it is called, a buffer that it fills anew, say. What is made of
one record then lasts until the next one is begun, and must have been used by then.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..cache.pattern import SMALL

__all__ = ["bytes_owned"]

_FIXED = SMALL | {bytes}  # of values that nobody can change


def bytes_owned(sample: Any) -> int | None:
    """Return how many bytes the arrays of a sample have; None where something else may have hold of them.

    So it is, too, where the sample holds what cannot be told. The dict itself may be somebody else's.
    """
    # hot: once per record that is kept or found
    seen = _seen(sample) if type(sample) is dict else None
    if seen is None:
        return None
    of_arrays, of_bases, size = seen
    return size if of_arrays <= _ARRAY and of_bases <= _BASE else None


def _seen(sample: dict[Any, Any]) -> tuple[int, int, int] | None:
    """Return how often an array is referred to at most, how often memory that one is a view of, and bytes."""
    of_arrays = of_bases = size = 0
    for value in sample.values():
        if type(value) in _FIXED or isinstance(value, (np.number, np.bool_)):
            continue
        if type(value) is not np.ndarray or value.dtype.hasobject:
            return None
        base = value.base
        if base is not None:
            if type(base) is not np.ndarray or not base.flags.owndata:
                return None
            of_bases = max(of_bases, sys.getrefcount(base))
        elif not value.flags.owndata:
            return None
        of_arrays = max(of_arrays, sys.getrefcount(value))
        size += value.nbytes
    return of_arrays, of_bases, size


def _usual() -> tuple[int, int]:
    """Return these for a view that nobody else has: how Python counts differs from release to release."""
    seen = _seen({"": np.empty(2)[:1]})
    assert seen is not None
    return seen[:2]


_ARRAY, _BASE = _usual()
