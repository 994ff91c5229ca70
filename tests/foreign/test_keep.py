"""Keep: where the index of a foreign set lies, when it is made anew, and that one process makes it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import foreign_sets
import numpy as np
import pytest
from shard.tars import by_tarfile

from aioload import Dataset, StorageError
from aioload.bytelocks import ByteLock
from aioload.foreign import keep, opening
from aioload.foreign.keep import Kept
from aioload.shard import sidecar
from aioload.shard.sidecar import parse_sidecar, render_sidecar

TAR = foreign_sets.make_tar(range(9))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write an archive."""
    found = tmp_path / "data" / "x.tar"
    found.parent.mkdir()
    found.write_bytes(TAR)
    return found


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each set whose shards are looked through."""
    found: list[str] = []
    right = opening._make

    async def make(foreign: opening.Foreign, *arguments: object) -> object:
        found.append(foreign.label)
        return await right(foreign, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "_make", make)
    return found


P = np.array([0, 5, 9], np.uint64)


@pytest.mark.parametrize(
    "wrong",
    [
        {"positions": P[::-1]},
        {"positions": P[:0]},
        {"positions": P[:1]},
        {"positions": np.array([0, 5, 1 << 63], np.uint64)},
        {"shard_records": np.array([0, -3])},
        {"shard_records": np.array([0, 1, 2])},
        {"shard_starts": P},
        {"shard_data": P[:0]},
        {"shard_bytes": P[:1]},
        {"sums": np.zeros(1, np.uint32)},
        {"far": np.array([[100, 5]])},
        {"far": np.array([[1, -5]])},
        {"far": np.zeros(3, np.int64)},
    ],
)
def test_an_index_that_contradicts_itself_is_made_anew(path: Path, built: list[str], wrong: Any) -> None:
    """Whoever wrote it, its sum is right: nothing is read where it says, and it does not stay."""
    samples = foreign_sets.numbers(Dataset(path))
    (kept,) = beside(path)
    right = parse_sidecar(kept.read_bytes(), "x")

    kept.write_bytes(render_sidecar(replace(right, index=replace(right.index, **wrong))))
    again = foreign_sets.numbers(Dataset(path))

    assert again == samples
    assert len(built) == 2
    assert parse_sidecar(kept.read_bytes(), "x").index.positions.tolist() == right.index.positions.tolist()


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "mds"},
        {"format": "what"},
        {"facts": {"what": 1}},
        {"learnt_of": (7,)},
        {"learnt_of": ()},
        {"damage": ()},
        {"losses": (None, None)},
        {"marks": ("a", "b")},
    ],
)
def test_an_index_of_other_facts_is_made_anew(path: Path, built: list[str], wrong: Any) -> None:
    """So it is where it tells of other shards, or what shards of its format never tell."""
    samples = foreign_sets.numbers(Dataset(path))
    (kept,) = beside(path)
    kept.write_bytes(render_sidecar(replace(parse_sidecar(kept.read_bytes(), "x"), **wrong)))

    assert foreign_sets.numbers(Dataset(path)) == samples
    assert len(built) == 2


def beside(path: Path) -> list[Path]:
    """Return what lies in the folder of a shard and is hidden."""
    return sorted(each for each in path.parent.iterdir() if each.name.startswith("."))


def cached(cache: Path) -> list[Path]:
    """Return the indexes in the cache folder."""
    return sorted((cache / "aioload" / "indexes").glob("*.index"))


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Let nothing be written into a folder, by whoever runs the tests."""
    mode = folder.stat().st_mode
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(0)
        folder.chmod(mode)


