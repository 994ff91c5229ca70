"""Reach: records read where they are decoded, for executors whose workers can get at the storage themselves.

Whatever goes wrong is `Unmapped`: the loader then reads the records itself, which names what is wrong.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import anyio
import numpy as np
from numpy.typing import NDArray

from ..errors import AioloadError
from ..reason import first_of
from ..storage import Storage, close
from .files import Unmapped
from .parcel import covering

__all__ = ["Opener", "Reach"]

_log = logging.getLogger("aioload.workers")

_GAP_BYTES = 16 << 10  # between records that are read together: less than what another request costs
_MAX_READ_BYTES = 4 << 20  # where a storage does not say
_CLOSE_SECONDS = 1.0

T = TypeVar("T")

Opener = Callable[[], Storage]
"""Opens a storage of one set's files, in any process."""


class Reach:
    """Reads records of some sets; it can be pickled, and opens what it needs where it is used.

    Args:
        openers: of a storage for each set.
        shards: names of all shards, those of each set relative to its storage.
        sources: the set of each shard.
    """

    def __init__(self, openers: Sequence[Opener], shards: Sequence[str], sources: Sequence[int]) -> None:
        self._openers = tuple(openers)
        self._shards = tuple(shards)
        self._sources = tuple(sources)
        self._storages: list[Storage] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Reach, (self._openers, self._shards, self._sources)

    def fetch(self, table: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """Read the records of some rows.

        Args:
            table: `TABLE`, by places in the shards' files.

        Returns:
            The records, and the table by their places in there.

        Raises:
            Unmapped: they cannot be read from here.
        """
        table = table.copy()
        out, reads = _laid_out(table)
        try:
            _loop.run(self._read(reads, out.data))
        except Exception as error:
            if not isinstance(first_of(error), AioloadError | OSError | ImportError):
                raise
            raise Unmapped(f"records cannot be read by this worker: {first_of(error)!r}") from error
        out.flags.writeable = False
        return out, table

    def close(self) -> None:
        """Close what was opened, without waiting for it."""
        storages, self._storages = self._storages, None
        if storages:
            _loop.close(storages)

    async def _read(self, reads: list[tuple[int, int, int, int]], out: memoryview) -> None:
        if self._storages is None:  # in the loop, so by one at a time
            self._storages = [opener() for opener in self._openers]
            _loop.open(self._storages)
        storages = self._storages

        async def read(shard: int, start: int, stop: int, place: int) -> None:
            storage = storages[self._sources[shard]]
            most = getattr(storage, "max_read_bytes", _MAX_READ_BYTES)
            for first in range(start, stop, most):
                last = min(first + most, stop)
                part = out[place + first - start : place + last - start]
                await storage.read_into(self._shards[shard], first, part)

        async with anyio.create_task_group() as group:
            for one in reads:
                group.start_soon(read, *one)


class _Loop:
    """The event loop in which a process reads: in a thread of its own that nobody waits for at exit.

    One for all loaders that a process works for, as storages stay open between their jobs: so module state.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: list[list[Storage]] = []

    def run(self, waited: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return asyncio.run_coroutine_threadsafe(waited, self._running()).result()

    def open(self, storages: list[Storage]) -> None:
        """Note storages that are open, to be closed at exit: clients of networks would complain else."""
        if not self._open:
            atexit.register(self._close_all)
        self._open.append(storages)

    def close(self, storages: list[Storage]) -> None:
        """Begin to close storages."""
        self._open = [others for others in self._open if others is not storages]
        asyncio.run_coroutine_threadsafe(_close(storages), self._running())

    def _close_all(self) -> None:
        """Close what is open, in a second for all of it."""
        storages = [storage for some in self._open for storage in some]
        self._open = []
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(_close(storages), self._running()).result(_CLOSE_SECONDS)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="aioload-reach", daemon=True).start()
            return self._loop


_loop = _Loop()


def _laid_out(table: NDArray[Any]) -> tuple[NDArray[np.uint8], list[tuple[int, int, int, int]]]:
    """Return memory for the records of a table, and the reads that fill it; the table then says where."""
    reads, size = [], 0
    for shard in np.unique(table["shard"]).tolist():
        rows = np.flatnonzero(table["shard"] == shard)
        start, stop = table["start"][rows].astype(np.int64), table["stop"][rows].astype(np.int64)
        found, moves = covering(start, stop, _GAP_BYTES)
        table["start"][rows], table["stop"][rows] = start + moves + size, stop + moves + size
        for first, last in found:
            reads.append((shard, first, last, size))
            size += last - first
    table["mapped"] = 0
    return np.empty(size, np.uint8), reads


async def _close(storages: Sequence[Storage]) -> None:
    """Close storages side by side."""
    for error in await asyncio.gather(*map(close, storages), return_exceptions=True):
        if error is not None:  # nobody is left to be told
            _log.debug("a storage was not closed: %r", error)
