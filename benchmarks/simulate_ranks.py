"""What do 1 to 4,096 ranks get of 10^10 records, what do they read, and what breaks first? Arithmetic alone.

    python benchmarks/simulate_ranks.py [--json] [--records 10000000000] [--record-bytes 2048] [--lanes 192]

Orders, parts and plans are the package's own. Only the index is not there: of 10^10 records it would take 120
GB, so sizes are pseudo-random, up to twice the mean, and a formula gives each record's place. The blocks that
come of it are those that `Blocks.cut` would find in a real index. Shards are of 256 MiB.

For each world size, at the beginning, in the middle and at the end of an epoch, and of one that goes on from
a position that fits nothing, this is looked at:

- all ranks have the same number of batches, and of rows in each;
- the rows of all ranks in a step are the global batch, each position once, and at the end the padding;
- the records at these positions are different ones;
- a piece is needed by W / gcd(W, lanes) ranks: by one, where the world size W divides the lanes;
- what plans read whole is so many times what a rank needs of it.

Where something is not so, the row says it, and the script ends with status 1.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioload._pipeline.plan import Piece, Plan, plan_run
from aioload._pipeline.zones import wanted_window
from aioload.machine import parse_bytes
from aioload.order import BlockOrder, Blocks, Order, Shuffle
from aioload.part import Part, is_worth_sharing, readers_of_piece
from aioload.shard.format import DATA_START
from aioload.storage.flow import PART_BYTES
from aioload.table import Place, RecordTable, Spans

__all__ = ["ArithmeticTable", "Job", "Row", "fitting_lanes", "simulate"]

Records = NDArray[np.int64]

WORLDS = (1, 2, 8, 64, 96, 100, 192, 256, 512, 1000, 1024, 2048, 4096)
SHARD_BYTES = 256 << 20
INDEX_BYTES = 12  # of a record
NODE_RANKS = 8
LISTED = 1000  # names in one answer of a bucket
SOME_STEPS, SOME_LANES, SOME_RANKS = 3, 5, 2
PLANNED_ROWS = 1 << 17  # at once
LOOKED_UP = 1 << 14  # records of a step
OFF = 0.2  # of what plans read, from the formula: pieces do not divide evenly among ranks


class ArithmeticTable(RecordTable):
    """Records whose places are computed; a shard has the same number of them as all others.

    Args:
        records: number of them.
        record_bytes: their mean size.
        shard_bytes: what a shard has, about.
    """

    def __init__(self, records: int, record_bytes: int, shard_bytes: int = SHARD_BYTES) -> None:
        super().__init__()
        self._records = records
        self._mean = record_bytes
        self._in_shard = max(shard_bytes // record_bytes, 1)
        count = -(-records // self._in_shard)
        self.shard_records = np.minimum(np.arange(count + 1, dtype=np.int64) * self._in_shard, records)

    @property
    def shards(self) -> tuple[str, ...]:
        """Names that nobody reads by."""
        return ("",) * (len(self.shard_records) - 1)

    @property
    def shard_sources(self) -> tuple[int, ...]:
        """All belong to set 0."""
        return (0,) * (len(self.shard_records) - 1)

    @property
    def sets(self) -> int:
        """One."""
        return 1

    def __len__(self) -> int:
        return self._records

    def bytes_before(self, records: Records) -> Records:
        """Return where records begin on the line: at the mean times their number, or less than one behind."""
        with np.errstate(over="ignore"):
            mixed = records.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
            mixed *= np.uint64(0xBF58476D1CE4E5B9)
        further = ((mixed >> np.uint64(33)) % np.uint64(self._mean)).astype(np.int64)
        return records * self._mean + np.where((records == 0) | (records == self._records), 0, further)

    def places(self, records: Records) -> Place:
        """Return where these records lie."""
        shard = records // self._in_shard
        shift = DATA_START - self.bytes_before(shard * self._in_shard)
        start, stop = self.bytes_before(records) + shift, self.bytes_before(records + 1) + shift
        return Place(np.zeros_like(records), shard, start, stop, None, records)

    def spans(self, first: Records, stop: Records) -> Spans:
        """Return where ranges of records lie; there is nothing between them."""
        begin, end = self.places(first), self.places(stop - 1)
        return Spans(begin.shard, begin.start, end.stop, end.stop - begin.start)

    def fingerprint(self) -> str:
        """Return nothing: there are no states here."""
        return ""

    def _cut_blocks(self, block_bytes: int) -> Blocks:
        """Cut each shard as `Blocks.cut` does: the first record in a cell begins a block."""
        bounds = self.shard_records
        begins = self.bytes_before(bounds[:-1])
        borders = (self.bytes_before(bounds[1:] - 1) - begins) // block_bytes  # of cells, inside each shard
        shard = np.repeat(np.arange(len(borders)), borders)
        number = np.arange(len(shard)) - np.repeat(np.cumsum(borders) - borders, borders) + 1
        border = begins[shard] + number * block_bytes
        # this one begins at the border or up to a mean behind, or else the next does
        first = border // self._mean
        first += self.bytes_before(first) < border
        found = np.sort(np.concatenate([first, bounds]), kind="stable")
        return Blocks(found[np.concatenate([[True], found[1:] != found[:-1]])])


@dataclass(frozen=True, slots=True)
class Job:
    """How a set is loaded, however many ranks share it."""

    table: ArithmeticTable
    shuffle: Shuffle
    batch_size: int
    """Rows of a rank's batch."""
    rate: float
    """Samples a second that each rank takes."""
    memory_limit: int
    """Of each rank."""

    def parts(self, world_size: int, start: int) -> list[Part]:
        """Return the parts of all ranks."""
        options: dict[str, Any] = {"world_size": world_size, "start": start, "interleaved": True}
        return [Part(len(self.table), self.batch_size, rank, **options) for rank in range(world_size)]


