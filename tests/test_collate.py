"""Collating: torch's rules, whatever the order of the samples; errors that name field and records."""

from __future__ import annotations

import itertools
import pickle
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

import aioload
from aioload import collate
from aioload.errors import ConfigError, SampleError
from aioload.tree import flatten

Point = namedtuple("Point", ["x", "y"])

DTYPES = [
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
PAIRS = list(itertools.combinations_with_replacement(DTYPES, 2))
TORCH_DTYPES = [*DTYPES, "bfloat16"]


class Colour(StrEnum):
    """Text that prints in another way than it reads."""

    RED = "red"


@dataclass(slots=True)
class Sample:
    """A sample that is no dict."""

    image: Any
    label: Any


def plain(batch: Any) -> Any:
    """Make a batch comparable: class, dtype and values of each leaf."""
    if isinstance(batch, torch.Tensor):
        return "leaf", str(batch.dtype), batch.tolist()
    if isinstance(batch, np.ndarray):
        return "leaf", f"torch.{batch.dtype}", batch.tolist()
    if isinstance(batch, dict):
        return type(batch), [(key, plain(value)) for key, value in batch.items()]
    if isinstance(batch, list | tuple) and not all(isinstance(part, str | bytes) for part in batch):
        return type(batch), [plain(part) for part in batch]
    return list(batch)


def promoted(first: str, second: str) -> str:
    """Ask torch; an empty name where it refuses."""
    try:
        return str(torch.promote_types(getattr(torch, first), getattr(torch, second))).removeprefix("torch.")
    except RuntimeError:
        return ""


def as_torch(value: Any) -> Any:
    """Make a tensor of an array."""
    return torch.from_numpy(value)


@pytest.mark.parametrize(
    "samples",
    [
        [{"x": np.arange(6, dtype=np.float32).reshape(2, 3) + i, "y": i} for i in range(3)],
        [{"x": 1.5 * i, "y": i % 2 == 0, "z": "text"} for i in range(3)],
        [{"meta": {"a": [i, i + 1.0], "b": (i, "s")}, "c": b"bytes"} for i in range(3)],
        [Point(np.float32(i), Point(i, [i])) for i in range(3)],
        [[i, (i, {"a": i})] for i in range(3)],
        [OrderedDict(b=i, a=np.int16(i)) for i in range(3)],
        [{"x": torch.full((2,), i, dtype=torch.bfloat16), "y": torch.tensor(i)} for i in range(3)],
        [{"x": np.zeros((0, 4), np.uint8), "e": {}, "f": []}] * 2,
        [{"x": np.bool_(True), "y": np.float16(1), "z": np.int8(7)}] * 2,
        [np.ones((2, 2), np.complex64)] * 2,
        [1, 2, 3],
        [1.0, 2.0],
        [True, False],
        ["a", "b"],
        [b"a", b"b"],
        [{"x": np.array(5, np.int8)}],
    ],
    ids=lambda samples: str(samples[0])[:40],
)
def test_default_does_as_torch_does(samples: list[Any]) -> None:
    """Make, dtypes and values are those of torch's own default_collate."""
    expected = default_collate(samples)

    batch = collate.default(samples)

    assert plain(batch) == plain(expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_c01_uniform_dtypes_are_kept(dtype: str) -> None:
    """C01: arrays and numpy scalars of one dtype give a batch of that dtype."""
    samples = [{"x": np.ones(2, dtype), "y": np.dtype(dtype).type(1)}] * 3

    batch = collate.default(samples)

    assert batch["x"].dtype == batch["y"].dtype == np.dtype(dtype)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_c01_mixed_dtypes_promote_as_in_torch(first: str, second: str) -> None:
    """C01: two dtypes give what torch.promote_types says, in both orders; what it refuses is an error."""
    arrays = [np.ones(2, first), np.ones(2, second)]
    expected = promoted(first, second)

    found = {_dtype_or_refusal(order) for order in itertools.permutations(arrays)}

    assert found == {expected}


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(TORCH_DTYPES, 2)))
def test_c01_mixed_tensors_promote_as_in_torch(first: str, second: str) -> None:
    """C01: the same for tensors, bfloat16 among them."""
    tensors = [torch.ones(2, dtype=getattr(torch, first)), torch.ones(2, dtype=getattr(torch, second))]
    expected = promoted(first, second)

    found = {_dtype_or_refusal(order) for order in itertools.permutations(tensors)}

    assert found == {expected}


