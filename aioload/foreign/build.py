"""Build: foreign shards looked through, and their records summed, over any storage.

Scanners are pure and ask for ranges; what they do with the bytes takes a processor, so it happens in threads
while other shards are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from ..reason import first_of
from ..shard.format import crc32c
from ..shard.hashes import Sums
from ..shard.scan import Scanned, Scanner
from ..shard.sidecar import Part, join
from ..storage import read
from .sweep import sweeping

if TYPE_CHECKING:
    from ..shard.index import Index
    from ..storage import Storage

__all__ = [
    "ASKED_AT_ONCE",
    "PIECE_BYTES",
    "HandedOver",
    "Progress",
    "Work",
    "depth_of",
    "look_at_all",
    "pieces",
    "read_piece",
    "scan_shard",
    "sum_shard",
]

ASKED_AT_ONCE = 64
"""Shards of which little is asked: a size, or the first bytes."""
PIECE_BYTES = 8 << 20
"""What neighbouring records that are read at once have together; a larger record is read alone."""

_SCANNED_AT_ONCE = 16  # shards; each holds a window of a few MiB
_READS_AT_ONCE = 8  # of few shards, one by one: more than that a link hardly needs

Progress = Callable[[int], object]
"""Told of so many more bytes that have been seen to."""


class Work:
    """What looking through shards costs; here nobody wants to know."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether what has hardly begun is to be handed over."""
        return False

    def note(self, seconds: float, num_bytes: int) -> None:
        """Count time of a processor, and what was looked through in it."""


NO_WORK = Work()


class HandedOver(Exception):
    """A shard is to be looked through elsewhere.

    Args:
        seen: bytes that progress was told of.
    """

    def __init__(self, seen: int) -> None:
        super().__init__(seen)
        self.seen = seen


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


def depth_of(count: int) -> int:
    """Return how many reads ahead there may be for each of so many shards."""
    return _READS_AT_ONCE // max(count, 1) - 1 if count < _READS_AT_ONCE else 0


async def scan_shard(
    storage: Storage,
    name: str,
    size: int,
    scanner: Scanner,
    progress: Progress = int,
    *,
    depth: int = 0,
    work: Work = NO_WORK,
) -> Scanned:
    """Return what a scanner finds in a shard; it may go back, but progress does not.

    Args:
        storage: where it is.
        name: its.
        size: its, in bytes.
        scanner: has not begun.
        progress: told of bytes.
        depth: reads ahead of it that may be under way.
        work: told of the time that it takes.

    Raises:
        HandedOver: it is to be looked through elsewhere, all of it again.
        ShardError: it is not of the scanner's format.
        StorageError: the storage failed.
    """
    seen = 0
    data: memoryview | None = None
    async with sweeping(storage, name, size, depth) as file:
        while True:
            step, seconds = await anyio.to_thread.run_sync(_step, scanner, data)
            if isinstance(step, Scanned):
                break
            start, stop = step
            work.note(seconds, max(stop - seen, 0))
            if work.is_elsewhere and seen < size // 2:
                raise HandedOver(seen)
            data = memoryview(await file.read(start, stop))
            progress(max(stop - seen, 0))
            seen = max(stop, seen)
    progress(size - seen)
    return step


def _step(scanner: Scanner, data: memoryview | None) -> tuple[tuple[int, int] | Scanned, float]:
    """Let a scanner go on, and time it; a StopIteration cannot cross from a thread into a coroutine."""
    began = time.thread_time()
    try:
        step = next(scanner) if data is None else scanner.send(data)
    except StopIteration as end:
        step = end.value
    return step, time.thread_time() - began


async def sum_shard(
    storage: Storage,
    name: str,
    part: Part,
    hashes: Mapping[str, str] | None = None,
    progress: Progress = int,
    *,
    depth: int = 0,
    work: Work = NO_WORK,
) -> npt.NDArray[np.uint32]:
    """Return a CRC-32C of each record of a shard, for formats that have no sums of their own.

    Args:
        storage: where the shard is.
        name: its.
        part: what is known of it.
        hashes: sums of the whole shard, by algorithm, with which its bytes are compared meanwhile.
        progress: told of bytes.
        depth: reads that may be under way beside the first.
        work: told of the time that it takes.

    Raises:
        ShardError: the shard has another sum than it should, and again when it is read once more.
    """
    index = join((name,), (part,), "").index
    if hashes:
        try:
            found = await _read_whole(storage, index, hashes, depth)
        except ShardError:
            found = await _read_whole(storage, index, hashes, depth)
        if found is not None:
            progress(int(index.positions[-1]))
            return found
    sums = np.zeros(len(index), np.uint32)
    wanted = pieces(index, 0, len(index))

    async def look(number: int) -> None:
        begin, end = wanted[number]
        sums[begin:end], seconds = await _sums(storage, index, begin, end, progress)
        work.note(seconds, int(index.positions[end] - index.positions[begin]))

    await look_at_all(len(wanted), look, 1 + depth)
    return sums


async def _read_whole(
    storage: Storage, index: Index, hashes: Mapping[str, str], depth: int
) -> npt.NDArray[np.uint32] | None:
    """Compare all bytes of a shard with its sums; return its records', unless they lie criss-cross."""
    (name,) = index.shards
    whole = Sums(name, hashes)
    records = _Passing(index)
    size = await storage.size(name) if whole else 0
    async with sweeping(storage, name, size, depth) as file:
        for start in range(0, size, PIECE_BYTES):
            part = await file.read(start, min(start + PIECE_BYTES, size))
            await anyio.to_thread.run_sync(whole.add, part)
            await anyio.to_thread.run_sync(records.add, part)
    whole.check()
    return records.sums if size and records.in_order else None


class _Passing:
    """Sums the records of a shard while its bytes pass, from the first to the last."""

    def __init__(self, index: Index) -> None:
        located = index.locate(np.arange(len(index), dtype=np.int64))
        self._starts, self._stops = located.start.tolist(), located.stop.tolist()
        self.in_order = all(high <= low for high, low in zip(self._stops, self._starts[1:], strict=False))
        self.sums = np.zeros(len(index), np.uint32)
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
    storage: Storage, index: Index, first: int, stop: int, progress: Progress
) -> tuple[npt.NDArray[np.uint32], float]:
    """Return the sums of neighbouring records, and how long they took; a large one is summed in parts."""
    if stop - first == 1:
        return np.array([await _sum_of_one(storage, index, first, progress)], np.uint32), 0.0
    records = await read_piece(storage, index, index.shards[0], first, stop)
    progress(int(index.positions[stop] - index.positions[first]))  # links lead far back, and count once
    return await anyio.to_thread.run_sync(_sums_of, records)


def _sums_of(records: list[tuple[int, memoryview]]) -> tuple[npt.NDArray[np.uint32], float]:
    began = time.thread_time()
    sums = np.array([crc32c(raw) for _, raw in records], np.uint32)
    return sums, time.thread_time() - began


async def _sum_of_one(storage: Storage, index: Index, record: int, progress: Progress) -> int:
    located = index.locate(np.array([record], np.int64))
    low, high, value = int(located.start[0]), int(located.stop[0]), 0
    left = int(index.positions[record + 1] - index.positions[record])  # of a link, less than is read
    for place in range(low, high, PIECE_BYTES):
        part = await read(storage, index.shards[0], place, min(place + PIECE_BYTES, high))
        value = await anyio.to_thread.run_sync(_add_to_sum, part, value)
        progress(min(len(part), left))
        left -= min(len(part), left)
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
