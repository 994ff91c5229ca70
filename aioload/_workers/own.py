"""Own: whether anybody else can change a sample.

User code may give the same memory each time it is called, a buffer that it fills anew, say. What is made of
one record then lasts until the next one is begun, and must have been used by then.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import getweakrefcount

import numpy as np

from ..cache.pattern import SMALL

__all__ = ["bytes_owned"]

_FIXED = SMALL | {bytes}  # of values that nobody can change
_LONG = {bytes, str}  # of these, what may be large


def bytes_owned(sample: Any) -> int | None:
    """Return how many bytes live by a sample; None where something else may have hold of its arrays.

    What arrays are views of counts in full. It is None, too, where a sample holds what cannot be told. Nobody
    else must have the dict, as arrays that are in it alone would count as the sample's.
    """
    # hot: once per record that is kept
    seen = _seen(sample) if type(sample) is dict else None
    if seen is None:
        return None
    array_refs, base_refs, size = seen
    return size if array_refs <= _ARRAY_REFS and base_refs <= _BASE_REFS else None


def _seen(sample: dict[Any, Any]) -> tuple[int, int, int] | None:
    """Return the most references to an array, and to what one is a view of, and bytes."""
    array_refs = base_refs = size = 0
    for value in sample.values():
        if type(value) in _FIXED or isinstance(value, (np.number, np.bool_)):
            size += len(value) if type(value) in _LONG else 0
            continue
        if type(value) is not np.ndarray or value.dtype.hasobject:
            return None
        array_refs = max(array_refs, sys.getrefcount(value))
        if getweakrefcount(value):
            return None
        base = value.base
        if base is not None:
            if type(base) is not np.ndarray or not base.flags.owndata or getweakrefcount(base):
                return None
            base_refs = max(base_refs, sys.getrefcount(base))
            size += base.nbytes
        elif value.flags.owndata:
            size += value.nbytes
        else:
            return None
    return array_refs, base_refs, size


def _usual() -> tuple[int, int]:
    """Return what is counted for a view that nobody else has.

    By the same lines, since the references that these have themselves differ between releases of Python.
    """
    seen = _seen({"": np.empty(2)[:1]})
    assert seen is not None
    return seen[:2]


_ARRAY_REFS, _BASE_REFS = _usual()
