"""Mixes without files, and a slow reference of them: for tests of pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from orders import make_index

from aioload.mixing import MixTable
from aioload.order import Shuffle
from aioload.table import IndexTable

__all__ = ["farthest", "make_mix", "make_table", "seen", "taken"]


def make_table(records: int, *, size: int = 100, shard_records: int = 50) -> IndexTable:
    """Return a table of equally long records."""
    shards = [[size] * min(shard_records, records - first) for first in range(0, records, shard_records)]
    return IndexTable(make_index(shards))


def make_mix(
    sizes: Sequence[int], weights: Sequence[float], length: int | None = None, stop: str = "first"
) -> MixTable:
    """Return a mix of tables of so many records."""
    return MixTable([make_table(size) for size in sizes], tuple(weights), length, stop)


def taken(source: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return [sources, positions + 1] how often each source was drawn from before each position."""
    picked = source == np.arange(count)[:, None]
    return np.cumsum(np.pad(picked, ((0, 0), (1, 0))), axis=1)


def farthest(source: NDArray[np.int64], shares: Sequence[float], window: int = 1000) -> float:
    """Return how many samples a source is away from its share at most, in any window of positions."""
    drawn = taken(source, len(shares))
    given = drawn[:, window:] - drawn[:, :-window]
    return float(np.abs(given - window * np.array(shares)[:, None]).max())


def seen(table: MixTable, shuffle: Shuffle, epochs: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """Return what is drawn in some epochs: set, own epoch and record in the set at each position."""
    found = []
    for epoch in epochs:
        order = table.order(shuffle, epoch)
        positions = np.arange(len(order), dtype=np.int64)
        places = table.places(order.records(positions))
        columns = (places.source, order.epochs(positions), places.record)
        found.append(list(zip(*(column.tolist() for column in columns), strict=True)))
    return found
