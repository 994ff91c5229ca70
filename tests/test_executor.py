"""Executors of the user's: batches, errors and states are those of a loader with workers of its own."""

from __future__ import annotations

import itertools
import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from batches import counted, gather, plain, take_sync
from fakes import Raising
from servers.ranges import RangeServer
from visits import Unloadable, die_at_forty, doubled, drawn, drawn_globally, gathered, is_seven

import aioload
from aioload import ConfigError, Dataset, Loader, SampleError, Skip, WorkerError

# workers of others import what they need by themselves, which takes long where much else runs
pytestmark = pytest.mark.timeout(180)

RECORDS = 120


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 records in several shards."""
    return counted(tmp_path_factory.mktemp("many") / "set", RECORDS, shard_bytes=3000)


@pytest.fixture(scope="module", autouse=True)
def processes() -> Iterator[Executor]:
    """Two processes of somebody else's, both up."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context) as executor:
        list(executor.map(abs, range(8)))
        yield executor


@pytest.fixture
def threads() -> Iterator[Executor]:
    """Two threads."""
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture(params=["threads", "processes"])
def executor(request: pytest.FixtureRequest) -> Executor:
    """One that shares memory, and one that does not."""
    found: Executor = request.getfixturevalue(request.param)
    return found


def without_seven(error: aioload.AioloadError) -> str:
    """Leave out what fails."""
    return "skip"


CASES: dict[str, dict[str, Any]] = {
    "stacked": {"batch_size": 8, "shuffle": True},
    "one": {"batch_size": 1, "shuffle": "full"},
    "parts": {"batch_size": 60, "transform": drawn, "seed_globals": False},
    "transformed": {"batch_size": 8, "shuffle": True, "transform": drawn, "seed_globals": False},
    "prepared": {"batch_size": 9, "shuffle": True, "prepare": doubled, "seed_globals": False},
    "collated": {"batch_size": 16, "collate": gathered},
    "raw": {"batch_size": 7, "decode": {"array": "raw"}, "drop_last": True},
}


def epoch(source: Any, **options: Any) -> list[Any]:
    """Take an epoch, comparable."""
    return [plain(batch) for batch in take_sync(Loader(source, **options))]


def numbers(batches: list[Any]) -> list[int]:
    """The records, in their order."""
    return [int(n) for batch in batches for n in batch["n"]]


# The same batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_batches_are_the_same_bit_for_bit(many: Path, executor: Executor, case: str) -> None:
    """Whoever decodes, and whether or not memory is shared."""
    found = epoch(many, executor=executor, **CASES[case])

    assert found == epoch(many, num_workers=0, **CASES[case])


async def test_batches_are_the_same_by_async_for(many: Path, executor: Executor) -> None:
    """On the other face."""
    loader = Loader(many, executor=executor, **CASES["transformed"])

    async with loader:
        batches = await gather(loader)

    assert [plain(batch) for batch in batches] == epoch(many, num_workers=0, **CASES["transformed"])


def test_global_generators_are_set_in_processes(many: Path, processes: Executor) -> None:
    """What user code draws from them depends on seed, epoch and record alone."""
    options: dict[str, Any] = {"batch_size": 8, "transform": drawn_globally, "shuffle": True}

    found = epoch(many, executor=processes, **options)

    assert found == epoch(many, num_workers=0, **options)


def test_two_loaders_share_an_executor(many: Path, executor: Executor) -> None:
    """Each has its own functions there, and takes nothing of the other's."""
    first, second = CASES["stacked"], CASES["transformed"]
    with (
        Loader(many, executor=executor, **first).sync() as one,
        Loader(many, executor=executor, **second).sync() as other,
    ):
        pairs = list(zip(one, other, strict=True))

    assert [plain(batch) for batch, _ in pairs] == epoch(many, num_workers=0, **first)
    assert [plain(batch) for _, batch in pairs] == epoch(many, num_workers=0, **second)


def test_a_state_goes_on_from_one_to_the_other(many: Path, threads: Executor, processes: Executor) -> None:
    """Who decodes is no part of the state."""
    options = CASES["transformed"]
    first = Loader(many, executor=threads, **options)
    with first.sync() as batches:
        begun = list(itertools.islice(batches, 5))
        state = json.loads(json.dumps(batches.state_dict()))

    second = Loader(many, executor=processes, **options)
    second.load_state_dict(state)

    found = [plain(batch) for batch in [*begun, *take_sync(second)]]
    assert found == epoch(many, num_workers=0, **options)


