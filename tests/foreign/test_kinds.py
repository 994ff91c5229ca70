"""Kinds: what the fields of foreign records are, from their names, and as the user says."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import foreign_sets
import numpy as np
import protos
import pytest
from conftest import png
from shard.tars import by_tarfile

from aioload import ConfigError, Dataset, Loader, SampleError, ShardError, Skip

KINDS = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"), "image"),
    **dict.fromkeys(("wav", "flac", "ogg", "mp3"), "audio"),
    "cls": "int", "txt": "str", "json": "json", "npy": "ndarray",
    **dict.fromkeys(("bin", "pickle", "pyd", "npz", "jpg2", "xjpg"), "bytes"),
    "left.jpg": "image", "jpg.meta": "bytes", "a.b.json": "json", "seg.npy": "ndarray",
}  # fmt: skip


def npy(array: Any) -> bytes:
    """Return the file of an array."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def one(folder: Path, files: dict[str, bytes], **options: Any) -> Dataset:
    """Return a set of one sample."""
    (folder / "x.tar").write_bytes(by_tarfile([(f"k.{name}", data) for name, data in files.items()]))
    return Dataset(folder / "x.tar", **options)


def test_names_tell_kinds(tmp_path: Path) -> None:
    """The last part of a name decides, in small letters as in large; what says nothing is bytes."""
    small = one(tmp_path, dict.fromkeys(KINDS, b"")).fields
    large = one(tmp_path, dict.fromkeys([name.upper() for name in KINDS], b"")).fields

    assert small == KINDS
    assert large == KINDS


def test_values_are_what_their_kinds_say(tmp_path: Path) -> None:
    """Pictures are pixels, digits numbers, text is text, JSON what it says, arrays arrays, all else bytes."""
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    files = {
        "png": png(pixels), "cls": b"-7\n", "txt": "naïve\n".encode(), "json": b'{"a": [1, null]}',
        "npy": npy(np.array([[1.5, 2.5]])), "what": b"\0\xff",
    }  # fmt: skip
    dataset = one(tmp_path, files)

    sample = dataset[0]

    assert (sample.pop("png") == pixels).all()
    assert sample.pop("npy").tolist() == [[1.5, 2.5]]
    assert sample == {
        "cls": -7, "txt": "naïve\n", "json": {"a": [1, None]}, "what": b"\0\xff", "__key__": "k"
    }  # fmt: skip


def test_kinds_can_be_said(tmp_path: Path) -> None:
    """`fields` chooses fields, their order and their kinds; decoders of the user's get the stored bytes."""
    files = {"jpg": b"no picture", "cls": b"3", "score": b"2.5e3", "txt": b'{"a": 1}'}
    dataset = one(tmp_path, files, fields={"txt": "json", "score": "float", "jpg": "bytes", "cls": "str"})

    assert list(dataset.fields) == ["txt", "score", "jpg", "cls"]
    assert dataset[0] == {
        "txt": {"a": 1}, "score": 2500.0, "jpg": b"no picture", "cls": "3", "__key__": "k"
    }  # fmt: skip
    with Loader(
        dataset,
        batch_size=1,
        num_workers=0,
        decode={"cls": bytes, "txt": "raw"},
        collate=list,
        transform=dict,
    ).sync() as batches:
        ((sample,),) = batches
    assert (sample["cls"], bytes(sample["txt"])) == (b"3", b'{"a": 1}')


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("cls", b"seven"), ("cls", b""), ("cls", b"1_0"), ("cls", b"9" * 30), ("txt", b"\xff"),
        ("json", b"{"),
        ("npy", npy(np.array([{}], object))), ("npy", b"\x93NUMPY"), ("jpg", b"\xff\xd8\xff"), ("png", b""),
    ],
)  # fmt: skip
def test_values_that_are_not_of_their_kind(tmp_path: Path, name: str, data: bytes) -> None:
    """What cannot be decoded is an error that tells where it is; pickled arrays are never unpickled."""
    dataset = one(tmp_path, {name: data})

    with pytest.raises(SampleError, match=rf"^record 0 \(key 'k', x\.tar\): field '{name}' \(") as caught:
        dataset[0]

    place = (caught.value.shard, caught.value.record, caught.value.key)
    assert (*place, caught.value.field) == ("x.tar", 0, "k", name)


