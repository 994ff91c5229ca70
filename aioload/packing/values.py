"""How the bytes of a file become the value of a field; the file's suffix tells the kind."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["kind_of", "parse"]

_KINDS = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"), "image"),
    **dict.fromkeys(("wav", "flac", "ogg", "mp3"), "audio"),
    "cls": "int",
    "txt": "str",
    "json": "json",
    "npy": "ndarray",
}


def kind_of(name: str) -> str:
    """Return the kind that the suffix of a file's name stands for; `bytes` where it says nothing."""
    return _KINDS.get(name.rpartition(".")[2].lower(), "bytes")


def parse(kind: str, data: bytes) -> Any:
    """Return the value that a file of this kind holds.

    Raises:
        ValueError: the bytes are not of the kind.
    """
    return _PARSERS[kind](data) if kind in _PARSERS else data


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
