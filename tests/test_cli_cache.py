"""`aioload cache` shows what is cached, and removes what is asked and not in use."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from aioload.bytelocks import ByteLock
from aioload.cache.folder import SampleFolder
from aioload.cli._app import app
from aioload.storage import Cached, MemoryStorage, Packed, Unpacked, read
from aioload.storage.cachefolder import default_cache_folder
from aioload.storage.unpackedfiles import slot_of

KIB = 1 << 10
FILES = {
    "train/shard-0": b"0" * 300 * KIB,
    "train/shard-1": b"1" * 200 * KIB,
    "val/shard-0": b"2" * 100 * KIB,
}


def aio(*arguments: object) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="aioload")


def address(name: str) -> str:
    """Return where a file comes from."""
    return f"https://user:hush@example.org/{name}?signature=hush"


async def fill(folder: Path) -> None:
    """Cache all files, one day after the other, the first one three days ago."""
    cached = Cached(MemoryStorage(FILES), folder, None, address)
    for name in FILES:
        await read(cached, name, 0, len(FILES[name]))
    await cached.aclose()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache of three files, last used two, one and no days ago."""
    asyncio.run(fill(tmp_path))
    for path in tmp_path.rglob("sums"):
        day = next(day for day, name in enumerate(FILES) if name.encode() in path.read_bytes())
        moment = path.stat().st_mtime - (2 - day) * 24 * 3600
        os.utime(path, (moment, moment))
    return tmp_path


def listed(folder: Path) -> list[str]:
    """Return the names of what is cached."""
    told = json.loads(aio("cache", "ls", "--dir", folder, "--json").stdout)
    return [file["address"].removeprefix("https://example.org/") for file in told["files"]]


def test_sets_are_listed(folder: Path) -> None:
    """A line for each set with files and bytes; no secrets."""
    result = aio("cache", "ls", "--dir", folder)

    lines = [line.split() for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert lines[1][:2] == ["https://example.org/train", "2"]
    assert lines[2][:2] == ["https://example.org/val", "1"]
    assert "of 3 files" in result.stdout
    assert "hush" not in result.stdout


def test_files_are_listed_as_json(folder: Path) -> None:
    """Every file, with what it takes and how large it is."""
    told = json.loads(aio("cache", "ls", "--dir", folder, "--json").stdout)

    assert [file["file_bytes"] for file in told["files"]] == [len(content) for content in FILES.values()]
    assert all(file["file_bytes"] <= file["bytes"] <= file["file_bytes"] + 20_000 for file in told["files"])
    assert told["bytes"] == sum(file["bytes"] for file in told["files"])


@pytest.mark.parametrize("arguments", ["ls", "ls --json", "prune --all", "prune --older 1"])
def test_no_cache_is_an_empty_one(tmp_path: Path, arguments: str) -> None:
    """Where nothing was cached yet nothing is made, and all is well."""
    result = aio("cache", *arguments.split(), "--dir", tmp_path / "none")

    assert result.exit_code == 0
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (("--all",), []),
        (("--older", "1.5"), ["train/shard-1", "val/shard-0"]),
        (("--older", "9"), list(FILES)),
        (("--bytes", "350KiB"), ["train/shard-1", "val/shard-0"]),
        (("--bytes", "150KiB"), ["val/shard-0"]),
        (("--bytes", "1GiB"), list(FILES)),
    ],
)
def test_what_is_asked_goes(folder: Path, arguments: tuple[str, ...], left: list[str]) -> None:
    """The least recently used first; other files in the folder are left alone."""
    (folder / "mine").write_bytes(b"not a cache")

    result = aio("cache", "prune", *arguments, "--dir", folder)

    assert result.exit_code == 0
    assert f"removed {'0 bytes' if len(left) == 3 else ''}" in result.stdout
    assert listed(folder) == left
    assert (folder / "mine").exists()


def test_what_is_in_use_stays(folder: Path) -> None:
    """A file that a live reader uses is not removed, and the output says so."""

    async def use() -> Result:
        cached = Cached(MemoryStorage(FILES), folder, None, address)
        await read(cached, "val/shard-0", 0, 10)
        result = await asyncio.to_thread(aio, "cache", "prune", "--all", "--dir", folder)
        await cached.aclose()
        return result

    result = asyncio.run(use())

    assert (result.exit_code, listed(folder)) == (0, ["val/shard-0"])
    assert "1 in use" in result.stdout


@pytest.mark.parametrize(
    ("named", "expected"), [("/x/caches", "/x/caches/aioload"), ("relative", None), ("", None)]
)
def test_default_folder_is_the_users(
    monkeypatch: pytest.MonkeyPatch, named: str, expected: str | None
) -> None:
    """XDG_CACHE_HOME where it is an absolute path, else the folder in the user's home."""
    monkeypatch.setenv("XDG_CACHE_HOME", named)

    found = default_cache_folder()

    assert found == Path(expected) if expected else found.is_relative_to(Path.home())


# unpacked files, and indexes


@pytest.fixture
def mixed(folder: Path) -> Path:
    """The same cache with two unpacked files, the first last used five days ago, and two indexes."""
    asyncio.run(unpack(folder))
    (folder / "indexes").mkdir()
    for name in ("a" * 16, "b" * 16):
        (folder / "indexes" / f"{name}.index").write_bytes(b"index" * 1000)
        (folder / "indexes" / f"{name}.lock").touch()
    old = time.time() - 5 * 24 * 3600
    for path in [*(folder / "indexes").glob("a*"), *folder.rglob("bytes-1000")]:
        os.utime(path, (old, old))
    return folder


