"""The disk under a cache, asked from an event loop: every call is bounded, and no failure leaves here.

A disk that is full or cannot be written to ends the storing, one that fails to read or does not answer ends
all, with one warning each; from then on there is nothing cached.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import anyio

from ..bytelocks import Busy
from ..errors import NotFoundError, ShardError, StorageError
from ..frames import let_go
from ..shard.format import crc32c
from .cachedfile import CachedFile
from .cachefolder import CacheFolder, Claim
from .extents import Range
from .local import LocalStorage
from .threads import DaemonExecutor, undo_result

__all__ = ["CacheCounts", "CacheDisk", "CacheTally", "Identity", "Look"]

T = TypeVar("T")

Identity = tuple[int, str | None]
"""Size and tag of a file: which version it is."""

_log = logging.getLogger("aioload.storage")

_THREADS = 4
_INLINE_SUM = 512 << 10  # bytes summed in the loop, 50 us; more go to a thread
_MOST_STORES = 8  # at once: each holds a copy of what it writes
_PATIENCE = 5.0  # seconds for the disk to answer
_GRACE = 1.5  # seconds for the threads to end
_MOST_FAULTS = 8  # reads that failed one after the other
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})  # somebody has removed it; it is made again


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """What a cache did since it was opened."""

    hits: int = 0
    """Reads that needed no network."""
    misses: int = 0
    """Reads of which something was fetched."""
    bytes: int = 0
    """Bytes that came from the disk."""
    stored: int = 0
    """Bytes that were written to it."""
    errors: int = 0
    """Ranges that were damaged or could not be read and were fetched again, and writes that failed."""


class CacheTally:
    """Counts what one cache does, or several; usable from any thread."""

    def __init__(self) -> None:
        self._counts = asdict(CacheCounts())
        self._lock = threading.Lock()

    def counts(self) -> CacheCounts:
        """Return what was counted so far."""
        with self._lock:
            return CacheCounts(**self._counts)

    def add(self, **more: int) -> None:
        """Add to what is counted, by the names of `CacheCounts`."""
        with self._lock:
            for name, number in more.items():
                self._counts[name] += number

    def hit(self, num_bytes: int) -> None:
        """Count a read that found all of its bytes."""
        # hot: once per read
        counts = self._counts
        with self._lock:
            counts["hits"] += 1
            counts["bytes"] += num_bytes


class Look(NamedTuple):
    """What a look at the disk tells about a range."""

    claim: Claim
    """Whether it is ours to fetch."""
    found: Sequence[CachedFile]
    """Versions of the file, if none was chosen yet."""


class CacheDisk:
    """The files of a cache, for event loops.

    Args:
        folder: of the cache.
        limit_bytes: what it may take.
        tally: told of everything.
    """

    def __init__(self, folder: Path, limit_bytes: int | None, tally: CacheTally | None = None) -> None:
        self.path = folder
        self.on = True
        """Whether there is a cache; once off, it stays so."""
        self.storing = True
        """Whether it grows."""
        self._folder = CacheFolder(folder, limit_bytes)
        self.local = LocalStorage(self._folder.root)
        """Reads what is there; a failure is for `failed`."""
        self._readers = DaemonExecutor(_THREADS, name="aioload-cache-read")
        # of their own: who reads must not wait for who writes
        self._writers = DaemonExecutor(_THREADS, name="aioload-cache-write")
        self._faults = 0
        self._told_full = False
        self._gates = WeakKeyDictionary[asyncio.AbstractEventLoop, anyio.Semaphore]()
        self.tally = CacheTally() if tally is None else tally
        self._lock = threading.Lock()

    def hit(self, num_bytes: int) -> None:
        """Count a read that found all of its bytes."""
        # hot: once per read
        self._faults = 0
        self.tally.hit(num_bytes)

    async def find(self, key: str) -> Sequence[CachedFile]:
        """Return the versions of a file that are there, the newest first."""
        return await self._run(partial(self._folder.find, key)) or []

    def place(self, key: str) -> str:
        """Return the folder of a file's versions."""
        return str(self._folder.place(key))

    async def covers(self, file: CachedFile, start: int, stop: int) -> bool:
        """Tell whether bytes are there, also those that other processes have cached."""
        if not file.covers(start, stop):
            await self._run(partial(_refreshed, file))
        return not file.gone and file.covers(start, stop)

    async def let_go(self, file: CachedFile, *, stale: bool = False) -> None:
        """Use a version no longer; a stale one is no use to anybody."""
        await self._run(partial(self._folder.retire if stale else self._folder.release, file))

    @asynccontextmanager
    async def looking(self, key: str, file: CachedFile | None, hole: Range) -> AsyncIterator[Look]:
        """Claim a range, and look what is there of it by now, be it of other processes."""
        look = await self._run(partial(self._look, key, file, hole), undo=_let_go)
        try:
            yield look or Look(Claim(held=True), [])
        finally:
            if look is not None:
                look.claim.close()

    async def read(self, file: CachedFile, start: int, view: memoryview) -> bool:
        """Fill memory with bytes that are there; False where they cannot be had, and are forgotten."""
        try:
            await self.local.read_into(file.data, start, view)
        except (StorageError, ShardError) as error:
            self.failed(file, start, len(view), error)
            return False
        self._faults = 0
        file.served = True
        return True

    def failed(self, file: CachedFile, start: int, length: int, error: Exception) -> None:
        """Forget bytes that could not be read; where that happens again and again, the cache is off."""
        let_go(error)
        if isinstance(error, NotFoundError):  # somebody has removed the file
            file.lose()
            return
        file.forget(start, start + length)
        self.fault(file, error)
        self._faults += 1
        if self._faults >= _MOST_FAULTS:
            self._turn_off(str(error))

    async def sums(self, views: Sequence[memoryview]) -> list[int]:
        """Return the sums of some bytes."""
        work = partial(_sums, views)
        if sum(map(len, views)) <= _INLINE_SUM:
            return work()
        return await asyncio.wrap_future(self._readers.submit(work))

    async def store(
        self,
        key: str,
        identity: Identity,
        file: CachedFile | None,
        start: int,
        view: memoryview,
        *,
        patience: float,
    ) -> CachedFile | None:
        """Write bytes; return their file if they are there now.

        Args:
            key: of the file.
            identity: of the version.
            file: where it is there already.
            start: of the bytes.
            view: the bytes, which are copied: a cancelled call leaves its thread behind, and that must not
                write what the caller's memory holds by then.
            patience: seconds to wait while the disk is behind with others.
        """
        with anyio.move_on_after(patience) as scope:
            await self._gate.acquire()
        if scope.cancelled_caught:
            return None
        try:
            if not self.storing:
                return None
            work = partial(self._store, key, identity, file, start, bytes(view))
            stored = await self._run(work, self._writers, off=self._stop_storing)
        finally:
            self._gate.release()
        if stored is not None:
            self.tally.add(stored=len(view))
        return stored

    def fault(self, file: CachedFile, why: object) -> None:
        """Count bytes that are not as they should be."""
        self.tally.add(errors=1)
        _log.info("bytes of %s in the disk cache are fetched again: %s", file.head.shown, why)

    async def aclose(self) -> None:
        """Close all files and end the threads, waiting a bounded time for them; twice is free."""
        await self.local.aclose()
        with anyio.move_on_after(_GRACE, shield=True) as scope:
            self._writers.shutdown(wait=False)
            await asyncio.wrap_future(self._writers.ended)
            if not self._readers.ended.done():
                self._readers.submit(self._folder.close)
                self._readers.shutdown(wait=False)
            await asyncio.wrap_future(self._readers.ended)
        if scope.cancelled_caught:
            self._readers.shutdown(wait=False)
            _log.warning(
                "closed the disk cache in %s, but left a thread behind that is stuck there", self.path
            )
            return
        for threads in (self._readers, self._writers):
            threads.shutdown(wait=True)  # no call is left, and a thread's last step never waits

    def __repr__(self) -> str:
        state = "" if self.storing else " not storing" if self.on else " off"
        return f"<CacheDisk {str(self.path)!r}{state}>"

    @property
    def _gate(self) -> anyio.Semaphore:
        loop = asyncio.get_running_loop()
        if loop not in self._gates:
            self._gates[loop] = anyio.Semaphore(_MOST_STORES, fast_acquire=True)
        return self._gates[loop]

    # in a thread

    def _look(self, key: str, file: CachedFile | None, hole: Range) -> Look:
        claim = self._folder.claim(key, *hole)  # first: what others did before they let it go is written down
        try:
            if file is None:
                return Look(claim, self._folder.find(key))
            file.refresh()
        except OSError as error:
            if error.errno not in _GONE:
                claim.close()
                raise
        return Look(claim, [])

    def _store(
        self,
        key: str,
        identity: Identity,
        file: CachedFile | None,
        start: int,
        data: bytes,
    ) -> CachedFile | None:
        try:
            file = file or self._folder.create(key, *identity)
            if file is not None and start + len(data) > file.size:
                return None
            if file is None or not self._folder.reserve(file.cost(start, len(data))):
                self._warn_if_full()
                return None
            file.store(start, data)
        except Busy:  # somebody was stopped while holding the ledger; these bytes are not cached
            return None
        except OSError as error:
            if file is not None and error.errno in _GONE:
                file.lose()
                return None
            self.tally.add(errors=1)
            self._stop_storing(error.strerror or str(error))
            return None
        return file

    # bounds

    async def _run(
        self,
        work: Callable[[], T],
        threads: DaemonExecutor | None = None,
        *,
        undo: Callable[[T], object] | None = None,
        off: Callable[[str], None] | None = None,
    ) -> T | None:
        """Do something in a thread, within bounds.

        Args:
            work: to do.
            threads: that do it, by default those for reading.
            undo: called with its result where nobody waits for that any more.
            off: called where there is no answer; by default this ends the cache.

        Returns:
            The result; None where the disk failed.
        """
        future = (threads or self._readers).submit(work)
        delivered = False
        try:
            with anyio.move_on_after(_PATIENCE):
                result = await asyncio.wrap_future(future)
                delivered = True
                return result
            (off or self._turn_off)("the disk does not answer")
        except OSError as error:
            self._turn_off(error.strerror or str(error))
        finally:
            if undo is not None and not delivered:
                future.add_done_callback(partial(undo_result, undo))
        return None

    def _warn_if_full(self) -> None:
        with self._lock:
            first = self._folder.is_disk_full and not self._told_full
            self._told_full |= first
        if first:
            _log.warning(
                "the disk under %s is full, so nothing more is cached until there is room; what is not there "
                "comes from the network",
                self.path,
            )

    def _stop_storing(self, why: str) -> None:
        with self._lock:
            first, self.storing = self.storing, False
        if first:
            _log.warning(
                "nothing more is cached in %s: %s; what is not there comes from the network", self.path, why
            )

    def _turn_off(self, why: str) -> None:
        with self._lock:
            first, self.on, self.storing = self.on, False, False
        if first:
            _log.warning("the disk cache in %s is off: %s; reads go on from the network", self.path, why)


def _sums(views: Sequence[memoryview]) -> list[int]:
    return [crc32c(view) for view in views]


def _refreshed(file: CachedFile) -> None:
    try:
        file.refresh()
    except FileNotFoundError:
        file.lose()


def _let_go(look: Look) -> None:
    look.claim.close()
