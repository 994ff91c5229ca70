"""Values become bytes, and what does not fit its kind is refused by name."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from aioload.errors import ConfigError, SampleError
from aioload.shard.kinds import KINDS, check_columns, check_fields, encode


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("image", np.zeros(3, np.uint8)),
        ("audio", "text"),
        ("bytes", 3),
        ("ndarray", [1, 2]),
        ("ndarray", np.array([{}, None], dtype=object)),
        ("ndarray", np.ma.masked_array([1, 2], [True, False])),
        ("int", 1.5),
        ("int", "3"),
        ("int", 2**63),
        ("int", None),
        ("float", "1.5"),
        ("float", 2**53 + 1),
        ("float", 10**400),
        ("str", b"bytes"),
        ("str", "lone \ud800"),
        ("json", {"a": float("nan")}),
        ("json", {"a": {1, 2}}),
        ("json", "lone \ud800"),
    ],
)
def test_value_that_does_not_fit_is_refused_by_name(kind: str, value: Any) -> None:
    """An error names field, kind and the type that came, in the text and as attributes."""
    with pytest.raises(SampleError, match="'photo'.*" + kind) as caught:
        encode(kind, value, "photo")

    assert (caught.value.field, caught.value.kind) == ("photo", kind)  # type: ignore[attr-defined] - facts
    assert type(value).__qualname__ in str(caught.value)


def test_bytes_are_passed_on_without_a_copy() -> None:
    """What is bytes already costs nothing, however large."""
    data, mutable = b"x" * 1000, bytearray(b"y" * 1000)

    assert encode("image", data) is data
    assert np.shares_memory(
        np.frombuffer(encode("audio", mutable), np.uint8), np.frombuffer(mutable, np.uint8)
    )


@pytest.mark.parametrize("value", [7, True, np.int8(7), np.uint64(7), np.array(7)])
def test_whole_numbers_of_every_make_are_taken(value: Any) -> None:
    """Numpy's scalars are numbers too."""
    assert encode("int", value) == struct.pack("<q", int(value))
    assert encode("float", value) == struct.pack("<d", float(value))


def test_json_is_compact_text() -> None:
    """Text stays text, and no blanks are stored."""
    assert encode("json", {"größe": [1, 2.5, None]}) == '{"größe":[1,2.5,null]}'.encode()


def test_arrays_keep_their_order_in_memory_and_their_type() -> None:
    """A Fortran array of another byte order comes back as it was."""
    array = np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3))

    data = bytes(encode("ndarray", array))

    assert data[6:8] == b"\x01\x00"
    assert b"'descr': '>i2', 'fortran_order': True, 'shape': (2, 3)" in data


def test_arrays_with_huge_type_descriptions_are_taken() -> None:
    """A header beyond 64 KiB takes version 2 of the array format."""
    array = np.zeros(1, [(f"field_{i:05}", "u1") for i in range(4000)])

    assert bytes(encode("ndarray", array))[6:8] == b"\x02\x00"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"": "int"},
        {"__key__": "str"},
        {"a\nb": "int"},
        {"a": "video"},
        {3: "int"},
        ["ab"],
        ["abc"],
        [("a", "int"), ("a", "str")],
        {f"f{i}": "int" for i in range(1025)},
        None,
    ],
)
def test_fields_that_cannot_work_are_refused(fields: Any) -> None:
    """Names and kinds are checked before anything is written."""
    with pytest.raises(ConfigError):
        check_fields(fields)


@pytest.mark.parametrize("columns", [["missing"], ["text"], ["label", "label"]])
def test_columns_are_numbers_and_named_once(columns: list[str]) -> None:
    """Only fields of 8 bytes each can stand in the index."""
    with pytest.raises(ConfigError, match="index_fields"):
        check_columns(columns, (("label", "int"), ("text", "str")))


def test_every_kind_is_known() -> None:
    """The kinds are those of the public face."""
    fields = check_fields({f"a {kind}": kind for kind in KINDS})

    assert tuple(kind for _, kind in fields) == KINDS
    assert set(KINDS) == {"image", "audio", "ndarray", "int", "float", "str", "bytes", "json"}
