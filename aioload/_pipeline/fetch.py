"""Fetch: the bytes of a run, from storage into the arena.

A read that fails says little about the records in it. So its records are then read one by one, and only those
that cannot be had carry an error: a file cut in the middle still gives all that is before the cut. Where the
file itself cannot be had (it is missing or has changed, its server stays away), that is so for all of them,
and trying each would only make the wait as long as there are records.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio

from ..errors import AioloadError, ShardError, StorageError
from ..frames import let_go

if TYPE_CHECKING:
    from .._workers.pool import Order
    from ..stats import Counters
    from ..storage import Storage
    from .memory import Lease, Memory
    from .plan import Read, Run
    from .slots import Slots
    from .window import Chunk

__all__ = ["Failures", "Fetcher", "Reader"]

_log = logging.getLogger("aioload.fetch")

Failures = dict[int, AioloadError]
"""What went wrong, by row of a run's table."""


class Reader:
    """Reads shards, so many at once, and counts.

    Args:
        storages: one for each set.
        shards: names of all shards, those of each set relative to its storage.
        sources: the set of each shard.
        slots: bound the reads in flight.
        max_read_bytes: of each storage; a longer read becomes several, one after the other.
        counters: told of bytes and seconds.
        on_read: called after each read.
    """

    def __init__(
        self,
        storages: Sequence[Storage],
        shards: Sequence[str],
        sources: Sequence[int],
        slots: Slots,
        max_read_bytes: Sequence[int],
        counters: Counters,
        on_read: Callable[[], object] = int,
    ) -> None:
        self._storages = storages
        self._shards = shards
        self._sources = sources
        self._slots = slots
        self._max_read_bytes = max_read_bytes
        self._counters = counters
        self._on_read = on_read

    @property
    def at_once(self) -> int:
        """Reads that may be in flight."""
        return self._slots.total

    @property
    def running(self) -> int:
        """Reads that are in flight."""
        return self._slots.taken

    async def read_into(self, shard: int, start: int, out: memoryview, order: Order) -> None:
        """Fill memory with the bytes of a shard from `start` on; what has the lower order comes first."""
        source = self._sources[shard]
        storage, most = self._storages[source], self._max_read_bytes[source]
        for place in range(0, len(out), most):
            part = out[place : place + most]
            async with self._slots.take(order):
                began = time.perf_counter()
                await storage.read_into(self._shards[shard], start + place, part)
                self._counters.read(len(part), time.perf_counter() - began)
                if (trace := self._counters.trace) is not None:
                    trace.read(self._shards[shard], began, len(part), order)
            self._on_read()


class Fetcher:
    """Brings the records of one run.

    Args:
        run: what to read; the places in its table are the arena's.
        reader: reads.
        memory: where the records go.
    """

    def __init__(self, run: Run, reader: Reader, memory: Memory) -> None:
        self._run = run
        self._reader = reader
        self._memory = memory
        self._failures: Failures = {}

    async def fetch(self, reads: Sequence[Read], raw: Lease, chunks: Sequence[Chunk]) -> Failures:
        """Read all that the run needs.

        Args:
            reads: of the records that come by themselves.
            raw: their memory.
            chunks: the pieces that the other records are in.

        Returns:
            The rows that could not be read, each with its error.
        """
        await self._read_all(reads, raw)
        for chunk in chunks:
            await chunk.ready.wait()
            if chunk.failure is not None:
                number = self._run.pieces.index(chunk.piece)
                rows = (self._run.piece == number).nonzero()[0].tolist()
                await self._save(rows, chunk.failure, chunk.lease)
        return self._failures

    async def _read_all(self, reads: Sequence[Read], raw: Lease) -> None:
        """Do reads side by side, as many as may be: a task for each would cost more than a small read."""
        rest = iter(reads)

        async def read_some() -> None:
            for read in rest:
                await self._read(read, raw)

        tasks = min(len(reads), self._reader.at_once)
        if tasks == 1:
            await read_some()
        elif tasks:
            async with anyio.create_task_group() as group:
                for _ in range(tasks):
                    group.start_soon(read_some)

    async def _read(self, read: Read, raw: Lease) -> None:
        """Do one read; where it fails, do it again record by record."""
        try:
            await self._read_into(
                read.shard, read.start, raw.span.start + read.place, read.stop - read.start, raw
            )
        except (StorageError, ShardError) as error:
            let_go(error)
            if len(read.rows) == 1:
                self._fail(read.rows[0], error)
            else:
                await self._save(read.rows, error, raw)

    async def _save(self, rows: Sequence[int], error: AioloadError, lease: Lease) -> None:
        """Bring what can be had of records whose read has failed."""
        if _is_about_the_file(error):
            for row in rows:
                self._fail(row, copy.copy(error))  # each names its record
            return
        _log.debug("a read of %d records failed, reading them singly: %s", len(rows), error)
        await self._read_singly(rows, lease)

    async def _read_singly(self, rows: Sequence[int], lease: Lease) -> None:
        """Read records one by one; those that fail carry their error."""
        for row in rows:
            entry = self._run.table[row]
            start, size = int(entry["start"]), int(self._run.sizes[row])
            try:
                await self._read_into(int(entry["shard"]), int(self._run.offsets[row]), start, size, lease)
            except (StorageError, ShardError) as error:
                let_go(error)
                self._fail(row, error)

    async def _read_into(self, shard: int, start: int, place: int, size: int, lease: Lease) -> None:
        """Read into the arena; a read that is stuck keeps the lease for as long as it may write."""
        lease.keep()
        target = self._memory.arena.borrow(place, place + size, lease.release_soon)
        await self._reader.read_into(shard, start, target.data, self._run.order)

    def _fail(self, row: int, error: AioloadError) -> None:
        record = int(self._run.table["record"][row])
        error.record, error.facts = record, {**error.facts, "record": record}
        error.add_note(f"while reading record {record}")
        self._failures.setdefault(row, error)


def _is_about_the_file(error: BaseException) -> bool:
    """Tell whether no byte of the file can be had, as far as anybody can tell."""
    return isinstance(error, StorageError) and (error.final or error.attempts is not None)
