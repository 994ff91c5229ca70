"""Plan: which records make the next batches, and the reads that bring them; pure.

A *run* is what one coroutine walks through the pipeline: one batch, or several where batches are so small
that a task of their own would cost more than their work. How steps are grouped into runs has no bearing on
what is in a batch.

Records come in one of two ways. Those of a *piece* (see `order`) are read together when the first of them is
due, if there is room to keep the piece until the last is; every other record is read when it is due, together
with neighbours that are due in the same run. Which way it is depends on memory, and changes no batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._workers.jobs import TABLE
from .._workers.space import align

if TYPE_CHECKING:
    from .._workers.pool import Order as Urgency
    from ..batching import BudgetPart
    from ..cache.shelf import Found
    from ..order import Order
    from ..part import Part
    from ..table import Table

__all__ = ["Piece", "Plan", "Read", "Run", "merge", "plan_run", "stretches"]

AT_ONCE = 480
"""Positions that are looked at without a break. numpy lets other threads go on in each operation on arrays of
more than 500 elements, and beside a thread that computes all the time, it takes milliseconds to come back."""

_DENSE = 1.25  # a piece may be so much longer than its records, before it is better not read whole


@dataclass(frozen=True, slots=True)
class Read:
    """One contiguous read."""

    shard: int
    start: int  # in the shard's file
    stop: int
    place: int  # in the memory it is read into
    rows: tuple[int, ...]  # of the run's table: the records that lie in it


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring records of one shard, due at positions that lie apart."""

    key: int  # its first record
    shard: int
    start: int  # in the shard's file
    stop: int
    first_position: int
    last_position: int
    stop_key: int = 0  # the record after its last


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Consecutive steps that walk through the pipeline together."""

    order: Urgency
    first_step: int
    rows: tuple[int, ...]  # of each step's batch
    table: NDArray[Any]  # `TABLE`; `start` and `stop` are set once it is known where records come from
    offsets: NDArray[np.int64]  # of each record in its shard's file
    sizes: NDArray[np.int64]  # of each record, in bytes
    piece: NDArray[np.int64]  # of each record: index into `pieces`, or -1
    pieces: tuple[Piece, ...]
    first_position: int  # of the epoch: no record of the run's own stands before it
    stop_position: int  # later runs begin here
    kept: Found | None = None  # of each record: samples that were kept are not read

    @property
    def alone(self) -> NDArray[np.int64]:
        """The rows of records that come by themselves."""
        by_itself = self.piece < 0
        return np.flatnonzero(by_itself if self.kept is None else by_itself & ~self.kept.rows)

    @property
    def steps(self) -> range:
        """The steps of the run."""
        return range(self.first_step, self.first_step + len(self.rows))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One rank's part of one epoch: which records are in which step."""

    table: Table
    order: Order
    part: Part | BudgetPart
    epoch: int
    name: tuple[Any, ...]  # decides what is in which batch: plans of one loader are the same if it is

    @property
    def steps(self) -> int:
        """Batches in all."""
        return self.part.steps


def plan_run(
    plan: Plan,
    first_step: int,
    stop_step: int,
    *,
    order: Urgency,
    with_pieces: bool = True,
    between: Callable[[], object] | None = None,
) -> Run:
    """Return the run of consecutive steps.

    Args:
        plan: of the epoch.
        first_step: where the run begins.
        stop_step: the step after its last.
        order: its urgency.
        with_pieces: find the pieces that its records are in; otherwise each comes by itself.
        between: called now and then, as a long run takes milliseconds; without it all records are found at
            once, which costs less.
    """
    part = plan.part
    positions = part.positions(first_step, stop_step)
    records = _records(plan.order, positions, between)
    places = plan.table.places(records)
    table = np.zeros(len(records), TABLE)
    table["record"], table["shard"], table["source"] = places.record, places.shard, places.source
    epochs = plan.order.epochs(positions)
    table["epoch"] = plan.epoch if epochs is None else epochs
    if places.sums is not None:
        table["sum"] = places.sums

    first_position, stop_position = part.position_after(first_step), part.position_after(stop_step)
    pieces: tuple[Piece, ...] = ()
    piece = np.full(len(positions), -1, np.int64)
    if with_pieces:
        pieces, piece = _pieces(plan, positions, first_position, places.start)
    rows = tuple(part.rows(step) for step in range(first_step, stop_step))
    sizes = places.stop - places.start
    return Run(
        order, first_step, rows, table, places.start, sizes, piece, pieces, first_position, stop_position
    )


