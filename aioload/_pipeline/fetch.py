"""Fetch: the bytes of a run, from storage into the arena.

A merged read that fails says little about the records in it. So its records are then read one by one, and
only those that cannot be had carry an error: a file cut in the middle still gives all that is before the cut.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import anyio

from ..errors import AioloadError, ShardError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ..stats import Counters
    from ..storage import Storage
    from .plan import Read, Run

__all__ = ["fetch"]

_log = logging.getLogger("aioload.fetch")

Failures = dict[int, AioloadError]
"""What went wrong, by row of the run's table."""


async def fetch(
    run: Run,
    storage: Storage,
    shards: Sequence[str],
    raw: NDArray[np.uint8],
    limiter: anyio.CapacityLimiter,
    counters: Counters,
) -> Failures:
    """Read all that a run needs.

    Args:
        run: what to read and where to put it.
        storage: where from.
        shards: names of the shards.
        raw: the run's raw memory.
        limiter: bounds the reads in flight.
        counters: told of bytes and seconds.

    Returns:
        The rows that could not be read, each with its error.
    """
    failures: Failures = {}
    fetcher = _Fetcher(run, storage, shards, raw.data, limiter, counters, failures)
    if len(run.reads) == 1:
        await fetcher.read(run.reads[0])
        return failures
    async with anyio.create_task_group() as group:
        for read in run.reads:
            group.start_soon(fetcher.read, read)
    return failures


class _Fetcher:
    """The reads of one run."""

    def __init__(
        self,
        run: Run,
        storage: Storage,
        shards: Sequence[str],
        raw: memoryview,
        limiter: anyio.CapacityLimiter,
        counters: Counters,
        failures: Failures,
    ) -> None:
        self._run = run
        self._storage = storage
        self._shards = shards
        self._raw = raw
        self._limiter = limiter
        self._counters = counters
        self._failures = failures

    async def read(self, read: Read) -> None:
        """Do one read; where it fails, do it again record by record."""
        try:
            await self._read_into(read.shard, read.start, read.place, read.stop - read.start)
        except (StorageError, ShardError) as error:
            _log.debug("read of %s failed: %s", self._shards[read.shard], error)
            if len(read.rows) == 1:
                self._fail(read.rows[0], error)
            else:
                await self._read_singly(read)

    async def _read_singly(self, read: Read) -> None:
        table = self._run.table
        for row in read.rows:
            start, stop = int(table["start"][row]), int(table["stop"][row])
            try:
                await self._read_into(read.shard, int(self._run.offsets[row]), start, stop - start)
            except (StorageError, ShardError) as error:
                self._fail(row, error)

    async def _read_into(self, shard: int, start: int, place: int, size: int) -> None:
        async with self._limiter:
            began = time.perf_counter()
            await self._storage.read_into(self._shards[shard], start, self._raw[place : place + size])
            self._counters.read(size, time.perf_counter() - began)

    def _fail(self, row: int, error: AioloadError) -> None:
        record = int(self._run.table["record"][row])
        error.record, error.facts = record, {**error.facts, "record": record}
        error.add_note(f"while reading record {record}")
        self._failures.setdefault(row, error)
