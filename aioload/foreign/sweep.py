"""Sweep: one way through a file from front to back, whose bytes are read before they are asked for.

Over a network one read at a time leaves the link idle for as long as each answer takes. Whoever looks through
a shard asks for windows that follow, or nearly follow, each other; once that has been seen, a few pieces
behind them are read side by side. Who hops from place to place gets just what is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from ..errors import AioloadError
from ..reason import first_of
from ..storage import read

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..storage import Storage

__all__ = ["Sweep", "sweeping"]

_PIECE_BYTES = 4 << 20
_LEAST_BYTES = 1 << 20  # of a window of somebody who reads everything
_NEAR_BYTES = 1 << 20  # from the end of one window to the next
_WINDOWS = 2  # that follow each other, before anything is read ahead


@asynccontextmanager
async def sweeping(storage: Storage, name: str, size: int, depth: int) -> AsyncIterator[Sweep]:
    """Open a file for going through it.

    Args:
        storage: where it is.
        name: its.
        size: its, in bytes.
        depth: pieces of 4 MiB that may be under way; 0 reads nothing ahead.
    """
    try:
        async with anyio.create_task_group() as group:
            yield Sweep(storage, name, size, depth, group)
            group.cancel_scope.cancel()
    except BaseExceptionGroup as several:
        raise first_of(several) from None


class Sweep:
    """One file; `sweeping` opens it."""

    def __init__(self, storage: Storage, name: str, size: int, depth: int, group: TaskGroup) -> None:
        self._storage = storage
        self._name = name
        self._size = size
        self._depth = depth
        self._group = group
        self._pieces: deque[_Piece] = deque()
        self._last = (0, 0)
        self._run = 0

    async def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`."""
        before, after = self._last
        follows = before <= start <= after + _NEAR_BYTES and stop - start >= _LEAST_BYTES
        self._run = self._run + 1 if follows else 0
        self._last = start, stop
        if self._run < _WINDOWS or not self._depth:
            self._pieces.clear()
            return await read(self._storage, self._name, start, stop)
        self._go_on(start, stop)
        found = bytearray()
        for piece in self._pieces:
            if piece.start < stop:
                data = memoryview(await piece.taken())
                found += data[max(start - piece.start, 0) : stop - piece.start]
        return bytes(found)

    def _go_on(self, start: int, stop: int) -> None:
        """Let go of what lies before a window, and begin what it needs and a little more."""
        while self._pieces and self._pieces[0].stop <= start:
            self._pieces.popleft()
        if self._pieces and self._pieces[0].start > start:
            self._pieces.clear()
        end = self._pieces[-1].stop if self._pieces else start
        while end < min(stop + self._depth * _PIECE_BYTES, self._size):
            piece = _Piece(end, min(end + _PIECE_BYTES, self._size))
            self._group.start_soon(piece.bring, self._storage, self._name)
            self._pieces.append(piece)
            end = piece.stop


class _Piece:
    """Bytes on their way."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self._is_there = anyio.Event()
        self._data = b""
        self._error: AioloadError | None = None

    async def bring(self, storage: Storage, name: str) -> None:
        """Read them; an error is that of whoever takes them, if anybody does."""
        try:
            self._data = await read(storage, name, self.start, self.stop)
        except AioloadError as error:
            self._error = error
        self._is_there.set()

    async def taken(self) -> bytes:
        """Wait for them."""
        await self._is_there.wait()
        if self._error is not None:
            raise self._error
        return self._data
