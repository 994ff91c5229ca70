"""Text, JSON and plain bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..errors import SampleError

__all__ = ["Bytes", "Json", "Number", "Str", "for_text"]

_MOST_DIGITS = 400  # bytes of a number: more than a float needs, and what is read of longer ones


@dataclass(frozen=True, slots=True)
class Bytes:
    """Decode to bytes: a copy of what is stored."""

    example: ClassVar[bytes] = b""
    """A value of the make that all results have."""

    def __call__(self, data: bytes | memoryview) -> bytes:
        """Copy the bytes."""
        return bytes(data)


@dataclass(frozen=True, slots=True)
class Str:
    """Decode UTF-8 text."""

    example: ClassVar[str] = ""
    """A value of the make that all results have."""

    def __call__(self, data: bytes | memoryview) -> str:
        """Decode one text.

        Raises:
            SampleError: the bytes are no UTF-8.
        """
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise SampleError(
                f"text is not UTF-8 at byte {error.start} of {len(data)}; encode it, or store it as 'bytes'",
                category="broken",
                cause=str(error),
            ) from error


@dataclass(frozen=True, slots=True)
class Number:
    """Decode a number that is written in digits, as the files of archives have it."""

    kind: Literal["int", "float"]
    """What it becomes."""

    def __call__(self, data: bytes | memoryview) -> int | float:
        """Decode one number.

        Raises:
            SampleError: the bytes are no such number, or it takes more than 64 bits.
        """
        raw = bytes(data[:_MOST_DIGITS])
        if b"_" in raw:
            raise self._wrong(raw, "only Python takes underscores in numbers")
        try:
            value = int(raw) if self.kind == "int" else float(raw)
        except ValueError as error:
            raise self._wrong(raw, str(error)) from error
        if len(data) > _MOST_DIGITS or (self.kind == "int" and not -(2**63) <= value < 2**63):
            raise self._wrong(raw, "it does not fit into 64 bits")
        return value

    @property
    def example(self) -> int | float:
        """A value of the make that all results have."""
        return 0 if self.kind == "int" else 0.0

    def _wrong(self, raw: bytes, why: str) -> SampleError:
        what = "whole number" if self.kind == "int" else "number"
        told = f"{raw[:40]!r} is no {what} in digits ({why})"
        return SampleError(
            f"{told}; give the field another kind with fields={{…}}, or a decoder with decode={{…}}",
            what=told,
            category="broken",
        )


def for_text(name: str) -> Number:
    """Return the decoder of a value that stands in a file as text."""
    return {"int": Number("int"), "float": Number("float")}[name]


@dataclass(frozen=True, slots=True)
class Json:
    """Decode JSON in UTF-8."""

    def __call__(self, data: bytes | memoryview) -> Any:
        """Decode one document.

        Raises:
            SampleError: the bytes are no JSON in UTF-8.
        """
        try:
            return json.loads(str(data, "utf-8"))
        except (ValueError, RecursionError) as error:
            raise SampleError(
                f"this is not JSON in UTF-8 ({len(data)} bytes): {error}; write it again from its source",
                category="broken",
                cause=str(error),
            ) from error
