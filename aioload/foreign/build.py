"""Build: the index of foreign shards, made by looking through them once, several at a time.

Scanners are pure and ask for ranges; what they do with the bytes takes a processor, so it happens in threads
while other shards are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from ..reason import first_of
from ..shard.format import crc32c
from ..shard.hashes import Sums
from ..shard.index import Index
from ..shard.scan import Scanned, Scanner
from ..storage import read

if TYPE_CHECKING:
    from ..storage import Storage

__all__ = [
    "ASKED_AT_ONCE",
    "PIECE_BYTES",
    "Progress",
    "join",
    "look_at_all",
    "pieces",
    "read_piece",
    "scan_shards",
    "sum_records",
]

ASKED_AT_ONCE = 64
"""Shards of which little is asked: a size, or the first bytes."""
PIECE_BYTES = 8 << 20
"""What neighbouring records that are read at once have together; a larger record is read alone."""

_SCANNED_AT_ONCE = 16  # shards; each holds a window of a few MiB

Progress = Callable[[int], object]
"""Told of so many more bytes that have been seen to."""


async def look_at_all(count: int, look: Callable[[int], Any], at_once: int = _SCANNED_AT_ONCE) -> None:
    """Call a coroutine function with each number below `count`, so many at a time; one error ends all."""
    numbers = iter(range(count))

    async def look_at_some() -> None:
        for number in numbers:
            await look(number)

    try:
        async with anyio.create_task_group() as group:
            for _ in range(min(at_once, count)):
                group.start_soon(look_at_some)
    except BaseExceptionGroup as several:
        raise first_of(several) from None


async def scan_shards(
    storage: Storage,
    names: Sequence[str],
    sizes: Sequence[int],
    begin: Callable[[int], Scanner],
    progress: Progress = int,
) -> list[Scanned]:
    """Look through shards.

    Args:
        storage: where they are.
        names: theirs.
        sizes: theirs, in bytes.
        begin: returns the scanner of a shard, by its number.
        progress: told of bytes.

    Raises:
        ShardError: one is not of the scanner's format.
        StorageError: the storage failed.
    """
    found: dict[int, Scanned] = {}

    async def look(number: int) -> None:
        found[number] = await _drive(begin(number), storage, names[number], sizes[number], progress)

    await look_at_all(len(names), look)
    return [found[number] for number in range(len(names))]


async def _drive(scanner: Scanner, storage: Storage, name: str, size: int, progress: Progress) -> Scanned:
    """Return what a scanner finds in a shard; it may go back, but progress does not."""
    seen = 0
    data: memoryview | None = None
    while True:
        step = await anyio.to_thread.run_sync(_step, scanner, data)
        if isinstance(step, Scanned):
            progress(size - seen)
            return step
        start, stop = step
        data = memoryview(await read(storage, name, start, stop))
        progress(max(stop - seen, 0))
        seen = max(stop, seen)


def _step(scanner: Scanner, data: memoryview | None) -> tuple[int, int] | Scanned:
    """Let a scanner go on; a StopIteration cannot cross from a thread into a coroutine."""
    try:
        return next(scanner) if data is None else scanner.send(data)
    except StopIteration as end:
        found: Scanned = end.value
        return found


def join(names: Sequence[str], sizes: Sequence[int], scanned: Sequence[Scanned]) -> Index:
    """Return the index of a set from what was found in its shards; without sums."""
    counts = [len(each.ends) for each in scanned]
    starts = [np.uint64(each.data_start) for each in scanned]
    lengths = [int(each.ends[-1]) - each.data_start if len(each.ends) else 0 for each in scanned]
    line = np.cumsum([0, *lengths], dtype=np.int64).astype(np.uint64)
    first = np.cumsum([0, *counts], dtype=np.int64)
    placed = [each.ends - start + begin for each, start, begin in zip(scanned, starts, line, strict=False)]
    far = [
        np.column_stack([each.far[:, 0] + number, each.far[:, 1]])
        for each, number in zip(scanned, first.tolist(), strict=False)
        if len(each.far)
    ]
    return Index(
        shards=tuple(names),
        shard_records=first,
        shard_starts=line,
        shard_data=np.array(starts, np.uint64),
        shard_bytes=np.array(sizes, np.uint64),
        positions=np.concatenate([np.zeros(1, np.uint64), *placed]),
        fields=next((each.fields for each in scanned if each.wholes and each.fields), ()),
        far=np.concatenate(far).astype(np.int64) if far else None,
        is_foreign=True,
    )


async def sum_records(
    storage: Storage,
    index: Index,
    hashes: Mapping[str, Mapping[str, str]] | None = None,
    progress: Progress = int,
) -> Index:
    """Return the index with a CRC-32C of each record, for formats that have no sums of their own.

    Args:
        storage: where the shards are.
        index: of them.
        hashes: sums of whole shards, by name and algorithm, with which their bytes are compared meanwhile.
        progress: told of bytes.

    Raises:
        ShardError: a shard has another sum than it should, and again when it is read once more.
    """
    sums = np.zeros(len(index), np.uint32)
    bounds = list(itertools.pairwise(index.shard_records.tolist()))

    async def look(number: int) -> None:
        first, stop = bounds[number]
        expected = (hashes or {}).get(index.shards[number])
        if expected:
            try:
                found = await _read_whole(storage, index, number, expected)
            except ShardError:
                found = await _read_whole(storage, index, number, expected)
            if found is not None:
                sums[first:stop] = found
                progress(int(index.shard_starts[number + 1] - index.shard_starts[number]))
                return
        for begin, end in pieces(index, first, stop):
            sums[begin:end] = await _sums(storage, index, number, begin, end, progress)

    await look_at_all(len(index.shards), look)
    return replace(index, sums=sums)


async def _read_whole(
    storage: Storage, index: Index, shard: int, hashes: Mapping[str, str]
) -> npt.NDArray[np.uint32] | None:
    """Compare all bytes of a shard with its sums; return its records', unless they lie criss-cross."""
    whole = Sums(index.shards[shard], hashes)
    records = _Passing(index, shard)
    size = await storage.size(index.shards[shard]) if whole else 0
    for start in range(0, size, PIECE_BYTES):
        part = await read(storage, index.shards[shard], start, min(start + PIECE_BYTES, size))
        await anyio.to_thread.run_sync(whole.add, part)
        await anyio.to_thread.run_sync(records.add, part)
    whole.check()
    return records.sums if size and records.in_order else None


