"""Crew: what processes find in shards is what threads find, and whatever happens to them is seen to."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import foreign_sets
import pytest
from servers.ranges import RangeServer

from aioload import Dataset, ShardError
from aioload.foreign import crew
from aioload.foreign.crew import Crew

from .test_build import linked
from .test_sums import touch

ARRAYS = ("positions", "sums", "far", "shard_data", "shard_bytes", "shard_records", "shard_starts")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have processes called in as soon as a thread has done anything; note how many each time."""
    found: list[int] = []
    right = crew.processes

    def note(number: int) -> Any:
        found.append(number)
        return right(number)

    monkeypatch.setattr(crew, "processes", note)
    monkeypatch.setattr(crew, "usable_cpus", lambda: 2)
    monkeypatch.setattr(crew, "_TRIED_SECONDS", 0)
    monkeypatch.setattr(crew, "_WORTH_SECONDS", -1)
    return found


def make(folder: Path, kind: str) -> Path:
    """Write six shards of which one is damaged, or one has links."""
    shards = [range(number * 5, number * 5 + 5) for number in range(6)]
    if kind == "mds":
        return foreign_sets.make_hashed_mds(folder, shards)
    folder.mkdir()
    for number, shard in enumerate(shards):
        data = foreign_sets.make_tar(shard) if kind == "tar" else foreign_sets.make_tfrecord(shard)
        (folder / f"{number}.{kind}").write_bytes(data[:-100] if number == 3 and kind == "tfrecord" else data)
    if kind == "tar":
        (folder / "3.tar").write_bytes(linked())
    return folder


@pytest.mark.parametrize("kind", ["tar", "tfrecord", "mds"])
def test_processes_find_what_threads_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[int], kind: str
) -> None:
    """Places, sums, links, damage and fields are the same, and progress comes to the same sum."""
    folder = make(tmp_path / "x", kind)
    told: list[int] = []

    by_processes = Dataset(folder).make_index(checksums=True, bar=lambda what, total: Bar(told, total))
    assert set(calls) == {2}
    assert all(number >= 0 for number in told)
    for path in folder.iterdir():
        if path.name.startswith(".aioload"):
            path.unlink()
    monkeypatch.setattr(crew, "_TRIED_SECONDS", 1e9)
    by_threads = Dataset(folder).make_index(checksums=True)

    assert (by_processes.damage, by_processes.fields) == (by_threads.damage, by_threads.fields)
    for name in ARRAYS:
        one, other = getattr(by_processes.index, name), getattr(by_threads.index, name)
        assert (one is None) == (other is None), name
        assert one is None or one.tolist() == other.tolist(), name


class Bar:
    """Notes progress; all that there is to do must be done at the end."""

    def __init__(self, told: list[int], total: int) -> None:
        self._told, self._total = told, total

    def __enter__(self) -> Any:
        self._told.clear()
        return self._told.append

    def __exit__(self, kind: Any, *rest: object) -> None:
        assert kind is not None or sum(self._told) == self._total


def test_what_a_process_raises_is_raised_here(tmp_path: Path, calls: list[int]) -> None:
    """A sum that is wrong, found by a process, is the error of its shard, and leaves no process behind."""
    folder = make(tmp_path / "x", "mds")
    path = folder / "shard.00005.mds"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")

    with pytest.raises(ShardError, match="failed its checksum") as caught:
        len(Dataset(folder))

    assert caught.value.shard == path.name
    assert calls


def die(*arguments: object) -> None:
    """End the process that this runs in, as the system does for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_processes_that_die_are_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so, and threads do the rest."""
    folder = make(tmp_path / "x", "tar")
    monkeypatch.setattr(crew, "_scan_file", die)

    assert len(Dataset(folder)) == 5 * 5 + 12

    assert calls == [2]
    assert "died" in caplog.text


def test_processes_are_for_files_of_this_machine_that_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[int]
) -> None:
    """Not for shards at a server, nor a single one, nor what is done soon."""
    folder = make(tmp_path / "x", "tar")
    with RangeServer(folder) as server:
        Dataset(f"{server.url}/{{0..5}}.tar").make_index(checksums=True)
    len(Dataset(folder / "1.tar"))
    assert calls == []

    monkeypatch.undo()
    monkeypatch.setattr(crew, "processes", calls.append)
    monkeypatch.setattr(crew, "usable_cpus", lambda: 64)
    touch(folder / "2.tar")
    Dataset(folder).make_index(checksums=True)
    work = Crew(tmp_path, 1000, 10)
    for seconds, num_bytes, expected in ((0.9, 1, []), (0.2, 399, []), (0.0, 0, []), (2.9, 200, [10])):
        work.note(seconds, num_bytes)
        assert calls == expected
