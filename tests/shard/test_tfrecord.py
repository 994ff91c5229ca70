"""TFRecord files: what real writers wrote reads back, and whatever is damaged is found."""

from __future__ import annotations

import io
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example as case
from hypothesis import given
from hypothesis import strategies as st
from protos import (
    decoded,
    entry,
    example,
    feature,
    framed,
    masked,
    member,
    plain,
    samples,
    scanned,
    sequence,
    spans,
)

from aioload.decode import for_encoding
from aioload.errors import AioloadError, ConfigError, SampleError, ShardError
from aioload.shard.absent import ABSENT
from aioload.shard.tfrecord import TFRecordFormat, frame, scan

FIXTURES = Path(__file__).parent.parent / "fixtures" / "tfrecord"
VALUES = json.loads((FIXTURES / "values.json").read_text())
KINDS = {"image/height": "int", "label": "int", "größe": "float", "name": "str", "words": "example:bytes"}
BYTES_FIELDS = {"image/encoded", "words", "frames"}

SMALL = framed(
    example(image=feature("bytes", [b"\xff\xd8\xff-"]), label=feature("int64", [-7])),
    example(label=feature("int64", [8]), image=feature("bytes", [b"GIF89a-"])),
    example(image=feature("bytes", [b""]), label=feature("int64", [300])),
)