class _Passing:
    """Sums the records of a shard while its bytes pass, from the first to the last."""

    def __init__(self, index: Index, shard: int) -> None:
        first, stop = index.shard_records[shard : shard + 2].tolist()
        located = index.locate(np.arange(first, stop, dtype=np.int64))
        self._starts, self._stops = located.start.tolist(), located.stop.tolist()
        self.in_order = all(high <= low for high, low in zip(self._stops, self._starts[1:], strict=False))
        self.sums = np.zeros(stop - first, np.uint32)
        self._record = self._place = 0

    def add(self, part: bytes) -> None:
        """Take the next bytes."""
        view, place, stop = memoryview(part), self._place, self._place + len(part)
        while self.in_order and self._record < len(self._starts) and self._starts[self._record] < stop:
            low, high = self._starts[self._record], self._stops[self._record]
            inside = view[max(low - place, 0) : min(high, stop) - place]
            if inside:
                self.sums[self._record] = crc32c(inside, value=int(self.sums[self._record]))
            if high > stop:
                break
            self._record += 1
        self._place = stop


async def _sums(
    storage: Storage, index: Index, shard: int, first: int, stop: int, progress: Progress
) -> npt.NDArray[np.uint32]:
    """Return the sums of neighbouring records; one that is larger than a piece is summed in parts."""
    if stop - first == 1:
        return np.array([await _sum_of_one(storage, index, shard, first, progress)], np.uint32)
    records = await read_piece(storage, index, index.shards[shard], first, stop)
    progress(sum(len(raw) for _, raw in records))
    return np.array(await anyio.to_thread.run_sync(lambda: [crc32c(raw) for _, raw in records]), np.uint32)


async def _sum_of_one(storage: Storage, index: Index, shard: int, record: int, progress: Progress) -> int:
    located = index.locate(np.array([record], np.int64))
    low, high, value = int(located.start[0]), int(located.stop[0]), 0
    for place in range(low, high, PIECE_BYTES):
        part = await read(storage, index.shards[shard], place, min(place + PIECE_BYTES, high))
        value = await anyio.to_thread.run_sync(_add_to_sum, part, value)
        progress(len(part))
    return value


def _add_to_sum(part: bytes, value: int) -> int:
    return crc32c(part, value=value)


async def read_piece(
    storage: Storage, index: Index, shard: str, first: int, stop: int
) -> list[tuple[int, memoryview]]:
    """Return number and bytes of the records `first` to `stop` of a shard, read at once."""
    located = index.locate(np.arange(first, stop, dtype=np.int64))
    begins, ends = located.start.tolist(), located.stop.tolist()
    low = min(begins)
    data = memoryview(await read(storage, shard, low, ends[-1]))
    return [
        (first + place, data[begin - low : end - low])
        for place, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]


def pieces(index: Index, first: int, stop: int) -> list[tuple[int, int]]:
    """Cut the records of a shard into runs of about `PIECE_BYTES`; one that begins far away is alone."""
    far = set() if index.far is None else set(index.far[:, 0].tolist())
    ends = index.positions[first + 1 : stop + 1].tolist()
    found, begin, start = [], first, int(index.positions[first]) if stop > first else 0
    for record, end in enumerate(ends, first):
        if record > begin and (end - start > PIECE_BYTES or record in far or record - 1 in far):
            found.append((begin, record))
            begin, start = record, int(index.positions[record])
    if stop > begin:
        found.append((begin, stop))
    return found
