"""Text, JSON and plain bytes, and which decoder a kind of field gets."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload import decode
from aioload.errors import ConfigError, SampleError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=3), parts, max_size=3),
    max_leaves=8,
)
KINDS = {
    "image": decode.Image(),
    "audio": decode.Audio(),
    "ndarray": decode.NDArray(),
    "int": decode.Int(),
    "float": decode.Float(),
    "str": decode.Str(),
    "bytes": decode.Bytes(),
    "json": decode.Json(),
}


@given(text=st.text())
def test_text_comes_back(text: str) -> None:
    """All of Unicode is read from UTF-8."""
    assert decode.Str()(memoryview(text.encode())) == text


@given(document=JSON)
def test_json_comes_back(document: Any) -> None:
    """A document is read as it was written."""
    data = json.dumps(document, ensure_ascii=False).encode()

    assert decode.Json()(memoryview(data)) == document


def test_bytes_are_copied() -> None:
    """What is returned does not change with the memory it came from."""
    memory = bytearray(b"abc")

    copy = decode.Bytes()(memoryview(memory))
    memory[:] = b"xyz"

    assert copy == b"abc"


def test_text_that_is_not_utf8_is_an_error() -> None:
    """The first wrong byte is named."""
    with pytest.raises(SampleError, match="at byte 1 of 3") as caught:
        decode.Str()(b"a\xffb")

    assert caught.value.category == "broken"


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", '"é"'.encode("latin-1"), b"1 2", b"[" * 100_000])
def test_what_is_not_json_is_an_error(data: bytes) -> None:
    """Cut, wrongly encoded and bottomless documents are errors of one class."""
    with pytest.raises(SampleError, match="not JSON in UTF-8"):
        decode.Json()(data)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_decoder(kind: str) -> None:
    """A field's kind alone says how it is decoded."""
    assert decode.for_kind(kind) == KINDS[kind]


def test_an_unknown_kind_is_refused() -> None:
    """The error lists the kinds there are."""
    with pytest.raises(ConfigError, match=r"'video'; kinds are image, audio"):
        decode.for_kind("video")


@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
def test_decoders_travel_to_workers(made: decode.Decoder) -> None:
    """A decoder pickles, and is equal to its copy."""
    assert pickle.loads(pickle.dumps(made)) == made
