"""What was read once is read from disk: the same bytes, whatever becomes of disk, source and processes."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from contract import FILES, StorageContract
from fakes import FaultyStorage, GateStorage
from hypothesis import given, settings
from hypothesis import strategies as st
from sources import Source

from aioload import errors
from aioload.bytelocks import locked_file
from aioload.storage import CacheCounts, Cached, LocalStorage, MemoryStorage, Storage, cache, cachedisk, read
from aioload.storage import cachefolder as folders
from aioload.storage.cachefolder import CacheFolder

MakeCache = Callable[..., Cached]
MIB = 1 << 20
KIB = 1 << 10
SHARD = random.Random(3).randbytes(2 * MIB + 12_345)
REPOSITORY = Path(__file__).parent.parent.parent


def key_of(name: str) -> str:
    """Return an address."""
    return f"https://example.org/set/{name}"


@asynccontextmanager
async def opened(folder: Path, storage: Storage, **options: Any) -> AsyncIterator[Cached]:
    """Open a cache in a folder, and close it."""
    cached = Cached(
        storage, folder, options.pop("limit_bytes", None), options.pop("key_of", key_of), **options
    )
    try:
        yield cached
    finally:
        await cached.aclose()


@pytest.fixture
async def cached(tmp_path: Path) -> AsyncIterator[MakeCache]:
    """Open caches over one folder, and close them at the end."""
    caches: list[Cached] = []

    def make(
        storage: Storage, limit_bytes: int | None = None, key_of: Any = key_of, **options: Any
    ) -> Cached:
        caches.append(Cached(storage, tmp_path, limit_bytes, key_of, **options))
        return caches[-1]

    yield make
    for cached in caches:
        await cached.aclose()


def files_of_bytes(folder: Path) -> list[Path]:
    """Where the cached bytes are."""
    return sorted(folder.rglob("bytes-*"))


def lists(folder: Path) -> list[Path]:
    """Where it stands what is cached."""
    return sorted(folder.rglob("sums"))


def on_disk(folder: Path) -> int:
    """What the cached files take."""
    return sum(path.stat().st_blocks * 512 for path in [*files_of_bytes(folder), *lists(folder)])


def everything(folder: Path) -> bytes:
    """All names and all bytes in a folder."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return "".join(map(str, paths)).encode() + b"".join(path.read_bytes() for path in paths)


