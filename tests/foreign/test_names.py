"""Names: which files are shards, and which addresses are those of files, as far as a name can say."""

from __future__ import annotations

import pytest

from aioload.foreign import Place, format_of, place_of
from aioload.foreign.names import shards_among

TARS = [
    "x.tar", "X.TAR", "x.tar.gz", "x.tgz", "x.tar.zst", "x.tzst", "x.tbz2", "x.txz", "x.tar.0", "x.tar.xz",
    "a/b.c.tar",
]  # fmt: skip
RECORDS = [
    "x.tfrecord", "x.tfrecords", "x.TFRec", "x.tfrecord.gz", "x.tfrecord-00000-of-00010", "x.tfrecord.zlib",
    "x.tfrecord-00000-of-00010.gz", "x.tfrecord-train", "x.tfrecord.00012", "x.tfrecord.gz.1",
]  # fmt: skip
NEITHER = ["x", "tar", "x.tar.json", "x.target", "x.tarball", "tfrecord", "x.tfrecordio", "x.gz", "x.jpg", ""]


@pytest.mark.parametrize(
    ("names", "kind"),
    [(TARS, "tar"), (RECORDS, "tfrecord"), (NEITHER, None)],
    ids=["tar", "tfrecord", "none"],
)
def test_a_name_says_which_format_a_shard_has(names: list[str], kind: str | None) -> None:
    """Suffixes, compressed or numbered, in any case; nothing that only looks like one."""
    assert {name: format_of(name) for name in names} == dict.fromkeys(names, kind)


def test_files_that_are_but_numbered_count_where_no_name_says_more() -> None:
    """What TensorFlow numbers is a shard, unless there are files whose names say that they are."""
    numbered = ["train-00000-of-00002", "train-00001-of-00002.gz"]

    assert shards_among(["readme.md", *numbered]) == numbered
    assert shards_among([*numbered, "x.tar", "readme.md"]) == ["x.tar"]
    assert shards_among(["readme.md", "x-1-of-2.txt"]) == []


@pytest.mark.parametrize(
    "name", [*TARS[:-1], *RECORDS, "x-0-of-2", "x.json", "x.parquet", "x.mds", "x.mds.zstd", "x.zip", "x.aio"]
)
def test_an_address_is_that_of_a_file_where_its_name_says_so(name: str) -> None:
    """Also of a file that cannot be read where it lies: what it is, it then says itself."""
    assert place_of(f"s3://bucket/f/{name}") == Place("s3://bucket/f", (name,))


@pytest.mark.parametrize("name", ["train", "v1.0", "x.tar.d", "2024-01-01"])
def test_an_address_is_else_that_of_a_folder(name: str) -> None:
    """Whatever dots and numbers it has."""
    assert place_of(f"s3://bucket/f/{name}") == Place(f"s3://bucket/f/{name}")
