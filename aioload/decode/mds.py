"""Values as mosaicml-streaming encodes them (MDS), where that is not how their kind is stored elsewhere.

No size in a value is believed before it was held against the bytes there are. Pickled values are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, SampleError
from .array import Float, Int
from .image import Image
from .text import Bytes, Json, Str

__all__ = ["MdsArray", "MdsList", "MdsNumber", "MdsPicture", "MdsText", "for_mds"]

_DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
"""What a dynamic array's first byte says."""

_SIDES = ("B", "H", "I", "Q")
_PIXEL_BITS = {
    "1": 1,
    **dict.fromkeys(("L",), 8),
    **dict.fromkeys(("LA", "La", "I;16", "I;16L", "I;16B"), 16),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 24),
    **dict.fromkeys(("RGBA", "RGBa", "RGBX", "CMYK", "I", "F"), 32),
}
_PICTURE = struct.Struct("<III")
_MAX_MODE = 16


def for_mds(encoding: str) -> Callable[[memoryview], Any]:
    """Return the decoder of an MDS encoding, such as `ndarray:float32:2,3`.

    Raises:
        ConfigError: it is unknown, or pickle.
    """
    if encoding == "pkl":
        what = (
            "values of the MDS encoding 'pkl' are not read: unpickling runs whatever code the maker of the "
            "shards put there"
        )
        raise ConfigError(
            f"{what}; ask for the other columns with fields={{…}}, write these as 'json', 'ndarray' or "
            "'bytes', or, if you trust whoever made the shards, give a decoder of your own with decode={…}",
            what=what,
        )
    name, _, rest = encoding.partition(":")
    if name == "ndarray":
        return _array(encoding, rest)
    if encoding in _DTYPES.values() and encoding not in _MADE:
        return MdsNumber(encoding)
    if encoding not in _MADE:
        known = ", ".join((*_MADE, *_DTYPES.values(), "ndarray"))
        raise ConfigError(f"there is no MDS encoding {encoding!r} known here; known are {known}")
    return _MADE[encoding]()


@dataclass(frozen=True, slots=True)
class MdsNumber:
    """Decode a number to one of numpy's, so that its type stays."""

    dtype: str
    """As in `uint16`."""

    @property
    def example(self) -> np.generic:
        """A value of the make that all results have."""
        number: np.generic = np.dtype(self.dtype).type(0)
        return number

    def __call__(self, data: bytes | memoryview) -> np.generic:
        """Decode one number.

        Raises:
            SampleError: it has not as many bytes as its type.
        """
        dtype = np.dtype(self.dtype).newbyteorder("<")
        if len(data) != dtype.itemsize:
            raise _wrong_size(self.dtype, len(data), dtype.itemsize)
        number: np.generic = np.frombuffer(data, dtype)[0]
        return number


@dataclass(frozen=True, slots=True)
class MdsText:
    """Decode a number that was written as digits, however many."""

    kind: type[int] | type[float] | type[Decimal]
    """What it becomes."""

    def __call__(self, data: bytes | memoryview) -> int | float | Decimal:
        """Decode one number.

        Raises:
            SampleError: these are no digits.
        """
        try:
            return self.kind(str(data, "ascii"))
        except (ValueError, ArithmeticError) as error:
            raise _broken(f"{bytes(data[:40])!r} is no {self.kind.__name__}", error) from error


@dataclass(frozen=True, slots=True)
class MdsArray:
    """Decode an array; type and shape are given, or stand before the values.

    The array is a view: it lives on the memory that was given, may be unaligned, and can be written to if
    that memory can.
    """

    dtype: str | None = None
    """The type of the values."""
    shape: tuple[int, ...] | None = None
    """The shape."""

    @property
    def example(self) -> npt.NDArray[Any] | None:
        """A value of the make that all results have; None where it depends on the bytes."""
        if self.dtype is None or self.shape is None:
            return None
        return np.zeros(self.shape, self.dtype)

    def __call__(self, data: bytes | memoryview) -> npt.NDArray[Any]:
        """Decode one array.

        Raises:
            SampleError: the values are not as many as type and shape say, or the type is unknown.
        """
        start = 0
        name, shape = self.dtype, self.shape
        if name is None:
            if not data or data[0] not in _DTYPES:
                raise _broken("an array begins with a byte that stands for no type of values")
            name, start = _DTYPES[data[0]], 1
        if shape is None:
            shape, start = _shape(data, start)
        dtype = np.dtype(name).newbyteorder("<")
        stop = start + dtype.itemsize
        for length in shape:  # in Python's numbers, which do not wrap around
            stop = start + (stop - start) * length
        if stop != len(data):
            raise _wrong_size("array", len(data), stop)
        try:
            return np.ndarray(shape, dtype, data, start)
        except ValueError as error:  # more sides than this numpy has
            raise _broken(f"an array of {len(shape)} sides cannot be made", error) from error