def test_all_of_several_epochs_come(many: Path, executor: Executor) -> None:
    """An epoch that begins ahead of its turn is done by the same executor."""
    loader = Loader(many, batch_size=16, shuffle=True, executor=executor)
    local = Loader(many, batch_size=16, shuffle=True, num_workers=0)

    with loader.sync() as batches, local.sync() as expected:
        for _ in range(3):
            assert [plain(batch) for batch in batches] == [plain(batch) for batch in expected]


# Errors ----------------------------------------------------------------------------------------------


def test_an_error_comes_at_its_step(many: Path, executor: Executor) -> None:
    """Earlier batches come first, then the error with record, key and the worker's traceback."""
    loader = Loader(many, batch_size=4, transform=Raising(is_seven), executor=executor, seed_globals=False)
    taken: list[Any] = []

    with loader.sync() as batches, pytest.raises(SampleError) as caught:
        taken.extend(batches)

    assert numbers(taken) == [0, 1, 2, 3]
    assert (caught.value.record, caught.value.step, caught.value.key) == (7, 1, "k7")
    assert "fakes.py" in caught.value.__notes__[0]


@pytest.mark.parametrize("policy", ["skip", Skip(5), without_seven])
def test_what_is_skipped_is_the_same(many: Path, executor: Executor, policy: Any) -> None:
    """Batches become smaller, never fewer, and the loader tells which record is lacking."""
    options = {"batch_size": 8, "transform": Raising(is_seven), "seed_globals": False, "on_error": policy}
    loader = Loader(many, executor=executor, **options)

    found = [plain(batch) for batch in take_sync(loader)]

    assert found == epoch(many, num_workers=0, **options)
    assert [skipped.record for skipped in loader.skipped] == [7]


def test_a_damaged_record_is_named(many: Path, executor: Executor, tmp_path: Path) -> None:
    """Sums are compared wherever the record is decoded."""
    for file in many.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    shard = sorted(tmp_path.glob("*.aio"))[0]
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)

    with pytest.raises(aioload.ShardError, match="checksum") as caught:
        take_sync(Loader(tmp_path, batch_size=4, executor=executor))

    assert (caught.value.shard, caught.value.step) == (shard.name, 0)


