"""Probe: what a storage really gives, by reads of the very set that is planned for.

Three questions, each asked for a part of the time: how long a small read elsewhere takes, what one stream
gives, and how fast a sample of the epoch's own reads is with as many at once as the loader would have. Ranges
of local files are taken out of the page cache first.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..benching.evicting import evict
from ..benching.pattern import Ranges
from ..benching.place import is_local
from ..benching.reading import Replay, Traffic, at_once_of
from ..blocking import run_blocking
from ..storage import Storage, close
from .media import Medium

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..dataset import Dataset

__all__ = ["Probed", "probe"]

_SMALL, _LARGE = 4 << 10, 4 << 20
_SINGLES, _STREAMS = 24, 6
_MOST_BYTES = 256 << 20  # of the epoch's own reads: so much of the page cache is lost at most


@dataclass(frozen=True, slots=True)
class Probed:
    """What was measured."""

    medium: Medium
    """What fits it."""
    traffic: Traffic
    """Of the epoch's own reads."""
    is_cold: bool | None
    """Whether the page cache was emptied first, as far as the kernel let it; None: there is none."""


def probe(dataset: Dataset, ranges: Ranges, seconds: float, *, seed: int = 0) -> Probed:
    """Measure the storage of a set.

    Args:
        dataset: whose storage.
        ranges: reads of its epoch.
        seconds: for all of it, more or less.
        seed: of the places that are read.

    Raises:
        StorageError: the storage failed.
    """
    rng = np.random.default_rng(seed)
    small, large = _places(dataset, _SMALL, _SINGLES, rng), _places(dataset, _LARGE, _STREAMS, rng)
    own = _some(ranges)
    cold = [evict(dataset, each) for each in (own, large, small)]  # the small ones last: they lie in others

    async def run() -> tuple[float, float, Traffic]:
        storage = dataset.open_storage()
        try:
            seek = await _one_by_one(dataset, storage, small, seconds / 4)
            stream = await _one_by_one(dataset, storage, large, seconds / 4)
            return seek, stream, await _own(dataset, storage, own, seconds / 2)
        finally:
            await close(storage)

    seek, stream, traffic = run_blocking(run())
    size = float(large.sizes.mean()) if len(large) else 1.0
    alone = size / max(stream - seek, size / 1e11)
    medium = Medium(
        "measured",
        seek_seconds=seek,
        stream_bytes=alone,
        total_bytes=max(traffic.bytes_per_second, alone),
        at_once=traffic.at_once,
        is_network=not is_local(dataset),
    )
    known = [each for each in cold if each is not None]
    return Probed(medium, traffic, all(known) if known else None)


async def _one_by_one(dataset: Dataset, storage: Storage, ranges: Ranges, seconds: float) -> float:
    """Return how long one read takes, in the median, the first left out: it opens a file or a connection."""
    reads = Replay(dataset, storage, ranges)
    took: list[float] = []
    began = time.perf_counter()
    while not reads.is_done and (len(took) < 2 or time.perf_counter() - began < seconds):
        took.append((await reads.run(0.0, 1)).seconds)
    return statistics.median(took[1:] or took or [0.0])


async def _own(dataset: Dataset, storage: Storage, ranges: Ranges, seconds: float) -> Traffic:
    """Return what the epoch's own reads give, once it is known how many at once are best."""
    reads = Replay(dataset, storage, ranges)
    best = await reads.climb(seconds / 2, *at_once_of(storage))
    if reads.is_done:
        return best
    last = await reads.run(seconds / 2, best.at_once, least_reads=4 * best.at_once)
    # a few that were left say less than all of those before
    return last if last.read_bytes > best.read_bytes else best


def _places(dataset: Dataset, size: int, count: int, rng: np.random.Generator) -> Ranges:
    """Return ranges of one size at random places of the shards."""
    index = dataset.index
    spans = index.shard_starts[1:].astype(np.int64) - index.shard_starts[:-1].astype(np.int64)
    weights = spans / max(int(spans.sum()), 1)
    shard = rng.choice(len(spans), count, p=weights) if spans.sum() else np.zeros(0, np.int64)
    length = np.minimum(spans[shard], size)
    begin = index.shard_data[shard].astype(np.int64)
    start = begin + (rng.random(len(shard)) * (spans[shard] - length + 1)).astype(np.int64)
    return Ranges(shard.astype(np.int64), start, start + length, np.ones(len(shard)))


def _some(ranges: Ranges) -> Ranges:
    """Return a part of an epoch's reads, from its beginning, that is not too much."""
    total: NDArray[np.int64] = np.cumsum(ranges.sizes)
    count = max(int(np.searchsorted(total, _MOST_BYTES)), min(len(ranges), 1))
    return ranges.first(count)
