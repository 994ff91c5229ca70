"""Arrays and numbers of a fixed layout."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from aioload.decode import Float, Int, NDArray
from aioload.errors import SampleError

ARRAYS = arrays.arrays(
    dtype=arrays.integer_dtypes(endianness="?")
    | arrays.floating_dtypes(endianness="?")
    | arrays.boolean_dtypes(),
    shape=arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)


def npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
    """Write an array as numpy does."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), version)
    return file.getvalue()


@given(array=ARRAYS, fortran=st.booleans())
def test_arrays_come_back_as_written(array: np.ndarray, fortran: bool) -> None:
    """Dtype, byte order, shape, memory order and values are those that numpy wrote."""
    array = np.asfortranarray(array) if fortran else array
    expected = np.load(io.BytesIO(npy(array)))

    decoded = NDArray()(memoryview(npy(array)))

    assert decoded.dtype == expected.dtype
    assert decoded.shape == expected.shape
    assert decoded.flags.f_contiguous == expected.flags.f_contiguous
    assert decoded.tobytes() == expected.tobytes()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions_are_read(version: tuple[int, int]) -> None:
    """Versions 1 to 3 of the format are read alike."""
    decoded = NDArray()(npy(np.arange(3), version))

    assert decoded.tolist() == [0, 1, 2]


def test_structured_arrays_are_read() -> None:
    """Named columns are kept."""
    array = np.array([(1, 2.5)], dtype=[("id", "<i4"), ("ü", "<f8")])

    decoded = NDArray()(npy(array, (3, 0)))

    assert decoded["ü"].tolist() == [2.5]


def test_the_array_is_a_view() -> None:
    """No copy is made: the memory that was given is the array's, and as writable as it was."""
    data = bytearray(npy(np.arange(3, dtype=np.int32)))

    decoded = NDArray()(memoryview(data))
    data[-4:] = struct.pack("<i", 7)
    frozen = NDArray()(memoryview(data).toreadonly())

    assert decoded.tolist() == [0, 1, 7]
    assert decoded.flags.writeable
    assert not frozen.flags.writeable


def test_a_cut_array_is_an_error() -> None:
    """Cut at any byte, an array is an error, never a shorter one."""
    data = npy(np.arange(5, dtype=np.int16))

    categories = {_category(data[:stop]) for stop in range(1, len(data))}

    assert categories == {"truncated", "broken"}


def test_a_cut_payload_says_so() -> None:
    """Bytes that lack behind a whole header are counted in the error."""
    data = npy(np.arange(5, dtype=np.int16))

    with pytest.raises(SampleError, match=f"cut short: {len(data) - 1} bytes of {len(data)}") as caught:
        NDArray()(data[:-1])

    assert caught.value.category == "truncated"
    assert caught.value.offset == len(data) - 1


@pytest.mark.parametrize(
    ("data", "category"),
    [
        (b"", "unidentified"),
        (b"PK\x03\x04" + bytes(100), "unidentified"),
        (npy(np.arange(3)) + b"\0", "broken"),
        (npy(np.arange(3)).replace(b"\x01\x00", b"\x09\x00", 1), "broken"),
        (npy(np.arange(3)).replace(b"descr", b"other"), "broken"),
        (npy(np.arange(3)).replace(b"(3,)", b"(-3,)"), "broken"),
        (npy(np.arange(3)).replace(b"(3,)", b"open"), "broken"),
    ],
)
def test_damage_has_a_category(data: bytes, category: str) -> None:
    """Whatever is wrong, it is a SampleError that tells what kind of wrong."""
    assert _category(data) == category


@pytest.mark.parametrize(
    ("descr", "shape"),
    [
        ("|u1", (0, 1 << 64)),
        ("|u1", (0, 1 << 62, 1 << 62)),
        ("|u1", (1,) * 70 + (0,)),
        ("|S0", (1 << 40,)),
        ("|V0", (1 << 62, 9)),
    ],
)
def test_a_shape_that_no_array_has_is_an_error(descr: str, shape: tuple[int, ...]) -> None:
    """Sides that only a side of 0, or values of no bytes, make fit: never numpy's own error, nor an array."""
    header = str({"descr": descr, "fortran_order": False, "shape": shape}).encode()

    with pytest.raises(SampleError, match="sides of") as caught:
        NDArray()(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)

    assert caught.value.category == "broken"


def test_objects_are_never_unpickled() -> None:
    """An array of Python objects is refused, and nothing of it is run."""
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)

    with pytest.raises(SampleError, match="never unpickled") as caught:
        NDArray()(file.getvalue())

    assert caught.value.category == "unsupported"


@given(number=st.integers(-(2**63), 2**63 - 1))
def test_ints_come_back(number: int) -> None:
    """All 64-bit integers are read, little-endian and signed."""
    assert Int()(memoryview(struct.pack("<q", number))) == number


@given(number=st.floats(allow_nan=False))
def test_floats_come_back(number: float) -> None:
    """All 64-bit floats are read, little-endian."""
    assert Float()(memoryview(struct.pack("<d", number))) == number


@pytest.mark.parametrize("decode", [Int(), Float()], ids=["int", "float"])
@pytest.mark.parametrize("size", [0, 4, 7, 9, 16])
def test_numbers_have_eight_bytes(decode: Int | Float, size: int) -> None:
    """Any other length is an error, not another number."""
    with pytest.raises(SampleError, match=f"8 bytes, but here are {size}"):
        decode(bytes(size))


def _category(data: bytes) -> Any:
    """Return the category of the error, or None where there is none."""
    try:
        NDArray()(data)
    except SampleError as error:
        return error.category
    return None
