"""Epochs follow each other: which comes next, what a stale iterator says, and no gap at the edge."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batches import counted, gather, pack
from fakes import Counting, Gate, GateStorage
from resuming import RecordingDataset, rows, take

from aioload import ClosedError, Dataset, Loader
from aioload.storage import LocalStorage, Storage

MODES = [False, True, "full"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 records in three shards."""
    return counted(tmp_path_factory.mktemp("epochs") / "set", 40, shard_bytes=3000)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 records of 50,000 bytes."""
    samples = ({"n": record, "x": bytes(50_000)} for record in range(60))
    return pack(tmp_path_factory.mktemp("large") / "set", {"n": "int", "x": "bytes"}, samples)


class GateDataset(Dataset):
    """A set whose reads wait until the test lets them through."""

    gate: GateStorage

    def open_storage(self) -> Storage:
        storage = LocalStorage(self.source)
        if self._opened is None:
            return storage
        self.gate = GateStorage(storage)
        return self.gate


# Which epoch comes next -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", MODES)
def test_each_iteration_is_the_next_epoch(path: Path, shuffle: Any, num_workers: int) -> None:
    """Four iterations are epochs 0 to 3, each of all records, and the same when it is asked for alone."""
    options = {"batch_size": 7, "num_workers": num_workers, "shuffle": shuffle}
    alone = []
    for epoch in range(4):
        with Loader(path, **{**options, "num_workers": 0}).sync() as loader:
            loader.set_epoch(epoch)
            alone.append(take(loader))

    with Loader(path, **options).sync() as loader:
        found = [(loader.epoch, take(loader)) for _ in range(4)]

    assert found == list(enumerate(alone))
    assert [sorted(itertools.chain(*epoch)) for epoch in alone] == [list(range(40))] * 4


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("batches", [1, 4, 5])
def test_leaving_early_starts_the_epoch_anew(path: Path, batches: int, num_workers: int) -> None:
    """After `break`, wherever, the same epoch comes from its beginning, and then the next."""
    with Loader(path, batch_size=7, num_workers=num_workers, shuffle=True).sync() as loader:
        begun = take(loader, batches)
        whole = take(loader)
        following = take(loader)
        epoch = loader.epoch

    assert begun == whole[:batches]
    assert sorted(itertools.chain(*following)) == sorted(itertools.chain(*whole)) == list(range(40))
    assert following != whole
    assert epoch == 2


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("batches", range(6))
def test_leaving_early_for_the_next_epoch(path: Path, batches: int, num_workers: int) -> None:
    """`break` and `set_epoch(next)`, also when that epoch has begun ahead: it comes whole."""
    options = {"batch_size": 7, "num_workers": num_workers, "shuffle": True, "prefetch": 2}
    with Loader(path, **options).sync() as loader:
        take(loader)
        expected = take(loader)

    with Loader(path, **options).sync() as loader:
        take(loader, batches)
        loader.set_epoch(1)
        found = take(loader)

    assert found == expected


def test_set_epoch_keeps_or_drops_a_position(path: Path) -> None:
    """The present epoch keeps what was loaded; another warns and drops it."""
    with Loader(path, batch_size=10, num_workers=0).sync() as loader:
        take(loader, 3)
        state = loader.state_dict()
        loader.load_state_dict(state)
        loader.set_epoch(0)
        kept = loader.remaining
        with pytest.warns(UserWarning, match="drops the position 30"):
            loader.set_epoch(5)
        dropped, epoch = loader.remaining, loader.epoch

    assert (kept, dropped, epoch) == (1, 4, 5)


def test_set_epoch_ends_an_iteration_of_another(path: Path) -> None:
    """An iterator of the epoch that was left says so, and the state speaks of the new one."""
    with Loader(path, batch_size=10, num_workers=1).sync() as loader:
        source = iter(loader)
        next(source)
        loader.set_epoch(3)
        with pytest.raises(ClosedError, match=r"set_epoch\(3\) was called"):
            next(source)
        state = loader.state_dict()
        found = take(loader)

    assert (state["epoch"], state["position"]) == (3, 0)
    assert len(found) == 4


def test_set_epoch_to_the_present_one_changes_nothing(path: Path) -> None:
    """Trainers that call it at each epoch, also in the middle, do no harm."""
    with Loader(path, batch_size=10, num_workers=0).sync() as loader:
        source = iter(loader)
        first = rows(next(source))
        loader.set_epoch(0)
        rest = [rows(batch) for batch in source]

    assert [*first, *itertools.chain(*rest)] == list(range(40))


def test_the_state_after_the_last_batch_is_the_next_epoch(path: Path) -> None:
    """Also before the loop has seen its end; a new iteration then leaves the old one over, not stale."""
    with Loader(path, batch_size=20, num_workers=1).sync() as loader:
        source = iter(loader)
        states = [(next(source) and None) or loader.state_dict() for _ in range(2)]
        new = iter(loader)
        over = list(source)
        found = [rows(batch) for batch in new]

    assert [(state["epoch"], state["position"]) for state in states] == [(0, 20), (1, 0)]
    assert over == []
    assert len(found) == 2


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stale_iterator_says_who_took_over(path: Path, num_workers: int) -> None:
    """Batches are never shared by two iterators in silence, and the new one is not disturbed."""
    with Loader(path, batch_size=10, num_workers=num_workers).sync() as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        next(new)
        with pytest.raises(ClosedError, match="another iteration over this loader has begun"):
            next(old)
        state = loader.state_dict()
        rest = [rows(batch) for batch in new]

    assert state["position"] == 10
    assert len(rest) == 3


async def test_a_stale_async_iterator_says_so_too(path: Path) -> None:
    """The same behind `async for`."""
    async with Loader(path, batch_size=10, num_workers=0) as loader:
        old = aiter(loader)
        await anext(old)
        found = await gather(loader)
        with pytest.raises(ClosedError, match="another iteration"):
            await anext(old)

    assert len(found) == 4


@pytest.mark.parametrize("shuffle", MODES)
@pytest.mark.parametrize(("records", "lengths"), [(0, [0, 0, 0]), (1, [1, 1, 1])])
def test_hardly_any_records(tmp_path: Path, records: int, lengths: list[int], shuffle: Any) -> None:
    """A set of nothing, or of one record, has epochs like any other, on every rank."""
    path = counted(tmp_path / "set", records)
    options = {"batch_size": 4, "num_workers": 0, "shuffle": shuffle}

    with Loader(path, rank=1, world_size=2, **options).sync() as loader:
        found = [len(take(loader)) for _ in lengths]
        epoch = loader.epoch

    assert found == lengths
    assert epoch == 3


# The edge ---------------------------------------------------------------------------------------------


def test_the_next_epoch_is_read_while_this_one_ends(large: Path) -> None:
    """Before any batch of an epoch of two is taken, `prefetch=4` has asked for two of the next as well."""
    dataset = GateDataset(large)
    with Loader(dataset, batch_size=30, num_workers=0, prefetch=4).sync() as loader:
        source = iter(loader)
        dataset.gate.wait(4)
        reads = list(dataset.gate.reads)
        dataset.gate.open_all()
        found = [rows(batch) for batch in source]
        again = take(loader)

    assert reads[2:] == reads[:2]
    assert found == again == [list(range(30)), list(range(30, 60))]


def test_the_next_epoch_is_decoded_while_this_one_ends(path: Path, tmp_path: Path) -> None:
    """Workers go on to the next epoch's first samples though the last batch has not been taken."""
    with Gate(tmp_path) as gate:
        loader = Loader(path, batch_size=20, num_workers=1, prefetch=3, transform=gate)
        with loader.sync() as batches:
            source = iter(batches)
            gate.open(200)
            gate.wait(40 + 20)
            epoch = batches.epoch
            found = [rows(batch) for batch in source]

    assert epoch == 0
    assert [len(batch) for batch in found] == [20, 20]


