"""Results: what a function returns as values of a set: their kinds, and how they are stored."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ..errors import SampleError

__all__ = ["kind_for", "storable"]


def storable(kind: str, value: Any) -> Any:
    """Return a value as its kind takes it: pixels as a file, tensors and pictures as arrays."""
    if kind == "ndarray" and not isinstance(value, np.ndarray):
        return np.asarray(value) if _is_array(value) else value
    if kind == "image" and _is_array(value):
        return _png(value)
    if kind == "json" and isinstance(value, np.generic):
        return value.item()
    return value


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") or hasattr(value, "__array_interface__")


def _png(value: Any) -> bytes:
    from PIL import Image  # what workers import is what they need

    picture = value if isinstance(value, Image.Image) else Image.fromarray(np.asarray(value))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def kind_for(name: str, value: Any) -> str:
    """Return the kind that keeps a value.

    Raises:
        SampleError: none does.
    """
    if isinstance(value, (bool, int, np.integer, np.bool_)):
        return "int"
    if isinstance(value, (float, np.floating)):
        return "float"
    if isinstance(value, str):
        return "str"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes"
    if _is_array(value):
        return "ndarray"
    if value is None or isinstance(value, (dict, list, tuple)):
        return "json"
    raise SampleError(
        f"the field {name!r} is a {type(value).__qualname__}, which no kind of field keeps; return numbers, "
        "text, bytes, arrays, or what JSON can say",
        field=name,
    )
