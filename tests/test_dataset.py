"""Dataset: what is in a set, one record at a time, opened when first asked."""

from __future__ import annotations

import pickle
import shutil
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import counted, pack
from conftest import TINY_RECORDS, TinySet

import aioload
from aioload import ConfigError, Dataset, SampleError, ShardError
from aioload.packing import Unreadable, export, find_source
from aioload.shard.tfrecord import frame


def test_it_tells_what_is_in_it(tiny_set: TinySet) -> None:
    """Length, fields in the order of the record, and metadata come from the manifest."""
    dataset = Dataset(tiny_set.path)

    assert len(dataset) == TINY_RECORDS
    assert dataset.fields == {"image": "image", "label": "int", "name": "str"}
    assert list(dataset.fields) == ["image", "label", "name"]
    assert dataset.metadata == {}
    assert len(dataset.index) == TINY_RECORDS
    assert dataset.kind == "aioload"


@pytest.mark.parametrize("record", [0, 7, TINY_RECORDS - 1, -1, -TINY_RECORDS])
def test_a_record_is_one_decoded_sample(tiny_set: TinySet, record: int) -> None:
    """`dataset[i]` gives the values as the default decoders make them, and the key; -1 is the last."""
    sample = Dataset(tiny_set.path)[record]

    assert list(sample) == ["image", "label", "name", "__key__"]
    assert np.array_equal(sample["image"], tiny_set.pixels[record])
    assert (sample["label"], sample["name"]) == (tiny_set.labels[record], tiny_set.names[record])
    assert sample["__key__"] == tiny_set.keys[record]


@pytest.mark.parametrize("record", [TINY_RECORDS, -TINY_RECORDS - 1, 10**9])
def test_a_record_that_is_not_there(tiny_set: TinySet, record: int) -> None:
    """Beyond the end is an IndexError with the number and the length, so that a plain `for` ends."""
    dataset = Dataset(tiny_set.path)

    with pytest.raises(IndexError, match=str(record)):
        dataset[record]


def test_a_plain_for_goes_through_the_records(tmp_path: Path) -> None:
    """Iterating over a set gives its samples, once each."""
    dataset = Dataset(counted(tmp_path / "set", 5))

    assert [sample["n"] for sample in dataset] == [0, 1, 2, 3, 4]


def test_numpy_integers_are_record_numbers(tiny_set: TinySet) -> None:
    """What numpy gives as an index is one, and a float is none."""
    dataset = Dataset(tiny_set.path)

    assert dataset[np.int64(3)]["label"] == 0
    assert dataset[np.uint8(4)]["label"] == 1
    with pytest.raises(TypeError):
        dataset[1.0]


def test_nothing_is_read_until_asked(tmp_path: Path) -> None:
    """A data set of a folder that is not there can be made and shown; asking it something is an error."""
    dataset = Dataset(tmp_path / "nowhere")

    assert repr(dataset) == f"<Dataset {str(tmp_path / 'nowhere')!r} not opened>"
    with pytest.raises(ConfigError, match="neither a folder nor a file"):
        len(dataset)
    with pytest.raises(ConfigError, match="neither a folder nor a file"):
        dataset.fields  # noqa: B018 - asking is what is tested


def test_repr_shows_what_was_opened(tiny_set: TinySet) -> None:
    """Once opened, `repr` tells records and fields."""
    dataset = Dataset(tiny_set.path)
    len(dataset)

    assert f"records={TINY_RECORDS}" in repr(dataset)
    assert "'image': 'image'" in repr(dataset)


def test_opening_again_after_a_failure(tmp_path: Path) -> None:
    """A set that is packed after the first question is found by the second."""
    dataset = Dataset(tmp_path / "set")
    with pytest.raises(ConfigError):
        len(dataset)

    counted(tmp_path / "set", 3)

    assert len(dataset) == 3


def test_it_is_read_once_by_many_threads(tiny_set: TinySet) -> None:
    """Threads that ask at the same time get the same index."""
    dataset = Dataset(tiny_set.path)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(dataset.index)) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len({id(index) for index in found}) == 1


async def test_it_can_be_asked_inside_a_running_loop(tiny_set: TinySet) -> None:
    """Length and records are there also where an event loop runs already."""
    dataset = Dataset(tiny_set.path)

    assert len(dataset) == TINY_RECORDS
    assert dataset[5]["label"] == 2


def test_it_pickles_as_its_path(tiny_set: TinySet) -> None:
    """A data set can be sent to another process; it is opened there anew."""
    dataset = Dataset(tiny_set.path)
    len(dataset)

    again = pickle.loads(pickle.dumps(dataset))

    assert again.source == dataset.source
    assert "not opened" in repr(again)
    assert len(again) == TINY_RECORDS


@pytest.mark.parametrize("source", ["ftp://example.com/set", "s3://", "https://"])
def test_an_address_that_cannot_be_is_refused(source: str) -> None:
    """It says so at construction."""
    with pytest.raises(ConfigError, match="address"):
        Dataset(source)


@pytest.mark.parametrize(
    "option", [{"storage_options": {"region": "x"}}, {"cache_dir": True}, {"cache_bytes": 1}]
)
def test_a_folder_takes_no_options_of_networks(tmp_path: Path, option: dict[str, Any]) -> None:
    """They would do nothing, which nobody would notice."""
    with pytest.raises(ConfigError, match="go with an address"):
        Dataset(tmp_path, **option)


@pytest.mark.parametrize(
    "options", [{"cache_bytes": 1}, {"cache_dir": 5}, {"cache_dir": b"x"}, {"cache_dir": "~nobody-there/x"}]
)
def test_a_cache_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    """At construction, not in the first read."""
    with pytest.raises(ConfigError, match="cache_dir"):
        Dataset("https://example.com/set", **options)


