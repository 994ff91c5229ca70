"""Sets behind an address that goes away, and processes that share a cache, some of them killed."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from batches import counted
from digests import READER, digest
from obstore.store import MemoryStore
from scripts import Running, running
from servers import seaweed as seaweeds
from servers.ranges import BAD_DAY, RangeServer

import aioload
from aioload.storage.cachefolder import CacheFolder

RECORDS = 600


def size(path: Path) -> int:
    """Bytes of a file."""
    return path.stat().st_size


def options(**changed: Any) -> dict[str, Any]:
    """Options of a loader that reads little ahead."""
    return {"batch_size": 4, "num_workers": 0, "shuffle": "full", "prefetch": 1, **changed}


def local(packed: Path, **changed: Any) -> list[str]:
    """What the batches are where the set lies on a disk."""
    with aioload.Loader(packed, **options(**changed)).sync() as batches:
        return [digest([batch]) for batch in batches]


@pytest.fixture(scope="module", autouse=True)
def clients() -> None:
    """Wake obstore, which keeps a few descriptors for the life of the process."""

    async def main() -> None:
        await obstore.put_async(MemoryStore(), "x", b"")

    asyncio.run(main())


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of several shards, in a folder that could be a bucket."""
    return counted(tmp_path_factory.mktemp("outages") / "bucket" / "set", RECORDS, shard_bytes=8000)


@pytest.fixture
def server(packed: Path) -> Iterator[RangeServer]:
    """A server of what is above its folder."""
    with RangeServer(packed.parent.parent) as server:
        yield server


def behind(server: RangeServer, kind: str, **changed: Any) -> aioload.Dataset:
    """The set, as either client of the network asks for it."""
    if kind == "s3":
        changed |= {"endpoint": server.url, "anonymous": True, "region": "us-east-1"}
    url = f"{server.url}/bucket/set" if kind == "http" else "s3://bucket/set"
    return aioload.Dataset(url, storage_options=changed)


def through_an_outage(dataset: aioload.Dataset, server: RangeServer, seconds: float) -> list[str]:
    """Take an epoch in the middle of which the server goes away, for some seconds."""
    found = []
    with aioload.Loader(dataset, **options()).sync() as batches, ExitStack() as stack:
        for step, batch in enumerate(batches):
            found.append(digest([batch]))
            if step == 10:
                server.down()
                back = threading.Timer(seconds, server.up)
                back.start()
                stack.callback(back.join)
    return found


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_an_outage_is_waited_for(packed: Path, server: RangeServer, kind: str) -> None:
    """A server that goes away and comes back costs a pause: that nobody is there uses up no attempts."""
    dataset = behind(server, kind, attempts=2, deadline=30.0)

    assert through_an_outage(dataset, server, 2.0) == local(packed)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["http", "s3"])
def test_an_outage_of_ten_seconds_with_default_options(packed: Path, server: RangeServer, kind: str) -> None:
    """Training goes on."""
    assert through_an_outage(behind(server, kind), server, 10.0) == local(packed)