@dataclass(frozen=True, slots=True)
class MdsPicture:
    """Decode a picture that was stored as Pillow has it in memory, into what `Image` gives."""

    max_pixels: int = 178_956_970
    """The largest picture that is decoded."""

    def __call__(self, data: bytes | memoryview) -> npt.NDArray[Any]:
        """Decode one picture.

        Raises:
            SampleError: it is damaged, too large, or of a mode without colours.
        """
        from . import _pillow  # late: `import aioload` must not load Pillow

        width, height, mode, start = self._head(data)
        return _pillow.from_pixels(mode, (width, height), bytes(data[start:]))

    def _head(self, data: bytes | memoryview) -> tuple[int, int, str, int]:
        """Return width, height, mode, and where the pixels begin, whose number is right."""
        if len(data) < _PICTURE.size:
            raise _wrong_size("picture", len(data), _PICTURE.size)
        width, height, mode_bytes = _PICTURE.unpack_from(data)
        start = _PICTURE.size + mode_bytes
        mode = str(data[_PICTURE.size : start], "latin-1") if mode_bytes <= _MAX_MODE else ""
        if mode in ("P", "PA"):
            raise SampleError(
                f"a picture of mode {mode} was stored without its palette, so its colours are lost; decode "
                "the bytes yourself for the numbers of the colours",
                category="unsupported",
            )
        if mode not in _PIXEL_BITS or not width or not height:
            raise _broken(f"a picture says it is {width} x {height} of the mode {mode!r}, which is none")
        if width * height > self.max_pixels:
            raise SampleError(
                f"this picture has {width} x {height} pixels, over the limit of {self.max_pixels}; if that "
                "is right, decode it with aioload.decode.mds.MdsPicture(max_pixels=...)",
                category="too_many_pixels",
            )
        stop = start + (width * _PIXEL_BITS[mode] + 7) // 8 * height
        if stop != len(data):
            raise _wrong_size("picture", len(data), stop)
        return width, height, mode, start


@dataclass(frozen=True, slots=True)
class MdsList:
    """Decode pictures that are stored side by side, into a list."""

    item: Callable[[memoryview], Any] = field(default_factory=Image)
    """Decodes one of them."""
    head: int = 4
    """Bytes before the number of pictures, which are zero."""

    example: ClassVar[None] = None

    def __call__(self, data: bytes | memoryview) -> list[Any]:
        """Decode all.

        Raises:
            SampleError: their sizes are not those of the bytes, or one of them is damaged.
        """
        return [self.item(part) for part in self._parts(memoryview(data))]

    def _parts(self, data: memoryview) -> Iterator[memoryview]:
        if len(data) < self.head + 4:
            raise _wrong_size("list", len(data), self.head + 4)
        if any(data[: self.head]):
            raise _broken("a list begins with a mark that is not known")
        (count,) = struct.unpack_from("<I", data, self.head)
        start = self.head + 4 + 4 * count
        if len(data) < start:
            raise _wrong_size("list", len(data), start)
        sizes = struct.unpack_from(f"<{count}I", data, self.head + 4)
        if start + sum(sizes) != len(data):
            raise _wrong_size("list", len(data), start + sum(sizes))
        for size in sizes:
            yield data[start : start + size]
            start += size


_MADE: dict[str, Callable[[], Callable[[memoryview], Any]]] = {
    "bytes": Bytes,
    "str": Str,
    "json": Json,
    "int": Int,
    "int64": Int,
    "float64": Float,
    "str_int": lambda: MdsText(int),
    "str_float": lambda: MdsText(float),
    "str_decimal": lambda: MdsText(Decimal),
    "jpeg": Image,
    "png": Image,
    "pil": MdsPicture,
    "jpeg_array": lambda: MdsList(head=0),
    "jpegarray": lambda: MdsList(head=0),
    "list[jpeg]": MdsList,
    "list[png]": MdsList,
    "list[pil]": lambda: MdsList(MdsPicture()),
}


def _array(encoding: str, rest: str) -> MdsArray:
    dtype, _, shape = rest.partition(":")
    try:
        sides = tuple(map(int, shape.split(","))) if shape else None
    except ValueError:
        sides = (0,)
    if (dtype and dtype not in _DTYPES.values()) or min(sides or (1,)) < 1 or (sides and not dtype):
        raise ConfigError(
            f"{encoding!r} is no encoding of MDS arrays; one is written as in 'ndarray:float32:2,3'"
        )
    return MdsArray(dtype or None, sides)


def _shape(data: bytes | memoryview, start: int) -> tuple[tuple[int, ...], int]:
    """Return the shape that stands before an array's values, and where they begin."""
    if len(data) <= start:
        raise _wrong_size("array", len(data), start + 1)
    sides, width = data[start] >> 2, data[start] & 3
    stop = start + 1 + (sides << width)
    if len(data) < stop:
        raise _wrong_size("array", len(data), stop)
    return struct.unpack_from(f"<{sides}{_SIDES[width]}", data, start + 1), stop


def _wrong_size(what: str, found: int, expected: int) -> SampleError:
    """Make the error for a value whose bytes are not as many as it says."""
    return SampleError(
        f"an MDS value ({what}) has {found} bytes, and by what it says of itself {expected}; write the shard "
        "again from its source",
        category="truncated" if found < expected else "broken",
        offset=min(found, expected),
    )


def _broken(what: str, error: Exception | None = None) -> SampleError:
    """Make the error for a value that makes no sense."""
    return SampleError(
        f"an MDS value is damaged: {what}; write the shard again from its source",
        category="broken",
        cause=None if error is None else str(error),
    )
