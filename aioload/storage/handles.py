"""Open files: each in the hands of one reader or idle, and never more than so many.

A reader has a handle to itself, since a seek and the read after it belong together.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future
from io import FileIO
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from aiofiles.threadpool import wrap

__all__ = ["Handle", "Handles"]

P = ParamSpec("P")
T = TypeVar("T")

_TOO_FAR = frozenset({errno.EINVAL, errno.EOVERFLOW})  # a seek's answer where no file can be that long


class Handle:
    """An open file in the hands of one reader, or of none."""

    def __init__(self, name: str, threads: Executor) -> None:
        self.name = name
        self.position: int | None = None
        """Where the file stands; None where that is not known."""
        self._calls = _LastCall(threads)
        self._opening: Future[FileIO] | None = None

    @property
    def is_open(self) -> bool:
        """Whether `open` was called."""
        return self._opening is not None

    @property
    def call(self) -> Future[Any]:
        """The call made last, which may still be in its thread."""
        assert self._calls.last is not None
        return self._calls.last

    async def open(self, path: Path) -> None:
        """Open the file, unbuffered; its event loop is whichever reads, not the one it was opened in."""
        self._opening = self._calls.submit(FileIO, str(path))
        raw = await asyncio.wrap_future(self._opening)
        self.fd = raw.fileno()
        self._file = wrap(raw, executor=self._calls)
        self.position = 0

    async def fill(self, start: int, view: memoryview) -> int:
        """Read until `view` is full or the file ends; return how many bytes that was."""
        position, self.position = self.position, None
        if position != start and not await self._seek(start):
            return 0
        filled = 0
        while filled < len(view):
            count = await self._file.readinto(view[filled:])
            if not count:
                return filled
            filled += count
        self.position = start + filled
        return filled

    def close(self) -> None:
        """Close the file as soon as no call is in a thread; a file that was only read closes at once."""
        if self._opening is not None:
            self.call.add_done_callback(self._close)

    async def _seek(self, start: int) -> bool:
        """Go to `start`; False where no file could ever be that long."""
        try:
            await self._file.seek(start)
        except OverflowError:
            return False
        except OSError as error:
            if error.errno not in _TOO_FAR:
                raise
            return False
        return True

    def _close(self, _: Future[Any]) -> None:
        opening = self._opening
        if opening is not None and not opening.cancelled() and opening.exception() is None:
            opening.result().close()


class _LastCall(Executor):
    """The threads as one file sees them: what it asked for last can be waited for, even after a cancel."""

    def __init__(self, threads: Executor) -> None:
        self.last: Future[Any] | None = None
        self._threads = threads

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        self.last = future = self._threads.submit(fn, *args, **kwargs)
        return future


class Handles:
    """All open files: in the hands of a reader, or idle by name, the least recently used name first."""

    def __init__(self, limit: int) -> None:
        self.count = 0
        self._limit = limit
        self._idle: OrderedDict[str, list[Handle]] = OrderedDict()
        self._closed = False
        self._lock = threading.Lock()  # two event loops may read from one storage

    def take(self, name: str, start: int) -> Handle | None:
        """Take an idle handle of a file, at best one that stands at `start`."""
        with self._lock:
            idle = self._idle.get(name)
            if idle is None:
                return None
            handle = idle.pop(next((i for i, other in enumerate(idle) if other.position == start), -1))
            if not idle:
                del self._idle[name]
            return handle

    def add(self, handle: Handle) -> None:
        """Count a handle that is about to be opened, and close an idle one where there are too many."""
        with self._lock:
            oldest = self._pop_oldest() if self.count >= self._limit and self._idle else None
            self.count += oldest is None
        if oldest is not None:
            oldest.close()

    def put(self, handle: Handle) -> None:
        """Take a handle back that may be used again."""
        with self._lock:
            if not self._closed:
                self._idle.setdefault(handle.name, []).append(handle)
                self._idle.move_to_end(handle.name)
                return
        self.drop(handle)

    def forget(self, name: str) -> None:
        """Close the idle handles of a file."""
        with self._lock:
            idle = self._idle.pop(name, [])
        for handle in idle:
            self.drop(handle)

    def drop(self, handle: Handle) -> None:
        """Close a handle that is not to be used again."""
        with self._lock:
            self.count -= 1
        handle.close()

    def close(self) -> None:
        """Close the idle handles, and from now on each that comes back."""
        with self._lock:
            self._closed = True
            idle = [handle for handles in self._idle.values() for handle in handles]
            self._idle.clear()
        for handle in idle:
            self.drop(handle)

    def _pop_oldest(self) -> Handle:
        name, handles = next(iter(self._idle.items()))
        handle = handles.pop(0)
        if not handles:
            del self._idle[name]
        return handle