def hexed(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample as values.json has it."""

    def shown(value: Any) -> Any:
        if isinstance(value, list):
            return [shown(inner) for inner in value]
        return value.hex() if isinstance(value, bytes) else value

    return {name: shown(value) for name, value in plain(sample).items()}


@pytest.mark.parametrize("package", ["tensorflow", "tfrecord"])
def test_examples_of_real_writers_read_back(package: str) -> None:
    """Files that TensorFlow and the tfrecord package wrote have the values that they were given."""
    expected = [
        {
            **values,
            **{name: values[name][0] for name in ("image/encoded", "image/height", "label", "größe")},
            "name": bytes.fromhex(values["name"][0]).decode(),
        }
        for values in VALUES["example"]
    ]

    found = samples((FIXTURES / f"{package}.tfrecord").read_bytes(), KINDS)

    assert [hexed(sample) for sample in found] == [dict(sorted(values.items())) for values in expected]


@pytest.mark.parametrize("package", ["tensorflow", "tfrecord"])
def test_sequence_examples_of_real_writers_read_back(package: str) -> None:
    """Context and feature lists come back, lists by step, of which a step's only bytes are bytes."""
    expected = [
        {
            **values,
            "title": values["title"][0],
            "frames": [step[0] for step in values["frames"]],
        }
        for values in VALUES["sequence"]
    ]

    found = samples((FIXTURES / f"{package}_sequence.tfrecord").read_bytes())

    assert [hexed(sample) for sample in found] == [dict(sorted(values.items())) for values in expected]


def test_records_of_other_bytes_are_one_field() -> None:
    """Records that TensorFlow wrote and that are no examples come back as they are."""
    data = (FIXTURES / "tensorflow_bytes.tfrecord").read_bytes()

    found = [sample["data"].hex() for sample in samples(data)]

    assert found == [values["image/encoded"][0] for values in VALUES["example"]]


def test_records_are_framed_as_real_writers_do() -> None:
    """Sums and lengths are the same to the byte."""
    data = (FIXTURES / "tensorflow.tfrecord").read_bytes()
    records = spans(data, scanned(data))

    again = b"".join(frame(bytes(record[12:-4])) for record in records)

    assert again == data


@given(
    sizes=st.lists(
        st.integers(0, 40) | st.integers(65_500, 65_560) | st.integers(262_100, 300_000), max_size=6
    )
)
def test_records_of_any_size_come_back(sizes: list[int]) -> None:
    """Small records are read in large pieces and large ones passed over, with the same result."""
    records = [bytes([number]) * size for number, size in enumerate(sizes)]
    data = framed(*records)

    found = scanned(data, payload="bytes")
    form = TFRecordFormat(found.fields, **found.facts)

    assert found.damage is None
    assert [bytes(form.split(record)[1]["data"]) for record in spans(data, found)] == records


def test_a_file_cut_at_any_byte_gives_whole_records_and_then_an_error() -> None:
    """Whatever the length, what is whole is read; the rest is one record that says that it is truncated."""
    whole = scanned(SMALL)
    expected = samples(SMALL)

    for length in range(len(SMALL)):
        data = SMALL[:length]
        found = scanned(data)
        form = TFRecordFormat(whole.fields, **whole.facts)
        records = spans(data, found)
        rest = len(records) - found.wholes

        assert found.wholes == sum(end <= length for end in whole.ends.tolist())
        assert rest == (length not in (0, *whole.ends.tolist()))
        assert [decoded(form, record) for record in records[: found.wholes]] == expected[: found.wholes]
        for record in records[found.wholes :]:
            with pytest.raises(ShardError, match="truncated"):
                form.split(record)


def test_any_flipped_bit_is_an_error_or_changes_nothing() -> None:
    """One bit of each byte is flipped in turn: a record is right, or a typed error; never other data."""
    whole = scanned(SMALL)
    form = TFRecordFormat(whole.fields, **whole.facts)
    expected = samples(SMALL)

    for place in range(len(SMALL)):
        data = bytearray(SMALL)
        data[place] ^= 1 << place % 8
        outcomes = read_what_is_there(bytes(data), form)

        right = [sample for sample in outcomes if not isinstance(sample, AioloadError)]
        assert len(right) < len(expected)
        assert all(sample in expected for sample in right)
        assert any(isinstance(outcome, ShardError) for outcome in outcomes)


def read_what_is_there(data: bytes, form: TFRecordFormat) -> list[Any]:
    """Read all records of a file, errors in the place of those that cannot be read."""
    try:
        records = spans(data, scanned(data))
    except ShardError as error:
        return [error]

    outcomes: list[Any] = []
    for record in records:
        try:
            outcomes.append(decoded(form, record))
        except AioloadError as error:
            outcomes.append(error)
    return outcomes


@given(data=st.binary(max_size=60))
@case(data=b"")
def test_any_bytes_are_refused_or_scanned(data: bytes) -> None:
    """Random bytes are no TFRecord file, and never anything but a typed error."""
    outcomes = read_what_is_there(data, TFRecordFormat((("data", "bytes"),), payload="bytes"))

    assert outcomes == [] if not data else all(isinstance(outcome, ShardError) for outcome in outcomes)


@given(place=st.integers(0, 400), bits=st.integers(1, 255), size=st.none() | st.integers(0, 400))
def test_damage_behind_right_sums_is_a_typed_error(place: int, bits: int, size: int | None) -> None:
    """Where a writer summed damaged bytes: values or typed errors, and nothing else."""
    steps = [feature("int64", [1, -1]), feature("int64", [2], packed=False)]
    context = {"a": feature("bytes", [b"x", b"yz"]), "b": feature("float", [1.5] * 9)}
    record = bytearray(sequence(context, {"c": steps})[:size])
    if record:
        record[place % len(record)] ^= bits

    asked = {"a": "example:bytes", "b": "example:float", "c": "example:list:int64"}
    form = TFRecordFormat(
        tuple((name, "bytes" if name == "a" else "ndarray") for name in asked), asked, "sequence"
    )

    for outcome in read_what_is_there(framed(bytes(record)), form):
        assert isinstance(outcome, (dict, SampleError, ShardError))


def test_heads_of_large_records_are_read_by_hops() -> None:
    """Of a file of large records little more than the heads is read."""
    data = framed(*(bytes(1 << 20) for _ in range(10)))
    read: list[int] = []
    scanner = scan(len(data), "x", payload="bytes")

    found = None
    start, stop = next(scanner)
    while found is None:
        read.append(stop - start)
        try:
            start, stop = scanner.send(memoryview(data)[start:stop])
        except StopIteration as end:
            found = end.value

    assert len(found.ends) == 10
    assert sum(read) < len(data) / 10


def test_a_length_beyond_the_file_allocates_nothing() -> None:
    """A length of 2^63 bytes with a right sum is a truncated record."""
    head = struct.pack("<Q", 1 << 63)
    data = SMALL + head + masked(head) + bytes(100)

    found = scanned(data)
    form = TFRecordFormat(found.fields, **found.facts)

    assert found.wholes == 3
    with pytest.raises(ShardError, match="truncated"):
        form.split(spans(data, found)[-1])


def test_fields_are_told_by_the_first_record_that_is_whole_and_has_some() -> None:
    """Neither an example without features nor a damaged record keeps a shard from being read."""
    empty, damaged = framed(b"", example()), bytearray(SMALL[: scanned(SMALL).ends[0]])
    damaged[20] ^= 1

    found = scanned(empty + bytes(damaged) + SMALL)

    assert found.fields == scanned(SMALL).fields
    assert found.facts["payload"] == "example"


def test_fields_come_sorted_whatever_their_order_in_the_record() -> None:
    """Two shards whose writer wrote the same map in another order have the same fields."""
    one, other = feature("int64", [1]), feature("float", [1.0])

    found = scanned(framed(example(b=one, a=other)))

    assert (
        found.fields
        == scanned(framed(example(a=other, b=one))).fields
        == (("a", "ndarray"), ("b", "ndarray"))
    )


@pytest.mark.parametrize(
    ("records", "fields", "payload"),
    [
        ([], (), "example"),
        ([b""], (("data", "bytes"),), "bytes"),
        ([b"text"], (("data", "bytes"),), "bytes"),
        ([example(x=feature("", []))], (("data", "bytes"),), "bytes"),
        ([example(x=feature("int64", []))], (("x", "ndarray"),), "example"),
        ([sequence({}, {"x": []})], (("x", "bytes"),), "sequence"),
        ([example(x=feature("int64", [1])) + member(9, b"unknown")], (("data", "bytes"),), "bytes"),
    ],
)
def test_what_a_record_holds_is_told_strictly(
    records: list[bytes], fields: tuple[tuple[str, str], ...], payload: str
) -> None:
    """An example holds features and nothing unknown; all else is bytes."""
    found = scanned(framed(*records))

    assert (found.fields, found.facts["payload"]) == (fields, payload)


def test_names_that_no_field_can_have_are_passed_over() -> None:
    """Line breaks, nothing at all and the key's own name make no field; the others are read."""
    data = framed(
        example(**{"a\nb": feature("int64", [1]), "__key__": feature("bytes", [b"k"])})
        + member(1, entry("", feature("int64", [2])) + entry("größe", feature("int64", [3])))
    )

    assert plain(samples(data)) == [{"größe": [3]}]


def test_a_payload_that_is_asked_for_is_held_to() -> None:
    """Asked to be examples, other bytes are an error with its place; examples may be asked for as bytes."""
    text = framed(b"no example")

    with pytest.raises(ShardError, match=r"record 0 of x\.tfrecord.*payload 'example'") as caught:
        scanned(text, payload="example")
    as_bytes = scanned(SMALL, payload="bytes")

    assert (caught.value.record, caught.value.offset) == (0, 0)
    assert as_bytes.fields == (("data", "bytes"),)
    with pytest.raises(ConfigError, match="'examples'"):
        scanned(text, payload="examples")


def test_kinds_can_be_said() -> None:
    """A field is what the user says it is: one number, text, JSON, an array's file, or a list."""
    npy = io.BytesIO()
    np.save(npy, np.eye(2))
    data = framed(
        example(
            n=feature("int64", [-(2**63)]),
            x=feature("float", [0.1]),
            t=feature("bytes", ["ü".encode()]),
            j=feature("bytes", [b"[1]"]),
            a=feature("bytes", [npy.getvalue()]),
            many=feature("int64", [5]),
            b=feature("bytes", [b"one"]),
        )
    )
    kinds = {"n": "int", "x": "float", "t": "str", "j": "json", "a": "ndarray", "many": "ndarray"}

    (sample,) = samples(data, {**kinds, "b": "example:bytes"})

    assert (sample["n"], sample["t"], sample["j"], sample["b"]) == (-(2**63), "ü", [1], [b"one"])
    assert sample["x"] == float(np.float32(0.1))
    assert (sample["a"] == np.eye(2)).all()
    assert sample["many"].tolist() == [5]


def test_values_are_views_of_the_record() -> None:
    """An image's bytes and packed floats are not copied."""
    data = framed(
        example(image=feature("bytes", [b"\xff\xd8\xff" + bytes(999)]), x=feature("float", [1.0, 2.0]))
    )
    found = scanned(data)
    form = TFRecordFormat(found.fields, **found.facts)

    values = form.split(memoryview(data))[1]

    assert np.shares_memory(np.frombuffer(values["image"], np.uint8), np.frombuffer(data, np.uint8))
    assert np.shares_memory(for_encoding("example:float")(values["x"]), np.frombuffer(data, np.uint8))


@pytest.mark.parametrize(
    ("kind", "values", "asked"),
    [
        ("int64", [1, 2], "int"),
        ("int64", [], "int"),
        ("float", [1.0, 2.0], "float"),
        ("bytes", [b"a", b"b"], "bytes"),
        ("bytes", [], "str"),
        ("float", [1.0], "int"),
        ("int64", [1], "example:float"),
        ("bytes", [b"a"], "example:int64"),
    ],
)
def test_another_number_of_values_or_another_kind_is_an_error(
    kind: str, values: list[Any], asked: str
) -> None:
    """Where one value is asked for there must be one, of that kind: the error names the field."""
    data = framed(example(field=feature(kind, values)))

    with pytest.raises(SampleError, match=r"'field' holds .* not .*fields=") as caught:
        samples(data, {"field": asked})

    assert caught.value.field == "field"


def test_an_absent_field_is_an_error_that_lists_what_is_there() -> None:
    """No record is ever filled up with None; a feature without a kind is absent too."""
    data = framed(
        example(a=feature("int64", [1]), b=feature("int64", [2])), example(a=feature("int64", [1]), b=b"")
    )

    with pytest.raises(SampleError, match=r"'b'; it has a, b; ask for fields") as caught:
        samples(data)

    assert caught.value.features == ["a", "b"]  # type: ignore[attr-defined] - a fact


def test_optional_fields_are_absent_and_not_empty() -> None:
    """A feature or feature list that a record lacks, or that has no kind, is told from one of no values."""
    data = framed(
        sequence(
            {"here": feature("int64", []), "blank": feature("bytes", [b""]), "none": b""},
            {"steps": [], "more": [feature("int64", [1])]},
        )
    )
    kinds = {"here": "example:int64", "blank": "str", "none": "int", "gone": "float"}
    kinds |= {"steps": "example:list:int64", "lost": "example:list"}
    found = scanned(data)
    asked = TFRecordFormat(found.fields, **found.facts).with_kinds(kinds)
    form = TFRecordFormat(asked.fields, asked.encodings, asked.payload, optional=frozenset(kinds))

    values = form.split(memoryview(data))[1]

    assert {name for name in kinds if values[name] is ABSENT} == {"none", "gone", "lost"}
    assert len(values["blank"]) == len(values["steps"]) == 0


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (((("x", "bytes"),), {}, "examples"), {}),
        (((("x", "bytes"),), {"x": "example:int64"}), {}),
        (((("x", "bytes"),), {"x": "mds:str"}), {}),
        (((("x", "bytes"),), {"y": "example:bytes"}), {}),
        (((("x", "bytes"),), {"x": "example:list:bytes"}), {}),
        (((("x", "bytes"),), {}, "bytes"), {}),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Payload, fields and encodings are checked when a format is made."""
    with pytest.raises(ConfigError):
        TFRecordFormat(*arguments, **options)


def test_a_format_travels_to_workers() -> None:
    """A copy made by pickle is equal, and splits alike."""
    found = scanned(SMALL)
    form = TFRecordFormat(found.fields, **found.facts, optional=frozenset({"label"})).with_kinds(
        {"label": "example:int64"}
    )

    again = pickle.loads(pickle.dumps(form))

    assert again == form
    assert hash(again) == hash(form)
    assert [decoded(again, record) for record in spans(SMALL, found)] == samples(SMALL)
    assert again.split(memoryview(framed(example(image=feature("bytes", [b""])))))[1]["label"] is ABSENT


def test_a_record_of_another_size_than_the_index_says_is_an_error() -> None:
    """An index of another file does not give one record the bytes of two."""
    found = scanned(SMALL)
    form = TFRecordFormat(found.fields, **found.facts)

    with pytest.raises(ShardError, match="index"):
        form.split(memoryview(SMALL)[: found.ends[1]])
