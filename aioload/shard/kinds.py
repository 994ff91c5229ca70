"""The kinds a field can have, and how a value of each kind becomes bytes (FORMAT.md, section 2)."""

from __future__ import annotations

import io
import json
import operator
import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, SampleError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "KEY_NAME",
    "KINDS",
    "MAX_FIELDS",
    "NUMERIC_KINDS",
    "Fields",
    "Stored",
    "check_columns",
    "check_fields",
    "encode",
    "kind_of",
    "media_suffix",
]

KINDS = ("image", "audio", "ndarray", "int", "float", "str", "bytes", "json")
NUMERIC_KINDS = ("int", "float")  # 8 bytes each, so they can also stand in the index as columns
KEY_NAME = "__key__"  # the record's key in a sample, hence no name for a field
MAX_FIELDS = 1024  # keeps a record's header under 4.1 KB, and a mistake from making a monstrous one


class Stored(bytes):
    """A value's bytes as its kind stores them: they are kept as they are."""


Fields = tuple[tuple[str, str], ...]
"""Names and kinds of the fields, in the order in which a record holds them."""

_SUFFIXES = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"), "image"),
    **dict.fromkeys(("wav", "flac", "ogg", "mp3"), "audio"),
    "cls": "int",
    "txt": "str",
    "json": "json",
    "npy": "ndarray",
}

_MAGIC = (
    (b"\xff\xd8\xff", "jpg"), (b"\x89PNG", "png"), (b"GIF8", "gif"), (b"BM", "bmp"), (b"II*\0", "tif"),
    (b"MM\0*", "tif"), (b"fLaC", "flac"), (b"OggS", "ogg"), (b"ID3", "mp3"), (b"\xff\xfb", "mp3"),
)  # fmt: skip

_INT = struct.Struct("<q")
_FLOAT = struct.Struct("<d")


def media_suffix(data: bytes | memoryview) -> str | None:
    """Return the suffix of a picture's or a sound's file, without a dot, as its first bytes tell it."""
    head = bytes(data[:12])
    if head.startswith(b"RIFF"):
        return "webp" if head.endswith(b"WEBP") else "wav"
    return next((suffix for magic, suffix in _MAGIC if head.startswith(magic)), None)


def kind_of(name: str) -> str:
    """Return the kind that the suffix of a file's name stands for; `bytes` where it says nothing."""
    return _SUFFIXES.get(name.rpartition(".")[2].lower(), "bytes")


def encode(kind: str, value: object, field: str = "") -> bytes | memoryview:
    """Return the bytes that stand for a value; what is bytes already is passed on without a copy.

    Args:
        kind: one of `KINDS`.
        value: JSON keeps what JSON knows: tuples come back as lists, and the keys of objects as text.
        field: the field's name, for the error.

    Raises:
        SampleError: the value does not fit the kind.
    """
    if type(value) is Stored:
        return value
    try:
        return _ENCODERS[kind](value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SampleError(
            f"field {field!r} has kind {kind!r}, which takes {_TAKES[kind]}, but the value "
            f"({type(value).__module__}.{type(value).__qualname__}) does not fit: {error}",
            field=field,
            kind=kind,
            type=type(value).__qualname__,
        ) from error


def check_fields(fields: Mapping[str, str] | Iterable[tuple[str, str]]) -> Fields:
    """Return names and kinds as pairs, having checked both.

    Raises:
        ConfigError: no field or too many, a name that cannot be used or comes twice, an unknown kind.
    """
    try:
        pairs = tuple(
            (name, kind) for name, kind in (fields.items() if isinstance(fields, Mapping) else fields)
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"fields map names to kinds, as in {{'image': 'image'}}, got {fields!r}") from error

    if not 1 <= len(pairs) <= MAX_FIELDS:
        raise ConfigError(f"a data set has 1 to {MAX_FIELDS} fields, got {len(pairs)}")

    for name, kind in pairs:
        _check_field(name, kind)

    if len(dict(pairs)) != len(pairs):
        raise ConfigError(f"each field needs a name of its own, got {[name for name, _ in pairs]}")

    return pairs


def check_columns(columns: Iterable[str], fields: Fields) -> tuple[str, ...]:
    """Return the names of the fields that the index keeps as columns, having checked them.

    Raises:
        ConfigError: no such field, one named twice, or one whose kind is not a number.
    """
    kinds, names = dict(fields), tuple(columns)

    for name in names:
        if kinds.get(name) not in NUMERIC_KINDS:
            raise ConfigError(
                f"index_fields may name fields of kind 'int' or 'float'; {name!r} is "
                f"{repr(kinds[name]) if name in kinds else 'no field'}",
                field=name,
            )

    if len(set(names)) != len(names):
        raise ConfigError(f"index_fields names a field twice: {list(names)}")

    return names


def _check_field(name: Any, kind: Any) -> None:
    if not isinstance(name, str) or not name or name == KEY_NAME or not name.isprintable():
        raise ConfigError(
            f"a field's name is printable text, not empty and not {KEY_NAME!r}, got {name!r}", field=name
        )

    if kind not in KINDS:
        raise ConfigError(
            f"field {name!r} has the unknown kind {kind!r}; known are {', '.join(KINDS)}", field=name
        )


def _encode_bytes(value: object) -> bytes | memoryview:
    if isinstance(value, bytes):
        return value

    # arrays offer their memory too, but pixels in place of an image file would be a mistake found out late
    if isinstance(value, (bytearray, memoryview)):
        return memoryview(value).cast("B")

    raise TypeError("only bytes, bytearray and memoryview are stored as given")


def _encode_array(value: object) -> bytes | memoryview:
    if not hasattr(value, "__array__") or isinstance(value, np.ma.MaskedArray):
        raise TypeError("not an array, or one whose mask would be lost")

    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError("arrays of Python objects would have to be pickled")

    out = io.BytesIO()
    version = (1, 0) if len(repr(array.dtype.descr)) < 32_000 else (2, 0)  # a longer header needs version 2
    np.lib.format.write_array(out, array, version=version, allow_pickle=False)
    return out.getbuffer()


def _encode_int(value: Any) -> bytes:
    number = operator.index(value)
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"{number} needs more than 64 bits")

    return _INT.pack(number)


def _encode_float(value: Any) -> bytes:
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError("text is not turned into a number")

    number = float(value)
    if isinstance(value, (int, np.integer)) and int(number) != value:
        raise OverflowError(f"{value} is no 64-bit float; an 'int' field would keep it")

    return _FLOAT.pack(number)


def _encode_text(value: object) -> bytes:
    if not isinstance(value, str):
        raise TypeError("only str is text")

    return value.encode()


def _encode_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


_ENCODERS: dict[str, Callable[[Any], bytes | memoryview]] = {
    "image": _encode_bytes,
    "audio": _encode_bytes,
    "ndarray": _encode_array,
    "int": _encode_int,
    "float": _encode_float,
    "str": _encode_text,
    "bytes": _encode_bytes,
    "json": _encode_json,
}

_TAKES = {
    "image": "the bytes of an image file",
    "audio": "the bytes of a sound file",
    "ndarray": "a numpy array without Python objects",
    "int": "a whole number of 64 bits",
    "float": "a number",
    "str": "text without lone surrogates",
    "bytes": "bytes",
    "json": "what JSON can say, without NaN and infinity",
}