@pytest.fixture
def public() -> Iterator[Path]:
    """Make a folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_the_index_lies_beside_the_data_and_is_found(path: Path, cache: Path, built: list[str]) -> None:
    """The first use makes it, the next finds it, by whatever name the shard is called."""
    for source in (path, [path], str(path.parent / "x.tar"), path.parent):
        assert foreign_sets.numbers(Dataset(source)) == list(range(9))

    (index,) = beside(path)
    assert len(built) == 1
    assert stat.S_IMODE(index.stat().st_mode) & 0o400
    assert cached(cache) == []


def test_a_folder_that_moves_keeps_its_index(path: Path, built: list[str]) -> None:
    """A folder that was moved, or is reached by a relative path, is not looked through again."""
    len(Dataset(path))
    moved = path.parent.rename(path.parent.with_name("moved"))

    assert foreign_sets.numbers(Dataset(moved / path.name)) == list(range(9))
    with contextlib.chdir(moved):
        assert foreign_sets.numbers(Dataset(path.name)) == list(range(9))
    assert len(built) == 1


def test_a_folder_that_cannot_be_written_to(
    public: Path, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index then lies in the user's cache folder, and two folders there do not meet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(public / "cache"))
    (public / "cache").mkdir()
    (public / "cache").chmod(0o777)
    for name in ("a", "b"):
        (public / name).mkdir()
        (public / name / "x.tar").write_bytes(foreign_sets.make_tar(range(3 + (name == "b"))))

    for name in ("a", "b", "a", "b"):
        with read_only(public / name):
            found = foreign_sets.numbers(Dataset(public / name / "x.tar"))
        assert found == list(range(3 + (name == "b")))

    assert len(built) == 2
    assert len(cached(public / "cache")) == 2


def test_where_nothing_can_be_written(
    public: Path, built: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is then in memory alone, and one warning says so."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(public / "cache"))
    (public / "x.tar").write_bytes(TAR)

    with read_only(public):
        dataset = Dataset(public / "x.tar")
        assert foreign_sets.numbers(dataset) == list(range(9))
        assert foreign_sets.numbers(dataset) == list(range(9))

    assert len(built) == 1
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "each process will make it anew" in warnings[0]


@pytest.mark.parametrize("what", ["size", "time", "replaced", "gone and back"])
def test_a_stale_index_is_made_anew(path: Path, built: list[str], what: str) -> None:
    """A shard of another size, one that was written to since, and another in its place are noticed."""
    assert len(Dataset(path)) == 9
    status = path.stat()
    other = foreign_sets.make_tar(range(1, 9 if what == "size" else 10))

    if what == "replaced":
        (path.parent / "new").write_bytes(other)
        os.utime(path.parent / "new", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        (path.parent / "new").replace(path)
    else:
        if what == "gone and back":
            path.unlink()
        path.write_bytes(other)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - (what != "size")))

    assert foreign_sets.numbers(Dataset(path)) == list(range(1, 9 if what == "size" else 10))
    assert len(built) == 2
    assert len(beside(path)) == 1


def test_a_stale_index_of_rows_is_made_anew(tmp_path: Path, built: list[str]) -> None:
    """A shard of an MDS folder that was written again is noticed, though the folder's index is the same."""
    folder = foreign_sets.make_mds(tmp_path / "mds", [range(4), range(4, 9)])
    other = foreign_sets.make_mds(tmp_path / "other", [range(4), [8, 7, 6, 5, 4]])
    assert (folder / "index.json").read_bytes() == (other / "index.json").read_bytes()
    assert foreign_sets.numbers(Dataset(folder)) == list(range(9))

    (folder / "shard.00001.mds").write_bytes((other / "shard.00001.mds").read_bytes())
    os.utime(folder / "shard.00001.mds", ns=(1, 1))

    assert foreign_sets.numbers(Dataset(folder)) == [0, 1, 2, 3, 8, 7, 6, 5, 4]
    assert len(built) == 2


