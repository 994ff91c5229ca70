"""A worker that dies or hangs is replaced, nothing of its work is lost, and what kills workers is named."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import counted, take_sync
from deaths import (
    DEATHS,
    Blocking,
    Dying,
    Traced,
    die_by_exit,
    die_by_fault,
    die_by_signal,
    die_in_mid_answer,
)
from fakes import Gate

import aioload
from aioload import ConfigError, Loader, WorkerError

RECORDS = 120
TAKEN = 32  # so few that the next epoch, whose calls would count too, does not begin ahead


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 records."""
    return counted(tmp_path_factory.mktemp("many") / "set", RECORDS, shard_bytes=2000)


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    """A transform whose calls can be counted."""
    return Traced(tmp_path / "calls")


def take(loader: Loader, batches: int) -> list[Any]:
    """Take the first batches of an epoch, and close."""
    with loader.sync() as given:
        return list(itertools.islice(given, batches))


def numbers(batches: list[Any]) -> list[list[int]]:
    """The records of each batch."""
    return [batch["n"].tolist() for batch in batches]


def cut(records: list[int], size: int) -> list[list[int]]:
    """Cut records into batches."""
    return [records[start : start + size] for start in range(0, len(records), size)]


def caught(loader: Loader, kind: type[BaseException]) -> tuple[list[Any], Any, float]:
    """Take batches up to an error; return them, the error, and the seconds from the last batch to it."""
    found: list[Any] = []
    began = time.monotonic()
    with loader.sync() as given:
        iterator = iter(given)
        with pytest.raises(kind) as error:  # noqa: PT012 - the time of each batch is taken
            for batch in iterator:
                found.append(batch)
                began = time.monotonic()
        seconds = time.monotonic() - began
    return found, error.value, seconds


def workers_of(loader: Loader) -> list[int]:
    """Process ids of the workers, as the loader knows them."""
    turns = loader._engine._turns  # no public name: who a worker is, is nobody's business but this test's
    return [pid for seat in turns._house.pool._seats for pid in seat._context.pids]