def flip(path: Path, place: int) -> None:
    """Damage a byte."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))


def shuffled(size: int, piece: int) -> list[tuple[int, int]]:
    """Cut a file into pieces, in a drawn order."""
    pieces = [(start, min(size, start + piece)) for start in range(0, size, piece)]
    random.Random(4).shuffle(pieces)
    return pieces


class TestCached(StorageContract):
    @pytest.fixture
    def storage(self, cached: MakeCache) -> Cached:
        return cached(MemoryStorage(FILES))


class TestCachedThatIsFull(StorageContract):
    @pytest.fixture
    async def storage(self, cached: MakeCache) -> Cached:
        for name in FILES:
            await read(cached(MemoryStorage(FILES)), name)
        return cached(MemoryStorage(FILES))


class TestCachedWithoutRoom(StorageContract):
    @pytest.fixture
    def storage(self, cached: MakeCache) -> Cached:
        return cached(MemoryStorage(FILES), 4096)


# what is fetched


async def test_second_epoch_needs_no_network(cached: MakeCache) -> None:
    """Pieces read in a drawn order are fetched once, byte for byte, and found in any other order."""
    source = Source({"a": SHARD})
    storage = cached(source)

    first = [await read(storage, "a", *piece) for piece in shuffled(len(SHARD), 100_000)]
    fetched = source.fetched
    second = [await read(storage, "a", *piece) for piece in shuffled(len(SHARD), 33_333)]

    assert first == [SHARD[start:stop] for start, stop in shuffled(len(SHARD), 100_000)]
    assert second == [SHARD[start:stop] for start, stop in shuffled(len(SHARD), 33_333)]
    assert fetched == source.fetched == len(SHARD)
    assert storage.counts() == CacheCounts(len(second), len(first), len(SHARD), len(SHARD), 0)


async def test_whole_files_need_no_network_at_all(cached: MakeCache) -> None:
    """What is cached whole is read with its source out of reach, sizes included."""
    await read(cached(Source({"a": SHARD}, {"a": "1"})), "a", 0, len(SHARD))
    source = Source({"a": SHARD})
    source.reachable = False
    storage = cached(source)

    assert await storage.size("a") == len(SHARD)
    assert await read(storage, "a", 5, 500_000) == SHARD[5:500_000]
    assert await read(storage, "a", 0, len(SHARD)) == SHARD


async def test_only_holes_are_fetched(cached: MakeCache) -> None:
    """A read over cached parts asks for the rest, in as few requests as the parts lie apart."""
    source = Source({"a": SHARD})
    storage = cached(source)
    for start, stop in [(300_000, 600_000), (700_000, 701_000), (1_000_000, 1_400_000)]:
        await read(storage, "a", start, stop)
    source.reads.clear()

    whole = await read(storage, "a", 100_000, 1_500_000)

    assert whole == SHARD[100_000:1_500_000]
    assert sorted(source.reads) == [
        ("a", 100_000, 300_000), ("a", 600_000, 1_000_000), ("a", 1_400_000, 1_500_000)
    ]  # fmt: skip
    assert await read(storage, "a", 100_000, 1_500_000) == whole
    assert len(source.reads) == 3


async def test_hits_and_misses_are_counted(cached: MakeCache) -> None:
    """Reads, bytes from the disk and bytes written to it."""
    storage = cached(Source({"a": SHARD}))

    await read(storage, "a", 0, 1000)
    await read(storage, "a", 500, 900)
    await read(storage, "a", 500, 1500)

    assert storage.counts() == CacheCounts(hits=1, misses=2, bytes=900, stored=1500, errors=0)


async def test_small_files_are_always_fresh(cached: MakeCache) -> None:
    """`get`, by which manifests are read, asks the source each time."""
    files = {"manifest.json": b"old"}
    storage = cached(MemoryStorage(files))
    await storage.get("manifest.json")

    files["manifest.json"] = b"newer"

    assert await storage.get("manifest.json") == b"newer"
    assert await read(storage, "manifest.json", 0, 5) == b"newer"


async def test_errors_of_the_source_come_through(cached: MakeCache) -> None:
    """One hole's error is the source's own; where several fail, it is that of the first in the file."""
    failure = errors.StorageError("503", status=503)
    faulty = cached(FaultyStorage(MemoryStorage({"a": SHARD}), {0: failure}))
    with pytest.raises(errors.StorageError) as alone:
        await read(faulty, "a", 0, 1000)
    await read(faulty, "a", 500_000, 1_000_000)
    cut_short = cached(MemoryStorage({"a": SHARD}))
    source = Source({"a": SHARD})
    storage = cached(source)
    await read(storage, "a", 500_000, 1_000_000)
    source.reachable = False
    with pytest.raises(errors.StorageError, match="down at 0") as first:
        await read(storage, "a", 0, 1_500_000)

    assert alone.value is failure
    assert first.value.facts == {}
    assert await read(cut_short, "a", 0, 1_500_000) == SHARD[:1_500_000]


# which version


@pytest.mark.parametrize("names", [("a/0.tar", "b/0.tar"), ("x/a", "x/b")])
async def test_equal_base_names_do_not_meet(cached: MakeCache, names: tuple[str, str]) -> None:
    """K01: the whole address counts, in one set or in two with the same names."""
    files = {names[0]: b"one" * 1000, names[1]: b"two" * 1000}
    storage = cached(MemoryStorage(files))
    other = cached(MemoryStorage({names[0]: b"333" * 1000}), key_of=lambda name: f"s3://bucket/{name}")

    found = [await read(storage, name, 0, 3000) for name in [*names, *names]]

    assert found == [files[name] for name in [*names, *names]]
    assert await read(other, names[0], 0, 3000) == b"333" * 1000


async def test_secrets_are_not_written(cached: MakeCache, tmp_path: Path) -> None:
    """Neither a name nor a list tells what stands before an @ or behind a ?."""
    storage = cached(
        MemoryStorage({"a": b"0123"}), key_of=lambda name: f"https://me:pass@host/{name}?sig=hush"
    )

    await read(storage, "a", 0, 4)

    told = everything(tmp_path)
    assert b"https://host/a" in told
    assert not any(secret in told for secret in (b"pass", b"hush"))


async def test_new_tag_never_serves_old_bytes(cached: MakeCache) -> None:
    """A file that is cached in part is used only if the source still has that version."""
    new = bytes(reversed(SHARD))
    await read(cached(Source({"a": SHARD}, {"a": "old"})), "a", 0, 1000)
    source = Source({"a": new}, {"a": "new"})
    storage = cached(source)

    found = [await read(storage, "a", start, start + 1000) for start in (0, 500, 0)]

    assert found == [new[:1000], new[500:1500], new[:1000]]
    assert source.asked == ["a"]
    assert await read(cached(Source({"a": SHARD}, {"a": "old"})), "a", 0, 1000) == SHARD[:1000]


async def test_revalidating_asks_for_whole_files_too(cached: MakeCache) -> None:
    """Once a file and opening."""
    await read(cached(Source({"a": b"old"}, {"a": "1"})), "a", 0, 3)
    source = Source({"a": b"new"}, {"a": "2"})
    storage = cached(source, revalidate=True)

    assert [await read(storage, "a", 0, 3) for _ in range(3)] == [b"new"] * 3
    assert source.asked == ["a"]


async def test_versions_are_never_mixed_under_a_reader(cached: MakeCache, tmp_path: Path) -> None:
    """N07: a file was used as of one version, and its source has another: an error from then on."""
    await read(cached(Source({"a": SHARD}, {"a": "old"})), "a", 0, len(SHARD))
    storage = cached(Source({"a": SHARD}, {"a": "new"}))
    await read(storage, "a", 0, 1000)
    flip(files_of_bytes(tmp_path)[0], 1_000_000)

    for start in (900_000, 0):
        with pytest.raises(errors.StorageError, match="source of a has changed") as caught:
            await read(storage, "a", start, 1_100_000)
        assert (caught.value.before, caught.value.now, caught.value.final) == ("old", "new", True)

    assert await read(cached(Source({"a": SHARD}, {"a": "new"})), "a", 0, len(SHARD)) == SHARD


async def test_nobody_is_asked_for_what_is_vouched_for(cached: MakeCache) -> None:
    """Bytes that are there are used as they are; the tag matters when others are fetched."""
    await read(cached(Source({"a": SHARD}, {"a": "1"})), "a", 0, 1000)
    source = Source({"a": SHARD}, {"a": "1"})
    storage = cached(source, vouched=True)

    found = [await read(storage, "a", 100, 900) for _ in range(2)]
    asked = list(source.asked)
    found.append(await read(storage, "a", 500, 3000))

    assert found == [SHARD[100:900], SHARD[100:900], SHARD[500:3000]]
    assert (asked, source.asked, source.reads) == ([], ["a"], [("a", 1000, 3000)])


async def test_a_read_is_of_one_version_also_where_the_key_is_vouched_for(cached: MakeCache) -> None:
    """N07: bytes that are fetched tell another tag: all of the read is of that, and the old goes."""
    new = bytes(reversed(SHARD))
    await read(cached(Source({"a": SHARD}, {"a": "old"})), "a", 0, 300_000)
    source = Source({"a": new}, {"a": "new"})
    storage = cached(source, vouched=True)

    first = await read(storage, "a", 0, 1000)
    found = await read(storage, "a", 100_000, 800_000)
    again = await read(storage, "a", 0, 1000)

    assert first == SHARD[:1000]
    assert (found, again) == (new[100_000:800_000], new[:1000])
    assert await read(cached(Source({"a": SHARD}, {"a": "old"})), "a", 0, 1000) == SHARD[:1000]


# damage


async def test_damaged_bytes_are_fetched_again(cached: MakeCache, tmp_path: Path) -> None:
    """Only what is damaged, counted; afterwards it is whole again."""
    await read(cached(Source({"a": SHARD})), "a", 0, MIB)
    flip(files_of_bytes(tmp_path)[0], 300_000)
    source = Source({"a": SHARD})
    storage = cached(source)

    found = await read(storage, "a", 1000, MIB), await read(storage, "a", 290_000, 310_000)

    assert found == (SHARD[1000:MIB], SHARD[290_000:310_000])
    assert source.reads == [("a", 256 * KIB, 512 * KIB)]
    assert storage.counts().errors == 1
    async with opened(tmp_path, Source({"a": SHARD})) as later:
        await read(later, "a", 0, MIB)
        assert later.counts() == CacheCounts(hits=1, bytes=MIB)


@pytest.mark.parametrize("change", ["cut", "garbage", "zeros", "head", "gone"])
async def test_damaged_lists_lose_bytes_and_invent_none(
    cached: MakeCache, tmp_path: Path, change: str
) -> None:
    """A list that was cut, overwritten or removed tells less, and the file can be cached again."""
    async with opened(tmp_path, Source({"a": SHARD})) as filling:
        for start, stop in shuffled(MIB, 100_000):
            await read(filling, "a", start, stop)
    path = lists(tmp_path)[0]
    data = path.read_bytes()
    damaged = {
        "cut": data[:-40],
        "garbage": data[:-100] + b"x" * 37 + data[-100:],
        "zeros": data[:-64] + bytes(64),
        "head": b"x" + data[1:],
        "gone": None,
    }[change]
    path.unlink() if damaged is None else path.write_bytes(damaged)

    for _ in range(2):
        source = Source({"a": SHARD})
        async with opened(tmp_path, source) as storage:
            assert await read(storage, "a", 0, MIB) == SHARD[:MIB]

    assert source.reads == []


async def test_removed_cache_is_made_again(cached: MakeCache, tmp_path: Path) -> None:
    """Somebody empties the folder while it is used: bytes are fetched, and cached once more."""
    source = Source({"a": SHARD})
    storage = cached(source)
    await read(storage, "a", 0, MIB)
    await storage._disk.local.aclose()  # the open file would still be there
    storage._disk.local = LocalStorage(tmp_path / folders.ROOT)
    shutil.rmtree(tmp_path / folders.ROOT)

    found = [await read(storage, "a", 0, MIB) for _ in range(4)]

    assert found == [SHARD[:MIB]] * 4
    assert source.fetched <= 3 * MIB
    assert len(files_of_bytes(tmp_path)) == 1


# a disk that fails


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
async def test_disk_that_cannot_be_written_to_ends_storing(
    cached: MakeCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """One warning; reads go on from the network, and what is there is still used."""
    source = Source({"a": SHARD})
    storage = cached(source)
    await read(storage, "a", 0, 1000)

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", fail)
    found = [await read(storage, "a", start, start + 1000) for start in (0, 5000, 9000, 0)]

    assert found == [SHARD[start : start + 1000] for start in (0, 5000, 9000, 0)]
    assert source.fetched == 3000
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["WARNING"]
    assert "nothing more is cached" in caplog.text


async def test_folder_that_cannot_be_made_ends_storing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file where the folder should be is one warning, not an error."""
    (tmp_path / "file").write_bytes(b"")

    async with opened(tmp_path / "file", Source({"a": SHARD})) as storage:
        found = [await read(storage, "a", 0, 1000) for _ in range(2)]

    assert found == [SHARD[:1000]] * 2
    assert len(caplog.records) == 1


