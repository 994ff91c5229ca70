"""Files that are stored compressed read as if they were not, and damage of them is a typed error."""

from __future__ import annotations

import asyncio
import bz2
import errno
import gzip
import hashlib
import json
import os
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from contract import CONTENT, FILES, StorageContract
from hypothesis import given, settings
from hypothesis import strategies as st
from mds_sets import FIXTURES, expected, index_of, rows
from servers.ranges import RangeServer

from aioload import Dataset
from aioload.errors import ConfigError, NotFoundError, ShardError, StorageError
from aioload.storage import (
    Cached,
    LocalStorage,
    MemoryStorage,
    Packed,
    Unpacked,
    codecs,
    read,
    unpackedfiles,
    unpacking,
)

cramjam = pytest.importorskip("cramjam", reason="needs the extra mds")

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bz2": bz2.compress,
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
    "brotli": lambda data: bytes(cramjam.brotli.compress(data, level=3)),
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)),
}
STREAMED = ("gzip", "zlib", "bz2")
TEXT = b"some text that is repeated " * 40


class Counting(MemoryStorage):
    """Counts reads, and holds them up until it is told to go on."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.reads = 0
        self.reading = anyio.Event()
        self.go = anyio.Event()
        self.go.set()

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        self.reads += 1
        self.reading.set()
        await self.go.wait()
        await super().read_into(name, start, out)


class TestUnpacked(StorageContract):
    """Files of one codec each, of unknown size where that is possible."""

    @pytest.fixture(params=PACKERS)
    async def storage(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Unpacked]:
        codec: str = request.param
        packed = {name: PACKERS[codec](data) for name, data in FILES.items()}
        told = {name: Packed(codec, size=len(data)) for name, data in FILES.items() if codec not in STREAMED}
        storage = Unpacked(
            MemoryStorage(packed),
            tmp_path,
            lambda name: told.get(name, Packed("gzip" if told else codec)),
            str,
        )
        yield storage
        await storage.aclose()


class Opened:
    """Storages that are closed at the end of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._all: list[Unpacked] = []

    def __call__(self, source: Any, told: Packed | None, **options: Any) -> Unpacked:
        """Open one whose files are all stored in the same way."""
        source = MemoryStorage({"a": source}) if isinstance(source, bytes) else source
        self._all.append(Unpacked(source, self.folder, lambda _: told, str, **options))
        return self._all[-1]

    async def aclose(self) -> None:
        for storage in self._all:
            await storage.aclose()

    def files(self) -> list[str]:
        """Name what lies in the folder of unpacked files, but for locks, and words for people."""
        beside = ("locks", "uses", "of", "ledger", "CACHEDIR.TAG")
        return sorted(
            path.name for path in self.folder.rglob("*") if path.is_file() and path.name not in beside
        )


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    """Open storages over one folder, and close them."""
    opened = Opened(tmp_path / "unpacked")
    yield opened
    await opened.aclose()


async def test_files_that_are_not_compressed_are_passed_through(opened: Opened) -> None:
    """Neither a file nor a folder is made for them."""
    storage = opened(b"plain", None)

    assert await storage.size("a") == 5
    assert await read(storage, "a", 1, 3) == b"la"
    assert await storage.get("a") == b"plain"
    assert not opened.folder.exists()
    with pytest.raises(ConfigError, match="not compressed"):
        await storage.unpack("a")


@pytest.mark.parametrize("name", ["br", "bz2", "gz", "snappy", "zstd"])
async def test_shards_of_the_real_package_read_back(opened: Opened, name: str) -> None:
    """What mosaicml-streaming compressed is what its own reader reads, and fits both sums of the index."""
    folder = FIXTURES / name
    index = index_of(folder)
    told = {
        shard.raw.name: Packed(
            shard.compression or "",
            shard.packed.name,
            shard.packed.size,
            shard.raw.size,
            dict(shard.packed.hashes),
            dict(shard.raw.hashes),
        )
        for shard in index.shards
        if shard.packed
    }
    storage = Unpacked(LocalStorage(folder), opened.folder, told.get, str)

    found = [
        row
        for shard in index.shards
        for row in rows(await read(storage, shard.raw.name), shard.samples, index.record_format())
    ]
    await storage.aclose()

    assert len(index.shards) > 1
    assert [row["text"].decode() for row in found] == [row["text"] for row in expected(folder)]
    assert [int.from_bytes(row["id"], "little") for row in found] == [row["id"] for row in expected(folder)]


