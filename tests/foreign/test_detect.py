"""Detect: what a shard is, told by its bytes, whatever it is called."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path

import cramjam
import foreign_sets
import protos
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import TinySet

from aioload import ConfigError, Dataset, ShardError
from aioload.foreign.detect import HEAD_BYTES, tell

TAR = foreign_sets.make_tar(range(40))
RECORDS = foreign_sets.make_tfrecord(range(40))


def zstd(data: bytes) -> bytes:
    """Compress bytes."""
    return bytes(cramjam.zstd.compress(data))


@pytest.mark.parametrize("name", ["x", "x.tar", "x.tfrecord", "x.jpg", "x.gz"])
def test_plain_shards_are_told_by_their_bytes(tmp_path: Path, name: str) -> None:
    """An archive and a TFRecord file are what they are under any name."""
    for kind, data in (("tar", TAR), ("tfrecord", RECORDS)):
        path = tmp_path / kind / name
        path.parent.mkdir()
        path.write_bytes(data)

        dataset = Dataset(path)

        assert (dataset.kind, foreign_sets.numbers(dataset)) == (kind, list(range(40)))


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
@pytest.mark.parametrize("name", ["x", "x.tfrecord", "x.tar", "x.tfrecord.gz"])
def test_compressed_records_are_unpacked(tmp_path: Path, pack: object, name: str) -> None:
    """TFRecord files that are gzip or zlib as a whole are read under any name."""
    (tmp_path / name).write_bytes(pack(RECORDS))  # type: ignore[operator]

    dataset = Dataset(tmp_path / name)

    assert (dataset.kind, foreign_sets.numbers(dataset)) == ("tfrecord", list(range(40)))


@pytest.mark.parametrize(
    ("name", "pack", "way_out"),
    [
        ("x.tar.gz", gzip.compress, "aioload pack"),
        ("x.tgz", gzip.compress, "aioload pack"),
        ("x", gzip.compress, "aioload pack"),
        ("x.tar.bz2", bz2.compress, "aioload pack"),
        ("x.tar.zst", zstd, "aioload pack"),
        ("x.tar.xz", lzma.compress, "aioload pack"),
    ],
)
def test_compressed_archives_are_refused_with_the_way_out(
    tmp_path: Path, name: str, pack: object, way_out: str
) -> None:
    """What can only be read from front to back is an error that says what to do."""
    (tmp_path / name).write_bytes(pack(TAR))  # type: ignore[operator]

    with pytest.raises(ConfigError, match=way_out) as caught:
        len(Dataset(tmp_path / name))

    assert name in str(caught.value)


def parquet() -> bytes:
    """Return a table."""
    file = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), file)
    return file.getvalue()


def zipped() -> bytes:
    """Return a zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "a")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (parquet(), "aioload pack"),
        (zipped(), "zip"),
        (b"x", "neither"),
        (b"\x1f", "neither"),
        (b"\x1f\x8b", "compressed"),
        (bytes(511), "neither"),
        (gzip.compress(b"nothing of the kind" * 100), "compressed"),
        (b"\xff" * 4096, "neither"),
        (RECORDS[:11], "neither"),
        (TAR[:511], "neither"),
    ],
)
def test_anything_else_is_an_error_that_names_it(tmp_path: Path, data: bytes, word: str) -> None:
    """What is nothing that is read here is a ShardError with the file's name, however short it is."""
    (tmp_path / "thing").write_bytes(data)

    with pytest.raises(ShardError, match=word) as caught:
        len(Dataset(tmp_path / "thing"))

    assert caught.value.shard == "thing"


def test_a_shard_of_a_packed_set_is_told(tiny_set: TinySet) -> None:
    """One file of aioload's own is an error that asks for its folder."""
    with pytest.raises(ShardError, match="folder"):
        len(Dataset(next(tiny_set.path.glob("*.aio"))))


@pytest.mark.parametrize("length", [0x8B1F, 0x685A42, 0x9C78])
def test_a_length_that_looks_like_another_magic_is_a_length(length: int) -> None:
    """A first record whose length is written as gzip, bzip2 or zlib begin is a record."""
    head = length.to_bytes(8, "little")

    assert tell(head + protos.masked(head) + bytes(100), "x") == ("tfrecord", None)


@pytest.mark.parametrize("name", ["BZh/a.jpg", "PAR1/a.jpg", "x\x9c.jpg", "8./a.jpg", "PK\x03\x04.jpg"])
def test_a_member_that_looks_like_another_magic_is_a_member(name: str) -> None:
    """An archive whose first member is called as other files begin is an archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        archive.addfile(tarfile.TarInfo(name))

    assert tell(file.getvalue()[:HEAD_BYTES], "x") == ("tar", None)


def test_empty_files_are_of_any_kind(tmp_path: Path) -> None:
    """A file of no bytes among others takes their format; alone, its name says what it is of."""
    (tmp_path / "a.tfrecord").write_bytes(b"")
    (tmp_path / "b.part").write_bytes(b"")
    (tmp_path / "c.tfrecord").write_bytes(RECORDS)

    dataset = Dataset(
        [
            tmp_path / name
            for name in (
                "a.tfrecord",
                "b.part",
                "c.tfrecord",
            )
        ]
    )

    assert dataset.index.shard_records.tolist() == [0, 0, 0, 40]
    assert foreign_sets.numbers(dataset) == list(range(40))
    assert len(Dataset(tmp_path / "a.tfrecord")) == 0
    assert Dataset(tmp_path / "a.tfrecord").fields == {}
    with pytest.raises(ShardError, match=r"b\.part is no tar archive"):
        len(Dataset(tmp_path / "b.part"))


def test_shards_of_several_formats_are_refused(tmp_path: Path) -> None:
    """A folder with archives and TFRecord files is an error that names one of each."""
    (tmp_path / "a.tar").write_bytes(TAR)
    (tmp_path / "b.tfrecord").write_bytes(RECORDS)

    with pytest.raises(ShardError, match=r"\(a\.tar\).*\(b\.tfrecord\)"):
        len(Dataset(tmp_path))
