"""Numbers and arrays: bytes of a fixed layout."""

from __future__ import annotations

import ast
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..errors import SampleError

__all__ = ["Float", "Int", "NDArray", "NpyLayout", "npy_layout"]

_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 10_000  # numpy's own limit: longer literals can exhaust the parser's memory
_FLOAT = struct.Struct("<d")
# magic, version, length of the header in two bytes, or with the next two in four
_HEAD = struct.Struct("<6sBxHH")


@dataclass(frozen=True, slots=True)
class Int:
    """Decode a 64-bit integer, little-endian."""

    example: ClassVar[int] = 0
    """A value of the make that all results have."""

    def __call__(self, data: bytes | memoryview) -> int:
        """Decode one number.

        Raises:
            SampleError: there are not exactly 8 bytes.
        """
        if len(data) != 8:
            raise _wrong_length("int", len(data))
        return int.from_bytes(data, "little", signed=True)


@dataclass(frozen=True, slots=True)
class Float:
    """Decode a 64-bit float, little-endian."""

    example: ClassVar[float] = 0.0
    """A value of the make that all results have."""

    def __call__(self, data: bytes | memoryview) -> float:
        """Decode one number.

        Raises:
            SampleError: there are not exactly 8 bytes.
        """
        if len(data) != 8:
            raise _wrong_length("float", len(data))
        number: float = _FLOAT.unpack(data)[0]
        return number


@dataclass(frozen=True, slots=True)
class NDArray:
    """Decode the bytes of a .npy file, in versions 1 to 3; Fortran order is kept, objects are refused.

    The array is a view: it lives on the memory that was given, keeps that alive, and can be written to if
    that memory can. It starts where its header ends, so it may be unaligned.
    """

    def __call__(self, data: bytes | memoryview) -> npt.NDArray[Any]:
        """Decode one array.

        Raises:
            SampleError: the bytes are no .npy file, are cut short or too many, or hold Python objects.
        """
        # hot: once per record; headers repeat, so reading one is a look-up
        start = _data_start(data)
        layout = _layout(bytes(data[:start]))
        if len(data) != start + layout.data_bytes:
            raise _wrong_size(len(data), start + layout.data_bytes)
        try:
            return np.ndarray(layout.shape, layout.dtype, data, start, None, layout.order)
        except ValueError as error:  # sides without end beside one of 0, or more of them than numpy has
            raise _impossible(layout.shape, str(error)) from error


def npy_layout(data: bytes | memoryview) -> NpyLayout | None:
    """Return what the header of a .npy file says; None if the bytes are no whole file that may be read."""
    try:
        start = _data_start(data)
        layout = _layout(bytes(data[:start]))
    except SampleError:
        return None
    return layout if len(data) == start + layout.data_bytes else None


@dataclass(frozen=True, slots=True)
class NpyLayout:
    """What a .npy header says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    data_bytes: int


def _data_start(data: bytes | memoryview) -> int:
    """Return where the header ends."""
    if len(data) >= _HEAD.size:
        magic, version, low, high = _HEAD.unpack_from(data)
        if magic == _MAGIC:
            return 10 + int(low) if version == 1 else 12 + int(low) + (int(high) << 16)
    raise SampleError(
        f"this is no .npy array ({len(data)} bytes); store it as 'bytes' and decode it in the transform",
        category="truncated" if data and _MAGIC.startswith(data[:6]) else "unidentified",
    )


@lru_cache(maxsize=1024)
def _layout(header: bytes) -> NpyLayout:
    """Read magic, version and the dict that describes the array."""
    start = 10 if header[6] == 1 else 12
    try:
        if not 1 <= header[6] <= 3 or len(header) > _MAX_HEADER_BYTES:
            raise ValueError(f"version {header[6]} with a header of {len(header)} bytes is unknown")  # noqa: TRY301 - translated below
        fields = ast.literal_eval(str(header[start:], "utf-8" if header[6] == 3 else "latin-1").strip())
        dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(fields["descr"])
        shape = tuple(int(length) for length in fields["shape"])
        order: Literal["C", "F"] = "F" if fields["fortran_order"] else "C"
    except Exception as error:  # whatever literal_eval and numpy make of damage: a dozen classes
        raise SampleError(
            f"the header of this .npy array cannot be read: {error}; write the record again from its source",
            category="broken",
            cause=str(error),
        ) from error

    if dtype.hasobject:
        raise SampleError(
            "this .npy array holds Python objects, which are never unpickled; store numbers, or 'json'",
            category="unsupported",
        )
    if min(shape, default=0) < 0:
        raise SampleError(f"the header of this .npy array has the shape {shape}", category="broken")
    count = int(np.prod(shape, dtype=object))
    if count > len(header) and not dtype.itemsize:  # whoever goes through them would never come to an end
        raise _impossible(shape, "its values take no bytes")
    return NpyLayout(dtype, shape, order, count * dtype.itemsize)


def _impossible(shape: tuple[int, ...], why: str) -> SampleError:
    """Make the error for a header that says what no array can be."""
    return SampleError(
        f"the header of this .npy array gives it {len(shape)} sides of {shape!s:.80}: {why}; write the "
        "record again from its source",
        category="broken",
        cause=why,
    )


def _wrong_size(found: int, expected: int) -> SampleError:
    """Make the error for an array whose bytes are not as many as its header says."""
    what = "is cut short" if found < expected else "is followed by other bytes"
    return SampleError(
        f"this .npy array {what}: {found} bytes of {expected}; write the record again from its source",
        category="truncated" if found < expected else "broken",
        offset=min(found, expected),
    )


def _wrong_length(kind: str, found: int) -> SampleError:
    """Make the error for a number of the wrong length."""
    return SampleError(
        f"a field of kind '{kind}' has 8 bytes, but here are {found}; does another kind fit?",
        category="truncated" if found < 8 else "broken",
    )
