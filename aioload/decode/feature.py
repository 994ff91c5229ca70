"""Features of TFRecord's examples: lists of numbers and of bytes, and lists of those by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ..errors import SampleError
from ..shard.example import ENCODINGS, feature_list
from ..shard.wire import Malformed, byte_strings, floats, int64s

__all__ = ["Feature", "Steps", "for_feature"]


@dataclass(frozen=True, slots=True)
class Feature:
    """Decode a feature's list: an array of int64 or float32 of shape (n,), or a list of bytes."""

    kind: str
    """One of "int64", "float" and "bytes"."""

    def __call__(self, data: bytes | memoryview) -> npt.NDArray[Any] | list[bytes]:
        """Decode one list.

        Raises:
            SampleError: the bytes are no such list.
        """
        try:
            return _READERS[self.kind](memoryview(data))
        except Malformed as error:
            raise _broken(f"list of {self.kind}", error) from error


@dataclass(frozen=True, slots=True)
class Steps:
    """Decode a feature list of a SequenceExample: a list with one entry a step.

    Steps of equal lengths are a list too: the type of a field should not change from record to record.
    """

    kind: str = ""
    """What each step holds: "int64" and "float" give arrays, "bytes" lists of bytes, "value" bytes; where
    nothing is said, each gives what it holds."""

    def __call__(self, data: bytes | memoryview) -> list[Any]:
        """Decode one feature list.

        Raises:
            SampleError: the bytes are no feature list, or a step is of another kind.
        """
        try:
            return [self._step(number, *feature_list(step)) for number, step in _numbered(memoryview(data))]
        except Malformed as error:
            raise _broken("feature list", error) from error

    def _step(self, number: int, found: str, message: memoryview) -> Any:
        expected = "bytes" if self.kind == "value" else self.kind or found
        if not expected or found not in ("", expected):
            raise _other_step(number, f"a list of {found}" if found else "nothing", expected or "any list")

        value = _READERS[expected](message)  # of a step that holds nothing, an empty one
        if self.kind != "value":
            return value
        if len(value) != 1:
            raise _other_step(number, f"{len(value)} values", "exactly one")
        return value[0]


def for_feature(name: str) -> Feature | Steps:
    """Return the decoder of an encoding, of which `name` is what stands behind "example:"."""
    if f"example:{name}" not in ENCODINGS:
        raise KeyError(name)
    kind, _, of_step = name.partition(":")
    return Steps(of_step) if kind == "list" else Feature(kind)


def _numbered(message: memoryview) -> enumerate[memoryview]:
    return enumerate(byte_strings(message))  # on the wire, a feature in its list looks as bytes in theirs do


def _bytes(message: memoryview) -> list[bytes]:
    return [bytes(value) for value in byte_strings(message)]


_READERS: dict[str, Callable[[memoryview], npt.NDArray[Any] | list[bytes]]] = {
    "int64": int64s,
    "float": floats,
    "bytes": _bytes,
}


def _broken(what: str, error: Malformed) -> SampleError:
    return SampleError(
        f"this is no {what}: {error}; write the record again from its source",
        category="broken",
        cause=str(error),
    )


def _other_step(number: int, found: str, expected: str) -> SampleError:
    return SampleError(
        f"step {number} of this feature list holds {found}, not {expected}; ask for another "
        "encoding, such as 'example:list:bytes'",
        category="mismatch",
    )
