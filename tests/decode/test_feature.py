"""Lists of features, and which decoder an encoding gets."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protos import feature, listed, member, plain

from aioload.decode import for_encoding
from aioload.errors import ConfigError, SampleError
from aioload.shard.example import ENCODINGS
from aioload.shard.features import render

VALUES = {
    "example:int64": st.lists(st.integers(-(2**63), 2**63 - 1)),
    "example:float": st.lists(st.floats(width=32, allow_nan=False)),
    "example:bytes": st.lists(st.binary()),
    "example:list": st.just([]),
}
VALUES |= {
    f"example:list:{kind}": st.lists(VALUES[f"example:{kind}"]) for kind in ("int64", "float", "bytes")
}
VALUES["example:list:value"] = VALUES["example:bytes"]


@given(data=st.data(), encoding=st.sampled_from(sorted(ENCODINGS)))
def test_every_encoding_has_a_decoder_that_undoes_it(data: st.DataObject, encoding: str) -> None:
    """What is rendered as a message is decoded to the same values, also by a decoder that has travelled."""
    value = data.draw(VALUES[encoding])

    decode = pickle.loads(pickle.dumps(for_encoding(encoding)))

    assert plain(decode(memoryview(render(encoding, value)))) == value


@pytest.mark.parametrize(("encoding", "dtype"), [("example:int64", "<i8"), ("example:float", "<f4")])
def test_an_empty_list_keeps_its_type(encoding: str, dtype: str) -> None:
    """Negatives of a detection set have boxes of shape (0,), not of another type and not an error."""
    found = for_encoding(encoding)(memoryview(b""))

    assert (found.shape, found.dtype) == ((0,), np.dtype(dtype))


def test_a_list_of_any_kind_gives_what_each_step_holds() -> None:
    """Where the first record did not tell, arrays and lists of bytes come as they are."""
    steps = [feature("int64", [1]), feature("bytes", [b"a"]), feature("float", [0.5, 1.5])]

    found = for_encoding("example:list")(memoryview(b"".join(member(1, step) for step in steps)))

    assert plain(found) == [[1], [b"a"], [0.5, 1.5]]


def test_a_step_that_holds_nothing_is_an_empty_list() -> None:
    """A step without a kind is one, of no values, so that steps of several fields stay side by side."""
    steps = member(1, feature("int64", [1])) + member(1, b"")

    assert plain(for_encoding("example:list:int64")(memoryview(steps))) == [[1], []]


@pytest.mark.parametrize(
    ("encoding", "steps", "message"),
    [
        ("int64", [feature("int64", [1]), feature("float", [1.0])], "step 1 .* list of float, not int64"),
        (
            "value",
            [feature("bytes", [b"a"]), feature("bytes", [b"a", b"b"])],
            "step 1 .* 2 values, not exactly",
        ),
        ("value", [b""], "step 0 .* 0 values"),
        ("", [feature("float", [1.0]), b""], "step 1 .* nothing"),
    ],
)
def test_a_step_of_another_kind_is_named(encoding: str, steps: list[bytes], message: str) -> None:
    """The error tells which step it is, and what is there."""
    decode = for_encoding(f"example:list:{encoding}".removesuffix(":"))

    with pytest.raises(SampleError, match=message):
        decode(memoryview(b"".join(member(1, step) for step in steps)))


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
def test_what_is_no_such_list_is_an_error(encoding: str) -> None:
    """Bytes that were written as something else are a typed error."""
    with pytest.raises(SampleError, match="this is no"):
        for_encoding(encoding)(memoryview(b"\x0a\x7fshort"))


@pytest.mark.parametrize(
    "encoding", ["example", "example:", "example:int32", "example:list:x", "other:int64", ""]
)
def test_unknown_encodings_are_refused_by_name(encoding: str) -> None:
    """A format that knows more than the decoders do says so."""
    with pytest.raises(ConfigError, match=repr(encoding)):
        for_encoding(encoding)


def test_packed_floats_are_a_view() -> None:
    """No copy is made of what lies in the record as an array does."""
    data = listed("float", [1.0, 2.0])
    found: Any = for_encoding("example:float")(memoryview(data))

    assert np.shares_memory(found, np.frombuffer(data, np.uint8))