async def test_a_file_is_fetched_once(opened: Opened) -> None:
    """By many reads at once, by a second storage, and in a second run: the first one fetches."""
    source = Counting({"a": gzip.compress(CONTENT)})
    first, second = opened(source, Packed("gzip")), opened(source, Packed("gz"))

    async with anyio.create_task_group() as group:
        for start in range(20):
            group.start_soon(read, first, "a", start, start + 1000)
            group.start_soon(read, second, "a", start, start + 1000)

    assert await second.size("a") == len(CONTENT)
    assert source.reads == 1
    assert opened.files() == [f"bytes-{len(CONTENT)}"]


async def test_a_file_in_parts_is_one(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is longer than a part is fetched in parts, and unpacked across their edges."""
    monkeypatch.setattr("aioload.storage.unpacked._PART_BYTES", 1000)
    monkeypatch.setattr(codecs, "_SLICE_BYTES", 7)
    monkeypatch.setattr(codecs, "_PIECE_BYTES", 100)
    source = Counting({"a": gzip.compress(os.urandom(2500) + CONTENT[:9000])})
    storage = opened(source, Packed("gzip"))

    whole = await read(storage, "a")

    assert whole[2500:] == CONTENT[:9000]
    assert source.reads == 3


async def test_a_source_that_changed_is_unpacked_anew(opened: Opened, tmp_path: Path) -> None:
    """Another time of a local file is another content."""
    (tmp_path / "a").write_bytes(gzip.compress(b"old", mtime=0))
    before = await read(opened(LocalStorage(tmp_path), Packed("gzip")), "a")
    (tmp_path / "a").write_bytes(gzip.compress(b"new", mtime=0))
    os.utime(tmp_path / "a", (1, 1))

    after = await read(opened(LocalStorage(tmp_path), Packed("gzip")), "a")

    assert (before, after) == (b"old", b"new")


@pytest.mark.parametrize("harm", ["removed", "cut"])
async def test_an_unpacked_file_that_somebody_harmed_is_made_again(opened: Opened, harm: str) -> None:
    """Whoever clears the folder up does no harm but the time it takes."""
    storage = opened(PACKERS["gzip"](CONTENT), Packed("gzip"))
    path = Path(await storage.unpack("a"))
    if harm == "removed":
        os.unlink(path)  # noqa: PTH108 - a Path would be taken for blocking
    else:
        os.truncate(path, 100)

    assert await read(storage, "a", 5000, 6000) == CONTENT[5000:6000]


async def test_a_file_of_the_wrong_size_is_not_used(opened: Opened) -> None:
    """What a machine that went down has left is noticed by its size."""
    told = Packed("gzip", hashes={"sha1": hashlib.sha1(TEXT).hexdigest()})
    path = Path(await opened(gzip.compress(TEXT), told).unpack("a"))
    os.truncate(path, 10)

    assert await read(opened(gzip.compress(TEXT), told), "a") == TEXT


# damage


@settings(max_examples=60, deadline=None)
@given(data=st.data(), codec=st.sampled_from(sorted(PACKERS)))
def test_damage_is_an_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, codec: str
) -> None:
    """Cut, flipped or with something behind it: a ShardError or the right bytes, and nothing is left."""
    packed = PACKERS[codec](TEXT)
    kind = data.draw(st.sampled_from(["cut", "flip", "more"]))
    place = data.draw(st.integers(0, len(packed) - 1))
    if kind == "cut":
        harmed = packed[:place]
    elif kind == "more":
        harmed = packed + data.draw(st.binary(min_size=1, max_size=40))
    else:
        harmed = (
            packed[:place] + bytes([packed[place] ^ 1 << data.draw(st.integers(0, 7))]) + packed[place + 1 :]
        )
    opened = Opened(tmp_path_factory.mktemp("damage"))
    told = Packed(codec, size=len(TEXT), hashes={"sha1": hashlib.sha1(TEXT).hexdigest()})

    async def outcome() -> bytes | None:
        try:
            return await read(opened(harmed, told), "a")
        except ShardError as error:
            assert error.shard == "a"  # noqa: PT017 - either outcome is right
            return None
        finally:
            await opened.aclose()

    found = asyncio.run(outcome())

    assert found in (None, TEXT)
    assert opened.files() == ([] if found is None else [f"bytes-{len(TEXT)}"])


@pytest.mark.parametrize("codec", STREAMED)
async def test_a_cut_file_of_unknown_size_is_an_error(opened: Opened, codec: str) -> None:
    """At every length, also where all bytes of the content have come."""
    packed = PACKERS[codec](TEXT)

    for stop in range(len(packed)):
        with pytest.raises(ShardError, match=r"ends before its last byte|end-of-stream"):
            await read(opened(packed[:stop], Packed(codec)), "a")


async def test_members_end_to_end_are_one_file(opened: Opened) -> None:
    """As gzip and bzip2 have it; and zeros behind the last are padding."""
    twice = gzip.compress(b"one, ") + gzip.compress(b"two") + bytes(700)

    assert await read(opened(twice, Packed("gzip")), "a") == b"one, two"
    assert (
        await read(opened(bz2.compress(b"one, ") + bz2.compress(b"two"), Packed("bz2")), "a") == b"one, two"
    )


@pytest.mark.parametrize("codec", STREAMED)
@pytest.mark.parametrize("more", [b"garbage", bytes(9) + b"garbage"])
async def test_bytes_behind_the_end_are_an_error(opened: Opened, codec: str, more: bytes) -> None:
    """They are never passed over in silence."""
    with pytest.raises(ShardError, match=f"a cannot be unpacked as {codec}"):
        await read(opened(PACKERS[codec](TEXT) + more, Packed(codec)), "a")


async def test_a_second_zlib_stream_is_an_error(opened: Opened) -> None:
    """A zlib file is one stream."""
    with pytest.raises(ShardError, match="other bytes follow its end"):
        await read(opened(zlib.compress(TEXT) * 2, Packed("zlib")), "a")


@pytest.mark.parametrize("codec", PACKERS)
async def test_a_file_that_becomes_longer_than_its_index_says_is_an_error(opened: Opened, codec: str) -> None:
    """Nothing beyond that is written."""
    with pytest.raises(ShardError, match="a cannot be unpacked"):
        await read(opened(PACKERS[codec](TEXT), Packed(codec, size=len(TEXT) - 1)), "a")

    assert opened.files() == []


@pytest.mark.parametrize("codec", PACKERS)
async def test_a_file_that_becomes_shorter_than_its_index_says_is_an_error(
    opened: Opened, codec: str
) -> None:
    """It is not filled up."""
    with pytest.raises(ShardError, match=f"unpacks to {len(TEXT)} bytes, and should to {len(TEXT) + 1}"):
        await read(opened(PACKERS[codec](TEXT), Packed(codec, size=len(TEXT) + 1)), "a")


@pytest.mark.parametrize("codec", STREAMED)
async def test_a_bomb_is_an_error(opened: Opened, codec: str) -> None:
    """A file of unknown size may become only so many times longer, and the disk is left as it was."""
    bomb = PACKERS[codec](bytes(18 << 20))

    with pytest.raises(ShardError, match="more than 16777216 bytes") as caught:
        await read(opened(bomb, Packed(codec)), "a")

    assert caught.value.facts["category"] == "too_long"
    assert opened.files() == []
    assert await opened(bomb, Packed(codec), max_ratio=1e6).size("a") == 18 << 20


@pytest.mark.parametrize("which", ["packed_hashes", "hashes"])
async def test_a_sum_that_does_not_fit_is_an_error(opened: Opened, which: str) -> None:
    """Both the stored and the unpacked bytes are held against the index."""
    told = Packed("gzip", **{which: {"sha1": "0" * 40}})  # type: ignore[arg-type]

    with pytest.raises(ShardError, match="failed its checksum") as caught:
        await read(opened(gzip.compress(TEXT), told), "a")

    assert caught.value.facts["category"] == "checksum"
    assert opened.files() == []


async def test_a_stored_file_of_another_size_is_an_error(opened: Opened) -> None:
    """It is not even fetched."""
    source = Counting({"b": gzip.compress(TEXT)[:-1]})

    with pytest.raises(ShardError, match="its index says"):
        await read(opened(source, Packed("gzip", "b", packed_size=len(gzip.compress(TEXT)))), "a")

    assert source.reads == 0


class Mending(Counting):
    """Gives damaged bytes at first."""

    def __init__(self, bad: bytes, whole: bytes) -> None:
        super().__init__({"a": bad})
        self._whole = whole

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        await super().read_into(name, start, out)
        self._files = {"a": self._whole}


async def test_m02_a_damaged_file_is_fetched_afresh_once(opened: Opened) -> None:
    """M02: what is right the second time is used, and what is not is the error."""
    whole, bad = gzip.compress(TEXT), gzip.compress(TEXT)[:-9] + bytes(9)
    better, worse = Mending(bad, whole), Counting({"a": bad})

    with pytest.raises(ShardError):
        await read(opened(worse, Packed("gzip")), "a")
    found = await read(opened(better, Packed("gzip")), "a")

    assert found == TEXT
    assert (worse.reads, better.reads) == (2, 2)


# a folder with a limit


SIZE = 1 << 20  # of each file, unpacked
NAMES = [f"f{number}" for number in range(6)]


def content(name: str) -> bytes:
    """Return the bytes of a file, unpacked."""
    return hashlib.sha256(name.encode()).digest() * (SIZE // 32)


def bounded(folder: Path, files: int, *, codec: str = "gzip", sized: bool = True) -> Unpacked:
    """Open six files of 1 MiB over a folder that holds some of them."""
    source = MemoryStorage({name: PACKERS[codec](content(name)) for name in NAMES})
    told = Packed(codec, size=SIZE if sized else None)
    limit = files * SIZE + SIZE // 2
    return Unpacked(source, folder, lambda _: told, lambda name: f"here/{name}", limit_bytes=limit)


def taken(folder: Path) -> int:
    """Return what unpacked files take of the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("bytes-*"))


