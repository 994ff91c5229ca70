"""Which decoder a field gets by its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ConfigError
from .array import Float, Int, NDArray
from .audio import Audio
from .image import Image
from .mds import for_mds
from .text import Bytes, Json, Str

__all__ = ["Decoder", "for_encoding", "for_kind"]

Decoder = Callable[[memoryview], Any]
"""What decodes a field: called with one value's bytes; what it returns becomes the field of the sample."""

_DECODERS: dict[str, Callable[[], Decoder]] = {
    "image": Image,
    "audio": Audio,
    "ndarray": NDArray,
    "int": Int,
    "float": Float,
    "str": Str,
    "bytes": Bytes,
    "json": Json,
}

_ENCODINGS: dict[str, Callable[[str], Decoder]] = {"mds": for_mds}


def for_encoding(encoding: str) -> Decoder:
    """Return the decoder of an encoding, such as "mds:uint16".

    Args:
        encoding: the format that has it, a colon, and its name there.

    Raises:
        ConfigError: there is no such encoding, or it is never read.
    """
    prefix, _, name = encoding.partition(":")
    try:
        return _ENCODINGS[prefix](name)
    except KeyError:
        raise ConfigError(
            f"there is no encoding {encoding!r}; upgrade aioload, or index the data again"
        ) from None


def for_kind(kind: str) -> Decoder:
    """Return the decoder of a kind of field, with its defaults.

    Raises:
        ConfigError: there is no such kind.
    """
    try:
        return _DECODERS[kind]()
    except KeyError:
        raise ConfigError(f"there is no kind of field {kind!r}; kinds are {', '.join(_DECODERS)}") from None