def test_what_began_ahead_is_used(path: Path, tmp_path: Path) -> None:
    """Three epochs decode each sample three times: nothing that was made ahead is made again."""
    counting = Counting(tmp_path / "calls")
    loader = Loader(path, batch_size=10, num_workers=1, prefetch=2, transform=counting)

    with loader.sync() as batches:
        found = [take(batches) for _ in range(3)]

    assert [len(epoch) for epoch in found] == [4, 4, 4]
    assert 3 * 40 <= counting.calls <= 3 * 40 + 2 * 10


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_was_thrown_away_gives_its_memory_back(large: Path, num_workers: int) -> None:
    """Forty epochs left in their middle or near their end, in little memory: the next has all it needs."""
    places = [1, 4, 5, 6] * 10
    options = {"batch_size": 10, "num_workers": num_workers, "shuffle": True, "memory_limit": "8MiB"}

    with Loader(large, **options).sync() as loader:
        begun = [len(take(loader, count)) for count in places]
        whole = take(loader)
        peak = loader.stats().memory_peak

    assert begun == places
    assert sorted(itertools.chain(*whole)) == list(range(60))
    assert peak <= 8 << 20


@pytest.mark.parametrize("elsewhere", [lambda _: None, lambda loader: loader.set_epoch(9)])
def test_closing_throws_away_what_began_ahead(large: Path, elsewhere: Callable[[Any], None]) -> None:
    """With the next epoch under way, leaving, or first going to another epoch, leaves nothing behind."""
    with Loader(large, batch_size=10, num_workers=1, prefetch=8).sync() as loader:
        source = iter(loader)
        found = [rows(next(source)) for _ in range(5)]
        elsewhere(loader)

    assert len(found) == 5


