"""Reading: reads of an epoch done as the engine would, with nothing behind them."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from .._pipeline.house import MAX_READ_BYTES
from .._pipeline.tuner import FIRST_READS
from ..blocking import run_blocking
from ..reason import first_of
from ..storage import Storage, close

if TYPE_CHECKING:
    from ..dataset import Dataset
    from .pattern import Ranges

__all__ = ["Replay", "Traffic", "at_once_of", "replay", "side_by_side"]

_MOST_READS = 64  # as the engine has it, where a storage does not say
_GAIN = 1.1  # by which twice as many reads at once must be faster, to go on
_STEPS = 5  # of the ladder that looks for how many
_ROUNDS = 3  # reads of each place that a step has


@dataclass(frozen=True, slots=True)
class Traffic:
    """What some reads took."""

    reads: int
    """How many."""
    read_bytes: int
    """What they brought."""
    seconds: float
    """From the first to the last."""
    cpu_seconds: float
    """Computed in this process."""
    at_once: int
    """Under way at once."""

    @property
    def bytes_per_second(self) -> float:
        """The rate."""
        return self.read_bytes / self.seconds if self.seconds > 0 else 0.0


def at_once_of(storage: Storage) -> tuple[int, int]:
    """Return how many reads the engine has under way over a storage: at first, and at most."""
    most = getattr(storage, "max_reads", _MOST_READS)
    return min(getattr(storage, "first_reads", FIRST_READS), most), most


class Replay:
    """Reads ranges of a set, going round in them.

    Args:
        dataset: of the ranges.
        storage: over its files.
        ranges: what to read.
        clock: tells the time.
    """

    def __init__(
        self,
        dataset: Dataset,
        storage: Storage,
        ranges: Ranges,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._names = dataset.index.shards
        self._storage = storage
        self._places = list(
            zip(ranges.shard.tolist(), ranges.start.tolist(), ranges.stop.tolist(), strict=True)
        )
        self._clock = clock
        self._next = 0
        self._buffers: list[bytearray] = []

    @property
    def is_done(self) -> bool:
        """Whether every range has been read."""
        return self._next >= len(self._places)

    async def run(
        self, seconds: float, at_once: int, *, least_reads: int = 1, again: bool = False
    ) -> Traffic:
        """Read for so long, or until every range was read.

        Args:
            seconds: after which no read begins, but for those wanted at least.
            at_once: reads under way at once.
            least_reads: that are wanted.
            again: begin anew after the last.
        """
        began, cpu = self._clock(), time.process_time()
        reads = read_bytes = 0

        async def some() -> None:
            nonlocal reads, read_bytes
            buffer = self._buffers.pop() if self._buffers else bytearray(MAX_READ_BYTES)
            while self._clock() - began < seconds or reads < least_reads:
                if self.is_done and not again:
                    break
                shard, start, stop = self._places[self._next % len(self._places)]
                self._next += 1
                if stop - start > len(buffer):
                    buffer = bytearray(stop - start)
                await self._storage.read_into(self._names[shard], start, memoryview(buffer)[: stop - start])
                reads += 1
                read_bytes += stop - start
            self._buffers.append(buffer)

        if self._places:
            await side_by_side(at_once, some)
        return Traffic(reads, read_bytes, self._clock() - began, time.process_time() - cpu, at_once)

    async def climb(self, seconds: float, first: int, most: int) -> Traffic:
        """Read with more and more at once for as long as that is faster, as the engine does; return the best.

        Args:
            seconds: for all of it.
            first: reads at once to begin with.
            most: that there may be.
        """
        # where reads take long, each place must have had a few, or the first of them would decide
        best = await self.run(seconds / _STEPS, first, least_reads=_ROUNDS * first)
        while best.at_once < most and not self.is_done:
            twice = min(best.at_once * 2, most)
            more = await self.run(seconds / _STEPS, twice, least_reads=_ROUNDS * twice)
            if more.bytes_per_second < best.bytes_per_second * _GAIN:
                break
            best = more
        return best


async def side_by_side(count: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do work so many times at once; what goes wrong first comes out bare."""
    try:
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(work)
    except BaseExceptionGroup as failed:
        raise first_of(failed) from None


def replay(dataset: Dataset, ranges: Ranges, seconds: float) -> Traffic:
    """Read ranges of a set for so long, again and again, as many at once as its storage takes well."""

    async def run() -> Traffic:
        storage = dataset.open_storage()
        try:
            reads = Replay(dataset, storage, ranges)
            first, most = at_once_of(storage)
            best = await reads.climb(seconds / 2, first, most)
            return await reads.run(seconds / 2, best.at_once, least_reads=best.at_once, again=True)
        finally:
            await close(storage)

    return run_blocking(run())
