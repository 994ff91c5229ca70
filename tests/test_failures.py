"""A failure takes its batch's place: the batches before it come out first, then one typed error, bare."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from batches import counted, pack
from conftest import png
from fakes import FaultyStorage, Raising
from makes import Awkward

import aioload
from aioload import (
    AioloadError,
    ConfigError,
    Dataset,
    Loader,
    NotFoundError,
    SampleError,
    ShardError,
    StorageError,
    WorkerError,
)
from aioload.storage import LocalStorage

Attempt = tuple[list[int], BaseException | None]


class Unloadable:
    """A transform that pickles well and fails when a worker loads it."""

    def __call__(self, sample: Any) -> Any:
        return sample

    def __reduce__(self) -> Any:
        return int, ("not a number",)


def _attempt_sync(loader: Loader) -> Attempt:
    firsts: list[int] = []
    try:
        for batch in loader.sync():
            firsts.append(batch["n"][0].item())  # noqa: PERF401 - what came before the error counts
    except Exception as error:
        return firsts, error
    return firsts, None


def _attempt_async(loader: Loader) -> Attempt:
    async def main() -> Attempt:
        firsts: list[int] = []
        try:
            async for batch in loader:
                firsts.append(batch["n"][0].item())  # noqa: PERF401 - what came before the error counts
        except Exception as error:
            return firsts, error
        return firsts, None

    return anyio.run(main)


ATTEMPTS: list[Callable[[Loader], Attempt]] = [_attempt_sync, _attempt_async]


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records in shards of 20."""
    return counted(tmp_path_factory.mktemp("hundred") / "set", shard_bytes=4150)


@pytest.fixture
def damaged(hundred: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    return Path(shutil.copytree(hundred, tmp_path / "damaged"))


# User code --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize(("batch_size", "step"), [(10, 8), (1, 81), (64, 1), (500, 0)])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_an_error_arrives_at_its_own_step(
    hundred: Path, num_workers: int, batch_size: int, step: int, attempt: Callable[[Loader], Attempt]
) -> None:
    """A transform that raises at record 81 is a SampleError, with all facts, after the batches before it."""
    transform = Raising(at=lambda sample: sample["n"] == 81)
    loader = Loader(hundred, batch_size=batch_size, num_workers=num_workers, transform=transform)

    firsts, error = attempt(loader)
    loader.close()

    assert firsts == list(range(0, 100, batch_size))[:step]
    assert type(error) is SampleError
    assert (error.record, error.key, error.shard, error.step) == (81, "k81", "shard-00004.aio", step)
    assert "ValueError" in str(error)
    assert "the fake does not like this value" in str(error)
    assert "record 81" in str(error)
    assert "Traceback" in error.cause
    assert "ValueError: the fake does not like this value" in error.cause
    assert "fakes.py" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_same_data_fail_in_the_same_way(hundred: Path, num_workers: int) -> None:
    """Each pass over the same loader meets the same error at the same step; the loader itself lives on."""
    transform = Raising(at=lambda sample: sample["n"] in (81, 83, 95))

    with Loader(hundred, batch_size=10, num_workers=num_workers, transform=transform).sync() as loader:
        attempts = [_attempt_sync(loader._loader) for _ in range(3)]

    assert [firsts for firsts, _ in attempts] == [list(range(0, 80, 10))] * 3
    assert [error.record for _, error in attempts] == [81, 81, 81]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_first_bad_record_of_a_batch_is_told(hundred: Path, num_workers: int) -> None:
    """Of several bad records in a batch that workers share, the first one is named, whoever was faster."""
    transform = Raising(at=lambda sample: sample["n"] >= 20)

    with Loader(hundred, batch_size=100, num_workers=num_workers, transform=transform).sync() as loader:
        errors = [_attempt_sync(loader._loader)[1] for _ in range(3)]

    assert [error.record for error in errors] == [20, 20, 20]


