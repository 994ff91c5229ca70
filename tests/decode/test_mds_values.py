"""Values of MDS columns: what the real package reads, ours reads too, and no size in them is believed."""

from __future__ import annotations

import pickle
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mds_sets import FIXTURES, expected, samples
from PIL import Image as Pillow

from aioload.decode import Float, Image, Int, Json, for_encoding
from aioload.decode.mds import MdsPicture
from aioload.errors import ConfigError, SampleError

ENCODINGS = [
    "bytes", "str", "int", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "str_int", "str_float", "str_decimal", "ndarray", "ndarray:int16",
    "ndarray:float32:2,3", "pil", "jpeg", "png", "jpeg_array", "jpegarray", "list[pil]", "list[jpeg]",
    "list[png]", "json",
]  # fmt: skip


def decode(encoding: str, data: bytes) -> Any:
    """Decode one value."""
    return for_encoding(f"mds:{encoding}")(memoryview(data))


def picture(image: Pillow.Image) -> bytes:
    """Encode a picture as the package does for `pil`."""
    mode = image.mode.encode()
    return struct.pack("<III", *image.size, len(mode)) + mode + image.tobytes()


def test_all_encodings_read_back_as_the_package_reads_them() -> None:
    """Values, types and shapes; of JPEGs the pixels may differ by the version of libjpeg."""
    found, told = list(samples(FIXTURES / "all")), expected(FIXTURES / "all")

    assert len(found) == len(told)
    for sample, values in zip(found, told, strict=True):
        assert list(sample) == list(values)
        for name, value in values.items():
            _assert_same(name, sample[name], value)


def _assert_same(name: str, found: Any, told: Any) -> None:
    if isinstance(told, np.ndarray):
        array = np.asarray(found)
        assert (array.dtype, array.shape) == (told.dtype, told.shape), name
        tolerance = 2 if "jpeg" in name else 0
        np.testing.assert_allclose(array.astype(float), told.astype(float), atol=tolerance, rtol=0)
    elif name.startswith(("list", "jpeg")):
        assert len(found) == len(told), name
        for one, other in zip(found, told, strict=True):
            _assert_same(name, one, other)
    else:
        assert str(found) == told if isinstance(found, Decimal) else found == told, name


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_decoders_travel_to_workers(encoding: str) -> None:
    """They pickle, compare equal, and need nothing else."""
    decoder = for_encoding(f"mds:{encoding}")

    assert pickle.loads(pickle.dumps(decoder)) == decoder


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(data=st.binary(max_size=64))
@example(data=b"")
@example(data=b"\x00" * 8)
@example(data=b"\xff" * 64)
def test_any_bytes_are_a_value_or_a_sample_error(encoding: str, data: bytes) -> None:
    """No other exception, and no memory for sizes that are not there."""
    try:
        decode(encoding, data)
    except SampleError as error:
        assert error.facts["category"]  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("uint16", b"\1\2"),
        ("float16", b"\1\2"),
        ("int", bytes(8)),
        ("ndarray", bytes([17, 2 << 2, 2, 3]) + bytes(12)),
        ("ndarray:uint8", bytes([1 << 2 | 1, 5, 0]) + bytes(5)),
        ("ndarray:float32:2,3", bytes(24)),
        ("pil", picture(Pillow.new("RGB", (3, 2)))),
        ("pil", picture(Pillow.new("1", (9, 2)))),
        ("list[pil]", struct.pack("<III", 0, 1, 33) + picture(Pillow.new("RGB", (3, 2)))),
    ],
)
def test_a_value_is_exactly_as_long_as_it_says(encoding: str, data: bytes) -> None:
    """Cut at any length, or with a byte behind it, it is an error and never a shorter value."""
    decode(encoding, data)

    for harmed in (*(data[:stop] for stop in range(len(data))), data + b"\0"):
        with pytest.raises(SampleError):
            decode(encoding, harmed)


def test_arrays_are_views_with_type_and_shape() -> None:
    """All four ways in which type and shape are told, and wide sides."""
    assert decode("ndarray", bytes([9, 1 << 2, 2, 255, 3])).tolist() == [-1, 3]
    assert decode("ndarray:uint8", bytes([2 << 2 | 3]) + struct.pack("<QQ", 1, 2) + b"ab").shape == (1, 2)
    assert decode("ndarray:int16:2", b"\1\0\2\0").tolist() == [1, 2]
    memory = bytearray(b"\1\0\2\0")
    array = for_encoding("mds:ndarray:int16:2")(memoryview(memory))
    memory[0] = 9
    assert array.tolist() == [9, 2]


