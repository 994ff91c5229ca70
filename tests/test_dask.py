"""Dask: workers of a cluster make the batches that workers of our own would, also when one of them dies."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import leaks
import pytest
from batches import counted, plain, take_sync
from conftest import TinySet
from fakes import Raising
from servers.ranges import RangeServer
from visits import drawn, drawn_globally, is_seven

from aioload import Dataset, Loader, SampleError

distributed = pytest.importorskip("distributed")

pytestmark = [
    pytest.mark.filterwarnings("default"),  # Dask's are its own affair
    pytest.mark.timeout(180),
]

RECORDS = 120
WORKERS = 2
PATIENCE_SECONDS = 60.0


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """A cluster starts threads and processes as it likes; of ours nothing may be left, here or there."""
    yield

    deadline = time.monotonic() + leaks.GRACE_SECONDS
    while (left := _our_threads()) and time.monotonic() < deadline:
        time.sleep(0.01)

    assert left == []


def _our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("aioload")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two worker processes of two threads each, on the loopback address."""
    options = {"n_workers": WORKERS, "threads_per_worker": 2, "dashboard_address": ":0"}
    with distributed.LocalCluster(host="127.0.0.1", **options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: Any) -> Iterator[Any]:
    """A client of it."""
    with distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def executor(client: Any) -> Any:
    """Its executor; both workers are there."""
    client.wait_for_workers(WORKERS, timeout=PATIENCE_SECONDS)
    return client.get_executor()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 records in several shards."""
    return counted(tmp_path_factory.mktemp("many") / "set", RECORDS, shard_bytes=3000)


def epoch(source: Any, **options: Any) -> list[Any]:
    """Take an epoch, comparable."""
    return [plain(batch) for batch in take_sync(Loader(source, **options))]


def tasks(client: Any) -> int:
    """Return how many tasks the cluster knows of, once there are none or patience ends."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while known := client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
        if time.monotonic() > deadline:
            break
    return int(known)


@pytest.mark.parametrize("transform", [None, drawn, drawn_globally])
@pytest.mark.parametrize("remote_reads", [False, True])
def test_batches_are_the_same_bit_for_bit(
    many: Path, executor: Any, transform: Any, remote_reads: bool
) -> None:
    """In worker processes of several threads, which take turns where they need the global generators."""
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "transform": transform}

    found = epoch(many, executor=executor, remote_reads=remote_reads, **options)

    assert found == epoch(many, num_workers=0, **options)


def test_pictures_are_the_same(tiny_set: TinySet, executor: Any) -> None:
    """Decoded there, placed here."""
    found = epoch(tiny_set.path, batch_size=5, shuffle=True, executor=executor)

    assert found == epoch(tiny_set.path, batch_size=5, shuffle=True, num_workers=0)


def test_workers_read_an_address(many: Path, executor: Any) -> None:
    """The loader's own process asks for no record."""
    with RangeServer(many) as server:
        dataset = Dataset(server.url)
        loader = Loader(dataset, batch_size=16, executor=executor, remote_reads=True)

        found = [plain(batch) for batch in take_sync(loader)]

    assert found == epoch(many, batch_size=16, num_workers=0)
    assert loader.stats().reads == 0


def test_a_worker_that_is_killed_changes_nothing(many: Path, client: Any, executor: Any) -> None:
    """What it was at, and what it had made, is made by others; the batches are the same."""
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "transform": drawn_globally, "prefetch": 4}
    victim = next(iter(client.run(os.getpid).values()))
    found: list[Any] = []

    with Loader(many, executor=executor, **options).sync() as batches:
        for batch in batches:
            found.append(plain(batch))
            if len(found) == 6:
                os.kill(victim, signal.SIGKILL)

    assert found == epoch(many, num_workers=0, **options)


def test_an_error_comes_at_its_step(many: Path, executor: Any) -> None:
    """With the record and the traceback from there."""
    loader = Loader(many, batch_size=4, transform=Raising(is_seven), executor=executor)

    with loader.sync() as batches:
        iterator = iter(batches)
        first = next(iterator)
        with pytest.raises(SampleError) as caught:
            next(iterator)

    assert first["n"].tolist() == [0, 1, 2, 3]
    assert (caught.value.record, caught.value.step) == (7, 1)


def test_leaving_early_leaves_no_task(many: Path, client: Any, executor: Any) -> None:
    """The cluster forgets what was under way, and goes on working for others."""
    with Loader(many, batch_size=2, transform=drawn, executor=executor).sync() as batches:
        taken = list(itertools.islice(batches, 3))

    assert len(taken) == 3
    assert tasks(client) == 0
    assert client.submit(abs, -3).result(timeout=PATIENCE_SECONDS) == 3


def test_the_cluster_tells_how_much_it_does_at_once(many: Path, executor: Any) -> None:
    """As many jobs as its workers have cores."""
    assert Loader(many, batch_size=4, executor=executor).num_workers == 2 * WORKERS