def test_after_an_error_the_iterator_is_over(hundred: Path) -> None:
    """As with a generator: what comes after the error is the end."""
    with Loader(hundred, batch_size=60, num_workers=1, transform=Raising(at=lambda _: True)).sync() as loader:
        iterator = iter(loader)
        with pytest.raises(SampleError):
            next(iterator)
        rest = list(iterator)

    assert rest == []
    assert loader.epoch == 0


@pytest.mark.parametrize("num_workers", [0, 1])
def test_exceptions_that_cannot_travel(hundred: Path, num_workers: int) -> None:
    """An exception with two arguments and a lock arrives with class name, message, traceback and record."""

    def transform(sample: Any) -> Any:
        if sample["n"] == 33:
            raise Awkward(7, "bad luck")
        return sample

    with Loader(hundred, batch_size=10, num_workers=num_workers, transform=transform).sync() as loader:
        firsts, error = _attempt_sync(loader._loader)

    assert firsts == [0, 10, 20]
    assert type(error) is SampleError
    assert error.record == 33
    assert "Awkward: 7 because of bad luck" in str(error)
    assert "in transform" in error.cause


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, RecursionError, MemoryError])
def test_whatever_user_code_raises_in_a_worker(hundred: Path, kind: type[BaseException]) -> None:
    """`sys.exit()` and the like in a worker are a SampleError, not a dead worker."""

    def transform(sample: Any) -> Any:
        if sample["n"] == 33:
            raise kind
        return sample

    with Loader(hundred, batch_size=10, num_workers=1, transform=transform).sync() as loader:
        firsts, error = _attempt_sync(loader._loader)

    assert firsts == [0, 10, 20]
    assert type(error) is SampleError
    assert kind.__name__ in str(error)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [10, 100])