@given(dtypes=st.lists(st.sampled_from(DTYPES), min_size=2, max_size=4))
def test_c01_dtype_does_not_depend_on_the_order(dtypes: list[str]) -> None:
    """C01: every order of the samples gives the same dtype, or the same refusal; so do arrays and tensors."""
    arrays = [np.ones(2, dtype) for dtype in dtypes]

    found = {_dtype_or_refusal(order) for order in itertools.permutations(arrays)}
    of_tensors = {_dtype_or_refusal(order) for order in itertools.permutations(map(as_torch, arrays))}

    assert len(found) == 1
    assert of_tensors == found


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2.5], "float64"),
        ([True, 2], "int64"),
        ([True, 2, 0.5], "float64"),
        ([np.float32(1), 2], "float32"),
        ([np.float32(1), 2.0], "float64"),
        ([np.uint8(1), True], "uint8"),
        ([np.array(1, np.int16), 2], "int64"),
    ],
)
def test_c01_numbers_of_several_classes_promote(values: list[Any], dtype: str) -> None:
    """C01: Python numbers count as bool, int64 and float64, whoever comes first."""
    batches = [collate.default(list(order)) for order in itertools.permutations(values)]

    assert {str(batch.dtype) for batch in batches} == {dtype}
    assert {tuple(sorted(batch.tolist())) for batch in batches} == {tuple(sorted(map(float, values)))}


def test_c01_refused_dtypes_are_named() -> None:
    """C01: an error over dtypes names the field, both dtypes and a record of each."""
    samples = [{"meta": {"x": np.ones(2, dtype)}} for dtype in ("int32", "int32", "uint16")]

    with pytest.raises(SampleError, match=r"'meta\.x'.*int32 with uint16.*record 'a', record 'c'") as caught:
        collate.default(samples, keys=["a", "b", "c"])

    assert caught.value.field == "meta.x"
    assert caught.value.dtypes == ["int32", "uint16"]


@pytest.mark.parametrize("value", [np.array("text"), np.array(None), np.datetime64("2020-01-01"), {1}, 1j])
def test_values_without_a_place_in_a_batch_are_refused(value: Any) -> None:
    """Text arrays, objects, dates, sets: each an error that names the field."""
    samples = [{"x": value}] * 2

    with pytest.raises(SampleError, match="field 'x'"):
        collate.default(samples)


def test_other_byte_orders_become_native() -> None:
    """Arrays of the other byte order stack into ones that torch can take."""
    samples = [{"x": np.arange(3, dtype=">i4")}, {"x": np.arange(3, dtype="<i4")}]

    batch = collate.default(samples)

    assert batch["x"].dtype.isnative
    assert batch["x"].tolist() == [[0, 1, 2]] * 2


def test_integers_beyond_64_bits_are_refused() -> None:
    """A Python integer that no int64 holds is an error at its record."""
    samples = [{"x": 1}, {"x": 2**63}]

    with pytest.raises(SampleError, match=r"64 bits \(record 'b'\)"):
        collate.default(samples, keys=["a", "b"])


def test_c02_none_is_named_by_field_and_record() -> None:
    """C02: None deep in one sample is an error with its path and its record's key, and the way out."""
    samples: list[Any] = [{"__key__": key, "meta": {"id": i}} for i, key in enumerate("abc")]
    samples[1]["meta"]["id"] = None

    with pytest.raises(SampleError, match=r"'meta\.id': it is None \(record 'b'\).*as_list") as caught:
        collate.default(samples)

    assert caught.value.field == "meta.id"
    assert caught.value.records == ("record 'b'",)


def test_c02_none_in_place_of_a_container_is_named() -> None:
    """C02: None where other samples have a list is the same kind of error."""
    samples = [{"boxes": [1, 2]}, {"boxes": None}]

    with pytest.raises(SampleError, match=r"'boxes': it is a list of 2 in sample 0 .* but None in sample 1"):
        collate.default(samples)


def test_c02_text_and_bytes_become_lists_in_order() -> None:
    """C02: str, np.str_, enums of text and bytes come out as lists of plain text and bytes."""
    samples = [
        {"s": "a", "b": b"a"},
        {"s": np.str_("b"), "b": np.bytes_(b"b")},
        {"s": Colour.RED, "b": bytearray(b"c")},
    ]

    batch = collate.default(samples)

    assert batch == {"s": ["a", "b", "red"], "b": [b"a", b"b", b"c"]}
    assert {type(text) for text in batch["s"]} == {str}
    assert {type(data) for data in batch["b"]} == {bytes}


def test_c02_none_is_kept_where_a_list_is_asked_for() -> None:
    """C02: as_list for a field takes whatever is in it."""
    samples = [{"x": 1, "note": None}, {"x": 2, "note": "text"}]

    batch = collate.by_field({"note": collate.as_list})(samples)

    assert batch["note"] == [None, "text"]
    assert batch["x"].tolist() == [1, 2]