def test_what_was_given_may_be_changed_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A set is pickled as it was made, whatever becomes of a dict of options or the working directory."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    options: dict[str, Any] = {"headers": {"A": "1"}}
    datasets = [
        Dataset("https://example.com/set", storage_options=options, cache_dir=folder)
        for folder in ("~/cache", "cache")
    ]
    options["headers"]["A"] = "2"
    options["unknown"] = 3
    folders = [str(tmp_path / "home" / "cache"), str(Path.cwd() / "cache")]
    monkeypatch.chdir(tmp_path)

    again = pickle.loads(pickle.dumps(datasets))

    assert [repr(dataset.open_storage()) for dataset in again] == [repr(d.open_storage()) for d in datasets]
    assert [str(dataset._home.remote.folder) for dataset in again] == folders
    assert {dataset._home.remote.options.headers["A"] for dataset in again} == {"1"}


def test_what_is_secret_in_an_address_is_not_shown() -> None:
    """Neither password nor signature are in what errors and logs quote."""
    dataset = Dataset(
        "https://me:word@example.com/set?X-Amz-Signature=abc", storage_options={"headers": {"A": "s"}}
    )

    assert dataset.source == "https://example.com/set"
    assert "word" not in repr(dataset)


def test_a_folder_that_is_no_set(tmp_path: Path) -> None:
    """A folder without a manifest is an error that says what is missing and what to do."""
    with pytest.raises(ShardError, match=r"manifest\.json.*no file; check the path"):
        len(Dataset(tmp_path))


def test_a_file_is_no_set(tmp_path: Path) -> None:
    """A file that is nothing known is a ShardError that says so."""
    (tmp_path / "file").write_bytes(b"something else")

    with pytest.raises(ShardError, match="neither a tar archive nor a TFRecord file"):
        len(Dataset(tmp_path / "file"))


@pytest.mark.parametrize("name", ["tensorflow.tfrecord", "tensorflow.gzip.tfrecord"])
def test_raw_records_come_from_a_set_that_nobody_has_asked_yet(tmp_path: Path, name: str) -> None:
    """A set of one shard, also a compressed one, can be gone through before anything else was asked of it."""
    shutil.copy(Path(__file__).parent / "fixtures" / "tfrecord" / name, tmp_path)
    asked = Dataset(tmp_path / name)

    found = [(number, bytes(raw)) for number, raw in Dataset(tmp_path / name).raw_records()]

    assert found == [(number, asked.read_record(number)) for number in range(len(asked))]


def test_damage_in_a_shard_of_others_says_where_it_lies(tmp_path: Path) -> None:
    """Shard, record and byte are in the error, whoever cuts the record: a look, an export or a packer."""
    path, records = tmp_path / "a.tfrecord", [frame(b"one"), frame(b"two"), bytearray(frame(b"three"))]
    start = len(records[0]) + len(records[1])
    records[2][12] ^= 1
    path.write_bytes(b"".join(records))
    dataset = Dataset(path)

    for use in (lambda: dataset[2], lambda: export(dataset, tmp_path / "out")):
        with pytest.raises(ShardError, match=r"record 2 \(a\.tfrecord\): .* failed its checksum") as caught:
            use()
        assert (caught.value.shard, caught.value.record, caught.value.offset) == ("a.tfrecord", 2, start)
    last = list(find_source([path]).items)[-1]
    assert isinstance(last, Unreadable)
    assert last.name == "record 2 (a.tfrecord)"


def test_the_progress_of_an_index_never_goes_back(tmp_path: Path) -> None:
    """A scanner may look at an earlier record once more; what was seen to is told once, and all of it."""
    shutil.copy(Path(__file__).parent / "fixtures" / "tfrecord" / "tensorflow.tfrecord", tmp_path)
    seen: list[int] = []

    Dataset(tmp_path).make_index(bar=lambda what, total: nullcontext(seen.append))

    assert min(seen) >= 0
    assert sum(seen) == (tmp_path / "tensorflow.tfrecord").stat().st_size


@pytest.mark.parametrize("name", ["manifest.json", "index.aioi"])
def test_damaged_head_files_are_named(tiny_set: TinySet, tmp_path: Path, name: str) -> None:
    """A flipped bit in manifest or index is a ShardError that names the file."""
    path = Path(shutil.copytree(tiny_set.path, tmp_path / "set"))
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (path / name).write_bytes(data)

    with pytest.raises(ShardError, match=name):
        len(Dataset(path))


def test_a_value_that_does_not_decode_names_field_and_record(tmp_path: Path) -> None:
    """A picture that is none is a SampleError that tells the field, the record and the shard."""
    path = pack(tmp_path / "set", {"image": "image"}, [{"image": b"<html>"}])

    with pytest.raises(SampleError) as caught:
        Dataset(path)[0]

    assert str(caught.value).startswith("record 0 (key 'k0', shard-00000.aio): field 'image' (image): ")
    place = (caught.value.shard, caught.value.record, caught.value.key, caught.value.field)
    assert place == ("shard-00000.aio", 0, "k0", "image")


def test_records_without_key_carry_their_number(tmp_path: Path) -> None:
    """Where no key was packed, `__key__` is the record's number."""
    with aioload.Writer(tmp_path / "set", {"n": "int"}) as writer:
        for number in range(3):
            writer.write({"n": number})

    assert [sample["__key__"] for sample in Dataset(tmp_path / "set")] == ["0", "1", "2"]


def test_metadata_comes_back(tmp_path: Path) -> None:
    """What the writer was told to keep is there again."""
    path = pack(tmp_path / "set", {"n": "int"}, [{"n": 1}], metadata={"classes": ["cat", "dög"]})

    assert Dataset(path).metadata == {"classes": ["cat", "dög"]}