def test_shapes_that_wrap_around_are_refused() -> None:
    """2^63 times 2 is no zero, and 63 sides are no crash."""
    head = bytes([8, 2 << 2 | 3]) + struct.pack("<QQ", 2**63, 2)
    with pytest.raises(SampleError, match="by what it says of itself 18446744073709551634"):
        decode("ndarray", head)

    many = bytes([8, 63 << 2]) + b"\1" * 63 + b"x"
    try:
        assert decode("ndarray", many).ndim == 63
    except SampleError as error:
        assert "63 sides" in str(error)  # noqa: PT017 - as this numpy has it


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "La", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"]
)
def test_raw_pictures_become_what_pillow_makes_of_them(mode: str) -> None:
    """RGB as any picture, alpha dropped; widths that fill no whole byte of black and white too."""
    rng = np.random.default_rng(3)
    gradient = Pillow.fromarray(rng.integers(0, 256, (5, 11, 4), dtype=np.uint8), "RGBA")
    via = {"La": "LA", "RGBa": "RGBA", "HSV": "RGB", "YCbCr": "RGB", "CMYK": "RGB", "RGBX": "RGB"}.get(mode)
    image = (gradient.convert(via) if via else gradient).convert(mode)
    wanted = image.convert({"La": "LA", "RGBa": "RGBA"}[mode]) if mode in ("La", "RGBa") else image

    found = decode("pil", picture(image))

    assert found.tolist() == np.asarray(wanted.convert("RGB")).tolist()
    assert found.flags.writeable


def test_raw_gray_of_16_bits_is_scaled() -> None:
    """By 1/257, as in any picture."""
    image = Pillow.fromarray(np.array([[0, 257, 65535]], np.uint16))

    assert decode("pil", picture(image))[..., 0].tolist() == [[0, 1, 255]]


@pytest.mark.parametrize("mode", ["P", "PA", "F", "I"])
def test_raw_pictures_without_known_colours_are_refused(mode: str) -> None:
    """The palette was not stored, or the range of the numbers is not known."""
    with pytest.raises(SampleError) as caught:
        decode("pil", picture(Pillow.new(mode, (2, 2))))

    assert caught.value.facts["category"] == "unsupported"


def test_raw_pictures_have_a_limit() -> None:
    """As all pictures; it is held against the header, before any memory is taken."""
    image = picture(Pillow.new("1", (100, 100)))

    assert decode("pil", image).shape == (100, 100, 3)
    with pytest.raises(SampleError, match="over the limit of 9999") as caught:
        MdsPicture(max_pixels=9999)(memoryview(image))
    assert caught.value.facts["category"] == "too_many_pixels"


@pytest.mark.parametrize("data", [b"12x", b"", b"\xc2\xb2", b"9" * 5000])
def test_texts_that_are_no_numbers_are_refused(data: bytes) -> None:
    """Among them a number too long for Python to read in decent time."""
    with pytest.raises(SampleError, match="is no int"):
        decode("str_int", data)


def test_numbers_as_text_keep_all_their_digits() -> None:
    """Beyond 64 bits, and with the zeros of a decimal."""
    assert decode("str_int", b"-1000000000000000000000000000000") == -(10**30)
    assert str(decode("str_decimal", b"1.10")) == "1.10"
    assert decode("str_float", b"1e-07") == 1e-07


def test_plain_encodings_have_the_decoders_of_their_kinds() -> None:
    """So that options such as an image's size work for them as well."""
    assert for_encoding("mds:jpeg") == for_encoding("mds:png") == Image()
    assert (for_encoding("mds:int64"), for_encoding("mds:float64")) == (Int(), Float())
    assert for_encoding("mds:json") == Json()


def test_lists_with_a_mark_that_is_not_known_are_refused() -> None:
    """The package keeps it for what may come."""
    assert decode("list[jpeg]", bytes(8)) == []
    with pytest.raises(SampleError, match="a mark that is not known"):
        decode("list[jpeg]", b"\1" + bytes(7))


def test_pickle_is_refused_by_name_and_says_why() -> None:
    """Whatever is in it is never run."""
    with pytest.raises(ConfigError, match=r"'pkl' are not read: unpickling runs whatever code"):
        for_encoding("mds:pkl")


@pytest.mark.parametrize(
    "encoding",
    ["mds:video", "mds:", "mds:ndarray:object", "mds:ndarray::3", "mds:ndarray:int8:0", "mds:ndarray:int8:x",
     "mds:int:8", "avro:int", ""],
)  # fmt: skip
def test_unknown_encodings_are_refused(encoding: str) -> None:
    """With a list of what is known, or an example."""
    with pytest.raises(ConfigError, match=r"known|no encoding"):
        for_encoding(encoding)


@pytest.mark.parametrize("encoding", ["uint16", "float32", "ndarray:float32:2,3"])
def test_examples_are_of_the_make_of_all_results(encoding: str) -> None:
    """So that a batch's place can be prepared."""
    decoder: Any = for_encoding(f"mds:{encoding}")
    value = decoder(memoryview(bytes(decoder.example.nbytes)))

    assert type(value) is type(decoder.example)
    assert (value.dtype, value.shape) == (decoder.example.dtype, decoder.example.shape)
    assert getattr(for_encoding("mds:ndarray"), "example", None) is None