def test_c04_different_shapes_are_named() -> None:
    """C04: an error over shapes has field path, both shapes, both keys and the ways out."""
    samples = [{"meta": {"image": np.zeros((3, 4))}}, {"meta": {"image": np.zeros((3, 5))}}]

    with pytest.raises(
        SampleError, match=r"\(3, 4\) and \(3, 5\) \(record 'a', record 'b'\).*pad.*as_list"
    ) as caught:
        collate.default(samples, keys=["a", "b"])

    assert caught.value.field == "meta.image"
    assert caught.value.shapes == ((3, 4), (3, 5))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: (x, 0),
        lambda x: [0, [x]],
        lambda x: {"a": x},
        lambda x: {"a": {"b": [x]}, "c": 0},
    ],
    ids=["bare", "tuple", "list", "dict", "nested"],
)
def test_the_way_out_that_is_told_works(wrap: Callable[[Any], Any]) -> None:
    """The collate at the end of the message makes a batch of the samples that the message is about."""
    samples = [wrap(np.zeros(size)) for size in (1, 2)]

    with pytest.raises(SampleError) as caught:
        collate.default(samples)
    advised = eval(str(caught.value).rpartition("collate=")[2], {"aioload": aioload})

    assert "array([0., 0.])" in str(collate.apply(advised, samples))


def test_pictures_of_differing_sizes_are_told_of_crops() -> None:
    """Photos as they are come in many sizes: the error names the decoder that makes them alike."""
    samples = [{"jpg": np.zeros((3, 4, 3), np.uint8)}, {"jpg": np.zeros((3, 5, 3), np.uint8)}]

    with pytest.raises(
        SampleError, match=r"decode=\{…: aioload\.decode\.Image\(size=…, crop='center'\)\}.*pad"
    ):
        collate.default(samples)


def test_c04_one_sample_has_any_shape() -> None:
    """C04: a batch of one needs no agreement."""
    samples = [{"image": np.zeros((3, 5))}]

    batch = collate.default(samples)

    assert batch["image"].shape == (1, 3, 5)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12).reshape(3, 4)[::-1],
        np.arange(12).reshape(3, 4).T,
        np.arange(12).reshape(3, 4)[:, ::2],
        np.arange(4).reshape(1, 4)[::-1],
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.broadcast_to(np.arange(4), (3, 4)),
    ],
    ids=["flipped", "transposed", "sliced", "flipped one", "fortran", "broadcast"],
)
def test_c05_any_memory_order_stacks(array: np.ndarray) -> None:
    """C05: values equal np.stack whatever the strides, and the user's arrays stay as they are."""
    array.flags.writeable = False
    samples = [{"x": array}, {"x": array}]

    batch = collate.default(samples)

    assert np.array_equal(batch["x"], np.stack([array, array]))
    assert batch["x"].flags.c_contiguous


def test_key_order_does_not_matter() -> None:
    """Samples with the same keys in another order are made alike."""
    samples = [{"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 30, "c": 20}, "a": 10}]

    batch = collate.default(samples)

    assert batch["a"].tolist() == [1, 10]
    assert batch["b"]["c"].tolist() == [2, 20]
    assert batch["b"]["d"].tolist() == [3, 30]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"a": 1}, r"the samples: it is a dict with the keys \['a', 'b'\] .* \['a'\]"),
        ({"a": 1, "b": [1, 2, 3]}, r"'b': it is a list of 2 in record 'k' but a list of 3 in record 'l'"),
        ({"a": [1], "b": [1, 2]}, r"'a': it is a single value in record 'k' but a list of 1 in record 'l'"),
        ({"a": 1, "b": ["x", 2]}, r"'b\[0\]': it mixes int and str"),
    ],
)
def test_samples_made_differently_are_named(other: Any, words: str) -> None:
    """Keys, lengths and kinds that differ are errors with field path and records, not lost data."""
    samples = [{"a": 1, "b": [1, 2]}, other]

    with pytest.raises(SampleError, match=words):
        collate.default(samples, keys=["k", "l"])


def test_dataclasses_are_kept() -> None:
    """A dataclass sample becomes the same dataclass over batches."""
    samples = [Sample(np.zeros(2), i) for i in range(3)]

    batch = collate.default(samples)

    assert type(batch) is Sample
    assert batch.image.shape == (3, 2)
    assert batch.label.tolist() == [0, 1, 2]


