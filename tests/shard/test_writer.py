"""What was written is what is read, and a writer that did not end well leaves nothing that looks complete."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import own_sets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.errors import ClosedError, ConfigError, SampleError, StorageError
from aioload.shard.check import verify
from aioload.shard.folder import Folder
from aioload.shard.format import INDEX_NAME, MANIFEST_NAME
from aioload.shard.index import parse_index
from aioload.shard.manifest import Manifest
from aioload.shard.reader import LocalReader
from aioload.shard.writer import Writer

FIELDS = {"text": "str", "label": "int"}
THREE = [
    ("a", {"text": "one", "label": 1}),
    (None, {"text": "", "label": -2}),
    ("ключ", {"text": "三", "label": 3}),
]

# Dies by SIGKILL at its n-th call of fsync: there is one before and one after each file gets its name.
KILLED_WRITER = """
import os, signal, sys
from aioload.shard.writer import Writer

path, fatal = sys.argv[1], int(sys.argv[2])
calls = 0

def fsync(descriptor):
    global calls
    calls += 1
    if calls == fatal:
        os.kill(os.getpid(), signal.SIGKILL)

os.fsync = fsync
with Writer(path, {"text": "str", "label": "int"}, shard_bytes=400) as writer:
    for record in range(12):
        writer.write({"text": "left over", "label": record})
    if fatal == 0:
        os.kill(os.getpid(), signal.SIGKILL)
"""
FSYNCS = 8  # two shards, the index and the manifest


# What is read -----------------------------------------------------------------------------------------


@given(
    records=own_sets.keyed_samples,
    shard_bytes=st.sampled_from([1, 900, 1500, 1 << 30]),
    columns=st.sampled_from([(), ("count",), ("share", "count")]),
)
def test_read_is_the_inverse_of_write(
    records: list[own_sets.Keyed], shard_bytes: int, columns: tuple[str, ...]
) -> None:
    """All kinds, with keys and without, in one shard or many, come back as they were; every check agrees."""
    files = own_sets.pack_away(own_sets.ALL_KINDS, records, shard_bytes=shard_bytes, index_fields=columns)

    assert own_sets.same_records(own_sets.read_set(files), records)
    assert verify(own_sets.MemoryReader(files)).problems == ()


@given(sizes=st.lists(st.integers(0, 700), max_size=30), shard_bytes=st.integers(1, 2500))
def test_shard_is_only_too_large_where_one_record_is(sizes: list[int], shard_bytes: int) -> None:
    """A file with more than one record keeps to the limit, footer and all, and there is no needless shard."""
    records = [(None, {"blob": b"x" * size, "n": 1}) for size in sizes]

    files = own_sets.pack_away(
        {"blob": "bytes", "n": "int"}, records, shard_bytes=shard_bytes, index_fields=["n"]
    )
    manifest = Manifest.parse(files[MANIFEST_NAME], MANIFEST_NAME)
    index = parse_index(files[INDEX_NAME], manifest, INDEX_NAME)
    counts = np.diff(index.shard_records)

    assert index.shard_bytes.tolist() == [len(files[name]) for name in index.shards]
    assert all((counts <= 1) | (index.shard_bytes <= shard_bytes))
    assert all(counts >= 1) or len(records) == 0


@pytest.mark.parametrize("records", [[], THREE[:1], THREE])
def test_set_of_any_size_is_a_set(tmp_path: Path, records: list[own_sets.Keyed]) -> None:
    """None, one and a few records are all read back, and the folder holds the set's files alone."""
    files = own_sets.pack(tmp_path / "set", FIELDS, records)

    assert own_sets.read_set(files) == records
    assert set(files) == {"manifest.json", "index.aioi", "shard-00000.aio"}


def test_columns_stand_in_the_index(tmp_path: Path) -> None:
    """The fields that were asked for come with their numbers, over all shards, NaN too."""
    values = [(2**63 - 1, 0.5), (-1, float("nan")), (0, -0.0), (7, float("inf"))]
    records = [(None, {"a": a, "b": b, "text": "x" * 50}) for a, b in values]

    files = own_sets.pack(
        tmp_path / "set",
        {"text": "str", "a": "int", "b": "float"},
        records,
        shard_bytes=350,
        index_fields=["b", "a"],
    )
    manifest = Manifest.parse(files[MANIFEST_NAME], MANIFEST_NAME)
    index = parse_index(files[INDEX_NAME], manifest, INDEX_NAME)

    assert manifest.index_fields == {"b": "float", "a": "int"}
    assert len(index.shards) > 1
    assert index.columns["a"].tolist() == [a for a, _ in values]
    assert index.columns["b"].tobytes() == np.array([b for _, b in values]).tobytes()


