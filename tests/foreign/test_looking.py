"""Looking: what a source may be, and what is said where it is nothing that is read here."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import foreign_sets
import pytest
from servers.ranges import RangeServer
from servers.seaweed import Seaweed

from aioload import AioloadError, ConfigError, Dataset, NotFoundError, ShardError, Writer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write shards and a readme, and a folder with another shard."""
    found = tmp_path / "data"
    (found / "deep").mkdir(parents=True)
    for number, name in enumerate(("x-0.tar", "x-1.tar", "x-10.tar", "y-0.tar", "deep/x-0.tar")):
        (found / name).write_bytes(foreign_sets.make_tar([number]))
    (found / "readme.txt").write_text("no shard")
    (found / "{odd*}.tar").write_bytes(foreign_sets.make_tar([9]))
    return found


def error_of(source: Any, **options: Any) -> str:
    """Return what is said of a source that is no set."""
    with pytest.raises(AioloadError) as caught:
        len(Dataset(source, **options))
    return str(caught.value)


# patterns


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("x-*.tar", [0, 1, 2]),
        ("x-?.tar", [0, 1]),
        ("[xy]-0.tar", [0, 3]),
        ("*-0*", [0, 3]),
        ("**/x-0.tar", [4, 0]),
        ("{x,y}-0.tar", [0, 3]),
        ("{y,x}-{0..0}.tar", [3, 0]),
        ("x-{0..1,10}.tar", [0, 1, 2]),
        ("{deep/x,x}-0.tar", [4, 0]),
        ("{odd*}.tar", [9]),
    ],
)
def test_patterns_stand_for_files(folder: Path, pattern: str, expected: list[int]) -> None:
    """Stars find what is there, sorted by name; braces give their parts in turn; what is there is itself."""
    assert foreign_sets.numbers(Dataset(folder / pattern)) == expected
    assert foreign_sets.numbers(Dataset([folder / pattern])) == expected