def test_a_field_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    """A tar's sample, a record and a row that lack a field are typed errors with the names that there are."""
    (tmp_path / "x.tfrecord").write_bytes(foreign_sets.make_tfrecord([1]))
    folder = foreign_sets.make_mds(tmp_path / "mds", [[1]])

    for dataset in (
        one(tmp_path, {"bin": b"", "cls": b"1"}, fields={"jpg": "image"}),
        Dataset(tmp_path / "x.tfrecord", fields={"jpg": "image"}),
        Dataset(folder, fields={"jpg": "image"}),
    ):
        with pytest.raises((ShardError, SampleError, ConfigError), match=r"bin.*cls") as caught:
            dataset[0]
        assert "jpg" in str(caught.value)


def test_the_name_of_the_key_is_the_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A field called `__key__` is left out; of archives, whose keys are something else, the log says so."""
    (tmp_path / "x.tfrecord").write_bytes(
        protos.framed(protos.example(__key__=protos.feature("bytes", [b"k"]), a=protos.feature("int64", [1])))
    )
    records = Dataset(tmp_path / "x.tfrecord")

    assert one(tmp_path, {"__key__": b"other", "txt": b"t"})[0] == {"txt": "t", "__key__": "k"}
    assert list(records.fields) == ["a"]
    assert records[0]["__key__"] == "0"
    assert caplog.text.count("__key__ is left out") == 1


def test_lists_of_any_length_can_be_asked_for(tmp_path: Path) -> None:
    """A TFRecord field that holds one value at first can be said to hold lists; the error says how."""
    (tmp_path / "x.tfrecord").write_bytes(
        protos.framed(*(protos.example(w=protos.feature("bytes", [b"a"] * n)) for n in (1, 2, 0)))
    )

    with pytest.raises(SampleError, match=r"fields=\{'w'.*example:bytes"):
        Dataset(tmp_path / "x.tfrecord")[1]
    lists = Dataset(tmp_path / "x.tfrecord", fields={"w": "example:bytes"})
    assert [lists[number]["w"] for number in range(3)] == [[b"a"], [b"a", b"a"], []]


def test_columns_can_be_chosen_and_not_read_as_what_they_are_not(tmp_path: Path) -> None:
    """Of an MDS folder columns can be left out, and bytes given a kind; an encoded one keeps its own."""
    folder = foreign_sets.make_mds(tmp_path / "mds", [range(3)])

    assert Dataset(folder, fields={"bin": "str"})[1] == {"bin": "payload 1 payload 1 ", "__key__": "1"}
    with pytest.raises(ConfigError, match="cls"):
        len(Dataset(folder, fields={"cls": "str"}))


EMPTY = protos.framed(b"", b"")


def test_a_shard_of_empty_records_does_not_decide(tmp_path: Path) -> None:
    """The first shard with a record that has fields does; empty records are then such as lack these."""
    (tmp_path / "0.tfrecord").write_bytes(EMPTY)
    (tmp_path / "1.tfrecord").write_bytes(protos.framed(protos.example()))
    (tmp_path / "2.tfrecord").write_bytes(protos.framed(*[b""] * 20) + foreign_sets.make_tfrecord(range(3)))

    dataset = Dataset(tmp_path)

    assert dataset.fields == {"bin": "bytes", "cls": "ndarray"}
    assert len(dataset) == 26
    assert foreign_sets.numbers(dataset, on_error=Skip(23)) == [0, 1, 2]
    with pytest.raises(SampleError, match="no value for field"):
        dataset[0]


def test_empty_records_alone_are_bytes(tmp_path: Path) -> None:
    """Where no shard says more, and where others hold bytes that are no example."""
    (tmp_path / "0.tfrecord").write_bytes(EMPTY)
    (tmp_path / "1.tfrecord").write_bytes(EMPTY)
    assert [Dataset(tmp_path)[number]["data"] for number in range(4)] == [b""] * 4

    (tmp_path / "1.tfrecord").write_bytes(protos.framed(b"", b"\xff\xff"))
    assert [Dataset(tmp_path)[number]["data"] for number in range(4)] == [b"", b"", b"", b"\xff\xff"]
