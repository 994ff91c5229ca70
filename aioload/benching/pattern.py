"""Pattern: which reads an epoch is made of, told by the index and the order alone; pure.

It plans as the engine does, with the same functions, and reads nothing. Of a long epoch some windows are
planned, spread over all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .._pipeline.house import MAX_READ_BYTES
from .._pipeline.plan import Plan, Run, merge, plan_run
from ..order import FullOrder

if TYPE_CHECKING:
    from ..table import Table

__all__ = ["Access", "Pattern", "Ranges", "pattern_of", "ranges_of"]

_GAP_BYTES = 4 << 10  # what the engine reads in vain rather than read twice
_MOST_PLANNED = 200_000  # records: planning them takes a second
_MOST_DRAWN = 20_000  # likewise of a full shuffle, each of whose records costs more
_WINDOWS = 8
_RUN_BYTES, _MOST_STEPS = 4 << 20, 64  # of batches that walk together, where they are small

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Access:
    """How a loader would read a set, as far as that decides about its reads."""

    with_pieces: bool = True
    """Whether the pieces of the block shuffle have room in memory, and so are read whole."""
    max_read_bytes: int = MAX_READ_BYTES
    """Longer reads are several."""
    part_bytes: int | None = None
    """Longer reads are several requests; None: a read is one."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Reads in the order in which they begin."""

    shard: Ints
    """Number of the shard of each."""
    start: Ints
    """First byte in the shard's file."""
    stop: Ints
    """Byte after the last."""
    weight: NDArray[np.float64]
    """How many reads of the epoch each stands for."""

    def __len__(self) -> int:
        return len(self.shard)

    @property
    def sizes(self) -> Ints:
        """Bytes of each."""
        return self.stop - self.start

    @property
    def elsewhere(self) -> NDArray[np.bool_]:
        """Which do not go on where the one before them ended."""
        follows = (self.shard[1:] == self.shard[:-1]) & (self.start[1:] == self.stop[:-1])
        return np.concatenate([np.ones(min(len(self), 1), bool), ~follows])

    def first(self, count: int) -> Ranges:
        """Return so many of them, from the beginning."""
        return Ranges(self.shard[:count], self.start[:count], self.stop[:count], self.weight[:count])


@dataclass(frozen=True, slots=True)
class Pattern:
    """What an epoch asks of its storage."""

    records: int
    """Records of the epoch, on this rank."""
    record_bytes: int
    """Their bytes."""
    reads: int
    """Reads that bring them."""
    seeks: int
    """Of these, reads that do not go on where the one before ended."""
    requests: int
    """What a network is asked for: parts of long reads count each."""
    read_bytes: int
    """Bytes that the reads bring."""


def pattern_of(plan: Plan, access: Access) -> Pattern:
    """Return what an epoch asks of its storage; exact where it is short, else told by windows of it."""
    ranges = ranges_of(plan, access)
    records, weight, sizes = _records(plan), ranges.weight, ranges.sizes
    part = access.part_bytes
    requests = np.ones(len(ranges)) if part is None else -(-sizes // part)
    return Pattern(
        records=records,
        record_bytes=_bytes(plan.table, records),
        reads=round(float(weight.sum())),
        seeks=round(float(weight[ranges.elsewhere].sum())),
        requests=round(float((weight * requests).sum())),
        read_bytes=round(float((weight * sizes).sum())),
    )


def ranges_of(plan: Plan, access: Access, *, most_records: int | None = None) -> Ranges:
    """Return the reads of an epoch, or those of some windows of a long one.

    The beginning of an epoch is like none of the rest, as all lanes begin a piece there; so it is the first
    window, and the others stand for what comes after it.

    Args:
        plan: of the epoch.
        access: how it is read.
        most_records: for which reads are planned; by default what takes about a second.
    """
    if most_records is None:
        most_records = _MOST_DRAWN if isinstance(plan.order, FullOrder) else _MOST_PLANNED
    steps, rows = plan.steps, max(plan.part.batch_size, 1)
    windows, factor = [(0, steps)], 1.0
    if steps * rows > most_records:
        together = _steps_together(plan, rows)
        length = max(most_records // rows // _WINDOWS // together, 1) * together
        starts = np.unique(np.linspace(length, steps - length, _WINDOWS - 1).astype(np.int64)).tolist()
        windows += [(start, start + length) for start in starts]
        windows[0], factor = (0, length), (steps - length) / (length * len(starts))
    found: list[Ints] = []
    weights: list[NDArray[np.float64]] = []
    for number, (first, stop) in enumerate(windows):
        reads = list(_window(plan, access, first, stop))
        found += reads
        weights.append(np.full(sum(map(len, reads)), factor if number else 1.0))
    places = np.concatenate(found) if found else np.zeros((0, 3), np.int64)
    return Ranges(places[:, 0], places[:, 1], places[:, 2], np.concatenate(weights))


def _window(plan: Plan, access: Access, first: int, stop: int) -> Iterator[Ints]:
    """Yield the reads of consecutive steps."""
    together = _steps_together(plan, max(plan.part.batch_size, 1))
    for step in range(first, stop, together):
        last = min(step + together, stop)
        yield from _reads(plan_run(plan, step, last, order=(0, 0), with_pieces=access.with_pieces), access)


def _records(plan: Plan) -> int:
    """Return the records of all steps of this rank."""
    return sum(plan.part.rows(step) for step in (*range(min(plan.steps, 1)), *range(1, plan.steps)[-1:])) + (
        max(plan.steps - 2, 0) * plan.part.batch_size
    )


def _bytes(table: Table, records: int) -> int:
    """Return the bytes of so many records, in the mean."""
    return round(table.data_bytes / max(sum(table.lines), 1) * records)


def _steps_together(plan: Plan, rows: int) -> int:
    """Return how many small batches a run has, more or less: the engine goes by what they cost as well."""
    batch_bytes = max(_bytes(plan.table, rows), 1)
    return int(min(max(_RUN_BYTES // batch_bytes, 1), _MOST_STEPS))


def _reads(run: Run, access: Access) -> Iterator[Ints]:
    """Yield the reads of a run: pieces whose first record is due in it, and records that come alone."""
    most = access.max_read_bytes
    for piece in run.pieces:
        if piece.first_position >= run.first_position:
            yield _cut(piece.shard, piece.start, piece.stop, most)
    alone = np.flatnonzero(run.piece < 0)
    if len(alone):
        reads, _ = merge(run, alone, max_gap_bytes=_GAP_BYTES, max_read_bytes=most)
        yield np.array([(read.shard, read.start, read.stop) for read in reads], np.int64)


def _cut(shard: int, start: int, stop: int, most: int) -> Ints:
    starts = np.arange(start, max(stop, start + 1), most, dtype=np.int64)
    return np.stack([np.full_like(starts, shard), starts, np.minimum(starts + most, stop)], axis=1)