async def test_disk_that_cannot_be_read_turns_the_cache_off(
    cached: MakeCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A few failures are fetched; after more in a row there is one warning, and the disk is left alone."""
    storage = cached(Source({"a": SHARD}))
    await read(storage, "a", 0, MIB)
    calls: list[int] = []

    async def fail(self: LocalStorage, name: str, start: int, out: memoryview) -> None:
        calls.append(start)
        raise errors.StorageError("Input/output error")

    monkeypatch.setattr(LocalStorage, "read_into", fail)
    found = [await read(storage, "a", start, start + 1000) for start in range(0, 20_000, 1000)]

    assert found == [SHARD[start : start + 1000] for start in range(0, 20_000, 1000)]
    assert len(calls) == storage.counts().errors == 8
    assert [record.levelname for record in caplog.records if record.levelno >= logging.WARNING] == ["WARNING"]
    assert "off" in repr(storage)


async def test_disk_that_does_not_answer_turns_the_cache_off(
    cached: MakeCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The read goes on from the network after a bounded wait, and later ones do not wait."""
    answer = threading.Event()
    monkeypatch.setattr(cachedisk, "_PATIENCE", 0.01)
    monkeypatch.setattr(CacheFolder, "find", lambda *_: answer.wait() and [])
    storage = cached(Source({"a": SHARD}))

    found = [await read(storage, "a", 0, 1000) for _ in range(2)]
    answer.set()

    assert found == [SHARD[:1000]] * 2
    assert "does not answer" in caplog.text


async def test_disk_that_is_behind_does_not_set_the_pace(
    cached: MakeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all writers are busy, bytes are handed out and not cached."""
    create, begun, go_on = CacheFolder.create, threading.Event(), threading.Event()

    def slowly(*args: Any) -> Any:
        begun.set()
        go_on.wait()
        return create(*args)

    monkeypatch.setattr(CacheFolder, "create", slowly)
    monkeypatch.setattr(cachedisk, "_MOST_STORES", 1)
    monkeypatch.setattr(cache, "_LEAST_PATIENCE", 0.001)
    storage = cached(Source({"a": SHARD}))

    async with anyio.create_task_group() as group:
        group.start_soon(read, storage, "a", 0, 1000)
        await anyio.to_thread.run_sync(begun.wait)
        found = await read(storage, "a", 5000, 7000)
        go_on.set()

    assert found == SHARD[5000:7000]
    assert storage.counts().stored == 1000


async def test_short_stall_of_the_disk_loses_nothing(
    cached: MakeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read may wait for the disk as long as reads before it took, so that all is cached in the end."""
    create, begun, go_on = CacheFolder.create, threading.Event(), threading.Event()
    times = iter([0.0, 0.0, 10.0])  # of the first read: it took ten seconds, and all others none

    def slowly(*args: Any) -> Any:
        begun.set()
        go_on.wait()
        return create(*args)

    monkeypatch.setattr(cachedisk, "_MOST_STORES", 1)
    monkeypatch.setattr(cache, "_LEAST_PATIENCE", 0.001)
    monkeypatch.setattr(anyio, "current_time", lambda: next(times, 10.0))
    storage = cached(Source({"a": SHARD, "b": SHARD}))
    await read(storage, "a", 0, 1000)
    monkeypatch.setattr(CacheFolder, "create", slowly)

    async with anyio.create_task_group() as group:
        group.start_soon(read, storage, "b", 0, 1000)
        await anyio.to_thread.run_sync(begun.wait)
        group.start_soon(read, storage, "b", 5000, 7000)
        await anyio.wait_all_tasks_blocked()
        await anyio.sleep(0.01)  # longer than the least patience
        go_on.set()

    assert storage.counts().stored == 4000


# room


async def test_cache_keeps_to_its_limit(cached: MakeCache, tmp_path: Path) -> None:
    """A set that is larger keeps a share of its bytes, and finds it again in each epoch."""
    source = Source({"a": SHARD})
    storage = cached(source, MIB)
    for piece in shuffled(len(SHARD), 64 * KIB):
        await read(storage, "a", *piece)
        assert on_disk(tmp_path) <= MIB
    source.reads.clear()

    found = [await read(storage, "a", *piece) for piece in shuffled(len(SHARD), 64 * KIB)]

    assert found == [SHARD[start:stop] for start, stop in shuffled(len(SHARD), 64 * KIB)]
    assert source.fetched < 0.7 * len(SHARD)


async def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    """Files of closed sets make room, whole, the one that was used longest ago before the others."""
    files = {name: random.Random(name).randbytes(300 * KIB) for name in "abcd"}
    for moment, name in enumerate("abca"):
        async with opened(tmp_path, Source(files), limit_bytes=MIB) as storage:
            await read(storage, name, 0, 300 * KIB)
        for path in lists(tmp_path):
            if path.stat().st_mtime > 1e9:
                os.utime(path, (moment, moment))

    async with opened(tmp_path, Source(files), limit_bytes=MIB) as storage:
        await read(storage, "d", 0, 300 * KIB)

    left = CacheFolder(tmp_path, None)
    assert sorted(left.head(version).shown[-1] for version in left.versions()) == ["a", "c", "d"]


@pytest.mark.parametrize(("limit", "room", "warned"), [(None, 0, 1), (8192, 1 << 40, 0)])
async def test_a_disk_without_room_is_told_once(
    cached: MakeCache,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
    room: int,
    warned: int,
) -> None:
    """Nothing is cached, which nobody would notice; a limit that is reached is what was wanted."""
    monkeypatch.setattr(CacheFolder, "_disk_room", lambda self: room)
    storage = cached(Source({"a": SHARD}), limit)

    found = [await read(storage, "a", start, start + 1000) for start in range(0, 9000, 1000)]

    assert b"".join(found) == SHARD[:9000]
    assert [record.getMessage().count("is full") for record in caplog.records] == [1] * warned


def test_nothing_is_used_after_closing(tmp_path: Path) -> None:
    """A look that comes late keeps no lock, which nobody would give back."""
    folder, late = CacheFolder(tmp_path, None), CacheFolder(tmp_path, None)
    folder.create("a", 10, None)
    found = late.find("a")
    late.close()

    assert len(found) == 1
    assert late.find("a") == []
    folder.close()
    assert len(folder.prune(0)) == 1


async def test_files_in_use_stay(tmp_path: Path) -> None:
    """What a live reader has touched is not evicted by others, who then do without."""
    files = {name: random.Random(name).randbytes(600 * KIB) for name in "ab"}
    source = Source(files)
    async with (
        opened(tmp_path, source, limit_bytes=MIB) as one,
        opened(tmp_path, source, limit_bytes=MIB) as two,
    ):
        await read(one, "a", 0, 600 * KIB)
        await read(two, "b", 0, 600 * KIB)

        assert await read(one, "a", 0, 600 * KIB) == files["a"]
        assert await read(two, "b", 0, 600 * KIB) == files["b"]
        assert (one.counts().hits, two.counts().stored) == (1, 0)


async def test_accounts_are_set_right_after_a_kill(tmp_path: Path) -> None:
    """What a dead process was promised and did not use is found when room is short."""
    async with opened(tmp_path, Source({"a": SHARD}), limit_bytes=MIB) as storage:
        await read(storage, "a", 0, 1000)
    (tmp_path / folders.ROOT / "ledger").write_bytes(folders._LEDGER.pack(7, 1 << 40))
    (tmp_path / folders.ROOT / "new" / "half").mkdir(parents=True)
    (tmp_path / folders.ROOT / "trash" / "half").mkdir(parents=True)

    async with opened(tmp_path, Source({"a": SHARD}), limit_bytes=MIB) as storage:
        await read(storage, "a", 0, 500_000)
        assert storage.counts().stored == 499_000

    assert not list((tmp_path / folders.ROOT).glob("*/half"))


async def test_accounts_that_nobody_lets_go_cost_only_the_cache(
    cached: MakeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a stopped process holds them, bytes are not cached, and later ones are."""
    monkeypatch.setattr(folders, "_PATIENCE", 0.01)
    storage = cached(MemoryStorage({"a": SHARD}))
    (tmp_path / folders.ROOT).mkdir()

    with locked_file(tmp_path / folders.ROOT / "ledger", 1):
        found = await read(storage, "a", 0, 1000)
    stored = storage.counts().stored
    await read(storage, "a", 0, 1000)

    assert found == SHARD[:1000]
    assert (stored, storage.counts().stored) == (0, 1000)
    assert caplog.records == []


# many at once


async def test_a_range_that_is_being_fetched_is_waited_for(cached: MakeCache) -> None:
    """Of two readers that need the same range at the same time one fetches it, whoever they are."""
    source = GateStorage(MemoryStorage({"a": SHARD}))
    found: list[bytes] = []

    async def reading(storage: Cached) -> None:
        found.append(await read(storage, "a", 0, 100_000))

    async with anyio.create_task_group() as group:
        for storage in (cached(source), cached(source)):
            group.start_soon(reading, storage)
        await anyio.to_thread.run_sync(source.wait, 1)
        source.open()

    assert found == [SHARD[:100_000]] * 2
    assert len(source.reads) == 1


async def test_waiting_for_others_has_an_end(cached: MakeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that got stuck does not hold the others up."""
    monkeypatch.setattr(cache, "_CLAIM_PATIENCE", 0.01)
    source = GateStorage(MemoryStorage({"a": SHARD}))

    async with anyio.create_task_group() as group:
        group.start_soon(read, cached(source), "a", 0, 1000)
        await anyio.to_thread.run_sync(source.wait, 1)
        assert await read(cached(MemoryStorage({"a": SHARD})), "a", 0, 1000) == SHARD[:1000]
        source.open()


async def test_cancelled_read_lets_its_range_go(cached: MakeCache, tmp_path: Path) -> None:
    """Somebody else fetches it then, at once."""
    source = GateStorage(MemoryStorage({"a": SHARD}))

    async with anyio.create_task_group() as group:
        group.start_soon(read, cached(source), "a", 0, 1000)
        await anyio.to_thread.run_sync(source.wait, 1)
        group.cancel_scope.cancel()
    claim = await anyio.to_thread.run_sync(CacheFolder(tmp_path, None).claim, key_of("a"), 0, 1000)

    assert claim.held
    claim.close()


async def test_read_that_is_cancelled_anywhere_leaves_no_wrong_byte(cached: MakeCache) -> None:
    """Its memory can be used for something else at once, and what was cached of it is right."""
    storage = cached(MemoryStorage({"a": SHARD}))
    memory = bytearray(100_000)
    for seconds in range(30):
        with anyio.move_on_after(seconds / 10_000):
            await storage.read_into("a", 0, memoryview(memory))
        memory[:] = bytes(len(memory))

    assert await read(cached(MemoryStorage({"a": SHARD})), "a", 0, 200_000) == SHARD[:200_000]
    assert storage.counts().errors == 0


def test_loops_share_a_cache(tmp_path: Path) -> None:
    """Two threads, each with an event loop, read through one storage."""
    source = Source({"a": SHARD})
    storage = Cached(source, tmp_path, None, key_of)
    wrong: list[tuple[int, int]] = []

    async def read_all() -> None:
        for start, stop in shuffled(len(SHARD), 50_000):
            if await read(storage, "a", start, stop) != SHARD[start:stop]:
                wrong.append((start, stop))

    threads = [threading.Thread(target=asyncio.run, args=(read_all(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(storage.aclose())

    assert wrong == []
    assert source.fetched == len(SHARD)


READER = """
    import asyncio, os, random, sys
    from aioload.storage import Cached, MemoryStorage, read

    folder, seed, size = sys.argv[1], int(sys.argv[2]), 8 << 20
    content = random.Random(3).randbytes(size)

    class Source(MemoryStorage):
        fetched = 0
        async def read_into(self, name, start, out):
            Source.fetched += len(out)
            await super().read_into(name, start, out)

    async def main():
        cached = Cached(Source({"a": content, "b": content[::-1]}), folder, None, "set/{}".format)
        pieces = [(name, start) for name in "ab" for start in range(0, size, 100_000)]
        random.Random(seed).shuffle(pieces)
        print("begun", flush=True)
        async def some(part):
            for name, start in part:
                whole = content if name == "a" else content[::-1]
                stop = min(size, start + 100_000)
                assert await read(cached, name, start, stop) == whole[start:stop], (name, start)
        await asyncio.gather(*(some(pieces[number::4]) for number in range(4)))
        counts = cached.counts()
        await cached.aclose()
        print(Source.fetched, counts.errors)

    asyncio.run(main())
"""


def reader(folder: Path, seed: int) -> subprocess.Popen[str]:
    """Start a process that reads two files of 8 MiB through a cache, in an order drawn from a seed."""
    return process_of(READER, folder, seed)


def process_of(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a script in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, int]:
    """Wait for a reader's end; return the bytes it fetched, and the errors of its cache."""
    out, _ = process.communicate(timeout=50)
    assert process.returncode == 0
    fetched, damaged = out.split()[-2:]
    return int(fetched), int(damaged)


@pytest.mark.parametrize("seeds", [(1, 1, 1, 1), (1, 2, 3, 4)])
def test_processes_fill_a_cache_together(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    """Four that read the same, in one order or in several: right bytes, hardly one fetched twice."""
    results = [ended(process) for process in [reader(tmp_path, seed) for seed in seeds]]

    assert sum(fetched for fetched, _ in results) <= 1.1 * 16 * MIB
    assert [damaged for _, damaged in results] == [0] * 4
    assert ended(reader(tmp_path, 9)) == (0, 0)


def test_kill_during_the_fill_costs_only_what_was_not_written(tmp_path: Path) -> None:
    """Killed at any moment: what is there afterwards is right, and it grows from try to try."""
    folder, total = CacheFolder(tmp_path, None), 0
    for turn in range(4):
        with reader(tmp_path, turn) as process:
            assert process.stdout is not None
            process.stdout.readline()
            killed_at = total + (1 + turn) * MIB
            while total < killed_at and process.poll() is None:
                total = sum(version.num_bytes for version in folder.versions())
            process.send_signal(signal.SIGKILL)

    fetched, damaged = ended(reader(tmp_path, 9))

    assert damaged == 0
    assert fetched <= 16 * MIB - (4 << 20)
    assert ended(reader(tmp_path, 10)) == (0, 0)


HOLDER = """
    import asyncio, signal, sys
    from aioload.storage import Cached, MemoryStorage, read

    async def main():
        await read(Cached(MemoryStorage({"a": b"0123"}), sys.argv[1], None, str), "a", 0, 4)
        print("read", flush=True)
        signal.pause()

    asyncio.run(main())
"""


def test_locks_end_with_their_process(tmp_path: Path) -> None:
    """What a process has touched cannot be pruned while it lives, and can when it was killed."""
    folder = CacheFolder(tmp_path, None)
    with process_of(HOLDER, tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (version,) = folder.versions()
        alive = folder.in_use(version), folder.prune(0)
        process.kill()

    assert alive == (True, [])
    assert not folder.in_use(version)
    assert folder.prune(0) == [version]
    assert list(folder.versions()) == []


# any sequence

ends = st.tuples(st.integers(0, 400), st.integers(0, 400)).map(
    lambda pair: (min(pair) * KIB, max(pair) * KIB + 7)
)
steps = st.one_of(
    st.tuples(st.just("read"), st.sampled_from("ab"), ends),
    st.tuples(
        st.sampled_from(["reopen", "change", "damage", "kill", "remove", "list"]), st.integers(0, 1000)
    ),
)


@settings(max_examples=40)
@given(st.lists(steps, max_size=14), st.sampled_from([None, 200 * KIB, 700 * KIB]))
def test_any_sequence_gives_the_bytes_of_the_source(steps: list[Any], limit: int | None) -> None:
    """Reads, new versions, damage, removal and death in any order: every read is what the source holds."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_walk(steps, Path(folder), limit))


async def _walk(steps: list[Any], folder: Path, limit: int | None) -> None:
    contents = [random.Random(version).randbytes(400 * KIB + 7) for version in range(20)]
    version = 0
    dice = random.Random(1)

    def new() -> Cached:
        files = {name: contents[version + (name == "b")] for name in "ab"}
        source = Source(files, dict.fromkeys("ab", str(version)))
        return Cached(source, folder, limit, key_of, revalidate=True)

    storage = new()
    for step, *more in steps:
        if step == "read":
            name, (start, stop) = more
            assert await read(storage, name, start, stop) == contents[version + (name == "b")][start:stop]
        elif step == "reopen":
            await storage.aclose()
            storage = new()
        elif step == "change":
            version += 1
            await storage.aclose()
            storage = new()
        else:
            await storage.aclose()
            _spoil(step, more[0], folder, dice)
            storage = new()
    await storage.aclose()


def _spoil(step: str, number: int, folder: Path, dice: random.Random) -> None:
    """Do to a closed cache what may happen to one."""
    if step == "remove":
        shutil.rmtree(folder / folders.ROOT, ignore_errors=True)
    for path in {"damage": files_of_bytes, "list": lists}.get(step, lambda _: [])(folder):
        data = path.read_bytes()
        place = number * len(data) // 1001
        flip(path, place) if step == "damage" else path.write_bytes(
            data[:place] + dice.randbytes(number % 50)
        )
    if step == "kill":
        ledger = folder / folders.ROOT / "ledger"
        ledger.write_bytes(dice.randbytes(number % 20)) if ledger.exists() else None