def test_samples_that_were_read_can_be_written(tmp_path: Path) -> None:
    """The key that a sample carries is its key; an empty one is none."""
    with Writer(tmp_path / "set", {"text": "str"}) as writer:
        writer.write({"text": "a", "__key__": "mine"})
        writer.write({"text": "b", "__key__": None})
        writer.write({"text": "c", "__key__": "mine"}, key="yours")
        writer.write({"text": "d"}, key="")

    keys = [key for key, _ in own_sets.read_set(own_sets.load(tmp_path / "set"))]

    assert keys == ["mine", None, "yours", None]


def test_metadata_may_come_last(tmp_path: Path) -> None:
    """Class names are often known only at the end."""
    with Writer(tmp_path / "set", {"label": "int"}, metadata={"classes": []}) as writer:
        writer.write({"label": 0})
        writer.metadata = {"classes": ["katze", "犬"]}

    manifest = Manifest.parse((tmp_path / "set" / MANIFEST_NAME).read_bytes(), MANIFEST_NAME)

    assert manifest.metadata == {"classes": ["katze", "犬"]}
    assert verify(LocalReader(tmp_path / "set")).ok


def test_same_records_make_the_same_bytes(tmp_path: Path) -> None:
    """Packing is reproducible to the byte."""
    first = own_sets.pack(tmp_path / "first", FIELDS, THREE, shard_bytes=300)
    second = own_sets.pack(tmp_path / "second", FIELDS, THREE, shard_bytes=300)

    assert first == second


# What is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "key", "message"),
    [
        ({"text": "a"}, None, "needs a value"),
        ({"text": "a", "label": 1, "more": 2}, None, "needs a value"),
        ({"text": "a", "label": "1"}, None, "field 'label' has kind 'int'"),
        ({"text": "a", "label": 1}, 5, "key is text"),
        ({"text": "a", "label": 1}, "\udc80", "UTF-8"),
    ],
)
def test_sample_that_does_not_fit_is_refused_and_the_writer_goes_on(
    tmp_path: Path, sample: dict[str, Any], key: Any, message: str
) -> None:
    """The error tells the record, nothing of it is written, and the next is."""
    with Writer(tmp_path / "set", FIELDS) as writer:
        writer.write(THREE[0][1], THREE[0][0])
        with pytest.raises(SampleError, match=message) as caught:
            writer.write(sample, key)
        writer.write(THREE[1][1], THREE[1][0])
        written = writer.records

    assert caught.value.record == 1
    assert written == 2
    assert own_sets.read_set(own_sets.load(tmp_path / "set")) == THREE[:2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard_bytes": 0}, "shard_bytes"),
        ({"index_fields": ["text"]}, "index_fields"),
        ({"metadata": {"a": {1}}}, "metadata"),
        ({"fields": {"a": "video"}}, "video"),
        ({"path": "https://host/train"}, "nothing can be written to https"),
        ({"path": "ftp://host/train"}, "ftp"),
        ({"storage_options": {"region": "eu"}}, "storage_options go with an address"),
    ],
)
def test_arguments_are_checked_before_anything_is_made(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    """A mistake in the call leaves no folder."""
    arguments = {"path": tmp_path / "set", "fields": FIELDS, **options}

    with pytest.raises(ConfigError, match=message):
        Writer(**arguments)

    assert not (tmp_path / "set").exists()


def test_complete_set_is_never_written_over(tmp_path: Path) -> None:
    """The folder of a set is refused, in words that say what to do, and stays as it is."""
    files = own_sets.pack(tmp_path / "set", FIELDS, THREE)

    with pytest.raises(ConfigError, match="remove it first"):
        Writer(tmp_path / "set", FIELDS)

    assert own_sets.load(tmp_path / "set") == files


def test_folder_belongs_to_one_writer(tmp_path: Path) -> None:
    """A second writer neither clears nor mixes what the first is writing."""
    with Writer(tmp_path / "set", FIELDS) as writer:
        writer.write(THREE[0][1], THREE[0][0])
        with pytest.raises(ConfigError, match="another Writer is at work"):
            Writer(tmp_path / "set", FIELDS)

    assert own_sets.read_set(own_sets.load(tmp_path / "set")) == THREE[:1]


# What ends badly --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fatal", range(FSYNCS))
def test_killed_writer_leaves_no_set_and_the_next_succeeds(tmp_path: Path, fatal: int) -> None:
    """Killed between records or at any step of closing, what stays has no manifest and is in nobody's way."""
    killed = subprocess.run([sys.executable, "-c", KILLED_WRITER, tmp_path / "set", str(fatal)], check=False)
    left = own_sets.load(tmp_path / "set")

    files = own_sets.pack(tmp_path / "set", FIELDS, THREE)

    assert killed.returncode == -signal.SIGKILL
    assert left
    assert MANIFEST_NAME not in left
    assert set(files) == {"manifest.json", "index.aioi", "shard-00000.aio"}
    assert own_sets.read_set(files) == THREE


def test_writer_killed_after_its_last_step_leaves_a_set(tmp_path: Path) -> None:
    """The last step is the manifest's name: from there on the set is whole."""
    subprocess.run([sys.executable, "-c", KILLED_WRITER, tmp_path / "set", str(FSYNCS)], check=False)

    records = own_sets.read_set(own_sets.load(tmp_path / "set"))

    assert [sample["label"] for _, sample in records] == list(range(12))


def test_error_in_the_block_takes_everything_back(tmp_path: Path) -> None:
    """The user's own error comes through, and neither files nor folder stay."""
    with pytest.raises(KeyError, match="mine"):
        own_sets.pack(tmp_path / "set", FIELDS, _failing(THREE), shard_bytes=1)

    assert not (tmp_path / "set").exists()


def test_files_of_others_are_never_touched(tmp_path: Path) -> None:
    """Only names of a set are cleared, and a folder that was there stays."""
    others = ["notes.txt", "shard-1.aio", "shard-00000.aio.bak", "my-shard-00000.aio", "manifest.json.old"]
    for name in others:
        (tmp_path / name).write_text("keep")
    for name in ["shard-00000.aio", "shard-00001.aio.tmp", "index.aioi", "manifest.json.tmp"]:
        (tmp_path / name).write_text("left over")

    writer = Writer(tmp_path, FIELDS)
    writer.write(THREE[0][1])
    writer.abort()

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("records", [0, 1, 3])
def test_disk_that_fails_at_closing_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """A full disk is told as such, with its cause, and nothing stays."""
    writer = Writer(tmp_path / "set", FIELDS)
    for key, sample in THREE[:records]:
        writer.write(sample, key)
    monkeypatch.setattr(os, "fsync", _full)

    with pytest.raises(StorageError, match="No space left") as caught:
        writer.close()

    assert isinstance(caught.value.__cause__, OSError)
    assert not (tmp_path / "set").exists()


def test_disk_that_fails_at_a_record_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that was half written ends the writer; it cannot be closed into a set."""
    monkeypatch.setattr(Folder, "begin", _open_full)
    writer = Writer(tmp_path / "set", FIELDS)

    with pytest.raises(StorageError, match="No space left"):
        writer.write(THREE[0][1])
    writer.close()
    with pytest.raises(ClosedError):
        writer.write(THREE[0][1])

    assert not (tmp_path / "set").exists()


def test_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    """A file in the way is the disk's matter, told with its place."""
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StorageError, match="file"):
        Writer(tmp_path / "file" / "set", FIELDS)
    with pytest.raises(StorageError, match="file"):
        Writer(tmp_path / "file", FIELDS)


