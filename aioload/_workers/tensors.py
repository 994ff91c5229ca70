"""Tensors: torch's as bytes, and back; torch is imported only where user code made some."""

from __future__ import annotations

import importlib
import sys
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NUMPYS", "dtype_name", "from_bytes", "is_dense", "is_plain", "item_bytes", "lent", "raw_bytes"]

NUMPYS = frozenset(  # torch's dtypes that numpy has under the same name
    {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}
)


def from_bytes(data: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> Any:
    """Return bytes as a tensor over them."""
    torch = importlib.import_module("torch")
    return torch.from_numpy(data).view(getattr(torch, dtype)).reshape(shape)


def item_bytes(dtype: str) -> int:
    """Return how many bytes one number of a dtype has."""
    return int(getattr(importlib.import_module("torch"), dtype).itemsize)


def is_plain(value: Any) -> bool:
    """Tell tensors that are nothing but their bytes; subclasses carry more."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # another thread may be importing it just now
    return tensor is not None and type(value) is tensor and is_dense(value)


def is_dense(value: Any) -> bool:
    """Tell tensors that have a place for each of their numbers."""
    return str(value.layout) == "torch.strided" and not value.is_nested and not value.is_quantized


def dtype_name(value: Any) -> str:
    """Return what torch calls the dtype of a tensor."""
    return _named(value.dtype)


def lent(value: Any) -> NDArray[Any] | None:
    """Return a tensor's own memory as an array, however it lies there; None where it is not that plain."""
    try:
        array: NDArray[Any] = value.numpy()
    except (RuntimeError, TypeError):  # it has a gradient, is negated on reading, sparse or on a device
        return None
    return array


def raw_bytes(value: Any) -> NDArray[np.uint8]:
    """Return a tensor's bytes."""
    torch = sys.modules["torch"]
    # conjugation and negation are but flags until they are resolved
    flat = value.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
    if flat.stride(0) != 1:  # even `contiguous` leaves one element whatever stride it has
        flat = flat.clone(memory_format=torch.contiguous_format)
    raw: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return raw


@lru_cache(maxsize=64)
def _named(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