def test_no_samples_are_an_error() -> None:
    """There is no batch of nothing."""
    with pytest.raises(SampleError, match="at least one"):
        collate.default([])


def test_tensors_take_arrays_in() -> None:
    """A field of tensors and arrays becomes a tensor, whoever comes first."""
    values = [torch.ones(3), np.ones(3, np.int16)[::-1]]

    batches = [collate.default(list(order)) for order in itertools.permutations(values)]

    assert [batch.dtype for batch in batches] == [torch.float32] * 2
    assert [batch.tolist() for batch in batches] == [[[1.0] * 3] * 2] * 2


def test_sparse_tensors_are_refused() -> None:
    """What has no dense batch is an error that names the field."""
    samples = [{"x": torch.eye(2).to_sparse()}] * 2

    with pytest.raises(SampleError, match="field 'x'"):
        collate.default(samples)


def test_errors_cross_process_borders() -> None:
    """A collate error pickles with all its facts."""
    with pytest.raises(SampleError) as caught:
        collate.default([{"x": np.zeros(1)}, {"x": np.zeros(2)}])

    again = pickle.loads(pickle.dumps(caught.value))

    assert str(again) == str(caught.value)
    assert again.shapes == ((1,), (2,))


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (np.zeros(1), "array"),
        (np.float64(1), "array"),
        (np.bool_(1), "array"),
        (True, "bool"),
        (1, "int"),
        (1.0, "float"),
        ("a", "text"),
        (np.str_("a"), "text"),
        (b"a", "bytes"),
        (memoryview(b"a"), "bytes"),
        (torch.ones(1), "tensor"),
        (torch.nn.Parameter(torch.ones(1)), "tensor"),
        (None, "object"),
        (np.datetime64(0, "s"), "object"),
    ],
)
def test_the_rule_of_a_value_is_told_by_its_class(value: Any, rule: str) -> None:
    """Whoever lays a batch out asks for the rule that stacking will follow."""
    assert collate.leaf_rule(value) == rule


def test_stack_writes_into_given_memory() -> None:
    """With `out`, arrays and numbers go straight to their place."""
    room = np.full((2, 3), -1, np.float32)

    result = collate.stack([np.ones(3, np.float32), np.zeros(3, np.float32)], out=room)

    assert result is room
    assert room.tolist() == [[1, 1, 1], [0, 0, 0]]


def test_stack_writes_tensors_into_given_memory() -> None:
    """With `out`, tensors go straight to their place, too."""
    room = torch.zeros((2, 3), dtype=torch.bfloat16)

    result = collate.stack([torch.ones(3, dtype=torch.bfloat16)] * 2, out=room)

    assert result is room
    assert room.sum() == 6


@pytest.mark.parametrize(
    "room", [np.zeros((2, 3), np.float64), np.zeros((3, 3), np.float32), np.zeros(2, np.float32)]
)
def test_stack_refuses_room_that_does_not_fit(room: np.ndarray) -> None:
    """Nothing is cast or cut to fit the given memory."""
    values = [np.ones(3, np.float32)] * 2

    with pytest.raises(ValueError, match="out is"):
        collate.stack(values, out=room)


def test_describe_tells_what_stack_will_make() -> None:
    """Rule, dtype and shape are known before any memory is taken."""
    column = collate.describe([np.zeros((2, 3), np.uint8), np.zeros((2, 3), np.int8)])

    assert column == collate.Column("array", np.dtype("int16"), (2, 3))


def test_pad_fills_the_end_of_each_axis() -> None:
    """Values stand in the low corner, padding behind them."""
    samples = [{"x": np.ones((1, 3), np.int32), "y": 1}, {"x": np.ones((2, 2), np.int32), "y": 2}]

    batch = collate.pad(value=-1)(samples)

    assert batch["x"].tolist() == [[[1, 1, 1], [-1, -1, -1]], [[1, 1, -1], [1, 1, -1]]]
    assert batch["x"].dtype == np.int32
    assert batch["y"].tolist() == [1, 2]


def test_pad_takes_a_value_per_field() -> None:
    """Fields may be padded with values of their own, named by path."""
    samples = [{"a": np.ones(n), "meta": {"b": np.ones(n)}} for n in (1, 2)]

    batch = collate.pad(value=0, fields={"meta.b": np.nan})(samples)

    assert batch["a"].tolist() == [[1, 0], [1, 1]]
    assert np.isnan(batch["meta"]["b"][0, 1])


def test_pad_adds_true_lengths() -> None:
    """The lengths of axis 0 come as int64 arrays under names of their own."""
    samples = [{"x": np.ones(n), "y": np.ones((n, 2)), "z": n} for n in (1, 3)]

    batch = collate.pad(lengths="{}_length")(samples)

    assert list(batch) == ["x", "y", "z", "x_length", "y_length"]
    assert batch["x_length"].tolist() == [1, 3]
    assert batch["x_length"].dtype == np.int64


