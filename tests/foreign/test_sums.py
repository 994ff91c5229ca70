"""Sums of foreign shards: kept where a shard is what it was, whatever the set around it; missed aloud."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import foreign_sets
import pytest
from servers.ranges import RangeServer

from aioload import Dataset
from aioload.foreign import crew

from .test_build import linked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write three archives, and one in a folder of its own."""
    found = tmp_path / "data"
    (found / "deep").mkdir(parents=True)
    for number, name in enumerate(("a.tar", "b.tar", "c.tar", "deep/d.tar")):
        (found / name).write_bytes(foreign_sets.make_tar(range(number * 4, number * 4 + 4)))
    return found


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each shard whose records are summed."""
    return noted(monkeypatch, "sum_shard")


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each shard that is looked through."""
    return noted(monkeypatch, "scan_shard")


def noted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Return the names of the shards that a function of `crew` is asked for from now on."""
    found: list[str] = []
    right = getattr(crew, name)

    async def note(storage: object, shard: str, *arguments: object, **options: object) -> object:
        found.append(shard)
        return await right(storage, shard, *arguments, **options)

    monkeypatch.setattr(crew, name, note)
    return found


def has_sums(source: object) -> bool:
    """Tell whether a set, opened anew, has a sum of each record."""
    return Dataset(source).index.sums is not None  # type: ignore[arg-type]


def touch(path: Path, ns: int = 1) -> None:
    """Let a file seem to be written at another time."""
    os.utime(path, ns=(ns, ns))


def test_sums_are_found_by_any_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, summed: list[str], scanned: list[str]
) -> None:
    """A folder's sums serve lists, patterns and parts of it, in any order, and from other folders."""
    Dataset(folder).make_index(checksums=True)
    Dataset(folder / "deep").make_index(checksums=True)
    summed.clear()
    scanned.clear()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)

    a, b, c, d = (folder / name for name in ("a.tar", "b.tar", "c.tar", "deep/d.tar"))
    sources = ["data", "link", [a, b, c], [c, a], "data/{b,c}.tar", "data/*.tar", b, [d, a], "link/**/*.tar"]

    assert [source for source in sources if not has_sums(source)] == []
    assert foreign_sets.numbers(Dataset([d, a])) == [12, 13, 14, 15, 0, 1, 2, 3]
    assert summed == []
    assert scanned == []


def test_a_shard_that_was_touched_loses_its_sums_alone(
    folder: Path, caplog: pytest.LogCaptureFixture, summed: list[str], scanned: list[str]
) -> None:
    """The set then warns that it has none, with the command, at each use; which sums that shard only."""
    Dataset(folder).make_index(checksums=True)
    before = Dataset(folder).index.sums
    summed.clear()
    scanned.clear()
    touch(folder / "b.tar")

    for _ in range(2):
        caplog.clear()
        assert not has_sums(folder)
        (record,) = (record for record in caplog.records if record.levelno == logging.WARNING)
        assert "1 of its 3 shards" in record.getMessage()
        assert "aioload index --checksums" in record.getMessage()
    assert (scanned, summed) == (["b.tar"], [])

    caplog.clear()
    Dataset(folder).make_index(checksums=True)
    assert (scanned, summed) == (["b.tar"], ["b.tar"])
    after = Dataset(folder).index.sums
    assert before is not None
    assert after is not None
    assert before.tolist() == after.tolist()
    assert not caplog.records