def test_metadata_that_became_wrong_is_told_before_anything_is_finished(tmp_path: Path) -> None:
    """A mistake in the metadata can be mended, and the hours of packing are not lost."""
    writer = Writer(tmp_path / "set", FIELDS, metadata={"a": []})
    writer.write(THREE[0][1], THREE[0][0])
    writer.metadata["a"].append({1})

    with pytest.raises(ConfigError, match="metadata"):
        writer.close()
    writer.metadata = {"a": [1]}
    writer.close()

    assert own_sets.read_set(own_sets.load(tmp_path / "set")) == THREE[:1]


def test_metadata_that_became_wrong_in_a_block_takes_everything_back(tmp_path: Path) -> None:
    """Where nobody can mend it, nothing stays."""
    with (
        pytest.raises(ConfigError, match="metadata"),
        Writer(tmp_path / "set", FIELDS, metadata={}) as writer,
    ):
        writer.metadata["a"] = {1}

    assert not (tmp_path / "set").exists()


def test_closing_twice_is_free_and_writing_after_it_is_not(tmp_path: Path) -> None:
    """Closed is closed: abort takes nothing back any more."""
    writer = Writer(tmp_path / "set", FIELDS)
    writer.write(THREE[0][1], THREE[0][0])
    writer.close()
    writer.close()
    writer.abort()

    with pytest.raises(ClosedError, match="make another"):
        writer.write(THREE[1][1])

    assert repr(writer) == "<Writer closed records=1 shards=1>"
    assert own_sets.read_set(own_sets.load(tmp_path / "set")) == THREE[:1]


def _failing(records: list[own_sets.Keyed]) -> Iterator[own_sets.Keyed]:
    yield from records
    raise KeyError("mine")


def _open_full(folder: Folder, name: str) -> BinaryIO:
    """Open a file that takes the header of a shard into its buffer, and never a byte more."""
    return Path("/dev/full").open("wb", buffering=30)


def _full(descriptor: int) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
