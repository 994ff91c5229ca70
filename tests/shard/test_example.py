"""Examples are read as protobuf reads them, and what is malformed is refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import example as case
from hypothesis import given
from hypothesis import strategies as st
from protos import entry, example, feature, listed, member, sequence, varint

from aioload.shard.example import entries, feature_list, learn, sniff
from aioload.shard.wire import Malformed, byte_strings, floats, int64s, only_int64, walk

INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)
FLOAT = st.floats(width=32)
PIECES = st.lists(st.tuples(st.lists(INT64, max_size=60), st.booleans()), max_size=4)


@given(pieces=PIECES)
@case(pieces=[([-1, -(2**63), 2**63 - 1, 0, 127, 128], True)])
@case(pieces=[([5, 300, -7], False)])
@case(pieces=[([1], False), ([1], True)])
@case(pieces=[([], True)])
@case(pieces=[])
def test_ints_of_all_64_bits_come_back(pieces: list[tuple[list[int], bool]]) -> None:
    """Packed, one by one, and both in turn: the numbers are those that were written, as int64."""
    message = b"".join(listed("int64", values, packed=packed) for values, packed in pieces)

    found = int64s(memoryview(message))

    assert found.dtype == np.int64
    assert found.tolist() == [value for values, _ in pieces for value in values]


@given(pieces=st.lists(st.tuples(st.lists(INT64, max_size=2), st.booleans()), max_size=2))
@case(pieces=[([-1], True)])
@case(pieces=[([-1], False)])
def test_a_single_int_is_the_only_one(pieces: list[tuple[list[int], bool]]) -> None:
    """The short way to one number gives the one that there is, or leaves it to the long way."""
    message = b"".join(listed("int64", values, packed=packed) for values, packed in pieces)

    found = only_int64(memoryview(message))

    assert found is None or [found] == int64s(memoryview(message)).tolist()
    assert found is not None or len(pieces) != 1 or len(pieces[0][0]) != 1


@given(pieces=st.lists(st.tuples(st.lists(FLOAT, max_size=30), st.booleans()), max_size=4))
@case(pieces=[([0.5], False), ([1.5, 2.5], True)])
@case(pieces=[([], True)])
def test_floats_come_back_to_the_bit(pieces: list[tuple[list[float], bool]]) -> None:
    """Packed, one by one, and both in turn, with NaN and infinity, as float32."""
    message = b"".join(listed("float", values, packed=packed) for values, packed in pieces)

    found = floats(memoryview(message))

    assert found.dtype == np.float32
    expected = np.array([value for values, _ in pieces for value in values], np.float32)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("packed", [True, False])
def test_long_lists_are_read_by_strides(packed: bool) -> None:
    """A list beyond one stride of the decoder has no seam, wherever a number lies across one."""
    draw = random.Random(3)
    values = [draw.getrandbits(draw.randrange(1, 64)) for _ in range(40_000)]

    found = int64s(memoryview(listed("int64", values, packed=packed)))

    assert found.tolist() == values


@given(values=st.lists(INT64, min_size=1, max_size=60), length=st.integers(0, 700))
def test_a_cut_list_is_refused_or_shorter_by_whole_members(values: list[int], length: int) -> None:
    """A packed list cut anywhere is malformed, for its length says more; it never ends within a number."""
    message = listed("int64", values)
    cut = message[: length % len(message)]

    if cut:
        with pytest.raises(Malformed):
            int64s(memoryview(cut))
    else:
        assert int64s(memoryview(cut)).tolist() == []


@pytest.mark.parametrize("filler", [0, 50], ids=["loop", "numpy"])
@pytest.mark.parametrize(
    "number", [b"\x80" * 10 + b"\x01", b"\xff" * 9 + b"\x02", b"\x80", b"\xff" * 70_000 + b"\x01"]
)
def test_numbers_of_more_than_64_bits_and_without_an_end_are_refused(number: bytes, filler: int) -> None:
    """Both ways of reading packed numbers refuse the same."""
    with pytest.raises(Malformed):
        int64s(memoryview(member(1, b"\x01" * filler + number)))


@pytest.mark.parametrize("filler", [0, 50], ids=["loop", "numpy"])
def test_numbers_that_take_more_bytes_than_they_need_are_read(filler: int) -> None:
    """Protobuf allows zeros on top."""
    found = int64s(memoryview(member(1, b"\x01" * filler + b"\x85\x80\x80\x00\xff" + b"\xff" * 8 + b"\x01")))

    assert found.tolist()[filler:] == [5, -1]


@pytest.mark.parametrize(
    "message",
    [
        b"\x0b\x0c",  # a group
        b"\x0e",  # a form that does not exist
        b"\x02\x00",  # member 0
        b"\x0a\x05abc",  # a length past the end
        b"\x0a",  # no length
        b"\x0d\x00\x00\x00",  # three bytes of four
        b"\x09" + bytes(7),  # seven of eight
        b"\x08",  # no number
        b"\x8a\x80\x80\x80\x80\x00\x00",  # a tag of six bytes
        b"\x0a\x80\x80\x80\x80\x80\x00",  # a length of six bytes
        varint(1 << 32 | 10) + b"\x00",  # a tag of 33 bits
        b"\x0a" + varint(2**63) + b"abc",
    ],
)
def test_what_is_no_message_is_refused(message: bytes) -> None:
    """Each is one error, found before anything is allocated by a length."""
    with pytest.raises(Malformed):
        list(walk(memoryview(message), 0, len(message)))


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (int64s, b"\x0d" + bytes(4)),
        (floats, b"\x08\x01"),
        (byte_strings, b"\x08\x01"),
        (feature_list, b"\x08\x01"),
        (feature_list, b"\x1d" + bytes(4)),
        (entries, b"\x08\x01"),
        (entries, member(1, b"\x08\x01")),
        (entries, member(1, member(1, b"\x08\x01"))),
        (entries, member(1, member(1, b"\x10\x01"))),
    ],
)
def test_a_known_member_in_another_form_is_refused(read: Any, message: bytes) -> None:
    """Protobuf would pass it over, and with it what the writer meant."""
    with pytest.raises(Malformed, match="form"):
        list(read(memoryview(message)))


def test_a_run_of_floats_has_whole_ones() -> None:
    """Six bytes are one float and a half."""
    with pytest.raises(Malformed, match="6 bytes"):
        floats(memoryview(member(1, bytes(6))))


@given(names=st.lists(st.text(max_size=5), max_size=8))
def test_the_last_entry_of_a_name_wins(names: list[str]) -> None:
    """As in protobuf, names are any text, and of several entries the last one counts."""
    message = member(1, b"".join(entry(name, feature("int64", [n])) for n, name in enumerate(names)))

    found = {str(name, "utf-8"): feature_list(value) for name, value in entries(memoryview(message)).items()}

    assert {name: int64s(value[1]).tolist() for name, value in found.items()} == {
        name: [n] for n, name in enumerate(names)
    }


def test_messages_in_parts_are_put_together() -> None:
    """Features said twice are one map, values of an entry one feature, lists of one kind one list."""
    twice = member(1, b"a") + member(2, feature("int64", [1])) + member(2, feature("int64", [2]))
    message = member(1, member(1, twice)) + example(b=feature("float", [1.0]) + feature("int64", [3]))

    found = entries(memoryview(message))

    assert int64s(feature_list(found[b"a"])[1]).tolist() == [1, 2]
    assert feature_list(found[b"b"])[0] == "int64"
    assert int64s(feature_list(found[b"b"])[1]).tolist() == [3]


def test_unknown_members_are_passed_over() -> None:
    """What later versions of a message may hold does not keep the rest from being read, at any depth."""
    unknown = member(9, b"later") + b"\x50\x01" + b"\x5d" + bytes(4) + b"\x61" + bytes(8)
    values = member(3, listed("int64", [1]) + unknown) + unknown
    message = member(1, member(1, member(1, b"a") + unknown + member(2, values)) + unknown) + unknown

    found = entries(memoryview(message))

    assert int64s(feature_list(found[b"a"])[1]).tolist() == [1]


def test_only_the_wanted_names_are_kept() -> None:
    """Features beyond those that are asked for cost no more than being passed over."""
    message = memoryview(sequence({"a": feature("int64", [1]), "b": b""}, {"c": [], "d": []}))

    assert set(entries(message, {b"a", b"c"})) == {b"a"}
    assert set(entries(message, {b"a", b"c"}, lists=True)) == {b"c"}
    assert set(entries(message)) == {b"a", b"b"}


@given(data=st.binary(max_size=50))
def test_any_bytes_are_told_from_an_example(data: bytes) -> None:
    """Whatever is in a record, telling what it is raises nothing."""
    assert sniff(memoryview(data)) in ("example", "sequence", "bytes", None)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "image"),
        (b"\x89PNG\r\n\x1a\n", "image"),
        (b"GIF87a", "image"),
        (b"GIF89a", "image"),
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "image"),
        (b"BM\x46\x00\x00\x00\x00\x00\x00\x00\x36\x00\x00\x00" + bytes(60), "image"),
        (b"RIFF\x10\x00\x00\x00WAVEfmt ", "bytes"),
        (b"BM", "bytes"),
        (b"BMW is a maker of cars and engines", "bytes"),
        (b"", "bytes"),
    ],
)
def test_images_are_told_by_their_first_bytes(head: bytes, kind: str) -> None:
    """A single value of bytes is an image if it begins as one."""
    assert learn(memoryview(example(x=feature("bytes", [head]))), "example") == ((("x", kind),), {})


@pytest.mark.parametrize(
    ("steps", "encoding"),
    [
        ([feature("int64", [1]), b""], "example:list:int64"),
        ([feature("float", [1.0])], "example:list:float"),
        ([feature("bytes", [b"a"]), feature("bytes", [b"b"])], "example:list:value"),
        ([feature("bytes", [b"a"]), feature("bytes", [b"b", b"c"])], "example:list:bytes"),
        ([feature("bytes", [b"a"]), feature("float", [1.0])], "example:list"),
        ([], "example:list"),
    ],
)
def test_feature_lists_are_told_by_their_steps(steps: list[bytes], encoding: str) -> None:
    """What all steps hold is the field's encoding; a step that holds nothing says nothing."""
    _, encodings = learn(memoryview(sequence({}, {"x": steps})), "sequence")

    assert encodings == {"x": encoding}