def test_a_collate_that_raises(hundred: Path, num_workers: int, batch_size: int) -> None:
    """A collate's error is a SampleError at its step that names the records of the batch."""

    def collate(samples: list[Any]) -> Any:
        if any(sample["n"] == 42 for sample in samples):
            raise LookupError("of the user")
        return aioload.collate.default(samples)

    with Loader(hundred, batch_size=batch_size, num_workers=num_workers, collate=collate).sync() as loader:
        firsts, error = _attempt_sync(loader._loader)

    assert firsts == list(range(0, 42, batch_size))[: 42 // batch_size]
    assert type(error) is SampleError
    assert error.step == 42 // batch_size
    assert "LookupError: of the user" in str(error)
    assert str(42 // batch_size * batch_size) in str(error)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_value_that_does_not_decode(tmp_path: Path, num_workers: int) -> None:
    """An image that is none is a SampleError with record, key and field, after the batches before it."""
    good = png(np.zeros((4, 4, 3), np.uint8))
    images = [good if record != 7 else b"<html>" for record in range(10)]
    samples = [{"image": image, "n": record} for record, image in enumerate(images)]
    path = pack(tmp_path / "set", {"image": "image", "n": "int"}, samples)

    with Loader(path, batch_size=2, num_workers=num_workers).sync() as loader:
        firsts, error = _attempt_sync(loader._loader)

    assert firsts == [0, 2, 4]
    assert type(error) is SampleError
    assert (error.record, error.key, error.step) == (7, "k7", 3)
    assert "'image'" in error.cause


def test_errors_pickle(hundred: Path) -> None:
    """The error that the user meets pickles with all its facts, to be sent on or logged."""
    with Loader(hundred, batch_size=10, num_workers=1, transform=Raising(at=lambda _: True)).sync() as loader:
        _, error = _attempt_sync(loader._loader)

    again = pickle.loads(pickle.dumps(error))

    assert type(again) is SampleError
    assert str(again) == str(error)
    assert (again.facts, again.__notes__) == (error.facts, error.__notes__)


# Data -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [10, 100])
def test_a_damaged_record(damaged: Path, num_workers: int, batch_size: int) -> None:
    """A flipped bit is a ShardError at its step with shard and record; the batches before are right."""
    _flip(damaged, record=57)

    with Loader(damaged, batch_size=batch_size, num_workers=num_workers).sync() as loader:
        firsts, error = _attempt_sync(loader._loader)

    assert firsts == list(range(0, 100, batch_size))[: 57 // batch_size]
    assert type(error) is ShardError
    assert (error.shard, error.record, error.step) == ("shard-00002.aio", 57, 57 // batch_size)
    assert "checksum" in str(error)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_missing_shard(damaged: Path, num_workers: int) -> None:
    """A shard that is not there is a NotFoundError at its step that names it, never a shorter epoch."""
    (damaged / "shard-00003.aio").unlink()

    with Loader(damaged, batch_size=7, num_workers=num_workers).sync() as loader:
        firsts, error = _attempt_sync(loader._loader)

    assert firsts == list(range(0, 56, 7))
    assert type(error) is NotFoundError
    assert isinstance(error, StorageError)
    assert isinstance(error, FileNotFoundError)
    assert error.shard == "shard-00003.aio"
    assert (error.record, error.step) == (60, 8)
    assert "shard-00003.aio" in str(error)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 10])
def test_a_cut_shard(damaged: Path, num_workers: int, batch_size: int) -> None:
    """Records before a cut come out first, then a ShardError with shard and offset."""
    with (damaged / "shard-00001.aio").open("r+b") as file:
        file.truncate(_place(damaged, record=35) + 3)

    with Loader(damaged, batch_size=batch_size, num_workers=num_workers).sync() as loader:
        firsts, error = _attempt_sync(loader._loader)

    assert firsts == list(range(0, 100, batch_size))[: 35 // batch_size]
    assert type(error) is ShardError
    assert (error.shard, error.record, error.step) == ("shard-00001.aio", 35, 35 // batch_size)
    assert error.offset == _place(damaged, record=35) + 3
    assert "ends" in str(error)


def test_one_damaged_record_does_not_touch_its_neighbours(damaged: Path) -> None:
    """All other records of a damaged set can still be read one by one."""
    _flip(damaged, record=57)
    dataset = Dataset(damaged)

    with pytest.raises(ShardError, match="57"):
        dataset[57]

    assert [dataset[record]["n"] for record in (56, 58)] == [56, 58]


@pytest.mark.parametrize(
    ("name", "error"),
    [("manifest.json", ShardError), ("index.aioi", AioloadError)],
    ids=["manifest", "index"],
)
def test_a_set_that_is_not_whole(damaged: Path, name: str, error: type[AioloadError]) -> None:
    """Without manifest or index nothing is read and nothing started; the error names the file."""
    (damaged / name).unlink()

    with pytest.raises(error, match=name):
        Loader(damaged, batch_size=10, num_workers=1).sync().__iter__()


# Storage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_storage_that_fails(hundred: Path, num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that cannot be had is a StorageError at the step whose records it would have brought."""
    faults = {number: StorageError("the disk is gone", shard="x") for number in range(5, 1000)}
    monkeypatch.setattr(
        Dataset, "open_storage", lambda self: FaultyStorage(LocalStorage(self.source), faults)
    )

    with Loader(hundred, batch_size=10, num_workers=num_workers, prefetch=1).sync() as loader:
        firsts, error = _attempt_sync(loader._loader)

    assert firsts == [0, 10, 20, 30, 40]
    assert type(error) is StorageError
    assert "the disk is gone" in str(error)
    assert (error.record, error.step) == (50, 5)


def test_a_read_that_fails_once_is_read_again(hundred: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large read that fails is tried again record by record before anything is given up."""
    monkeypatch.setattr(
        Dataset,
        "open_storage",
        lambda self: FaultyStorage(LocalStorage(self.source), {2: StorageError("once")}),
    )

    with Loader(hundred, batch_size=10, num_workers=0).sync() as loader:
        firsts, error = _attempt_sync(loader._loader)

    assert (firsts, error) == (list(range(0, 100, 10)), None)


def test_a_bug_inside_is_no_hang(hundred: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody foresaw is an AioloadError at its step that asks to be reported."""
    monkeypatch.setattr(
        Dataset,
        "open_storage",
        lambda self: FaultyStorage(LocalStorage(self.source), {3: ZeroDivisionError("a bug")}),
    )

    with Loader(hundred, batch_size=10, num_workers=0, prefetch=1).sync() as loader:
        firsts, error = _attempt_sync(loader._loader)

    assert firsts == [0, 10, 20]
    assert type(error) is AioloadError
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert "report" in str(error)


def test_a_storage_that_cannot_be_opened(hundred: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure while the parts are opened reaches the user at once, and nothing is left."""

    def fail(self: Dataset) -> Any:
        raise StorageError("no such bucket")

    loader = Loader(hundred, batch_size=10, num_workers=1)
    assert len(loader) == 10
    monkeypatch.setattr(Dataset, "open_storage", fail)

    with pytest.raises(StorageError, match="no such bucket"):
        iter(loader.sync())
    with pytest.raises(StorageError, match="no such bucket"):
        iter(loader.sync())


def test_an_error_on_one_rank_says_that_others_wait(hundred: Path) -> None:
    """With several ranks the error tells which this is and what to do; with one it is silent on that."""

    def notes(**ranks: int) -> str:
        loader = Loader(hundred, batch_size=10, num_workers=0, transform=_raise, **ranks)
        with loader.sync() as source, pytest.raises(SampleError) as caught:
            next(iter(source))
        return " ".join(caught.value.__notes__)

    assert "this is rank 1 of 2: the others" in notes(rank=1, world_size=2)
    assert "rank" not in notes()


def _raise(sample: Any) -> Any:
    raise ValueError("no")


# Workers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(3)])
def test_a_worker_that_dies(hundred: Path, end: Callable[[], None]) -> None:
    """A record that ends its worker twice is a WorkerError within 10 s, after batches that were right."""

    def transform(sample: Any) -> Any:
        if sample["n"] == 57:
            end()
        return sample

    started = time.monotonic()
    with Loader(hundred, batch_size=10, num_workers=2, prefetch=1, transform=transform).sync() as loader:
        firsts, error = _attempt_sync(loader._loader)
        again = next(iter(loader))
    seconds = time.monotonic() - started

    assert firsts == [0, 10, 20, 30, 40]
    assert type(error) is WorkerError
    assert error.record == 57
    assert again["n"][0] == 0
    assert seconds < 10


def test_a_transform_that_workers_cannot_load(hundred: Path) -> None:
    """What pickles here and does not load there is a WorkerError with the reason, before the first batch."""
    with Loader(hundred, batch_size=10, num_workers=2, transform=Unloadable()).sync() as loader:
        firsts, error = _attempt_sync(loader._loader)

    assert firsts == []
    assert isinstance(error, AioloadError)
    assert "not a number" in str(error)


@pytest.mark.parametrize("argument", ["transform", "collate", "decode"])
def test_what_cannot_be_sent_is_refused(hundred: Path, argument: str) -> None:
    """An object that holds a lock is a ConfigError at construction that names the argument and the cure."""
    lock = threading.Lock()

    def function(value: Any) -> Any:
        with lock:
            return value

    given = {argument: {"n": function} if argument == "decode" else function}

    with pytest.raises(ConfigError, match=rf"{argument}.*lock.*num_workers=0"):
        Loader(hundred, batch_size=10, num_workers=1, **given)
    Loader(hundred, batch_size=10, num_workers=0, **given)


def _place(path: Path, record: int) -> int:
    """Return where a record begins in its shard's file."""
    return int(Dataset(path).index.locate(np.array([record])).start[0])


def _flip(path: Path, record: int) -> None:
    """Flip a bit in a record."""
    located = Dataset(path).index.locate(np.array([record]))
    with (path / Dataset(path).index.shards[int(located.shard[0])]).open("r+b") as file:
        file.seek(int(located.stop[0]) - 1)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([last ^ 1]))
