"""How the bytes of a file become the value of a field."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

__all__ = ["parse", "plain"]


def parse(kind: str, data: bytes) -> Any:
    """Return the value that a file of this kind holds.

    Raises:
        ValueError: the bytes are not of the kind.
    """
    return _PARSERS[kind](data) if kind in _PARSERS else data


def plain(value: Any) -> Any:
    """Return a decoded value as a set keeps it: exact decimal numbers are texts there."""
    return str(value) if isinstance(value, Decimal) else value


def _parse_array(data: bytes) -> Any:
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except EOFError as error:
        raise ValueError("no data") from error


_PARSERS: dict[str, Callable[[bytes], Any]] = {
    "int": lambda data: int(data.decode()),
    "float": lambda data: float(data.decode()),
    "str": lambda data: data.decode(),
    "json": json.loads,
    "ndarray": _parse_array,
}
