"""Packed samples: what comes back is what was kept, to the last bit, and nothing else comes."""

from __future__ import annotations

import os
import pickle
from typing import Any

import google_crc32c
import numpy as np
import pytest
import torch
from batches import plain
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aioload.cache.packed import Packed, Packer, Unkeepable, unpack

ARRAYS = hnp.arrays(
    st.one_of(
        hnp.boolean_dtypes(),
        hnp.integer_dtypes(endianness="?"),
        hnp.floating_dtypes(endianness="?"),
        hnp.complex_number_dtypes(),
        hnp.datetime64_dtypes(),
        hnp.unicode_string_dtypes(),
        hnp.byte_string_dtypes(),
    ),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)
SCALARS = hnp.arrays(hnp.floating_dtypes(), ()).map(lambda array: array[()])
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), ARRAYS, SCALARS
)
SAMPLES = st.dictionaries(
    st.text(),
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            st.lists(inner),
            st.lists(inner).map(tuple),
            st.dictionaries(st.one_of(st.text(), st.integers()), inner),
        ),
        max_leaves=8,
    ),
)


def told(value: Any) -> Any:
    """Make a value comparable with `==`, classes, NaNs and signs of zeros included."""
    if isinstance(value, np.generic):
        return type(value), value.dtype.str, value.tobytes()
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return dict, [(told(name), told(item)) for name, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [told(item) for item in value]
    return type(value), repr(value)


def pack(sample: Any, key: str | None = None, seconds: float = 0) -> Packed:
    """Pack a sample that no other came before."""
    return Packer().pack(sample, key, seconds)


def joined(packed: Packed) -> np.ndarray:
    """Return pieces as they are read back: one behind the other, to be written to."""
    data = np.frombuffer(bytearray().join(packed.pieces), np.uint8)
    assert (packed.size, packed.sum) == (len(data), google_crc32c.value(data))
    return data


def packed(sample: Any, key: str | None = None, seconds: float = 0) -> np.ndarray:
    """Return a sample's bytes."""
    return joined(pack(sample, key, seconds))


@given(SAMPLES, st.none() | st.text(), st.floats(0, 1000, width=32))
def test_what_was_kept_comes_back(sample: dict[str, Any], key: str | None, seconds: float) -> None:
    """Values, their types, the key and what it cost are the same afterwards."""
    kept = unpack(packed(sample, key, seconds))

    assert (told(kept.sample), kept.key, kept.seconds) == (told(sample), key, seconds)


class Named(str):
    """More than its text."""


LIKE = {
    "int": st.integers(),
    "float": st.floats(),
    "bool": st.booleans(),
    "none": st.none(),
    "text": st.text(),
    "array": hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)),
    "other": ARRAYS,
}  # of one of these kinds samples look alike, and with the last one now and then not