@dataclass(frozen=True, slots=True)
class Row:
    """What so many ranks get, and what each of them reads."""

    world_size: int
    lanes: int
    steps: int
    """Batches of each rank."""
    padded: int
    """Rows over all ranks that repeat the epoch's first records."""
    readers: int
    """Ranks that need a piece: W / gcd(W, lanes)."""
    planned: float
    """Bytes of pieces in plans, for each byte of a rank's own records in them."""
    piece_bytes: int
    """Mean size of a piece."""
    window_bytes: int
    """Pieces that a rank has open at a time, one for each of its lanes."""
    whole: bool
    """Whether that is better and the memory limit has room for these; else each record is read by itself."""
    epoch_bytes: int
    """That each rank reads, an epoch."""
    epoch_requests: int
    """Of each rank, an epoch; large pieces are read in parts."""
    requests: float
    """A second, of each rank at its rate."""
    all_requests: float
    """A second, of all ranks together."""
    looked_at: int
    """Positions that were compared."""
    faults: tuple[str, ...] = ()
    """What is not as it should be."""


@dataclass(slots=True)
class _Look:
    """What was looked at so far."""

    positions: int = 0
    faults: list[str] = field(default_factory=list)

    def expect(self, is_right: object, fault: str) -> None:
        """Note a fault, unless all is right."""
        if not is_right:
            self.faults.append(fault)