def test_workers_and_files_live_on(large: Path) -> None:
    """Five epochs are made by the same process and through storages that were opened once."""
    dataset = RecordingDataset(large)
    made_by = {"transform": lambda sample: {"n": sample["n"], "pid": os.getpid()}}

    with Loader(dataset, batch_size=15, num_workers=1, shuffle=True, **made_by).sync() as loader:
        len(loader)
        before = len(dataset.opened)
        pids = {pid for _ in range(5) for batch in loader for pid in batch["pid"].tolist()}

    assert len(pids) == 1
    assert os.getpid() not in pids
    assert len(dataset.opened) == before + 1


# Quality ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_class(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100,000 records of 2 KB in 100 classes, one class after the other."""
    samples = ({"n": record // 1000, "x": bytes(2000)} for record in range(100_000))
    return pack(tmp_path_factory.mktemp("classes") / "set", {"n": "int", "x": "bytes"}, samples)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_rank_reads_its_share_once(by_class: Path, world_size: int) -> None:
    """At default settings each rank reads at most 1.05 of the bytes of its records, in large reads."""
    dataset = RecordingDataset(by_class)
    options = {"decode": {"x": len}, "num_workers": 0, "shuffle": True, "memory_limit": "1GiB", "prefetch": 1}
    options |= {"rank": world_size - 1, "world_size": world_size, "seed_globals": False}

    with Loader(dataset, batch_size=256, **options).sync() as loader:
        but_one = len(loader) - 1  # after the last the next epoch's reads begin
        found = take(loader, but_one)
        stats, report = loader.stats(), loader.report()

    assert stats.read_bytes <= 1.05 * dataset.table.data_bytes / world_size
    assert stats.reads < 2000 / world_size
    assert len(found) == but_one
    assert stats.window_bytes > 0
    assert "hold the pieces that the shuffle draws from" in report


def test_a_global_batch_sees_the_classes(by_class: Path) -> None:
    """Of data sorted by class, 256 records over any number of ranks show 80% of what a full shuffle shows."""
    options = {"decode": {"x": len}, "num_workers": 0, "shuffle": True, "seed_globals": False}
    with Loader(by_class, batch_size=256, **options).sync() as loader:
        alone = [sorted(batch) for batch in take(loader, 100)]
    shared = []
    for rank in range(4):
        with Loader(by_class, batch_size=64, rank=rank, world_size=4, **options).sync() as loader:
            shared.append(take(loader, 100))

    together = [sorted(itertools.chain(*step)) for step in zip(*shared, strict=True)]

    assert together == alone
    assert sum(len(set(batch)) for batch in alone) / 100 >= 0.8 * 92.4


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_follows_a_break_is_no_part_of_the_loop(path: Path, num_workers: int) -> None:
    """A loop that was left by `break` takes no more time, until the next begins."""
    with Loader(path, batch_size=10, num_workers=num_workers).sync() as loader:
        for _ in loader:
            break
        before = loader.loader.counters.loop()  # type: ignore[attr-defined]  # the loader itself
        after = loader.loader.counters.loop()  # type: ignore[attr-defined]  # likewise

    assert before == after


def test_a_stale_iterator_leaves_the_numbers_of_the_new_one_alone(path: Path) -> None:
    """Whoever asks an iterator that was taken over changes nothing in what is counted of the next."""
    with Loader(path, batch_size=10, num_workers=0).sync() as loader:
        stale = iter(loader)
        next(stale)
        current = iter(loader)
        next(current)

        with pytest.raises(ClosedError):
            next(stale)
        rest = len(list(current))

        assert loader.stats(0).batches == 1 + rest