def test_pad_pads_tensors() -> None:
    """Tensors are padded with torch and stay tensors."""
    samples = [{"x": torch.ones(n, dtype=torch.bfloat16)} for n in (1, 2)]

    batch = collate.pad()(samples)

    assert batch["x"].dtype == torch.bfloat16
    assert batch["x"].tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("dtype", "value"), [("uint8", -100), ("int16", 0.5), ("bool", 2), ("int32", float("nan"))]
)
def test_pad_refuses_values_that_do_not_fit(dtype: str, value: float) -> None:
    """Padding that would change its value in the field's dtype is an error."""
    samples = [{"x": np.ones(n, dtype)} for n in (1, 2)]

    with pytest.raises(SampleError, match=f"'x'.*{dtype} cannot hold"):
        collate.pad(value=value)(samples)


def test_pad_keeps_the_number_of_axes() -> None:
    """Arrays with another number of axes are an error with both shapes."""
    samples = [{"x": np.ones(2)}, {"x": np.ones((2, 2))}]

    with pytest.raises(SampleError, match="1 and 2") as caught:
        collate.pad()(samples)

    assert caught.value.shapes == ((2,), (2, 2))


def test_pad_checks_its_options_at_once() -> None:
    """Mistakes show when the collate is made, not in a worker."""
    with pytest.raises(ConfigError, match=r"hold \{\}"):
        collate.pad(lengths="length")
    with pytest.raises(ConfigError, match="'tokens'"):
        collate.pad(fields={"tokens": "x"})
    with pytest.raises(ConfigError, match="'tokens'"):
        collate.by_field({"tokens": collate.pad(lengths="{}_n")})


def test_lengths_overwrite_nothing() -> None:
    """A name of lengths that the samples have already is an error."""
    samples = [{"x": np.ones(2), "x_n": 1}]

    with pytest.raises(SampleError, match="overwrite the field 'x_n'"):
        collate.pad(lengths="{}_n")(samples)


def test_collates_pickle() -> None:
    """What pad and by_field make travels to workers without cloudpickle."""
    made = collate.by_field({"x": collate.pad(value=1), "y": collate.as_list})

    again = pickle.loads(pickle.dumps(made))

    assert again == made


def test_by_field_gives_each_field_its_own_collate() -> None:
    """Named fields are collated from their values, the rest by default; the order of fields stays."""
    samples = [{"a": np.ones(n), "b": n, "c": np.ones(n), "d": str(n)} for n in (1, 2)]

    batch = collate.by_field({"a": collate.as_list, "c": collate.pad(), "d": len})(samples)

    assert list(batch) == ["a", "b", "c", "d"]
    assert [array.shape for array in batch["a"]] == [(1,), (2,)]
    assert batch["b"].tolist() == [1, 2]
    assert batch["c"].shape == (2, 2)
    assert batch["d"] == 2


def test_by_field_names_absent_fields() -> None:
    """A field that a sample lacks is an error, never left out in silence."""
    samples = [{"a": 1}, {"a": 2}]

    with pytest.raises(SampleError, match=r"\['z'\] \(sample 0"):
        collate.by_field({"z": collate.as_list})(samples)


def test_errors_inside_by_field_have_the_whole_path() -> None:
    """An error of a field's own collate names the field, and the record by the key that the loader knows."""
    samples: list[Any] = [{"a": {"b": np.ones(n)}} for n in (1, 2)]

    with pytest.raises(SampleError, match=r"'a\.b'.*record 'k', record 'l'"):
        collate.apply(collate.by_field({"a": collate.default}), samples, keys=["k", "l"])


def test_users_collates_get_the_samples_alone() -> None:
    """A function of the user's is called with one argument."""
    samples = [{"a": 1}, {"a": 2}]

    batch = collate.apply(len, samples, keys=["k", "l"])

    assert batch == 2


def test_batches_of_tuples_are_lists() -> None:
    """The structure of a batch is known from that of a sample."""
    samples = [(1, {"a": (2, Point(3, (4,)))})] * 2

    structure = collate.batch_structure(flatten(samples[0])[1])

    assert structure == flatten(collate.default(samples))[1]


def _dtype_or_refusal(values: Any) -> str:
    """Return the dtype's name, or an empty one where the values are refused."""
    try:
        return str(collate.stack(list(values)).dtype).removeprefix("torch.")
    except SampleError:
        return ""
