"""Place: which files a source names, and the folder or address that they lie under."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import foreign_sets
import pytest
from servers.ranges import RangeServer

from aioload import ConfigError, Dataset, NotFoundError, StorageError
from aioload.foreign import Place, expand, place_of


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a{0..2}", ["a0", "a1", "a2"]),
        ("a{008..011}", ["a008", "a009", "a010", "a011"]),
        ("a{8..11}", ["a8", "a9", "a10", "a11"]),
        ("a{3..3}b", ["a3b"]),
        ("{0..1}/x-{0..1}", ["0/x-0", "0/x-1", "1/x-0", "1/x-1"]),
        ("a{x..y}", ["a{x..y}"]),
    ],
)
def test_a_pattern_stands_for_names(pattern: str, names: list[str]) -> None:
    """Numbers run from the first to the last, as wide as they are written, and the first runs slowest."""
    assert expand(pattern) == names


@pytest.mark.parametrize("pattern", ["a{5..3}.tar", "a{0..9999999}", "{0..9999}{0..9999}", "{0..1}{3..2}"])
def test_a_pattern_that_cannot_be_meant_is_refused(pattern: str) -> None:
    """One that counts down, or stands for millions, is an error before any memory is taken."""
    with pytest.raises(ConfigError, match="pattern"):
        expand(pattern)


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("data", Place("data")),
        (["/a/b/x.tar"], Place("/a/b", ("x.tar",))),
        (["/a/b/x.tar", "/a/c/d/y.tar"], Place("/a", ("b/x.tar", "c/d/y.tar"))),
        (["/a/x.tar", "/b/x.tar"], Place("/", ("a/x.tar", "b/x.tar"))),
        ("/a/../b/{0..1}.tar", Place("/b", ("0.tar", "1.tar"))),
        ("s3://bucket/folder/x", Place("s3://bucket/folder/x")),
        ("s3://bucket/folder.tar/x", Place("s3://bucket/folder.tar/x")),
        ("s3://bucket/x.tar", Place("s3://bucket/", ("x.tar",))),
        ("gs://bucket/f/x.TAR", Place("gs://bucket/f", ("x.TAR",))),
        ("az://box/f/x.tfrecord.gz", Place("az://box/f", ("x.tfrecord.gz",))),
        ("s3://bucket/f/x-00001-of-00002", Place("s3://bucket/f", ("x-00001-of-00002",))),
        ("s3://bucket/f/what?.tar", Place("s3://bucket/f", ("what?.tar",))),
        ("https://host/f/x.tar?sig=a/b", Place("https://host/f?sig=a/b", ("x.tar",))),
        ("https://host/f?file=x.tar", Place("https://host/f?file=x.tar")),
        ("https://host/f/{0..1}.tar?s", Place("https://host/f?s", ("0.tar", "1.tar"))),
        ("https://user:word@host/f/x.tar", Place("https://user:word@host/f", ("x.tar",))),
        (["https://h/a/1.tar", "https://h/b/1.tar"], Place("https://h/", ("a/1.tar", "b/1.tar"))),
        ("https://h/a%20b/c%20d.tar", Place("https://h/a%20b", ("c d.tar",))),
        (["https://h/a%2Fb.tar"], Place("https://h/", ("a/b.tar",))),
        ("https://h/train.json", Place("https://h/", ("train.json",))),
    ],
)
def test_files_are_names_under_a_root(source: str | list[str], place: Place) -> None:
    """All files of a source lie under one root, whose query goes with each of them."""
    assert place_of(source) == place


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ([], "at least one"),
        (["/a/x.tar", "/a/x.tar"], "twice"),
        (["/a/x.tar", "/a/./b/../x.tar"], "twice"),
        (["/a/{0..2}.tar", "/a/1.tar"], "twice"),
        (["s3://b/x.tar", "s3://b/x.tar"], "twice"),
        (["s3://b/x.tar", "s3://c/x.tar"], "Concat"),
        (["s3://b/x.tar", "gs://b/y.tar"], "Concat"),
        (["https://h/x.tar?a", "https://h/y.tar?b"], "Concat"),
        (["https://h/x.tar", "https://h:444/y.tar"], "Concat"),
        (["/a/x.tar", "s3://b/x.tar"], "not both"),
    ],
)
def test_a_list_that_cannot_be_one_set_is_refused(source: list[str], word: str) -> None:
    """No shard, the same one twice, several servers or several queries are errors that say what to do."""
    with pytest.raises(ConfigError, match=word):
        Dataset(source)


@pytest.mark.parametrize("source", [None, 7, [7], [None], b"x.tar", [b"x.tar"]])
def test_what_is_no_source_is_refused(source: Any) -> None:
    """Anything but texts, paths and lists of them is an error of the call."""
    with pytest.raises(ConfigError, match="path, an address or a list"):
        Dataset(source)


def test_one_file_is_found_in_its_folder(tmp_path: Path) -> None:
    """A path, a list of one, a pattern of one and a path object name the same file."""
    path = tmp_path / "some" / "x1.tar"
    path.parent.mkdir()
    path.write_bytes(foreign_sets.make_tar(range(3)))

    for source in (path, str(path), [path], str(path.parent / "x{1..1}.tar"), path.parent):
        assert foreign_sets.numbers(Dataset(source)) == [0, 1, 2]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    """A missing path, a missing file of a list, and a folder in a list are errors with their names."""
    (tmp_path / "x.tar").write_bytes(foreign_sets.make_tar([1]))

    with pytest.raises(ConfigError, match="neither a folder nor a file"):
        len(Dataset(tmp_path / "y.tar"))
    with pytest.raises(NotFoundError, match=r"y\.tar"):
        len(Dataset([tmp_path / "x.tar", tmp_path / "y.tar"]))
    with pytest.raises(StorageError, match="not a file"):
        len(Dataset([tmp_path]))


def lengths(data: bytes) -> int:
    """Return the length of a set that comes pickled."""
    return len(pickle.loads(data))


def test_a_set_is_opened_in_a_child_as_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set that was made with relative paths opens in a process that was started from here."""
    (tmp_path / "x.tar").write_bytes(foreign_sets.make_tar(range(3)))
    monkeypatch.chdir(tmp_path)
    sets = [Dataset("x.tar"), Dataset(["x.tar"], fields={"cls": "int"}), Dataset("{x..y}.tar")]
    (tmp_path / "{x..y}.tar").write_bytes(foreign_sets.make_tar(range(3)))

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.map(lengths, [pickle.dumps(each) for each in sets])

    assert found == [3, 3, 3]
    assert pickle.loads(pickle.dumps(sets[1])).fields == {"cls": "int"}


def test_an_open_set_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that its owner changes later, or a folder that the process leaves, do not change a set."""
    (tmp_path / "x.tar").write_bytes(foreign_sets.make_tar(range(3)))
    monkeypatch.chdir(tmp_path)
    paths = ["x.tar"]
    dataset = Dataset(paths)
    paths.append("y.tar")

    monkeypatch.chdir(os.sep)

    assert foreign_sets.numbers(dataset) == [0, 1, 2]


def test_names_that_need_quoting_are_quoted_once() -> None:
    """Spaces, percent signs and letters beyond ASCII reach a server as they are called there."""
    data = foreign_sets.make_tar(range(3))
    with RangeServer({"a b/c d.tar": data, "50%/é.tar": data}) as server:
        for path in ("a%20b/c%20d.tar", "50%25/%C3%A9.tar"):
            assert foreign_sets.numbers(Dataset(f"{server.url}/{path}")) == [0, 1, 2]