@pytest.mark.parametrize(("codec", "sized"), [("gzip", True), ("zstd", True), ("gzip", False)])
async def test_a_folder_with_a_limit_keeps_it(
    tmp_path: Path, codec: str, sized: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Files make room that were read longest ago, and are unpacked again when needed; bytes stay right."""
    storage = bounded(tmp_path, 3, codec=codec, sized=sized)
    try:
        for name in [*NAMES, *reversed(NAMES)]:
            assert await read(storage, name, 5, 5000) == content(name)[5:5000]
            assert taken(tmp_path) <= 3.5 * SIZE
    finally:
        await storage.aclose()

    assert "is given up, and unpacked again when it is needed" in caplog.text


async def test_many_at_once_share_a_small_folder(tmp_path: Path) -> None:
    """Reads of more files than there is room for wait for each other, and all are right."""
    storage = bounded(tmp_path, 2)
    try:
        async with anyio.create_task_group() as group:

            async def look(name: str) -> None:
                for start in (0, SIZE // 2):
                    assert await read(storage, name, start, start + 99) == content(name)[start : start + 99]

            for name in NAMES:
                group.start_soon(look, name)
        assert taken(tmp_path) <= 2.5 * SIZE
    finally:
        await storage.aclose()


async def test_what_another_reader_uses_stays(tmp_path: Path) -> None:
    """A file that another reader has open is not given up; an error tells the bytes that are needed."""
    one, other = bounded(tmp_path, 2), bounded(tmp_path, 2)
    try:
        for name in NAMES[:2]:
            await read(one, name)
        with pytest.raises(
            StorageError, match=r"f2 cannot be unpacked: it needs 1048576 bytes more, and cache_bytes"
        ):
            await read(other, "f2")
        assert await read(one, "f0") == content("f0")

        await one.aclose()
        other._room._cache._full_until = 0.0  # type: ignore[union-attr]  # the half minute is over
        assert await read(other, "f2") == content("f2")
    finally:
        await one.aclose()
        await other.aclose()


async def test_what_can_never_fit_is_an_error(tmp_path: Path) -> None:
    """A file that is larger than the limit is refused at once, and nothing is given up for it."""
    storage = bounded(tmp_path, 0)
    try:
        with pytest.raises(
            StorageError, match="it needs 1048576 bytes more, and cache_bytes \\(524288\\)"
        ) as caught:
            await read(storage, "f0")
        assert caught.value.final
    finally:
        await storage.aclose()


async def test_the_limit_counts_what_a_cache_of_networks_holds(tmp_path: Path) -> None:
    """Both share the folder's limit; the older ones of either go first."""
    cached = Cached(MemoryStorage({"x": bytes(range(256)) * 8192}), tmp_path, 3 * SIZE, str)
    await read(cached, "x", 0, 2 * SIZE)
    await cached.aclose()
    storage = bounded(tmp_path, 3)
    try:
        for name in NAMES[:3]:
            assert await read(storage, name) == content(name)
    finally:
        await storage.aclose()

    assert not list((tmp_path / "aioload-cache-1").rglob("sums"))
    assert taken(tmp_path) >= 3 * SIZE


def test_a_set_is_read_within_the_limit_of_its_cache(tmp_path: Path) -> None:
    """Of an MDS folder behind an address two shards fit: each row is right, in any order."""
    files = {path.name: path.read_bytes() for path in (FIXTURES / "zstd").iterdir()}
    texts = [row["text"] for row in expected(FIXTURES / "zstd")]
    limit = 3 * 4096 + 1000  # blocks: two shards, and one that is spooled
    with RangeServer(files) as server:
        dataset = Dataset(server.url, cache_dir=tmp_path, cache_bytes=limit)
        for number in (*range(len(texts)), 0, len(texts) - 1, 0):
            assert dataset[number]["text"] == texts[number]
            assert 0 < taken(tmp_path) <= limit

    assert not list((tmp_path / "aioload-cache-1").rglob("sums"))


# the disk, the source, the others


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
async def test_a_full_disk_is_a_storage_error(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """It names the folder and what to do, leaves nothing, and is no state: with room it works."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    storage = opened(PACKERS[codec](TEXT), Packed(codec, size=len(TEXT)))
    with monkeypatch.context() as patch:
        patch.setattr(unpacking, "_write", full)
        with pytest.raises(StorageError, match=r"No space left.*free room there, or take a folder") as caught:
            await read(storage, "a")

    assert str(opened.folder) in str(caught.value)
    assert opened.files() == []
    assert await read(storage, "a") == TEXT


async def test_a_folder_that_cannot_be_made_is_a_storage_error(opened: Opened, tmp_path: Path) -> None:
    """As where a file lies in its place."""
    opened.folder.write_bytes(b"")

    with pytest.raises(StorageError, match="take a folder that can be written to"):
        await read(opened(gzip.compress(TEXT), Packed("gzip")), "a")


async def test_a_read_that_fails_leaves_nothing(opened: Opened) -> None:
    """The source's error is the user's, and the next read begins anew."""
    source = Counting({"a": gzip.compress(TEXT)})
    storage = opened(source, Packed("gzip", "gone"))

    with pytest.raises(NotFoundError):
        await read(storage, "a", 0, 1)

    assert opened.files() == []


async def test_whoever_is_cancelled_leaves_nothing(opened: Opened) -> None:
    """The next reader unpacks, and does not wait for the one that has gone."""
    source = Counting({"a": gzip.compress(TEXT)})
    source.go = anyio.Event()
    storage = opened(source, Packed("gzip"))
    async with anyio.create_task_group() as group:
        group.start_soon(read, storage, "a", 0, 5)
        await source.reading.wait()
        group.cancel_scope.cancel()
    left = opened.files()

    source.go.set()

    assert left == []
    assert await read(storage, "a") == TEXT


HOLDER = """
import sys, time
from pathlib import Path
from aioload.storage.unpacking import Packed, UnpackedFolder
folder = UnpackedFolder(Path(sys.argv[1]))
lock = folder.lock(sys.argv[2], "a")
begun = folder.begin(sys.argv[2], "a", Packed("gzip"), 1000, alone=True)
print(lock is not None, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold(opened: Opened) -> Any:
    """Begin to make a file in another process, which then does nothing more."""
    processes: list[subprocess.Popen[str]] = []

    def hold(digest: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, str(opened.folder), digest]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        return process

    yield hold
    for process in processes:
        process.kill()
        process.communicate()


async def _digest(opened: Opened, source: bytes) -> str:
    """Return what names a file in the folder."""
    return await opened(source, Packed("gzip"))._digest("a", Packed("gzip"))


async def test_a_killed_process_blocks_nobody(opened: Opened, hold: Any) -> None:
    """Its lock ends with it, and the next one removes what it has left."""
    packed = gzip.compress(TEXT)
    process = hold(await _digest(opened, packed))
    process.kill()
    process.wait()

    whole = await read(opened(packed, Packed("gzip"), patience=1e6), "a")

    assert whole == TEXT
    assert opened.files() == [f"bytes-{len(TEXT)}"]


async def test_a_process_that_does_not_go_on_is_overtaken(
    opened: Opened, hold: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """After `patience` seconds without progress the file is made here, too."""
    packed = gzip.compress(TEXT)
    hold(await _digest(opened, packed))

    whole = await read(opened(packed, Packed("gzip"), patience=0.1), "a")

    assert whole == TEXT
    assert "has not gone on for 0.1 s" in caplog.text


async def test_a_file_that_somebody_else_makes_is_waited_for(opened: Opened, hold: Any) -> None:
    """Its last step is seen, and the source is not read."""
    source = Counting({"a": gzip.compress(TEXT)})
    digest = await _digest(opened, gzip.compress(TEXT))
    process = hold(digest)
    storage = opened(source, Packed("gzip"))

    async with anyio.create_task_group() as group:
        group.start_soon(read, storage, "a")
        await anyio.wait_all_tasks_blocked()
        folder = opened.folder / unpackedfiles.UNPACKED_ROOT / digest[:2] / digest
        (folder / "part-x").write_bytes(b"new")
        (folder / "part-x").rename(folder / "bytes-3")

    assert process.poll() is None
    assert await read(storage, "a") == b"new"
    assert source.reads == 0


# options


def test_a_codec_without_its_package_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the extra that brings it."""
    monkeypatch.setitem(sys.modules, "cramjam", None)

    with pytest.raises(ConfigError, match=r"pip install 'torch-aioload\[mds\]'"):
        codecs.check_codec("zstd")
    assert codecs.check_codec("gz") == "gzip"


async def test_an_unknown_codec_is_a_config_error(opened: Opened) -> None:
    """It lists those that are known."""
    with pytest.raises(ConfigError, match="'lzma' cannot be read; known are gzip, zlib, bz2, xz, zstd"):
        await read(opened(b"", Packed("lzma")), "a")


async def test_a_codec_that_needs_a_size_says_so(opened: Opened) -> None:
    """Without an index zstd is not read."""
    with pytest.raises(ConfigError, match="only where an index says how long it becomes"):
        await read(opened(PACKERS["zstd"](TEXT), Packed("zstd")), "a")


@pytest.mark.parametrize("option", ["max_ratio", "patience"])
def test_options_are_positive(option: str, tmp_path: Path) -> None:
    """A limit that lets nothing through is refused."""
    with pytest.raises(ConfigError, match="must be positive"):
        Unpacked(MemoryStorage({}), tmp_path, lambda _: None, str, **{option: 0})  # type: ignore[arg-type]


def test_repr_shows_the_state(tmp_path: Path) -> None:
    """The storage inside, and the folder."""
    text = repr(Unpacked(MemoryStorage({}), tmp_path, lambda _: None, str))

    assert text == f"<Unpacked <MemoryStorage files=0> files=0 in '{tmp_path}/{unpackedfiles.UNPACKED_ROOT}'>"


def test_fixtures_are_compressed() -> None:
    """The sets of the real package are what the tests above take them for."""
    for name in ("br", "bz2", "gz", "snappy", "zstd"):
        index = json.loads((FIXTURES / name / "index.json").read_text())
        assert all(shard["compression"].startswith(name) for shard in index["shards"])
