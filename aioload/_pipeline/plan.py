"""Plan: which records make the next batches, and the reads that bring them; pure.

A *run* is what one coroutine walks through the pipeline: one batch, or several where batches are so small
that a task of their own would cost more than their work. How steps are grouped into runs has no bearing on
what is in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._workers.layout import align
from .._workers.task import TABLE

if TYPE_CHECKING:
    from .._workers.pool import Order
    from ..shard.index import Index

__all__ = ["Plan", "Read", "Run", "plan_run"]


@dataclass(frozen=True, slots=True)
class Read:
    """One contiguous read."""

    shard: int
    start: int  # in the shard's file
    stop: int
    place: int  # in the run's raw memory
    rows: tuple[int, ...]  # of the run's table: the records that lie in it


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Consecutive steps that walk through the pipeline together."""

    order: Order
    first_step: int
    rows: tuple[int, ...]  # of each step's batch
    table: NDArray[Any]  # `TABLE`, a row a record; `start` and `stop` count from the raw memory's first byte
    offsets: NDArray[np.uint64]  # of each record in its shard's file
    reads: tuple[Read, ...]
    raw_bytes: int

    @property
    def steps(self) -> range:
        """The steps of the run."""
        return range(self.first_step, self.first_step + len(self.rows))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One rank's part of one epoch: which records are in which step.

    Sequential: position t of the epoch is record t.
    """

    index: Index
    epoch: int
    batch_size: int
    drop_last: bool

    @property
    def steps(self) -> int:
        """Batches in all."""
        full, rest = divmod(len(self.index), self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def rows(self, step: int) -> int:
        """Return how many records a step has."""
        return min(self.batch_size, len(self.index) - step * self.batch_size)

    def records(self, first_step: int, stop_step: int) -> NDArray[np.int64]:
        """Return the records of consecutive steps, in order."""
        stop = min(stop_step * self.batch_size, len(self.index))
        return np.arange(first_step * self.batch_size, stop, dtype=np.int64)


def plan_run(
    plan: Plan, first_step: int, stop_step: int, *, order: Order, max_gap_bytes: int, max_read_bytes: int
) -> Run:
    """Return the run of consecutive steps.

    Args:
        plan: of the epoch.
        first_step: where the run begins.
        stop_step: the step after its last.
        order: its urgency.
        max_gap_bytes: records this close in a shard are read together, with what lies between.
        max_read_bytes: a longer stretch becomes several reads; records that cross a border lie in both.
    """
    records = plan.records(first_step, stop_step)
    rows = tuple(plan.rows(step) for step in range(first_step, stop_step))
    located = plan.index.locate(records)
    table = np.zeros(len(records), TABLE)
    table["record"], table["shard"] = records, located.shard
    if located.sums is not None:
        table["sum"] = located.sums

    stretches = _stretches(located.shard, located.start, located.stop, max_gap_bytes)
    reads: list[Read] = []
    place = 0
    for members in stretches:
        start, stop = int(located.start[members].min()), int(located.stop[members].max())
        table["start"][members] = located.start[members] - np.uint64(start) + np.uint64(place)
        table["stop"][members] = located.stop[members] - np.uint64(start) + np.uint64(place)
        shard = int(located.shard[members[0]])
        reads.extend(_cut(shard, start, stop, place, members, located, max_read_bytes))
        place = align(place + stop - start)
    return Run(order, first_step, rows, table, located.start, tuple(reads), place)


def _stretches(
    shard: NDArray[np.int64], start: NDArray[np.uint64], stop: NDArray[np.uint64], max_gap: int
) -> list[NDArray[np.int64]]:
    """Group rows that lie together in a shard, each group in the order of the file."""
    # records are the same or apart (padding repeats some), so the last one's stop is the furthest
    by_place = np.lexsort((stop, start, shard))
    shards = shard[by_place]
    starts, stops = start[by_place].astype(np.int64), stop[by_place].astype(np.int64)
    apart = (shards[1:] != shards[:-1]) | (starts[1:] > stops[:-1] + max_gap)
    return np.split(by_place, np.flatnonzero(apart) + 1) if len(by_place) else []


def _cut(
    shard: int, start: int, stop: int, place: int, members: NDArray[np.int64], located: Any, max_read: int
) -> Sequence[Read]:
    """Cut one stretch into reads of at most `max_read` bytes."""
    if stop - start <= max_read:
        return [Read(shard, start, stop, place, tuple(members.tolist()))]
    reads = []
    for low in range(start, stop, max_read):
        high = min(low + max_read, stop)
        inside = members[(located.start[members] < high) & (located.stop[members] > low)]
        reads.append(Read(shard, low, high, place + low - start, tuple(inside.tolist())))
    return reads
