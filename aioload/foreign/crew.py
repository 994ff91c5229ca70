"""Crew: shards looked through and summed by threads, and by processes where that would take long.

Much of the work is Python's, which runs one thread at a time: threads keep one processor busy, and the disk
or the network beside it. Processes take a while to start. So they are only called in once threads have worked
for a second and seconds more are foreseen, and for files of this machine alone. What has hardly begun by then
is handed over to them.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread
import numpy as np
import numpy.typing as npt

from .._workers.processes import processes
from ..machine import usable_cpus
from ..shard.sidecar import Part
from ..storage import LocalStorage
from .build import HandedOver, Progress, Work, scan_shard, sum_shard
from .kinds import scanner_of

if TYPE_CHECKING:
    from ..shard.scan import Scanned
    from ..storage import Storage

__all__ = ["Crew", "Task"]

T = TypeVar("T")

_log = logging.getLogger("aioload.index")

_TRIED_SECONDS = 1.0  # of a processor, in threads
_WORTH_SECONDS = 2.0  # of the same, that are left


@dataclass(frozen=True, slots=True)
class Task:
    """A shard that is to be looked through."""

    kind: str
    """Its format."""
    name: str
    """Its, relative to the folder."""
    size: int
    """Bytes."""
    records: int
    """How many it is said to have, of an MDS folder."""


class Crew(Work):
    """Whoever works on the shards of one set. Making one does no I/O.

    Args:
        root: folder of the shards; None: they are not files of this machine.
        total: bytes of all.
        count: of shards.
    """

    def __init__(self, root: Path | None, total: int, count: int) -> None:
        self._root = root
        self._total = total
        self._most = min(usable_cpus(), count)
        self._seconds = 0.0
        self._done = 0
        self._executor: ProcessPoolExecutor | None = None
        if multiprocessing.current_process().daemon:  # which may have no children
            self._most = 1

    async def __aenter__(self) -> Crew:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._dismiss()

    @property
    def is_elsewhere(self) -> bool:
        """Whether processes are at work."""
        return self._executor is not None

    def note(self, seconds: float, num_bytes: int) -> None:
        """Count time of a processor, and call processes in where that is worth it."""
        self._seconds += seconds
        self._done += num_bytes
        if self._executor is None and self._root is not None and self._most > 1:
            left = self._seconds / max(self._done, 1) * (self._total - self._done)
            if self._seconds >= _TRIED_SECONDS and left >= _WORTH_SECONDS:
                _log.info("%d processes go on with shards of %s", self._most, self._root)
                self._executor = processes(self._most)

    async def scan(self, storage: Storage, task: Task, progress: Progress, *, depth: int) -> Scanned:
        """Return what is found in a shard; see `scan_shard`."""
        seen = 0
        if not self.is_elsewhere:
            scanner = scanner_of(task.kind, task.name, task.size, task.records)
            try:
                return await scan_shard(
                    storage, task.name, task.size, scanner, progress, depth=depth, work=self
                )
            except HandedOver as over:
                seen = over.seen
        found: Scanned | None = await self._elsewhere(_scan_file, self._root, task)
        if found is None:
            return await self.scan(storage, task, lambda num_bytes: None, depth=depth)
        progress(task.size - seen)
        return found

    async def sum(
        self,
        storage: Storage,
        name: str,
        part: Part,
        hashes: Mapping[str, str] | None,
        progress: Progress,
        *,
        depth: int,
    ) -> npt.NDArray[np.uint32]:
        """Return the sums of a shard's records; see `sum_shard`."""
        if self.is_elsewhere:
            found: Any = await self._elsewhere(_sum_file, self._root, name, part, hashes)
            if found is not None:
                progress(part.scanned.data_bytes)
                sums: npt.NDArray[np.uint32] = found
                return sums
        return await sum_shard(storage, name, part, hashes, progress, depth=depth, work=self)

    async def _elsewhere(self, job: Callable[..., T], *arguments: Any) -> T | None:
        """Have a job done by a process; None: they have died, and are not called in again."""
        assert self._executor is not None, "somebody has called them in"
        try:
            return await asyncio.wrap_future(self._executor.submit(job, *arguments))
        except BrokenProcessPool:
            _log.warning("a process that looked through shards died, perhaps for want of memory")
            self._most = 1
            await self._dismiss()
            return None

    async def _dismiss(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(lambda: executor.shutdown(cancel_futures=True))


def _scan_file(root: Path, task: Task) -> Scanned:
    scanner = scanner_of(task.kind, task.name, task.size, task.records)
    return _in_folder(root, lambda storage: scan_shard(storage, task.name, task.size, scanner))


def _sum_file(root: Path, name: str, part: Part, hashes: Mapping[str, str] | None) -> npt.NDArray[np.uint32]:
    return _in_folder(root, lambda storage: sum_shard(storage, name, part, hashes))


def _in_folder(root: Path, use: Callable[[Storage], Awaitable[T]]) -> T:
    """Do something with the files of a folder, in this process."""

    async def main() -> T:
        storage = LocalStorage(root)
        try:
            return await use(storage)
        finally:
            await storage.aclose()

    return anyio.run(main)