def test_a_shard_alone_that_was_touched_is_told_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Though nothing of its sums is left."""
    Dataset(folder / "a.tar").make_index(checksums=True)
    touch(folder / "a.tar")

    assert not has_sums(folder / "a.tar")

    assert "aioload index --checksums" in caplog.text


def test_a_shard_that_is_added_is_looked_through_alone(
    folder: Path, caplog: pytest.LogCaptureFixture, scanned: list[str]
) -> None:
    """What is known of the others is taken over, sums or none; that there were sums is told."""
    len(Dataset(folder / "deep"))
    len(Dataset(folder))
    scanned.clear()
    (folder / "0.tar").write_bytes(foreign_sets.make_tar([20]))

    assert foreign_sets.numbers(Dataset(folder)) == [20, *range(12)]
    assert scanned == ["0.tar"]
    assert not caplog.records

    Dataset(folder).make_index(checksums=True)
    (folder / "1.tar").write_bytes(foreign_sets.make_tar([21]))
    assert not has_sums(folder)
    assert "1 of its 5 shards" in caplog.text


def test_a_shard_of_the_same_name_elsewhere_is_another(
    folder: Path, tmp_path: Path, scanned: list[str]
) -> None:
    """Of the same size and time, too: each folder's own indexes speak of it alone."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.tar").write_bytes(foreign_sets.make_tar(range(3, -1, -1)))
    for path in (folder / "a.tar", other / "a.tar"):
        touch(path)
    assert (folder / "a.tar").stat().st_size == (other / "a.tar").stat().st_size
    Dataset(folder).make_index(checksums=True)

    assert foreign_sets.numbers(Dataset(other)) == [3, 2, 1, 0]
    assert not has_sums(other)
    assert foreign_sets.numbers(Dataset([other / "a.tar", folder / "a.tar"])) == [3, 2, 1, 0, 0, 1, 2, 3]


def test_rows_whose_count_is_said_to_be_another_are_looked_through(
    tmp_path: Path, scanned: list[str]
) -> None:
    """An MDS folder's index.json has part in what a shard is."""
    folder = foreign_sets.make_mds(tmp_path / "x", [range(4), range(4, 9)])
    len(Dataset(folder))
    scanned.clear()
    document = (folder / "index.json").read_text()
    (folder / "index.json").write_text(document.replace('"samples": 5', '"samples": 4'))

    contents = Dataset(folder).contents

    assert scanned == ["shard.00001.mds"]
    assert [why is None for why in contents.damage] == [True, False]


@pytest.mark.parametrize("names", [["b.tar", "a.tar"], ["a.tar", "b.tar"], ["b.tar"], ["a.tar"]])
def test_what_is_taken_over_is_what_would_be_found(
    tmp_path: Path, scanned: list[str], names: list[str]
) -> None:
    """Places, sums, links that lead far back and damage are as if the shards had been looked through."""
    for folder in (tmp_path / "x", tmp_path / "y"):
        folder.mkdir()
        (folder / "a.tar").write_bytes(foreign_sets.make_tar(range(5))[:-3000])
        (folder / "b.tar").write_bytes(linked())
    Dataset(tmp_path / "x" / "{a,b}.tar").make_index(checksums=True)
    scanned.clear()

    taken = Dataset([tmp_path / "x" / name for name in names]).contents
    assert scanned == []
    found = Dataset([tmp_path / "y" / name for name in names]).make_index(checksums=True)

    assert sorted(scanned) == sorted(names)
    assert (taken.damage, taken.fields, taken.index.shards) == (
        found.damage,
        found.fields,
        found.index.shards,
    )
    for name in ("positions", "sums", "far", "shard_data", "shard_bytes", "shard_records", "shard_starts"):
        one, other = getattr(taken.index, name), getattr(found.index, name)
        assert (one is None) == (other is None), name
        assert one is None or one.tolist() == other.tolist(), name


def test_sums_of_an_address_are_found_by_any_name(folder: Path, summed: list[str]) -> None:
    """In the cache folder, too: for lists, patterns and parts of what was summed."""
    with RangeServer(folder) as server:
        Dataset(f"{server.url}/{{a,b,c}}.tar").make_index(checksums=True)
        summed.clear()

        assert has_sums([f"{server.url}/{name}.tar" for name in "abc"])
        assert has_sums([f"{server.url}/{name}.tar" for name in "ca"])
        assert has_sums(f"{server.url}/b.tar")
        assert not has_sums(f"{server.url}/deep/d.tar")
        assert summed == []


def test_hashed_rows_keep_their_sums(tmp_path: Path, summed: list[str]) -> None:
    """An MDS folder with sums of shards is read whole but once: what changed is held against them again."""
    folder = foreign_sets.make_hashed_mds(tmp_path / "x", [range(4), range(4, 9), range(9, 12)])
    len(Dataset(folder))
    assert sorted(summed) == [f"shard.0000{number}.mds" for number in range(3)]
    summed.clear()
    touch(folder / "shard.00001.mds")

    assert has_sums(folder)
    assert summed == ["shard.00001.mds"]
