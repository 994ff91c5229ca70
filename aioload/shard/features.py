"""Fields of an example: how each is cut out of its feature, and how a default is put in its place."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from ..errors import SampleError
from .example import LIST_KINDS, feature_list
from .wire import byte_strings, floats, int64s, only_int64

__all__ = ["Cut", "render"]

_INT = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_FIRST = 0x0A  # tag of a list's packed numbers or bytes, and of a feature list's features


@dataclass(frozen=True, slots=True)
class Cut:
    """What is taken of a feature for one field."""

    name: str
    """The field's."""
    list_kind: str
    """What the feature must hold: "bytes", "float" or "int64"."""
    whole: bool
    """Take the message of the list; else the one value, as its kind's own decoder reads it."""

    @classmethod
    def of(cls, name: str, kind: str, encoding: str | None) -> Cut:
        """Return the cut for a field."""
        if encoding is not None:
            return cls(name, encoding.removeprefix("example:"), True)
        return cls(name, {"int": "int64", "float": "float"}.get(kind, "bytes"), False)

    # hot: once per field of a record in a worker
    def __call__(self, feature: memoryview) -> memoryview | None:
        """Return the field's bytes; None if the feature holds nothing.

        Raises:
            SampleError: it holds another kind of list, or not exactly one value.
            Malformed: it is no feature.
        """
        kind, message = feature_list(feature)
        if kind != self.list_kind:
            if not kind:
                return None
            raise self._misfit(f"a list of {kind}", f"one of {self.list_kind}")
        return message if self.whole else self._only(message)

    def _only(self, message: memoryview) -> memoryview:
        """Return the one value of a list."""
        if self.list_kind == "bytes":
            values = list(islice(byte_strings(message), 2))
            if len(values) == 1:
                return values[0]
            raise self._misfit("several values" if values else "no value", "exactly one")

        number = only_int64(message) if self.list_kind == "int64" else None
        if number is not None:
            return memoryview(_INT.pack(number))

        numbers = int64s(message) if self.list_kind == "int64" else floats(message)
        if len(numbers) != 1:
            raise self._misfit(f"{len(numbers)} values", "exactly one")
        return memoryview((_INT if self.list_kind == "int64" else _FLOAT).pack(numbers[0]))

    def _misfit(self, found: str, expected: str) -> SampleError:
        what = f"field {self.name!r} holds {found} in this record, not {expected}"
        return SampleError(
            f"{what}; say what all records hold with fields={{{self.name!r}: …}}: "
            f"'example:{self.list_kind}' takes lists of any length",
            what=what,
            category="mismatch",
            field=self.name,
        )


def render(encoding: str, value: Any) -> bytes:
    """Return the message that the decoder of an encoding would read as this value.

    Raises:
        ValueError: the value does not fit; TypeError, OverflowError: the same.
    """
    if encoding.startswith("example:list"):
        kind = encoding.removeprefix("example:list").removeprefix(":")
        if not kind and len(value):
            raise ValueError("a list whose kind is not known can only be empty")
        return b"".join(_member(_FIRST, _render_step(kind, step)) for step in value)
    return _render_list(encoding.removeprefix("example:"), value)


def _render_step(kind: str, step: Any) -> bytes:
    alone = kind == "value"
    tag = next(tag for tag, name in LIST_KINDS.items() if name == ("bytes" if alone else kind))
    return _member(tag, _render_list(LIST_KINDS[tag], [step] if alone else step))


def _render_list(kind: str, values: Any) -> bytes:
    if kind == "bytes":
        if isinstance(values, (str, bytes, bytearray, memoryview)):
            raise TypeError("a list of bytes is expected")
        return b"".join(_member(_FIRST, bytes(memoryview(value))) for value in values)

    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in ("iuf" if kind == "float" else "iu")):
        raise TypeError(f"a list of {kind} is expected")
    if kind == "float":
        return _member(_FIRST, array.astype("<f4").tobytes())
    return _member(_FIRST, b"".join(_varint(_checked(number)) for number in array.tolist()))


def _checked(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"{number} needs more than 64 bits")
    return number % 2**64


def _member(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