def test_patterns_are_relative_to_where_one_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A star works in a relative path and in a list, beside other names."""
    monkeypatch.chdir(folder)

    assert foreign_sets.numbers(Dataset("x-*.tar")) == [0, 1, 2]
    assert foreign_sets.numbers(Dataset(["y-0.tar", "x-*.tar"])) == [3, 0, 1, 2]


def test_a_pattern_of_nothing_says_what_is_there(folder: Path) -> None:
    """A star that finds no file, or one file twice, is an error of the call."""
    assert "x-0.tar" in error_of(folder / "z-*.tar")
    assert "7 names" in error_of(folder / "z-*.tar")
    assert "twice" in error_of([folder / "x-*.tar", folder / "x-0.tar"])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("pipe:aws s3 cp s3://bucket/x.tar -", ["command", "storage_options"]),
        ("a.tar::b.tar", ["as a list"]),
        (["https://h/a.tar::b.tar"], ["as a list"]),
        ("{{0..3},{5..7}}.tar", ["list"]),
        ("file:///data/x.tar", ["without file://"]),
        ("s3a://bucket/x.tar", ["write s3://"]),
        ("hf://datasets/x/y", ["https://huggingface.co/"]),
        ("s3://bucket/a//x.tar", ["two slashes"]),
        ("s3://bucket//x.tar", ["two slashes"]),
        ("gs://bucket/a//b", ["two slashes"]),
        (["az://box/a/x.tar", "az://box/a//y.tar"], ["two slashes"]),
    ],
)
def test_what_other_programs_take_is_refused_with_a_way_out(source: Any, words: list[str]) -> None:
    """Commands, joined sources and other schemes are errors of the call, and nothing of them is quoted."""
    with pytest.raises(ConfigError) as caught:
        Dataset(source)

    assert all(word in str(caught.value) for word in words)
    assert "aws s3" not in str(caught.value)


def test_two_slashes_of_a_web_server_are_its_own() -> None:
    """There they are another path than one slash, which is asked for as it was given."""
    with RangeServer({"a//b.tar": foreign_sets.make_tar([3])}) as server:
        assert foreign_sets.numbers(Dataset(f"{server.url}/a//b.tar")) == [3]


# sets by one of their files


def test_a_set_is_found_by_the_file_that_describes_it(tmp_path: Path) -> None:
    """Its manifest.json, or the index.json of an MDS folder, stands for the folder, on a disk or a server."""
    with Writer(tmp_path / "own", fields={"bin": "bytes", "cls": "int"}) as writer:
        writer.write({"bin": foreign_sets.sample_bytes(5), "cls": 5})
    foreign_sets.make_mds(tmp_path / "mds", [range(3)])

    with RangeServer(tmp_path) as server:
        for root in (tmp_path, server.url):
            assert foreign_sets.numbers(Dataset(f"{root}/own/manifest.json")) == [5]
            assert foreign_sets.numbers(Dataset(f"{root}/mds/index.json")) == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("shard.00000.mds", b"\3\0\0\0" + bytes(40), ["index.json", "folder"]),
        ("shard.00000.mds.zstd", b"\x28\xb5\x2f\xfd" + bytes(40), ["index.json", "folder"]),
        ("x.parquet", b"PAR1" + bytes(40), ["aioload pack", "parquet"]),
        ("x.csv", b"a,b\n1,2\n" * 100, ["aioload pack"]),
        ("x.jsonl", b"{}\n" * 100, ["aioload pack"]),
        ("x.jpg", b"\xff\xd8\xff" + bytes(40), ["aioload pack"]),
        ("x.zip", b"PK\3\4" + bytes(40), ["unpack"]),
    ],
)
def test_a_file_of_another_kind_names_the_way_out(
    tmp_path: Path, name: str, data: bytes, words: list[str]
) -> None:
    """Whether it is named by a path, in a list, by an address, or lies in a folder that is given."""
    (tmp_path / name).write_bytes(data)

    with RangeServer(tmp_path) as server:
        texts = [error_of(tmp_path / name), error_of([tmp_path / name]), error_of([f"{server.url}/{name}"])]

    for text in texts:
        assert name in text
        assert all(word in text for word in words), text


# folders


def test_an_empty_folder_says_what_was_looked_for(tmp_path: Path) -> None:
    """And what to do: check the path."""
    text = error_of(tmp_path)

    for word in (
        str(tmp_path),
        "manifest.json",
        "index.json",
        ".tar",
        ".tfrecord",
        "no file",
        "check the path",
    ):
        assert word in text


def test_a_folder_of_folders_says_where_shards_may_be(folder: Path) -> None:
    """Its folders are counted and named, with how to name the shards in them."""
    for name in "bca":
        shutil.copytree(folder / "deep", folder / "all" / name)

    text = error_of(folder / "all")

    assert "3 folders (a, b, c)" in text
    assert "*/*.tar" in text


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.jpg", "b.png", "c.jpg", "d.jpg"], ["4 files (a.jpg, b.png, c.jpg, …)", "aioload pack"]),
        (["t.parquet", "_SUCCESS"], ["aioload pack", "torch-aioload[parquet]"]),
        (["shard.00000.mds", "shard.00001.mds"], ["index.json", "describe"]),
        (["shard-00000.aio", "x.tar"], ["manifest.json", "did not finish"]),
        (["notes"], ["1 file (notes)", "name the shards"]),
    ],
)
def test_a_folder_of_other_files_says_what_to_do(tmp_path: Path, names: list[str], words: list[str]) -> None:
    """How many there are, what the first are called, and what becomes a set of such files."""
    for name in names:
        (tmp_path / name).write_bytes(b"x")

    text = error_of(tmp_path)

    assert all(word in text for word in words), text


def test_a_path_that_is_not_there_says_what_is(folder: Path) -> None:
    """Names beside it, or below the folder above that there is."""
    assert "x-0.tar" in error_of(folder / "x-2.tar")
    assert f"In {folder / 'deep'}: 1 name (x-0.tar)" in error_of(folder / "deep" / "not" / "there")


def test_a_shard_that_is_not_there_says_what_is(folder: Path) -> None:
    """Of a list or a pattern: the shards beside it, as far as they lie in the folder that all are under."""
    assert "There: 5 files (x-0.tar, x-1.tar, x-10.tar, …)" in error_of(folder / "x-{0..2}.tar")
    assert "There" not in error_of([folder / "x-0.tar", folder / "deep" / "y.tar"])


def test_shards_of_several_formats_are_told_apart(folder: Path) -> None:
    """How many are which, and the first names of each."""
    (folder / "z.tfrecord").write_bytes(foreign_sets.make_tfrecord([1]))

    with pytest.raises(ShardError, match="several formats") as caught:
        len(Dataset(folder))

    assert "tar: 5 files (x-0.tar, x-1.tar, x-10.tar, …)" in str(caught.value)
    assert "tfrecord: 1 file (z.tfrecord)" in str(caught.value)
    assert caught.value.shard == "z.tfrecord"


# networks


def test_a_web_server_tells_no_files() -> None:
    """A folder or a star there is an error that says to name the shards."""
    with RangeServer({"a/0.tar": foreign_sets.make_tar([1])}) as server:
        assert "{000..099}" in error_of(f"{server.url}/a/*.tar")
        assert "{000..099}" in error_of(f"{server.url}/a/")
        with pytest.raises(NotFoundError, match=r"1\.tar"):
            len(Dataset(f"{server.url}/a/{{0,1}}.tar"))


def test_a_bucket_is_looked_into(seaweed: Seaweed) -> None:
    """Stars find keys, a prefix without shards says what is there, and a wrong key what to do."""
    for name in ("x-1", "x-0", "y-0"):
        seaweed.put(f"looking/{name}.tar", foreign_sets.make_tar([int(name[-1]) + 5 * (name[0] == "y")]))
    seaweed.put("looking/deep/x-0.tar", foreign_sets.make_tar([9]))
    seaweed.put("looking/no/deep/x-0.tar", foreign_sets.make_tar([9]))
    options: dict[str, Any] = {"storage_options": seaweed.options}
    url = f"s3://{seaweed.bucket}/looking"

    assert foreign_sets.numbers(Dataset(f"{url}/x-*.tar", **options)) == [0, 1]
    assert foreign_sets.numbers(Dataset([f"{url}/y-0.tar", f"{url}/x-*"], **options)) == [5, 0, 1]
    assert foreign_sets.numbers(Dataset(f"{url}/{{y,x}}-0.tar", **options)) == [5, 0]
    assert "3 files (x-0.tar, x-1.tar, y-0.tar)" in error_of(f"{url}/z-*.tar", **options)
    assert "last part" in error_of(f"{url}/*/x-0.tar", **options)
    assert "1 folder (deep)" in error_of(f"{url}/no", **options)
    assert "in a list" in error_of(f"{url}/nothing", **options)
    assert "There: 3 files (x-0.tar, x-1.tar, y-0.tar)" in error_of(f"{url}/x-7.tar", **options)