def test_a_process_that_dies_breaks_its_pool(many: Path) -> None:
    """Nobody but its owner can make another one: the error says so, and comes at once."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as executor:
        loader = Loader(many, batch_size=8, transform=die_at_forty, executor=executor)
        with loader.sync() as batches, pytest.raises(WorkerError, match="the executor is broken"):
            list(batches)


def test_an_answer_that_is_none_of_ours_is_an_error(many: Path) -> None:
    """What an executor makes up, or workers of another version answer, ends the loader; nothing hangs."""

    class Strange(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result(None)
            return future

    with pytest.raises(WorkerError, match="the executor gave back what no worker"):
        epoch(many, executor=Strange(), batch_size=8)


def test_functions_that_cannot_be_loaded_there_are_told(many: Path, processes: Executor) -> None:
    """What raises while it is unpickled is an error of the first step, with the traceback from there."""
    with pytest.raises(WorkerError, match="cannot work for this loader: ZeroDivisionError") as caught:
        take_sync(Loader(many, batch_size=8, transform=Unloadable(), executor=processes))

    assert "ZeroDivisionError" in str(caught.value.facts["cause"])


# Ends ------------------------------------------------------------------------------------------------


def test_a_break_leaves_the_executor_usable(many: Path, executor: Executor) -> None:
    """After leaving early nothing of the loader's is under way there, and others' tasks are done."""
    loader = Loader(many, batch_size=4, executor=executor, transform=drawn, seed_globals=False)

    with loader.sync() as batches:
        first = next(iter(batches))

    assert numbers([first]) == [0, 1, 2, 3]
    assert executor.submit(abs, -3).result(timeout=30) == 3


@pytest.mark.parametrize("cancel", [False, True])
def test_an_executor_that_is_shut_down_meanwhile_is_an_error(many: Path, cancel: bool) -> None:
    """The batches that were ready come, then an error that says what happened; nothing hangs."""
    executor = ThreadPoolExecutor(1)
    loader = Loader(many, batch_size=2, prefetch=2, executor=executor)

    with loader.sync() as batches:
        iterator = iter(batches)
        next(iterator)
        executor.shutdown(cancel_futures=cancel)
        with pytest.raises(WorkerError, match="takes no tasks"):
            list(iterator)


# Reads elsewhere -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["stacked", "parts", "prepared"])  # cut and collated in all ways
def test_workers_read_a_folder_themselves(many: Path, processes: Executor, case: str) -> None:
    """The loader reads nothing, and the batches are the same."""
    loader = Loader(many, executor=processes, remote_reads=True, **CASES[case])

    found = [plain(batch) for batch in take_sync(loader)]

    assert found == epoch(many, num_workers=0, **CASES[case])
    assert loader.stats().reads == 0


def test_workers_read_an_address_themselves(many: Path, processes: Executor) -> None:
    """From a server, whose options travel with the recipe."""
    with RangeServer(many) as server:
        dataset = Dataset(server.url, storage_options={"headers": {"X-Token": "1"}})
        loader = Loader(dataset, batch_size=16, shuffle=True, executor=processes, remote_reads=True)

        found = [plain(batch) for batch in take_sync(loader)]

    assert found == epoch(many, batch_size=16, shuffle=True, num_workers=0)
    assert loader.stats().reads == 0


def test_what_workers_cannot_read_the_loader_reads(many: Path, processes: Executor, tmp_path: Path) -> None:
    """A shard that has changed since is read here, where its error has a name."""
    for file in many.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    shard = sorted(tmp_path.glob("*.aio"))[1]
    loader = Loader(tmp_path, batch_size=8, executor=processes, remote_reads=True, on_error=Skip(RECORDS))
    loader.dataset.table  # noqa: B018 - the set is opened before the shard goes
    shard.unlink()

    found = take_sync(loader)

    missing = sorted(set(range(RECORDS)) - set(numbers(found)))
    assert missing == [skipped.record for skipped in loader.skipped]
    assert {skipped.shard for skipped in loader.skipped} == {shard.name}


# Options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"executor": 3}, "must be a concurrent.futures.Executor"),
        ({"remote_reads": True}, "remote_reads is for the workers of an executor"),
        ({"worker_timeout": 3.0}, "worker_timeout is about worker processes"),
        ({"max_jobs_per_worker": 3}, "max_jobs_per_worker is about worker processes"),
        ({"cache": "64MiB"}, "cache is about worker processes"),
        ({"num_workers": 0}, "num_workers must be a whole number of at least 1"),
        ({"transform": drawn}, "pass seed_globals=False"),
    ],
)
def test_what_does_not_go_together_is_refused(
    many: Path, threads: Executor, options: dict[str, Any], told: str
) -> None:
    """Before anything starts."""
    given = options if "remote_reads" in options else {"executor": threads, **options}

    with pytest.raises(ConfigError, match=told):
        Loader(many, batch_size=4, **given)


def test_threads_read_here(many: Path, threads: Executor) -> None:
    """They are no workers elsewhere."""
    with pytest.raises(ConfigError, match="threads are in this process"):
        Loader(many, batch_size=4, executor=threads, remote_reads=True)


def test_a_storage_of_this_process_is_read_here(many: Path, processes: Executor) -> None:
    """Workers cannot be told of it."""
    files = {file.name: file.read_bytes() for file in many.iterdir()}
    loader = Loader(
        Dataset(aioload.storage.MemoryStorage(files)), batch_size=4, executor=processes, remote_reads=True
    )

    with loader.sync() as batches, pytest.raises(ConfigError, match="storage of this process"):
        next(iter(batches))


def test_an_executor_counts_as_so_many_workers_as_it_has(many: Path, threads: Executor) -> None:
    """Unless the user says otherwise."""
    auto, said = (
        Loader(many, batch_size=4, executor=threads),
        Loader(many, batch_size=4, executor=threads, num_workers=5),
    )

    assert (auto.num_workers, said.num_workers) == (2, 5)