@pytest.mark.parametrize("kind", ["http", "s3"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_outage_for_good_is_an_error(server: RangeServer, kind: str, workers: int) -> None:
    """It names the shard and comes within the deadline; nothing is left behind."""
    dataset = behind(server, kind, connect_timeout=0.5, read_timeout=0.5, deadline=1.5)
    with aioload.Loader(dataset, **options(num_workers=workers)).sync() as batches:
        for _ in zip(range(10), batches, strict=False):
            pass
        batches.load_state_dict(batches.state_dict())
        later = iter(batches)
        server.down()
        began = time.monotonic()

        with pytest.raises(aioload.StorageError, match=r"shard-.*connect") as caught:
            list(later)

    assert caught.value.attempts
    assert time.monotonic() - began < 5  # a deadline of 1.5 s and what the machine takes


@pytest.fixture
def paced(packed: Path) -> Iterator[RangeServer]:
    """A server that is slow enough for processes to meet."""
    with RangeServer(packed, latency=0.01) as server:
        yield server


def reading(folder: Path, number: int, *epochs: dict[str, Any]) -> AbstractContextManager[Running]:
    """Start a process that reads epochs, once it is told to."""
    own = folder / f"process-{number}"
    own.mkdir()
    return running(READER, *map(json.dumps, epochs), folder=own)


def fill_and_kill(folder: Path, number: int, url: str, cache: Path, steps: int) -> list[str]:
    """Let a process read so many batches through a cache, and kill it; return what they were."""
    dataset = {"source": url, "cache_dir": str(cache)}
    with reading(folder, number, {"dataset": dataset, "loader": options()}) as process:
        assert process.line() == "ready"
        process.say()
        found = [process.line() for _ in range(steps)]
        process.kill(signal.SIGKILL)
    return found


def through_cache(url: str, cache: Path) -> tuple[list[str], aioload.LoaderStats]:
    """Take an epoch in this process."""
    dataset = aioload.Dataset(url, cache_dir=cache)
    with aioload.Loader(dataset, **options()).sync() as batches:
        return [digest([batch]) for batch in batches], batches.stats()


def test_a_killed_process_leaves_a_cache_that_is_used(
    packed: Path, paced: RangeServer, tmp_path: Path
) -> None:
    """SIGKILL in the middle of filling it: what was cached is read from there, the rest from the network."""
    found = fill_and_kill(tmp_path, 0, paced.url, tmp_path / "cache", 60)

    again, stats = through_cache(paced.url, tmp_path / "cache")

    assert again == local(packed)
    assert found == again[:60]
    assert stats.cache_hits >= 30
    assert stats.cache_errors == 0
    assert stats.network_bytes + stats.cache_bytes >= stats.read_bytes > stats.network_bytes


def test_processes_share_a_cache(packed: Path, paced: RangeServer, tmp_path: Path) -> None:
    """Four at once that fill the same folder: runs of their own first, then the ranks of one."""
    alone, together = ({"source": paced.url, "cache_dir": str(tmp_path / name)} for name in "ab")
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                reading(
                    tmp_path,
                    rank,
                    {"dataset": alone, "loader": options()},
                    {"dataset": together, "loader": options(rank=rank, world_size=4)},
                )
            )
            for rank in range(4)
        ]
        assert {process.line() for process in processes} == {"ready"}
        for process in processes:
            process.say()
        printed = [process.end().out.splitlines() for process in processes]

    whole = local(packed)
    for rank, lines in enumerate(printed):
        assert lines[: len(whole)] == whole
        assert lines[len(whole) + 1 : -1] == local(packed, rank=rank, world_size=4)
    assert sum(request.sent for request in paced.requests) < 4 * sum(map(size, packed.iterdir()))


# the full matrix


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set that takes many requests."""
    return counted(tmp_path_factory.mktemp("larger") / "bucket" / "set", 4 * RECORDS, shard_bytes=8000)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "seed", "hedge"), [("http", 1, True), ("s3", 2, True), ("http", 3, True), ("s3", 4, False)]
)
def test_bad_days(larger: Path, kind: str, seed: int, hedge: bool) -> None:
    """Refusals, resets, cuts, stalls and slow answers, as many as a bad day has: the same, and no storm."""
    with RangeServer(larger.parent.parent, latency=0.005, faults=replace(BAD_DAY, seed=seed)) as server:
        dataset = behind(server, kind, hedge=hedge)
        with aioload.Loader(dataset, **options(num_workers=2, prefetch=8)).sync() as batches:
            found = [digest([batch]) for batch in batches]
            stats = batches.stats()

    assert found == local(larger)
    assert stats.requests <= 1.15 * (stats.requests - stats.retries - stats.hedges)
    assert stats.retries > 0


@pytest.mark.full
@pytest.mark.timeout(300)
def test_processes_that_are_killed_share_a_cache(packed: Path, paced: RangeServer, tmp_path: Path) -> None:
    """Four at once, killed at different moments, ten times over one folder, which is pruned meanwhile."""
    whole = local(packed)
    cache = tmp_path / "cache"
    for turn in range(10):
        (tmp_path / str(turn)).mkdir()
        with ThreadPoolExecutor(4) as threads:
            kills = [
                threads.submit(
                    fill_and_kill, tmp_path / str(turn), number, paced.url, cache, 7 + 31 * number + 3 * turn
                )
                for number in range(4)
            ]
            found = [kill.result() for kill in kills]
        if turn % 3 == 2:
            CacheFolder(cache, None).prune(4 * 8192)
        assert all(lines == whole[: len(lines)] for lines in found)

    again, stats = through_cache(paced.url, cache)

    assert again == whole
    assert stats.cache_hits > 0
    assert stats.cache_errors == 0


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_bucket_whose_server_is_killed_for_ten_seconds(packed: Path, tmp_path: Path) -> None:
    """A real server, killed in the middle of an epoch and started again: training goes on."""
    with seaweeds.start(tmp_path) as server:
        url = f"s3://{server.bucket}/set"
        counted(url, RECORDS, shard_bytes=8000, storage_options=server.options)  # type: ignore[arg-type]
        dataset = aioload.Dataset(url, storage_options=server.options)
        found = []
        with aioload.Loader(dataset, **options()).sync() as batches, ExitStack() as stack:
            for step, batch in enumerate(batches):
                found.append(digest([batch]))
                if step == 10:
                    stack.enter_context(seaweeds.killed_for(10.0, server, tmp_path))

    assert found == local(packed)