def test_a_damaged_index_is_made_anew(path: Path, built: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """One that is cut, or has any byte changed, is never used: a warning says so, and it is written again."""
    len(Dataset(path))
    (index,) = beside(path)
    right = index.read_bytes()

    for number, place in enumerate([*range(0, len(right), 37), len(right) - 1], 2):
        caplog.clear()
        data = bytearray(right)
        data[place] ^= 1 << place % 8
        index.write_bytes(data[:place] if number % 2 else data)

        assert foreign_sets.numbers(Dataset(path)) == list(range(9))
        assert len(built) == number
        assert index.read_bytes() == right
        assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_index_of_another_version_is_made_anew(path: Path, built: list[str]) -> None:
    """A file that is whole, but says things in another way, is not used."""
    len(Dataset(path))
    (index,) = beside(path)
    right = index.read_bytes()

    found = parse_sidecar(right, "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sidecar, "_VERSION", 3)
        index.write_bytes(render_sidecar(found))

    assert foreign_sets.numbers(Dataset(path)) == list(range(9))
    assert len(built) == 2
    assert index.read_bytes() == right


def test_what_is_in_the_way_of_an_index_is_left_alone(path: Path, cache: Path, built: list[str]) -> None:
    """A folder where the index should lie sends it to the cache folder."""
    len(Dataset(path))
    (index,) = beside(path)
    index.unlink()
    index.mkdir()

    assert len(Dataset(path)) == 9
    assert len(Dataset(path)) == 9

    assert len(built) == 2
    assert index.is_dir()
    assert len(cached(cache)) == 1


def test_what_killed_processes_left_is_removed(path: Path) -> None:
    """Half a file that has lain there for days goes; one that somebody may be writing stays."""
    len(Dataset(path))
    (index,) = beside(path)
    old, fresh = (path.parent / f"{index.name}.{mark}.tmp" for mark in ("old", "fresh"))
    for draft in (old, fresh):
        draft.write_bytes(b"half")
    os.utime(old, (1, 1))
    index.unlink()

    assert len(Dataset(path)) == 9

    assert beside(path) == [index, fresh]


def test_names_of_any_bytes_are_kept(tmp_path: Path, built: list[str]) -> None:
    """Shards whose names are no UTF-8, and fields that nobody would print, have an index that is found."""
    name = os.fsdecode(b"\xff\xfe.tar")
    (tmp_path / name).write_bytes(by_tarfile([("a.x\x07", b"1"), ("a.\xe9", b"2")]))

    for _ in range(2):
        dataset = Dataset(tmp_path / name)
        assert dataset[0] == {"x\x07": b"1", "é": b"2", "__key__": "a"}

    assert len(built) == 1


def test_sums_are_added_to_an_index_and_stay(path: Path, built: list[str]) -> None:
    """`make_index(checksums=True)` adds sums to what is there, and whoever opens the set then has them."""
    assert Dataset(path).index.sums is None

    Dataset(path).make_index(checksums=True)

    assert Dataset(path).index.sums is not None
    assert Dataset(path).make_index().index.sums is not None
    assert len(built) == 2


def test_sums_and_fields_do_not_change_what_a_set_is(path: Path) -> None:
    """A run that was stopped goes on though sums were added since, or other fields are asked for."""
    plain = Dataset(path).table.fingerprint()
    some = Dataset(path, fields={"cls": "bytes"}).table.fingerprint()

    Dataset(path).make_index(checksums=True)

    assert {plain, some, Dataset(path).table.fingerprint()} == {plain}


BUILDER = """
    import sys, time
    from pathlib import Path
    from aioload import Dataset
    from aioload.foreign import opening
    from aioload.foreign.keep import Kept

    right, wait = opening._make, Kept._wait

    async def make(*arguments):
        print("building", flush=True)
        sys.stdin.readline()
        return await right(*arguments)

    async def told(self, lock):
        print("waiting" if not lock.is_free(0) else "alone", flush=True)
        await wait(self, lock)

    opening._make, Kept._wait = make, told
    print(len(Dataset(sys.argv[1])), flush=True)
"""


@contextlib.contextmanager
def builder(script: Path, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that opens a set, says what it does, and builds when it is told to."""
    process = subprocess.Popen(
        [sys.executable, script, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize("killed", [False, True])
def test_one_process_makes_the_index(tmp_path: Path, path: Path, killed: bool) -> None:
    """Another waits for it and finds it; where the first is killed, the other makes it."""
    script = tmp_path / "builder.py"
    script.write_text(textwrap.dedent(BUILDER))
    with builder(script, path) as first:
        assert [first.stdout.readline() for _ in range(2)] == ["alone\n", "building\n"]
        with builder(script, path) as second:
            assert second.stdout.readline() == "waiting\n"
            if killed:
                first.send_signal(signal.SIGKILL)
                assert second.stdout.readline() == "building\n"
                second.stdin.write("\n")
                second.stdin.flush()
            else:
                first.stdin.write("\n")
                first.stdin.flush()
                assert first.stdout.readline() == "9\n"
            assert second.stdout.readline() == "9\n"


def test_a_file_system_without_locks_is_no_reason_to_stop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody can hold a lock, each process makes the index."""

    def refuse(self: ByteLock, start: int, length: int = 1) -> bool:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(ByteLock, "take", refuse)

    assert foreign_sets.numbers(Dataset(path)) == list(range(9))


async def test_waiting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for hours gives up with an error that says what to do, and says early that it waits."""
    clock = iter(range(0, 1 << 30, 3600))
    monkeypatch.setattr(keep, "time", types.SimpleNamespace(monotonic=lambda: float(next(clock))))
    monkeypatch.setattr(keep, "_POLL", 0)
    holder, other = (Kept("the set", "root", ["x.tar"], None) for _ in range(2))

    async with holder.alone():
        with pytest.raises(StorageError, match="has been indexing the set for"):
            async with other.alone():
                pytest.fail("nobody may come in")


async def test_waiting_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for its turn holds up nobody in its event loop, such as the one that it waits for."""
    monkeypatch.setattr(keep, "_POLL", 0)
    holder, other = (Kept("the set", "root", ["x.tar"], None) for _ in range(2))
    came_in = anyio.Event()

    async def wait() -> None:
        async with other.alone():
            came_in.set()

    async with anyio.create_task_group() as group:
        async with holder.alone():
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert not came_in.is_set()
        await came_in.wait()


def test_the_index_says_nothing_secret(path: Path) -> None:
    """The file has names, places and fields, and nothing else that could be read in it."""
    len(Dataset(path))
    (index,) = beside(path)
    data = index.read_bytes()

    head = json.loads(data[16 : 16 + int.from_bytes(data[8:16], "little")])

    assert str(path.parent) not in data.decode("latin-1")
    assert head["shards"] == ["x.tar"]
