"""Passes bring every step or its error, survive failed reads, and give everything back when they are left."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from batches import counted
from fakes import FaultyStorage
from orders import every
from resuming import take

from aioload import Dataset, Loader, ShardError, StorageError
from aioload._pipeline.memory import Memory
from aioload._pipeline.sizes import Sizes
from aioload.storage import LocalStorage, Storage

RECORDS = 96


class FaultyDataset(Dataset):
    """A set whose reads fail at chosen numbers."""

    def __init__(self, source: Path, faults: Mapping[int, Exception]) -> None:
        super().__init__(source)
        self.faults = faults

    def open_storage(self) -> Storage:
        storage = LocalStorage(self.source)
        return storage if self._opened is None else FaultyStorage(storage, self.faults)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 records in one shard."""
    return counted(tmp_path_factory.mktemp("passes") / "set", RECORDS)


@pytest.fixture
def cut(tmp_path: Path) -> tuple[Path, int]:
    """The same set with its shard cut in the middle of a record, and that record."""
    folder = counted(tmp_path / "set", RECORDS)
    index = Dataset(folder).index
    shard = folder / index.shards[0]
    with shard.open("r+b") as file:
        file.truncate(int(index.shard_data[0]) + int(index.positions[50]) + 5)
    return folder, 50


def memory_of(loader: Loader) -> Memory:
    """Return the memory of a loader's engine."""
    turns = loader._engine._turns  # type: ignore[union-attr]
    return turns._house.memory  # type: ignore[union-attr]


def order_of(loader: Loader) -> list[int]:
    """Return the records of a loader's first epoch in their order."""
    return loader.dataset.table.order(loader.shuffle, 0).records(every(RECORDS)).tolist()


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("batch_size", [1, 2, 40])
def test_a_read_that_fails_once_harms_nobody(path: Path, batch_size: int, num_workers: int) -> None:
    """A failed read of many records is made up for by single ones, also where a run needs but one of them."""
    dataset = FaultyDataset(path, {0: StorageError("once")})
    options = {"shuffle": True, "lanes": 2, "block_bytes": 4000, "prefetch": 1}

    with Loader(dataset, batch_size=batch_size, num_workers=num_workers, **options).sync() as loader:
        found = take(loader)

    assert sorted(itertools.chain(*found)) == list(range(RECORDS))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_cut_shard_gives_all_that_is_before_the_cut(
    cut: tuple[Path, int], batch_size: int, num_workers: int
) -> None:
    """Under a block shuffle too: batches come until one needs a lost record: a ShardError at its step."""
    folder, first_lost = cut
    options = {"shuffle": True, "lanes": 3, "block_bytes": 1500, "seed": 1, "prefetch": 1}
    records = order_of(Loader(folder, batch_size=1, num_workers=0, **options))
    steps = [records[low : low + batch_size] for low in range(0, RECORDS, batch_size)]
    whole = list(itertools.takewhile(lambda step: max(step) < first_lost, steps))

    with Loader(folder, batch_size=batch_size, num_workers=num_workers, **options).sync() as loader:
        source = iter(loader)
        found = take(source, len(whole))
        with pytest.raises(ShardError) as caught:
            next(source)
        position = loader.state_dict()["position"]

    assert found == whole
    assert caught.value.record in steps[len(whole)]
    assert caught.value.record >= first_lost
    assert caught.value.step == len(whole)
    assert position == len(whole) * batch_size


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("left_at", [1, 7, 8, 11, 12])
def test_everything_is_given_back(path: Path, left_at: int, num_workers: int) -> None:
    """Left at any place, ahead or not, and gone through afterwards: no byte of the arena stays leased."""
    options = {"batch_size": 8, "num_workers": num_workers, "shuffle": True, "prefetch": 4}

    with Loader(path, **options).sync() as loader:
        for _ in range(6):
            take(loader, left_at)
        take(loader)
        loader.set_epoch(9)
        take(loader)
        memory = memory_of(loader._loader)  # type: ignore[arg-type]
    gc.collect()
    memory._collect()

    assert memory.used == 0
    assert memory._needs == {}
    assert memory._private == {}


def test_the_next_pass_does_not_wait_for_one_that_was_left(path: Path) -> None:
    """`break` with batches untaken and the next epoch begun ahead, then on to that: it comes at once."""
    with Loader(path, batch_size=8, num_workers=1, prefetch=4).sync() as loader:
        source = iter(loader)
        found = take(source, 9)
        loader.set_epoch(1)
        following = take(loader)

    assert len(found) == 9
    assert len(following) == 12


def test_a_run_planned_while_records_seemed_cheap_does_not_wait_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs become known while the next run waits: what may lie ahead shrinks below that run's length."""
    took = Sizes.took
    monkeypatch.setattr(Sizes, "took", lambda sizes, records, seconds: took(sizes, records, records * 1.0))
    monkeypatch.setattr(Sizes, "steps_per_run", cautious(Sizes.steps_per_run, 12))

    with Loader(path, batch_size=1, num_workers=1).sync() as loader:
        found = take(loader)

    assert sorted(itertools.chain(*found)) == list(range(RECORDS))


def cautious(steps_per_run: Callable[[Sizes, int], int], most: int) -> Callable[[Sizes, int], int]:
    """Let runs be shorter than they may, so that a small set has many."""
    return lambda sizes, batch_size: min(steps_per_run(sizes, batch_size), most)
