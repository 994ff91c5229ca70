"""Reads without anything behind them: how many at once, how long, and which."""

from __future__ import annotations

from pathlib import Path

import anyio
import numpy as np
import pytest
from conftest import TinySet

from aioload import Dataset, NotFoundError
from aioload.benching.held import hold
from aioload.benching.pattern import Ranges
from aioload.benching.reading import Replay, at_once_of, replay
from aioload.storage import LocalStorage, MemoryStorage


class Timed:
    """A storage whose reads take ticks of a clock of its own, and so many of which overlap."""

    max_reads = 32

    def __init__(self, overlap: int) -> None:
        self.now = 0.0
        self.most = self._under_way = 0
        self.asked: list[int] = []
        self._overlap = overlap

    async def size(self, name: str) -> int:
        return 1 << 30

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        self.asked.append(start)
        await anyio.lowlevel.checkpoint()
        self.now += 1 / min(self._under_way, self._overlap)
        self._under_way -= 1


def ranges(count: int) -> Ranges:
    """Return reads of a hundred bytes."""
    start = np.arange(count, dtype=np.int64) * 100
    return Ranges(np.zeros(count, np.int64), start, start + 100, np.ones(count))


def over(tiny_set: TinySet, storage: Timed, count: int) -> Replay:
    """Return reads over a storage that only counts."""
    return Replay(Dataset(tiny_set.path), storage, ranges(count), clock=lambda: storage.now)


async def test_every_range_is_read_once(tiny_set: TinySet) -> None:
    """Where there is time for all, reads end with the last."""
    storage = Timed(8)

    found = await over(tiny_set, storage, 50).run(1e9, 4)

    assert storage.asked == [100 * number for number in range(50)]
    assert (found.reads, found.read_bytes, storage.most) == (50, 5000, 4)


async def test_no_read_begins_after_the_time(tiny_set: TinySet) -> None:
    """But as many as are wanted, whatever they take."""
    storage = Timed(1)
    reads = over(tiny_set, storage, 1000)

    short = await reads.run(5.0, 1)
    least = await reads.run(0.0, 4, least_reads=20)

    assert short.reads == 5
    assert 20 <= least.reads < 30
    assert not reads.is_done


@pytest.mark.parametrize(("overlap", "at_once"), [(1, 4), (4, 4), (16, 16), (64, 32)])
async def test_more_at_once_as_long_as_it_helps(tiny_set: TinySet, overlap: int, at_once: int) -> None:
    """The number is doubled while that is faster, up to what the storage takes."""
    storage = Timed(overlap)

    best = await over(tiny_set, storage, 100_000).climb(50.0, 4, 32)

    assert best.at_once == at_once


def test_a_set_is_read_again_and_again(tiny_set: TinySet) -> None:
    """For as long as was asked, however small the set is."""
    dataset = Dataset(tiny_set.path)
    place = dataset.index.locate(np.array([3]))
    one = Ranges(place.shard, place.start.astype(np.int64), place.stop.astype(np.int64), np.ones(1))

    found = replay(dataset, one, 0.02)

    assert found.reads > 1
    assert found.read_bytes == found.reads * int(one.sizes[0])


def test_storages_tell_how_many_at_once(tmp_path: Path) -> None:
    """A local disk has 4 at first and 32 at most, what says nothing as many as the engine takes."""
    assert at_once_of(LocalStorage(tmp_path)) == (4, 32)
    assert at_once_of(MemoryStorage({})) == (4, 64)


def test_what_cannot_be_read_is_told_bare(tiny_set: TinySet) -> None:
    """A fault of the storage comes out as itself, and not in a group."""
    files = {path.name: path.read_bytes() for path in Path(tiny_set.path).iterdir()}
    dataset = Dataset(MemoryStorage(files))
    shard = dataset.index.shards[0]
    del files[shard]

    with pytest.raises(NotFoundError, match=shard):
        replay(dataset, ranges(3), 0.01)
    with pytest.raises(NotFoundError, match=shard), hold(dataset):
        pass
