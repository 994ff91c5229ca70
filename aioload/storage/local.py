"""Files on a local or mounted disk, read by threads of our own.

Large reads go through aiofiles, unbuffered and straight into the caller's memory. A hop to a thread costs
about 110 us, which nobody notices at 4 MiB and which is ten times the read at 64 KiB. So small reads are
first tried on the spot with a `preadv` that takes only what is in the page cache; what is missing comes from
a thread.

A read in a thread cannot be cancelled. A cancelled `read_into` therefore waits for its thread, shielded, for
`grace` seconds. A thread that is stuck for longer is left behind. It keeps a reference to the memory it may
yet write to, so memory that is leased by reference (`Arena.borrow`) stays leased until the thread returns,
however late; `stuck` counts such reads, and the log names them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import aiofiles.os
import anyio
import anyio.lowlevel

from ..errors import ClosedError, ConfigError, NotFoundError, StorageError
from .base import check_name, check_range, ends_early
from .handles import Handle, Handles
from .threads import DaemonExecutor

__all__ = ["LocalStorage"]

_log = logging.getLogger("aioload.storage")

_MAX_INLINE_START = 1 << 62  # beyond it, start + length may be more than the kernel takes
_NOT_SUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_INLINE_RUN = 16  # reads on the spot between two checkpoints: 16 of 512 KiB keep the loop for 1.5 ms


class LocalStorage:
    """A storage over a folder. Making one does no I/O; usable from any event loop, also from several.

    Args:
        root: the folder that names are relative to.
        max_threads: threads, and so reads in threads, at most; they start when they are needed.
        max_handles: files open at most; idle ones are closed, the least recently used first.
        max_inline_bytes: largest read that is tried on the spot; 0 turns that off.
        grace: seconds that a cancelled read waits for its thread, and closing, which comes after it, for all
            threads. Twice that and the end of the workers must fit into the 5 s that a loader takes to close.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        max_threads: int = 32,
        max_handles: int = 64,
        max_inline_bytes: int = 512 << 10,
        grace: float = 1.5,
    ) -> None:
        if not 0 < max_threads <= max_handles:
            raise ConfigError(f"need 0 < max_threads <= max_handles, got {max_threads} and {max_handles}")
        self._root = Path(root).absolute()
        self._max_threads = max_threads
        self._max_inline_bytes = max_inline_bytes if hasattr(os, "RWF_NOWAIT") else 0
        self._grace = grace
        self._threads = DaemonExecutor(max_threads)
        self._handles = Handles(max_handles)
        self._slots = WeakKeyDictionary[asyncio.AbstractEventLoop, anyio.Semaphore]()
        self._stuck: set[Future[Any]] = set()
        self._inline_reads = 0
        self._closed = False

    @property
    def max_reads(self) -> int:
        """Reads that can be under way at once; further ones wait."""
        return self._max_threads

    @property
    def stuck(self) -> int:
        """Cancelled reads whose thread has not come back yet; each may still write to its memory."""
        return len(self._stuck)

    async def size(self, name: str) -> int:
        """Return the bytes of a file."""
        self._check(name)
        with self._translating(name):
            status = await aiofiles.os.stat(self._root / name, executor=self._threads)
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"{self._root / name} is not a file; name the files inside it", shard=name)
        return int(status.st_size)

    async def version(self, name: str) -> str:
        """Return what tells a file from what lay there before: when it was last written to."""
        self._check(name)
        with self._translating(name):
            status = await aiofiles.os.stat(self._root / name, executor=self._threads)
        return str(status.st_mtime_ns)

    async def listing(self) -> list[str]:
        """Return the names of the files in the folder itself, but for hidden ones."""
        return await self._listed(os.DirEntry.is_file)

    async def folders(self) -> list[str]:
        """Return the names of the folders in the folder, but for hidden ones."""
        return await self._listed(os.DirEntry.is_dir)

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on; filling nothing does no I/O."""
        self._check(name)
        view = check_range(start, out)
        with self._translating(name):
            filled = self._fill_nowait(name, start, view)
            if filled < len(view):
                filled += await self._fill(name, start + filled, view[filled:])
            elif self._inline_reads % _INLINE_RUN == 0:
                await anyio.lowlevel.checkpoint()

        if filled < len(view):
            size = start + filled if filled else min(start, await self.size(name))
            raise ends_early(name, size, start + len(view))

    def path(self, name: str) -> str:
        """Return where a file lies; no name is the folder."""
        return str(self._root / name)

    def forget(self, name: str) -> None:
        """Keep a file open no longer, once nobody reads from it."""
        self._handles.forget(name)

    async def advise(self, name: str, places: Sequence[tuple[int, int]]) -> None:
        """Tell the kernel that these bytes of a file will be wanted soon, where it can be told."""
        self._check(name)
        if hasattr(os, "posix_fadvise"):
            with self._translating(name):
                await asyncio.wrap_future(self._threads.submit(_advise, self.path(name), places))

    async def aclose(self) -> None:
        """Close all files and end the threads, waiting `grace` seconds for them; twice is free."""
        if self._closed:
            return
        self._closed = True
        self._handles.close()
        self._threads.shutdown(wait=False)
        with anyio.move_on_after(self._grace, shield=True):
            await asyncio.wrap_future(self._threads.ended)
        if self._threads.ended.done():
            self._threads.shutdown(wait=True)  # no call is left, and a thread's last step never waits
        else:
            _log.warning("closed %s, but left a thread behind that is stuck in a read there", self._root)

    def __repr__(self) -> str:
        state = f"handles={self._handles.count} stuck={self.stuck}{' closed' if self._closed else ''}"
        return f"<LocalStorage root={str(self._root)!r} {state}>"

    async def _listed(self, wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
        if self._closed:
            raise ClosedError(f"the storage over {self._root} has been closed; open it again")
        with self._translating("."):
            return await asyncio.wrap_future(self._threads.submit(_listed, self._root, wanted))

    def _check(self, name: str) -> None:
        check_name(name)
        if self._closed:
            raise ClosedError(f"the storage over {self._root} has been closed; open it again", shard=name)

    def _fill_nowait(self, name: str, start: int, view: memoryview) -> int:
        """Read what the page cache holds of an open file; return how many bytes that was."""
        # hot: once per small read
        if not 0 < len(view) <= self._max_inline_bytes or start > _MAX_INLINE_START:
            return 0
        handle = self._handles.take(name, start)
        if handle is None:
            return 0
        try:
            count = os.preadv(handle.fd, [view], start, os.RWF_NOWAIT)
        except OSError as error:  # mostly EAGAIN, not in the cache; a real fault meets the thread again
            count = 0
            if error.errno in _NOT_SUPPORTED:
                self._max_inline_bytes = 0
        self._handles.put(handle)
        self._inline_reads += 1
        return count

    async def _fill(self, name: str, start: int, view: memoryview) -> int:
        """Read in a thread until `view` is full or the file ends; return how many bytes that was."""
        async with self._slot(), self._handle(name, start) as handle:
            try:
                return await handle.fill(start, view)
            except asyncio.CancelledError:
                await self._wait_for_thread(handle)
                raise

    def _slot(self) -> anyio.Semaphore:
        """One of as many slots as there are threads: a read that waits here can be cancelled at no cost."""
        loop = asyncio.get_running_loop()
        if loop not in self._slots:
            self._slots[loop] = anyio.Semaphore(self._max_threads, fast_acquire=True)
        return self._slots[loop]

    @asynccontextmanager
    async def _handle(self, name: str, start: int) -> AsyncIterator[Handle]:
        """Lend an open file, at best one that stands at `start` already."""
        handle = self._handles.take(name, start)
        if handle is None:
            handle = Handle(name, self._threads)
            self._handles.add(handle)
        try:
            if not handle.is_open:
                await handle.open(self._root / name)
            yield handle
        finally:
            if handle.position is None:  # failed or cancelled; whoever tries again gets a fresh file
                self._handles.drop(handle)
            else:
                self._handles.put(handle)

    async def _wait_for_thread(self, handle: Handle) -> None:
        """Wait until the thread of a cancelled read writes no more, or leave it behind."""
        if handle.call.done():
            return
        # how it ends no longer matters, only that it does
        with anyio.move_on_after(self._grace, shield=True), suppress(Exception):
            await asyncio.wrap_future(handle.call)
        if not handle.call.done():
            self._stuck.add(handle.call)
            handle.call.add_done_callback(self._stuck.discard)
            _log.warning(
                "a read of %s is stuck and keeps its memory until it returns", self._root / handle.name
            )

    @contextmanager
    def _translating(self, name: str) -> Iterator[None]:
        """Turn the system's errors into ours."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            message = f"there is no file {self._root / name}; check the name and that the disk is mounted"
            raise NotFoundError(message, shard=name, errno=error.errno) from error
        except OSError as error:
            message = f"cannot read {self._root / name}: {error.strerror}; check the disk and the file's mode"
            raise StorageError(message, shard=name, errno=error.errno, cause=error.strerror) from error


def _listed(root: Path, wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    with os.scandir(root) as entries:
        return [entry.name for entry in entries if not entry.name.startswith(".") and wanted(entry)]


def _advise(path: str, places: Sequence[tuple[int, int]]) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, stop in places:
            os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(fd)