def simulate(job: Job, world_size: int) -> Row:
    """Return what ranks get and read, having looked whether it is right."""
    table, order, look = job.table, job.table.order(job.shuffle, 1), _Look()
    assert isinstance(order, BlockOrder)
    for start in (0, len(table) // 3 + 17):
        _look_at_steps(job, order, job.parts(world_size, start), look)
    readers = readers_of_piece(world_size, order.lanes)
    planned = _look_at_pieces(job, order, world_size, readers, look)

    pieces = len(table.blocks(job.shuffle.block_bytes)) + order.lanes - 1  # borders of lanes cut blocks
    piece_bytes = table.data_bytes // pieces
    own_lanes = order.lanes * readers // world_size
    largest = job.shuffle.block_bytes + table.data_bytes // len(table)
    whole = is_worth_sharing(readers, table.data_bytes / len(table))
    whole = whole and wanted_window(own_lanes, largest, table.data_bytes, job.memory_limit) > 0
    times = readers if whole else 1
    parts_of_piece = -(-piece_bytes // PART_BYTES)
    requests = (pieces * readers * parts_of_piece if whole else len(table)) / world_size
    first = job.parts(world_size, 0)[0]
    return Row(
        world_size=world_size,
        lanes=order.lanes,
        steps=first.steps,
        padded=-len(table) % world_size,
        readers=readers,
        planned=planned,
        piece_bytes=piece_bytes,
        window_bytes=own_lanes * piece_bytes,
        whole=whole,
        epoch_bytes=table.data_bytes * times // world_size,
        epoch_requests=round(requests),
        requests=requests * job.rate * world_size / len(table),
        all_requests=requests * job.rate * world_size**2 / len(table),
        looked_at=look.positions,
        faults=tuple(look.faults),
    )


def _look_at_steps(job: Job, order: Order, parts: Sequence[Part], look: _Look) -> None:
    """Look at steps of all ranks at the beginning, in the middle and at the end."""
    size, first = len(order), parts[0]
    look.expect(len({part.steps for part in parts}) == 1, f"ranks differ in steps, from {first.start} on")
    padding = sum(part.padded for part in parts)
    look.expect(padding == -(size - first.start) % len(parts), f"{padding} rows are padding")
    begins = (0, first.steps // 2, first.steps - SOME_STEPS)
    for step in sorted({step for begin in begins for step in range(begin, begin + SOME_STEPS)}):
        if not 0 <= step < first.steps:
            continue
        each = [part.positions(step, step + 1) for part in parts]
        rows = {len(positions) for positions in each}
        look.expect(rows == {first.rows(step)}, f"ranks differ in rows, in step {step} from {first.start} on")

        begin, stop = first.position_after(step), first.position_after(step + 1)
        again = np.arange(padding if step == first.steps - 1 else 0) % size
        expected = np.sort(np.concatenate([np.arange(begin, stop), again]))
        found = np.sort(np.concatenate(each))
        is_global = np.array_equal(found, expected)
        look.expect(is_global, f"step {step} from {first.start} on is not the global batch")
        some = np.sort(order.records(np.arange(begin, min(stop, begin + LOOKED_UP))))
        is_new = (some[1:] != some[:-1]).all()
        look.expect(is_new, f"step {step} from {first.start} on has a record twice")
        look.positions += len(found)


def _look_at_pieces(job: Job, order: BlockOrder, world_size: int, readers: int, look: _Look) -> float:
    """Compare who needs pieces, and what plans read of them; return the latter."""
    start = len(order) // 3 + 17
    in_piece = int(np.diff(job.table.blocks(job.shuffle.block_bytes).firsts).max())  # at most
    for lane in np.unique(np.linspace(0, order.lanes - 1, SOME_LANES).astype(np.int64)).tolist():
        place = np.arange(
            start // order.lanes + 1, min(start // order.lanes + 3 * in_piece, len(order) // order.lanes)
        )
        positions = place * order.lanes + lane
        counts, records = _readers(order, positions, (positions - start) % world_size)
        is_so = np.array_equal(counts, np.minimum(readers, records))
        look.expect(is_so, f"pieces of lane {lane} are not needed by {readers} ranks")
        look.positions += len(positions)

    read = needed = 0
    for rank in sorted({0, world_size - 1})[:SOME_RANKS]:
        part = Part(len(order), job.batch_size, rank, world_size, start, interleaved=True)
        steps = min(-(-2 * in_piece * order.lanes // part.global_batch) + 1, part.steps)
        planned, own, rows = _planned(Plan(job.table, order, part, 1, ()), steps)
        read, needed, look.positions = read + planned, needed + own, look.positions + rows
    found = read / needed if needed else math.nan
    look.expect(abs(found / readers - 1) < OFF, f"plans read {found:.2f} times what is needed, not {readers}")
    return found


def _readers(order: BlockOrder, positions: Records, ranks: Records) -> tuple[Records, Records]:
    """Return, of the pieces in these positions of a lane, how many ranks need each, and its records."""
    pieces = order.pieces(positions)
    whole = (pieces.first_position >= positions[0]) & (pieces.last_position <= positions[-1])
    firsts, at = np.unique(pieces.first[whole], return_index=True)
    pairs = np.unique(np.stack([pieces.first[whole], ranks[whole]]), axis=1)
    counts = np.bincount(np.searchsorted(firsts, pairs[0]), minlength=len(firsts))
    return counts, (pieces.stop - pieces.first)[whole][at]


def _planned(plan: Plan, steps: int) -> tuple[int, int, int]:
    """Return the bytes of pieces that lie whole within these steps, of the records for them, and all rows."""
    pieces: dict[int, Piece] = {}
    own: dict[int, int] = {}
    rows, stride = 0, max(PLANNED_ROWS // plan.part.rows(0), 1)
    for first in range(0, steps, stride):
        run = plan_run(plan, first, min(first + stride, steps), order=(0, 0))
        sums = np.bincount(run.piece + 1, run.sizes, minlength=len(run.pieces) + 1)[1:].astype(np.int64)
        for piece, size in zip(run.pieces, sums.tolist(), strict=True):
            pieces[piece.key] = piece
            own[piece.key] = own.get(piece.key, 0) + size
        rows += len(run.sizes)
    begin, stop = plan.part.position_after(0), plan.part.position_after(steps)
    whole = [
        piece for piece in pieces.values() if begin <= piece.first_position and piece.last_position < stop
    ]
    return sum(piece.stop - piece.start for piece in whole), sum(own[piece.key] for piece in whole), rows


def fitting_lanes(world_size: int, lanes: int) -> int:
    """Return the lanes, or where the world size does not divide them its least multiple that is not less."""
    return lanes if lanes % world_size == 0 else -(-lanes // world_size) * world_size


def rows_of(job: Job, worlds: Sequence[int]) -> Iterator[Row]:
    """Yield a row for each world size, and one more with fitting lanes where the usual ones do not fit."""
    for world_size in worlds:
        yield simulate(job, world_size)
        lanes = fitting_lanes(world_size, job.shuffle.lanes)
        if lanes != job.shuffle.lanes:
            fitting = Shuffle("block", job.shuffle.seed, lanes, job.shuffle.block_bytes)
            yield simulate(Job(job.table, fitting, job.batch_size, job.rate, job.memory_limit), world_size)


def tabulate(job: Job, rows: Sequence[Row]) -> str:
    """Return a table, and what does not depend on the ranks."""
    head = "ranks|lanes|batches|padded|a piece's ranks|in plans|piece, MiB|open, MiB|read whole|GB a rank"
    head += "|requests a rank|/s a rank|/s in all|looked at"
    lines = [f"| {' | '.join(head.split('|'))} |", "|---" * len(head.split("|")) + "|"]
    for row in rows:
        cells = [
            f"{row.world_size:,}",
            f"{row.lanes:,}",
            f"{row.steps:,}",
            f"{row.padded:,}",
            f"{row.readers:,}",
        ]
        cells += [f"{row.planned:.2f}", f"{row.piece_bytes / 2**20:.2f}", f"{row.window_bytes / 2**20:,.0f}"]
        cells += ["yes" if row.whole else "no", f"{row.epoch_bytes / 1e9:,.1f}", f"{row.epoch_requests:,}"]
        cells += [f"{row.requests:,.2f}", f"{row.all_requests:,.0f}", f"{row.looked_at:,}"]
        lines.append(f"| {' | '.join(cells)} |")
        lines += [f"**{row.world_size} ranks: {fault}**" for fault in row.faults]
    return "\n".join([*lines, "", *_facts(job)])


def _facts(job: Job) -> list[str]:
    table, blocks = job.table, len(job.table.blocks(job.shuffle.block_bytes))
    shards = len(table.shards)
    index = len(table) * INDEX_BYTES + shards * 32
    return [
        f"{len(table):,} records, {table.data_bytes / 1e12:,.1f} TB, in {shards:,} shards; {blocks:,} blocks "
        f"of {job.shuffle.block_bytes / 2**20:.2f} MiB",
        f"{job.batch_size} rows in a rank's batch, {job.rate:,.0f} samples/s a rank",
        f"index: {index / 1e9:,.1f} GB, and {NODE_RANKS * index / 1e9:,.1f} if {NODE_RANKS} ranks of a node "
        f"hold one each; an epoch's tables of blocks: {(3 * blocks + 2) * 8 / 1e6:,.0f} MB",
        f"opening: 2 requests for a set of the own format; {-(-shards // LISTED)} to list shards of others",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=10**10)
    parser.add_argument("--record-bytes", type=int, default=2048, help="mean size of a record")
    parser.add_argument("--worlds", default=",".join(map(str, WORLDS)), help="numbers of ranks")
    parser.add_argument("--lanes", type=int, help="of the block shuffle, if not the usual ones")
    parser.add_argument("--batch-size", type=int, default=64, help="of a rank")
    parser.add_argument("--rate", type=float, default=1000, help="samples a second that a rank takes")
    parser.add_argument("--memory-limit", default="2GiB", help="of a rank")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    given = parser.parse_args()

    began, cpu = time.perf_counter(), time.process_time()
    table = ArithmeticTable(given.records, given.record_bytes)
    shuffle = Shuffle.choose(
        True, seed=1, lanes=given.lanes, block_bytes=None, records=len(table), data_bytes=table.data_bytes
    )
    limit = parse_bytes(given.memory_limit, name="memory_limit")
    job = Job(table, shuffle, given.batch_size, given.rate, limit)
    rows = [*rows_of(job, [*map(int, given.worlds.split(","))])]
    took = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}

    if given.json:
        print(json.dumps({"facts": _facts(job), **took, "rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print(tabulate(job, rows))
        print("took {seconds:.0f} s, {cpu_seconds:.0f} s of CPU".format(**took))
    return int(any(row.faults for row in rows))


if __name__ == "__main__":
    sys.exit(main())