# One death -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 4, 16])
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("die", [die_by_signal, die_by_exit, die_by_fault])
def test_one_death_changes_nothing(
    many: Path, traced: Traced, die: Callable[[], None], num_workers: int, batch_size: int
) -> None:
    """After a death the batches are the same in the same order, and no record is worked on a third time."""
    dying = Dying(traced, 7, die, times=1)
    options = {"batch_size": batch_size, "prefetch": 2, "num_workers": num_workers}
    loader = Loader(many, transform=dying, **options)

    found = take(loader, TAKEN // batch_size)

    assert numbers(found) == cut(list(range(TAKEN)), batch_size)
    assert [text for batch in found for text in batch["text"]] == [f"t{n}" for n in range(TAKEN)]
    assert traced.calls[7] == 2
    assert max(traced.calls.values()) == 2
    assert loader.stats().restarts == 1
    assert loader.skipped == ()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_death_over_known_rows_changes_nothing(many: Path, traced: Traced, num_workers: int) -> None:
    """A death late in an epoch, when rows are written in place, is made up for all the same."""
    dying = Dying(traced, 100, die_by_signal, times=1)

    found = take_sync(Loader(many, batch_size=8, transform=dying, num_workers=num_workers))

    assert numbers(found) == cut(list(range(RECORDS)), 8)


def test_deaths_at_several_records_change_nothing(many: Path, traced: Traced) -> None:
    """Three records at which a worker dies once, two of them in one batch, are all there in the end."""
    nested = Dying(Dying(Dying(traced, 5, die_by_exit, 1), 6, die_by_exit, 1), 90, die_by_exit, 1)
    loader = Loader(many, batch_size=8, transform=nested, num_workers=2)

    found = take_sync(loader)

    assert numbers(found) == cut(list(range(RECORDS)), 8)
    assert loader.stats().restarts >= 3


def test_a_death_is_noticed_within_a_second(many: Path, traced: Traced) -> None:
    """From the death of a busy worker to the batch that it was at, it takes less than a second."""
    dying = Dying(traced, 40, die_by_signal, times=1)
    waits = []

    with Loader(many, batch_size=8, prefetch=2, transform=dying, num_workers=1).sync() as given:
        began = time.monotonic()
        for _ in itertools.islice(given, 10):
            waits.append(time.monotonic() - began)
            began = time.monotonic()

    assert max(waits[1:]) < 1.0


def test_a_worker_killed_while_it_idles_is_replaced(many: Path) -> None:
    """Workers killed between jobs are made up for, and no record comes under suspicion."""
    loader = Loader(many, batch_size=8, prefetch=2, num_workers=2)

    with loader.sync() as given:
        iterator = iter(given)
        first = next(iterator)
        for pid in workers_of(loader):
            os.kill(pid, signal.SIGKILL)
        found = [first, *iterator]

    assert numbers(found) == cut(list(range(RECORDS)), 8)
    assert 1 <= loader.stats().restarts <= 2


def test_a_death_while_collate_runs_changes_nothing(many: Path, traced: Traced) -> None:
    """A worker that dies in collate has its batch made again."""

    def collate(samples: list[Any]) -> Any:
        traced(samples[0])
        if samples[0]["n"] == 16 and traced.calls[16] == 1:
            die_by_signal()
        return {"n": np.array([sample["n"] for sample in samples])}

    found = take_sync(Loader(many, batch_size=8, collate=collate, num_workers=2))

    assert numbers(found) == cut(list(range(RECORDS)), 8)


def test_a_worker_that_dies_in_the_middle_of_its_answer_is_noticed(many: Path, traced: Traced) -> None:
    """Half a message on the way back, which the executor would wait for without end, is no hang."""
    dying = Dying(traced, 7, die_in_mid_answer, times=1)
    began = time.monotonic()

    found = take_sync(Loader(many, batch_size=8, transform=dying, num_workers=1))

    assert numbers(found) == cut(list(range(RECORDS)), 8)
    assert time.monotonic() - began < 10


def test_the_fork_server_may_die(many: Path) -> None:
    """When the server that starts workers is killed, workers are had from another one."""
    from aioload._workers import context

    loader = Loader(many, batch_size=8, prefetch=2, num_workers=2)

    with loader.sync() as given:
        iterator = iter(given)
        first = next(iterator)
        os.kill(context._server._forkserver_pid, signal.SIGKILL)
        found = [first, *iterator]

    assert numbers(found) == cut(list(range(RECORDS)), 8)


# A record that kills ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("way", DEATHS)
def test_the_second_death_names_the_record(many: Path, traced: Traced, way: str, num_workers: int) -> None:
    """A record that kills workers is run twice; the error says which it is and how they ended."""
    die, told, exit_code = DEATHS[way]
    dying = Dying(traced, 7, die)
    loader = Loader(many, batch_size=4, prefetch=2, transform=dying, num_workers=num_workers)

    found, error, seconds = caught(loader, WorkerError)

    assert numbers(found) == [[0, 1, 2, 3]]
    assert (error.record, error.shard, error.step) == (7, "shard-00000.aio", 1)
    assert error.exit_code == exit_code
    assert told in str(error)
    assert traced.calls[7] == 2
    assert max(traced.calls.values()) == 2
    assert seconds < 5


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_record_that_kills_can_be_left_out(many: Path, traced: Traced, num_workers: int) -> None:
    """With `skip` only the records that kill are missing, and they are named."""
    nested = Dying(Dying(traced, 7, die_by_exit), 8, die_by_signal)
    loader = Loader(
        many, batch_size=4, prefetch=2, transform=nested, on_error="skip", num_workers=num_workers
    )

    found = take(loader, TAKEN // 4)

    assert numbers(found) == [[0, 1, 2, 3], [4, 5, 6], [9, 10, 11], *cut(list(range(12, TAKEN)), 4)]
    assert [skipped.record for skipped in loader.skipped] == [7, 8]
    assert "exit code 3" in loader.skipped[0].error
    assert "SIGKILL" in loader.skipped[1].error
    assert (traced.calls[7], traced.calls[8]) == (2, 2)
    assert loader.stats().restarts == 4


def test_a_record_that_kills_while_it_is_packed_is_found(many: Path) -> None:
    """What a transform returns may kill only when it is pickled; the record is found all the same."""

    class Deadly:
        def __reduce__(self) -> Any:
            os._exit(3)

    def transform(sample: dict[str, Any]) -> Any:
        return Deadly() if sample["n"] == 9 else sample["n"]

    loader = Loader(many, batch_size=8, transform=transform, collate=list, num_workers=1, on_error="skip")

    found = take(loader, 3)

    assert found == [list(range(8)), [8, *range(10, 16)], list(range(16, 24))]
    assert [skipped.record for skipped in loader.skipped] == [9]


def test_a_collate_that_kills_is_named(many: Path) -> None:
    """Where every worker dies in collate, the error names batch and end."""

    def collate(samples: list[Any]) -> Any:
        return os._exit(3) if samples[0]["n"] == 16 else [sample["n"] for sample in samples]

    found, error, _ = caught(Loader(many, batch_size=8, collate=collate, num_workers=2), WorkerError)

    assert found == cut(list(range(16)), 8)
    assert error.step == 2
    assert error.exit_code == 3
    assert str(error).startswith("batch 2: ")


# A clear end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["raise", aioload.Skip(1000)])
def test_a_transform_that_always_kills_comes_to_an_end(many: Path, on_error: Any) -> None:
    """Workers are not replaced for ever: the error says how they ended, also where all may be left out."""
    loader = Loader(
        many, batch_size=4, transform=lambda sample: os._exit(3), num_workers=2, on_error=on_error
    )

    found, error, seconds = caught(loader, WorkerError)

    assert sum(len(batch) and len(batch["n"]) for batch in found) == 0
    assert "exit code 3" in str(error)
    assert seconds < 20
    assert loader.stats().restarts <= 30


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_recipe_whose_loading_kills_comes_to_an_end(many: Path, num_workers: int) -> None:
    """When workers die while they load the transform, starting is given up after a few."""

    class Deadly:
        def __call__(self, sample: Any) -> Any:
            return sample

        def __reduce__(self) -> Any:
            return os._exit, (3,)

    loader = Loader(many, batch_size=4, transform=Deadly(), num_workers=num_workers)

    _, error, seconds = caught(loader, WorkerError)

    assert "do not start" in str(error)
    assert error.exit_code == 3
    assert seconds < 10
    assert loader.stats().restarts == 0


def test_a_module_that_cannot_be_imported_is_told_at_once(many: Path, tmp_path: Path) -> None:
    """An import that fails in the workers arrives with its traceback, and they are not started again."""
    marker = tmp_path / "imports"
    module = tmp_path / "aioload_broken_module.py"
    module.write_text(f"open({str(marker)!r}, 'a').write('.')\nraise RuntimeError('no such device')\n")

    class Importing:
        def __call__(self, sample: Any) -> Any:
            return sample

        def __reduce__(self) -> Any:
            code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import aioload_broken_module"
            return exec, (code,)

    _, error, seconds = caught(Loader(many, batch_size=4, transform=Importing(), num_workers=2), WorkerError)

    assert "RuntimeError: no such device" in str(error)
    assert "aioload_broken_module.py" in error.cause
    assert seconds < 10
    assert len(marker.read_text()) <= 2


def test_a_loading_that_exits_is_told(many: Path) -> None:
    """`sys.exit` while the transform is loaded is an error with a traceback, not a death."""

    class Exiting:
        def __call__(self, sample: Any) -> Any:
            return sample

        def __reduce__(self) -> Any:
            return exec, ("raise SystemExit(4)",)

    _, error, seconds = caught(Loader(many, batch_size=4, transform=Exiting(), num_workers=1), WorkerError)

    assert "SystemExit: 4" in str(error)
    assert seconds < 10


# Workers that hang -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_hung_worker_is_ended_and_its_stack_is_told(many: Path, tmp_path: Path, num_workers: int) -> None:
    """A transform that never returns becomes an error that has the name of the function in its stack."""
    options = {"worker_timeout": 0.5, "prefetch": 2, "num_workers": num_workers}
    loader = Loader(many, batch_size=4, transform=Blocking(tmp_path, 7), **options)

    found, error, seconds = caught(loader, WorkerError)

    assert numbers(found) == [[0, 1, 2, 3]]
    assert (error.record, error.step) == (7, 1)
    assert "did not answer for 0.5 s" in str(error)
    assert "wait_for_ever" in error.cause
    assert "wait_for_ever" in "".join(error.__notes__)
    assert 1 < seconds < 6
    assert loader.stats().restarts == 2


def test_a_record_that_hangs_can_be_left_out(many: Path, tmp_path: Path) -> None:
    """With `skip` the record that hangs is missing, and no other."""
    blocking = Blocking(tmp_path, 7)
    options = {"on_error": "skip", "worker_timeout": 0.5, "num_workers": 2}

    found = take(Loader(many, batch_size=4, prefetch=2, transform=blocking, **options), 4)

    assert numbers(found) == [[0, 1, 2, 3], [4, 5, 6], *cut(list(range(8, 16)), 4)]


def test_a_collate_that_hangs_is_told(many: Path, tmp_path: Path) -> None:
    """The time of a worker is limited in collate too."""
    blocking = Blocking(tmp_path, 8)
    loader = Loader(
        many,
        batch_size=8,
        collate=lambda samples: [blocking(sample)["n"] for sample in samples],
        worker_timeout=0.5,
        num_workers=1,
    )

    found, error, _ = caught(loader, WorkerError)

    assert found == [list(range(8))]
    assert error.step == 1
    assert "wait_for_ever" in error.cause


def test_a_stopped_worker_is_not_taken_for_hung(many: Path, tmp_path: Path) -> None:
    """A process stopped for three times the time it may take goes on as if nothing had been."""
    with Gate(tmp_path) as gate:
        loader = Loader(many, batch_size=4, transform=gate, worker_timeout=1.0, num_workers=1)
        with loader.sync() as given:
            iterator = iter(given)
            gate.wait()
            (pid,) = workers_of(loader)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(3)  # what is promised is about time
            os.kill(pid, signal.SIGCONT)
            gate.open(10_000)
            found = list(iterator)

    assert numbers(found) == cut(list(range(RECORDS)), 4)
    assert loader.stats().restarts == 0


@pytest.mark.parametrize("timeout", [0, -1, True, "5", float("nan")])
def test_a_timeout_that_cannot_be_is_refused(many: Path, timeout: Any) -> None:
    """A time limit is a positive number of seconds."""
    with pytest.raises(ConfigError, match="worker_timeout must be a positive number"):
        Loader(many, batch_size=4, worker_timeout=timeout)


# Recycling -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_are_replaced_after_so_many_jobs(many: Path, num_workers: int) -> None:
    """With workers that leave after two jobs the batches are the same, and no departure counts as a death."""

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        return {"n": sample["n"], "pid": os.getpid()}

    options = {"batch_size": 2, "prefetch": 2, "num_workers": num_workers}
    loader = Loader(many, transform=transform, max_jobs_per_worker=2, **options)

    found = take_sync(loader)

    assert numbers(found) == cut(list(range(RECORDS)), 2)
    assert len({pid for batch in found for pid in batch["pid"].tolist()}) > 4
    assert loader.stats().restarts == 0


def test_a_death_among_workers_that_leave(many: Path, traced: Traced) -> None:
    """Recycling and deaths go together."""
    dying = Dying(Dying(traced, 20, die_by_signal, 1), 21, die_by_exit, 1)
    loader = Loader(many, batch_size=2, prefetch=2, transform=dying, max_jobs_per_worker=2, num_workers=2)

    found = take_sync(loader)

    assert numbers(found) == cut(list(range(RECORDS)), 2)
    assert loader.stats().restarts == 2


def test_closing_busy_workers_counts_no_death(many: Path, tmp_path: Path) -> None:
    """Workers that are ended because the loader closes have not died."""
    loader = Loader(many, batch_size=4, transform=Blocking(tmp_path, 8), prefetch=2, num_workers=2)

    found = take(loader, 2)

    assert len(found) == 2
    assert loader.stats().restarts == 0