@given(
    st.lists(st.tuples(st.text(), st.sampled_from(list(LIKE))), max_size=5, unique_by=lambda field: field[0]),
    st.data(),
)
def test_what_looks_like_the_one_before_is_packed_as_if_alone(
    fields: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Samples of the same fields, and some that are not quite so, are the same bytes whatever came before."""
    packer = Packer()
    for _ in range(3):
        sample = {name: data.draw(LIKE[kind]) for name, kind in fields}
        if data.draw(st.integers(0, 4)) == 0:
            sample |= data.draw(SAMPLES)

        assert joined(packer.pack(sample, None, 0)).tolist() == packed(sample).tolist()


def unlike() -> dict[str, dict[str, Any]]:
    """Return samples that look nearly like one of an array and a number."""
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    return {
        "view": {"x": whole[:, 1:], "n": 1},
        "turned": {"x": whole.T, "n": 1},
        "dtype": {"x": whole.astype(np.float64), "n": 1},
        "byte order": {"x": whole.astype(">f4"), "n": 1},
        "class": {"x": whole.view(np.ma.MaskedArray)[0, 0], "n": 1},
        "bool": {"x": whole, "n": True},
        "order": {"n": 1, "x": whole},
        "names": {"x": whole, "m": 1},
        "more": {"x": whole, "n": 1, "more": 2},
        "fewer": {"x": whole},
        "none": {},
        "no dict": [whole, 1],  # type: ignore[dict-item]  # what nobody should pass
    }


@pytest.mark.parametrize("sample", unlike().values(), ids=unlike())
def test_what_does_not_look_alike_is_described_by_itself(sample: dict[str, Any]) -> None:
    """A sample that differs from the one before is what it is."""
    packer = Packer()
    packer.pack({"x": np.zeros((3, 3), np.float32), "n": 0}, None, 0)

    assert joined(packer.pack(sample, None, 0)).tolist() == packed(sample).tolist()


@pytest.mark.parametrize("kind", ["float32", ">f4", "bool", "complex64"])
def test_what_looks_alike_is_not_described_anew(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first of samples that look alike is, of any shape, and where dtypes came through a pickle."""
    array = np.zeros((3, 3), kind)
    travelled = pickle.loads(pickle.dumps(array.dtype))
    packer = Packer()
    packer.pack({"x": array, "n": 0, "text": "a"}, None, 0)
    monkeypatch.delattr("aioload.cache.packed.Description")

    for other in (array, np.zeros((0, 2), kind), np.zeros((), travelled)):
        found = packer.pack({"x": other, "n": 7, "text": "bé"}, None, 0)
        assert told(unpack(joined(found)).sample) == told({"x": other, "n": 7, "text": "bé"})


def test_arrays_that_look_alike_may_still_be_one() -> None:
    """One array under two names, and two that overlap, are seen behind samples in which they were apart."""
    packer, whole = Packer(), np.zeros(6)
    packer.pack({"a": np.zeros(3), "b": np.zeros(3)}, None, 0)

    kept = unpack(joined(packer.pack({"a": whole, "b": whole}, None, 0))).sample

    assert kept["a"] is kept["b"]
    with pytest.raises(Unkeepable, match="copy it"):
        packer.pack({"a": whole[:3], "b": whole[1:4]}, None, 0)


@pytest.mark.parametrize(
    "sample",
    [{"x": np.zeros(3, np.dtype("f8", metadata={"unit": "m"}))}, {Named("x"): np.zeros(3)}, {"x": Named()}],
    ids=["metadata", "name", "value"],
)
def test_what_compares_equal_and_is_more_is_refused(sample: dict[str, Any]) -> None:
    """What holds more than its values is seen behind a sample that looks the same."""
    packer = Packer()
    packer.pack({"x": np.zeros(3)}, None, 0)

    with pytest.raises(Unkeepable, match="is a "):
        packer.pack(sample, None, 0)


def test_many_values_are_written_in_one_call() -> None:
    """The system takes so many buffers at a time and no more; a sample of more values is one piece."""
    sample = {str(number): np.full(3, number) for number in range(600)}

    found = pack(sample)

    assert len(found.pieces) <= os.sysconf("SC_IOV_MAX")
    assert told(unpack(joined(found)).sample) == told(sample)


@given(ARRAYS, st.randoms())
def test_arrays_lie_as_they_lay(array: np.ndarray, random: Any) -> None:
    """An array whose axes were changed comes back with its axes in the same order in memory."""
    axes = list(range(array.ndim))
    random.shuffle(axes)
    turned = array.transpose(axes)

    kept = unpack(packed({"x": turned}, None, 0)).sample["x"]

    assert kept.tobytes() == turned.tobytes()
    assert kept.strides == turned.strides or not array.size or 1 in array.shape


def views() -> dict[str, np.ndarray]:
    """Return arrays that lie over others: crops, mirrored, turned, repeated."""
    whole = np.random.default_rng(0).random((60, 50, 3), np.float32)
    return {
        "crop": whole[10:53, 5:37],
        "mirrored": whole[:, ::-1],
        "channels": whole[..., ::-1],
        "channel": whole[:, :, 1],
        "turned crop": whole.transpose(2, 0, 1)[:, ::-1, 4:40],
        "every other": whole[::2, ::3],
        "repeated": np.broadcast_to(whole[0], (4, 50, 3)),
    }


@pytest.mark.parametrize("view", views().values(), ids=views())
def test_a_view_comes_back_as_a_view(view: np.ndarray) -> None:
    """Sums over what was cropped, mirrored or turned are the same to the last bit, and room stays little."""
    data = packed({"x": view}, None, 0)

    kept = unpack(data).sample["x"]

    assert kept.tobytes() == view.tobytes()
    assert np.argsort(np.abs(kept.strides)).tolist() == np.argsort(np.abs(view.strides)).tolist()
    assert np.sign(kept.strides).tolist() == np.sign(view.strides).tolist()
    assert kept.flags.c_contiguous == view.flags.c_contiguous
    assert (kept.sum(), kept.std()) == (view.sum(), view.std())
    assert len(data) < 2.5 * view.nbytes


def test_one_array_of_two_names_stays_one() -> None:
    """A transform that writes to an array that has two names changes both, as without a cache."""
    array, tensor = np.zeros(3), torch.zeros(3)
    sample = {"a": array, "b": [b"x", array], "c": tensor, "d": tensor}

    kept = unpack(packed(sample, None, 0)).sample
    kept["a"] += 1
    kept["d"] += 2

    assert (kept["b"][1].tolist(), kept["c"].tolist()) == ([1, 1, 1], [2, 2, 2])


def overlapping() -> dict[str, list[Any]]:
    """Return values that have memory in common in part."""
    array, tensor, many = np.zeros(9), torch.zeros(9), [1]
    return {
        "part": [array, array[3:]],
        "whole": [array[4:5], array],
        "columns": [array.reshape(3, 3)[:, 0], array.reshape(3, 3)[:, 1], array[:1]],
        "tensors": [tensor[:5], tensor[4:]],
        "both": [torch.from_numpy(array), array],
        "lists": [many, many],
    }


@pytest.mark.parametrize("values", overlapping().values(), ids=overlapping())
def test_what_shares_memory_in_part_is_not_kept(values: list[Any]) -> None:
    """What a transform writes to one of them would change the other only until they are kept: refused."""
    with pytest.raises(Unkeepable, match=r"sample\['x'\]\[[12]\] .*copy it"):
        pack({"x": values}, None, 0)


def test_parts_side_by_side_are_kept() -> None:
    """Pieces and columns of one array have no memory in common, and come back."""
    whole = np.arange(12.0).reshape(4, 3)
    sample = {"halves": [whole[:2], whole[2:]]}
    columns = {"columns": [whole[:, 0], whole[:, 1], whole[:, 2]]}

    assert told(unpack(packed(sample, None, 0)).sample) == told(sample)
    assert told(unpack(packed(columns, None, 0)).sample) == told(columns)


def test_tensors_come_back_as_tensors() -> None:
    """Plain tensors of any dtype are kept, those that are empty or whose axes were changed included."""
    sample = {
        "a": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "b": torch.zeros(0, 3),
        "c": torch.rand(4, 5, 3).permute(2, 0, 1),
        "d": torch.rand(9, 9)[2:5, 3:7],
        "e": torch.rand(3).expand(2, 3),
    }

    kept = unpack(packed(sample, None, 0)).sample

    assert plain(kept) == plain(sample)
    assert [kept[name].is_contiguous() for name in "cde"] == [False] * 3


def test_arrays_may_be_written_to() -> None:
    """What comes back is as much the transform's own as what `prepare` returned."""
    kept = unpack(packed({"x": np.zeros(3)}, None, 0)).sample

    kept["x"] += 1

    assert kept["x"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        object(),
        Named("x"),
        np.array([object()]),
        np.zeros(2, [("a", "<i4")]),
        np.ma.zeros(2),
        torch.zeros(2, requires_grad=True),
    ],
    ids=["set", "object", "subclass", "objects", "records", "masked", "gradient"],
)
def test_what_is_more_than_its_values_is_not_kept(value: Any) -> None:
    """Nothing is pickled, and nothing comes back as something else: such samples are refused, by name."""
    sample = {"good": 1, "deep": [value]}

    with pytest.raises(Unkeepable, match=r"sample\['deep'\]\[0\] is a "):
        pack(sample, None, 0)


@given(st.binary(min_size=1, max_size=200))
def test_other_bytes_are_no_sample(data: bytes) -> None:
    """Bytes that nobody packed are an error that the caller knows, and never a sample."""
    raw = np.frombuffer(data.ljust(64, b"\0"), np.uint8)

    with pytest.raises(ValueError):  # noqa: PT011 - it is a JSON error where the head happens to be right
        unpack(raw)


def test_no_description_makes_objects_of_bytes() -> None:
    """A dtype whose values are addresses is refused, whoever wrote it and however right its sum is."""
    data = packed({"x": np.zeros(2)}, None, 0)
    at = data.tobytes().index(b"<f8")
    data[at : at + 3] = np.frombuffer(b"|O8", np.uint8)

    with pytest.raises(ValueError, match="no dtype of a packed sample"):
        unpack(data)