def _records(
    order: Order, positions: NDArray[np.int64], between: Callable[[], object] | None
) -> NDArray[np.int64]:
    """Return the records at positions, some at a time if somebody wants to go on in between."""
    if between is None:
        return order.records(positions)
    parts = []
    for first in range(0, max(len(positions), 1), AT_ONCE):
        parts.append(order.records(positions[first : first + AT_ONCE]))
        between()
    return np.concatenate(parts)


def _pieces(
    plan: Plan, positions: NDArray[np.int64], first: int, starts: NDArray[np.int64]
) -> tuple[tuple[Piece, ...], NDArray[np.int64]]:
    """Return the pieces that are worth reading whole, and which of them each record is in."""
    none = np.full(len(positions), -1, np.int64)
    found = None if plan.part.shares_pieces else plan.order.pieces(positions)
    if found is None or not len(positions):
        return (), none

    keys, at, which = np.unique(found.first, return_index=True, return_inverse=True)
    spans = plan.table.spans(keys, found.stop[at])
    # what a resumed run has handed out before is not read again, and padding comes back to pieces long gone
    wanted = (found.first_position[at] >= plan.part.start) & (
        spans.stop - spans.start <= spans.record_bytes * _DENSE
    )
    wanted &= found.stop[at] - keys > 1
    number = np.where(wanted, np.cumsum(wanted) - 1, -1)
    chosen = at[wanted]
    columns = (
        keys[wanted],
        spans.shard[wanted],
        spans.start[wanted],
        spans.stop[wanted],
        found.first_position[chosen],
        found.last_position[chosen],
        found.stop[chosen],
    )
    pieces = tuple(Piece(*values) for values in zip(*(column.tolist() for column in columns), strict=True))
    # a record that begins before its piece comes by itself
    inside = (positions >= first) & (starts >= spans.start[which])
    return pieces, np.where(inside, number[which], -1)


def merge(
    run: Run, rows: NDArray[np.int64], *, max_gap_bytes: int, max_read_bytes: int
) -> tuple[tuple[Read, ...], int]:
    """Plan the reads of records that come by themselves, and write their places into the run's table.

    Args:
        run: whose records they are.
        rows: of the run's table.
        max_gap_bytes: records this close in a shard are read together, with what lies between.
        max_read_bytes: a longer stretch becomes several reads; records that cross a border lie in both.

    Returns:
        The reads, and the bytes of memory they take; places in the table count from its first byte.
    """
    shard, start = run.table["shard"][rows].astype(np.int64), run.offsets[rows]
    stop = start + run.sizes[rows]
    reads: list[Read] = []
    place = 0
    for members in stretches(shard, start, stop, max_gap_bytes):
        first, last = int(start[members].min()), int(stop[members].max())
        run.table["start"][rows[members]] = start[members] - first + place
        run.table["stop"][rows[members]] = stop[members] - first + place
        number = int(shard[members[0]])
        for low in range(first, max(last, first + 1), max_read_bytes):
            high = min(low + max_read_bytes, last)
            inside = (
                members
                if high - low == last - first
                else members[(start[members] < high) & (stop[members] > low)]
            )
            reads.append(Read(number, low, high, place + low - first, tuple(rows[inside].tolist())))
        place = align(place + last - first)
    return tuple(reads), place


def stretches(
    shard: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64], max_gap: int
) -> list[NDArray[np.int64]]:
    """Group records that lie together in a shard, each group in the order of the file.

    Args:
        shard: of each record.
        start: first byte of each.
        stop: byte after the last.
        max_gap: bytes that may lie between two of a group.
    """
    by_place = np.lexsort((start, shard))
    shards, starts = shard[by_place], start[by_place]
    # records do not overlap, but padding may repeat one: then it has its own stop before it
    apart = (shards[1:] != shards[:-1]) | (starts[1:] > stop[by_place][:-1] + max_gap)
    return np.split(by_place, np.flatnonzero(apart) + 1) if len(by_place) else []