async def unpack(folder: Path) -> None:
    """Unpack two files."""
    source = MemoryStorage({f"{size}.gz": gzip.compress(bytes(size)) for size in (1000, 2000)})
    storage = Unpacked(
        source, folder, lambda _: Packed("gzip"), lambda name: f"https://example.org/sets/{name}"
    )
    for name in ("1000.gz", "2000.gz"):
        await read(storage, name)
    await storage.aclose()


def kinds(folder: Path) -> list[tuple[str, str]]:
    """Return kind and last part of the address of all that is cached."""
    told = json.loads(aio("cache", "ls", "--dir", folder, "--json").stdout)
    return [(file["kind"], file["address"].rpartition("/")[2]) for file in told["files"]]


def test_unpacked_files_and_indexes_are_listed(mixed: Path) -> None:
    """All that aioload keeps in the folder is there, by what it is, and is counted."""
    text = aio("cache", "ls", "--dir", mixed).stdout

    assert kinds(mixed) == [
        ("cached", "shard-0"), ("cached", "shard-1"), ("cached", "shard-0"),
        ("index", f"{'a' * 16}.index"), ("index", f"{'b' * 16}.index"),
        ("unpacked", "1000.gz"), ("unpacked", "2000.gz"),
    ]  # fmt: skip
    assert "https://example.org/sets" in text
    assert "of 7 files" in text


def test_old_files_of_every_kind_are_pruned(mixed: Path) -> None:
    """What was not used for days goes, whatever it is."""
    aio("cache", "prune", "--dir", mixed, "--older", "4")

    assert kinds(mixed)[3:] == [("index", f"{'b' * 16}.index"), ("unpacked", "2000.gz")]
    assert not list(mixed.rglob("bytes-1000"))
    assert not list(mixed.rglob("a*.lock"))


def test_all_is_pruned_but_what_is_in_use(mixed: Path) -> None:
    """A file that a live reader uses, and an index that is being made, stay."""
    held = [
        (mixed / "aioload-unpacked-1" / "uses", slot_of(next(mixed.rglob("bytes-2000")).parent.name)),
        (mixed / "indexes" / f"{'b' * 16}.lock", 0),
    ]
    locks = [ByteLock(path) for path, _ in held]
    assert all(lock.share(place) for lock, (_, place) in zip(locks, held, strict=True))

    used = json.loads(aio("cache", "prune", "--dir", mixed, "--all", "--json").stdout)
    left = kinds(mixed)
    for lock in locks:
        lock.close()
    aio("cache", "prune", "--dir", mixed, "--all")

    assert (used["removed"], used["left"], used["in_use"]) == (5, 2, 2)
    assert left == [("index", f"{'b' * 16}.index"), ("unpacked", "2000.gz")]
    assert kinds(mixed) == []


def test_a_folder_without_locks_is_left_alone(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can tell whether an index or an unpacked file is in use, it counts as such and stays."""

    def refuse(self: ByteLock, start: int, length: int = 1) -> bool:
        raise OSError(37, "No locks available")

    for name in ("take", "is_free"):
        monkeypatch.setattr(ByteLock, name, refuse)

    told = json.loads(aio("cache", "prune", "--dir", mixed, "--older", "4", "--json").stdout)

    assert (told["removed"], told["left"]) == (0, 7)
    assert told["in_use"] >= 4


def test_indexes_go_last_for_room(mixed: Path) -> None:
    """For a number of bytes, what was read and unpacked goes before indexes, which are dear to make."""
    aio("cache", "prune", "--dir", mixed, "--bytes", "16KiB")

    assert kinds(mixed) == [("index", f"{'a' * 16}.index"), ("index", f"{'b' * 16}.index")]


def test_kept_samples_are_listed_and_removed(tmp_path: Path) -> None:
    """What `cache=Disk(…)` keeps is told by set and code, and goes unless a program has it open."""
    # given samples that two versions of the user's code have left, one of which is open
    about = {"set": "0123456789", "decoders": {}, "prepare": "mels:prepare", "version": "1"}
    folder = SampleFolder(tmp_path, 1 << 20)
    folder.open("old", about).close()
    (folder.root / "old" / "some.data").write_bytes(b"0" * 3000)
    (folder.root / "old" / "some.list").write_bytes(b"")
    opened = folder.open("new", about | {"version": None})

    # when all is listed and pruned
    told = json.loads(aio("cache", "ls", "--dir", tmp_path, "--json").stdout)["files"]
    text = aio("cache", "ls", "--dir", tmp_path).stdout
    pruned = json.loads(aio("cache", "prune", "--all", "--dir", tmp_path, "--json").stdout)
    opened.close()

    # then both were told, and the one in use has stayed
    assert [(file["kind"], file["address"], file["in_use"]) for file in told] == [
        ("samples", "set 01234567, mels:prepare", True),
        ("samples", "set 01234567, mels:prepare, version '1'", False),
    ]
    assert "set 01234567, mels:prepare, version '1'" in text
    assert pruned["removed"] == 1
    assert pruned["removed_bytes"] > 3000
    assert [key.name for key in folder.kept()] == ["new"]
