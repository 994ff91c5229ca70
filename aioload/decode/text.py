"""Text, JSON and plain bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import SampleError

__all__ = ["Bytes", "Json", "Str"]


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
