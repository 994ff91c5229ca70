"""Flow: large reads in parallel parts, and all reads within what a link should have in flight."""

from __future__ import annotations

from collections.abc import Iterator

import anyio

from ..errors import StorageError
from .base import Storage, check_range
from .gate import SMALLEST_COST
from .link import Link
from .wrapping import Wrapping, annotate

__all__ = ["PART_BYTES", "Flowing", "Splitting", "parts"]

PART_BYTES = 8 << 20
"""Below, the way there and back shows; above, the loop is kept by copies of this size."""

_AT_ONCE = 16  # parts of one read that are under way or wait: others' reads get in between


class Flowing(Wrapping):
    """Sends a read when there is room for it in flight, in the order of coming.

    Args:
        storage: the one inside, one request a call.
        link: has the room, and counts requests. Small files and sizes wait for no room.
    """

    def __init__(self, storage: Storage, link: Link) -> None:
        super().__init__(storage)
        self._link = link

    @property
    def max_reads(self) -> int:
        """Reads that can be under way at once; further ones wait."""
        return min(super().max_reads, max(self._link.most // SMALLEST_COST, 1))

    async def size(self, name: str) -> int:
        """Return the bytes of a file."""
        self._link.add(requests=1)
        return await super().size(name)

    async def get(self, name: str) -> bytes:
        """Return all of a small file."""
        self._link.add(requests=1)
        return await super().get(name)

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on."""
        view = check_range(start, out)
        async with self._link.gate.room(len(view)):
            self._link.add(requests=1)
            await self._storage.read_into(name, start, view)


class Splitting(Wrapping):
    """Reads a large range as parts side by side, since one connection alone is seldom as fast as the link.

    A part that fails for good ends the others; `filled` of the error is what came whole from the beginning.

    Args:
        storage: the one inside; it tries again by itself, so that no good part is read twice.
        part_bytes: the largest part.
    """

    def __init__(self, storage: Storage, part_bytes: int = PART_BYTES) -> None:
        super().__init__(storage)
        self._part_bytes = part_bytes

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on."""
        view = check_range(start, out)
        if len(view) <= self._part_bytes:
            await self._storage.read_into(name, start, view)
        else:
            await _Parts(self._storage, name, start, view, self._part_bytes).read()


class _Parts:
    """One large read on its way.

    A part is ended by a scope inside its task: what anyio keeps of a task that is cancelled itself would hold
    the caller's memory until the next garbage collection.
    """

    def __init__(self, storage: Storage, name: str, start: int, view: memoryview, part_bytes: int) -> None:
        self._storage = storage
        self._name = name
        self._start = start
        self._view = view
        self._ahead = iter(parts(len(view), part_bytes))
        self._came = dict[int, int]()  # start of a part to what is right up to
        self._failures = dict[int, Exception]()
        self._scopes = [anyio.CancelScope() for _ in range(_AT_ONCE)]

    async def read(self) -> None:
        async with anyio.create_task_group() as group:
            for scope in self._scopes:
                group.start_soon(self._read_some, scope)
        if self._failures:
            error = self._failures[min(self._failures)]
            self._failures.clear()  # an error that is kept by what its frames hold would keep their memory
            if isinstance(error, StorageError):
                annotate(error, filled=self._filled())
            try:
                raise error
            finally:
                del error

    async def _read_some(self, scope: anyio.CancelScope) -> None:
        with scope:
            for start, stop in self._ahead:
                try:
                    await self._storage.read_into(self._name, self._start + start, self._view[start:stop])
                except Exception as error:  # raised by `read`: bare, not in a group
                    self._came[start] = start + getattr(error, "filled", 0)
                    self._failures[start] = error
                    for other in self._scopes:
                        other.cancel()
                    return
                self._came[start] = stop

    def _filled(self) -> int:
        """Return how many bytes from the beginning are right."""
        filled = 0
        while filled in self._came and self._came[filled] > filled:
            filled = self._came[filled]
        return filled


def parts(size: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut `size` bytes into as few parts of at most `most` as do, all of about one length: start and stop."""
    count = -(-size // most)
    for number in range(count):
        yield size * number // count, size * (number + 1) // count
