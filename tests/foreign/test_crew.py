"""Crew: what processes find in shards is what threads find, and whatever happens to them is seen to."""

from __future__ import annotations

import contextlib
import os
import signal
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import foreign_sets
import pytest
from scripts import running
from servers.ranges import RangeServer

from aioload import Dataset, ShardError
from aioload.foreign import crew
from aioload.foreign.build import HandedOver
from aioload.foreign.crew import Crew, Task
from aioload.shard.scan import Scanned
from aioload.storage import LocalStorage

from .test_build import linked
from .test_sums import touch

ARRAYS = ("positions", "sums", "far", "shard_data", "shard_bytes", "shard_records", "shard_starts")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have processes called in as soon as a thread has done anything; note how many each time."""
    found: list[int] = []
    right = crew.Processes

    def note(number: int) -> Any:
        found.append(number)
        return right(number)

    monkeypatch.setattr(crew, "Processes", note)
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
    assert caplog.text.count("died") == 1


async def test_whoever_comes_after_processes_died_does_it_in_a_thread(tmp_path: Path) -> None:
    """A shard may be handed over just before that is known; it is looked through here then."""
    folder = make(tmp_path / "x", "tar")
    size = (folder / "0.tar").stat().st_size
    work, storage = Crew(folder, size, 1), LocalStorage(folder)

    async def hand_over(*arguments: object, **options: object) -> Scanned:
        monkeypatch.undo()
        raise HandedOver(0)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(crew, "scan_shard", hand_over)
        found = await work.scan(storage, Task("tar", "0.tar", size, 1), int, depth=0)
    await storage.aclose()

    assert len(found.ends) == 5


async def test_a_shard_that_was_left_to_processes_is_not_forgotten_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they have died before it could be handed over, a thread looks through it; progress is whole."""
    path = make(tmp_path / "x", "tar") / "0.tar"
    right, told = crew.scan_shard, list[int]()

    async def hand_over(*arguments: object, **options: object) -> None:
        monkeypatch.setattr(crew, "scan_shard", right)
        raise HandedOver(7)

    monkeypatch.setattr(crew, "scan_shard", hand_over)
    async with Crew(path.parent, 100, 6) as left, storage_of(path.parent) as storage:
        task = Task("tar", path.name, path.stat().st_size, 1)
        scanned = await left.scan(storage, task, told.append, depth=0)

    assert len(scanned.ends) == 5
    assert sum(told) == path.stat().st_size - 7


@contextlib.asynccontextmanager
async def storage_of(folder: Path) -> AsyncIterator[LocalStorage]:
    """Open a folder."""
    storage = LocalStorage(folder)
    yield storage
    await storage.aclose()


HANGING = """
    import os, signal

    def hang(*arguments):
        os.write(1, b"begun\\n")
        signal.pause()
"""

INTERRUPTED = """
    import sys
    import hanging
    from aioload import Dataset
    from aioload.foreign import crew

    crew._TRIED_SECONDS, crew._WORTH_SECONDS = 0, -1
    crew.usable_cpus = lambda: 2
    crew._scan_file = hanging.hang
    try:
        len(Dataset(sys.argv[1]))
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_ctrl_c_ends_processes_that_would_take_long(tmp_path: Path) -> None:
    """Whoever gives up waits for no shard that a process is looking through, and can go on at once."""
    (tmp_path / "hanging.py").write_text(textwrap.dedent(HANGING))

    with running(INTERRUPTED, make(tmp_path / "x", "tar"), folder=tmp_path) as script:
        assert script.line() == "begun"
        script.interrupt()
        ended = script.end()

    assert ended.out.split() in (["interrupted"], ["begun", "interrupted"])  # one process, or both
    assert (ended.status, ended.err) == (0, "")


LEAVING = """
    import sys
    import threading
    import hanging
    from aioload import ClosedError, Dataset
    from aioload.foreign import crew

    crew._TRIED_SECONDS, crew._WORTH_SECONDS = 0, -1
    crew.usable_cpus = lambda: 2
    crew._scan_file = hanging.hang

    def take():
        try:
            len(Dataset(sys.argv[1]))
        except ClosedError:
            pass

    threading.Thread(target=take, daemon=True).start()
    sys.stdin.readline()
"""


def test_a_program_that_ends_waits_for_no_process(tmp_path: Path) -> None:
    """Of a thread that opens a set, such as that of a loader which was left without being closed."""
    (tmp_path / "hanging.py").write_text(textwrap.dedent(HANGING))

    with running(LEAVING, make(tmp_path / "x", "tar"), folder=tmp_path) as script:
        assert script.line() == "begun"
        script.say()
        ended = script.end()

    assert (ended.status, ended.err) == (0, "")


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
    monkeypatch.setattr(crew, "Processes", calls.append)
    monkeypatch.setattr(crew, "usable_cpus", lambda: 64)
    touch(folder / "2.tar")
    Dataset(folder).make_index(checksums=True)
    work = Crew(tmp_path, 1000, 10)
    for seconds, num_bytes, expected in ((0.9, 1, []), (0.2, 399, []), (0.0, 0, []), (2.9, 200, [10])):
        work.note(seconds, num_bytes)
        assert calls == expected
