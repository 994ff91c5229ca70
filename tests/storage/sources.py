"""A source of bytes for the tests of the cache: it counts, has tags, and can be cut off."""

from __future__ import annotations

from collections.abc import Mapping

from aioload.errors import StorageError
from aioload.storage import MemoryStorage

__all__ = ["Source"]


class Source:
    """Files in memory as a server would have them.

    Args:
        files: content by name.
        tags: by name; files without have none.
    """

    def __init__(self, files: Mapping[str, bytes], tags: Mapping[str, str] | None = None) -> None:
        self.reads: list[tuple[str, int, int]] = []
        self.asked: list[str] = []
        self.reachable = True
        self._storage = MemoryStorage(files)
        self._tags = {} if tags is None else tags

    @property
    def fetched(self) -> int:
        """Bytes that were asked for."""
        return sum(stop - start for _, start, stop in self.reads)

    async def size(self, name: str) -> int:
        self._reach()
        return await self._storage.size(name)

    async def version(self, name: str) -> str | None:
        self._reach()
        self.asked.append(name)
        return self._tags.get(name)

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        self._reach(start)
        self.reads.append((name, start, start + len(out)))
        await self._storage.read_into(name, start, out)

    def _reach(self, start: int | None = None) -> None:
        if not self.reachable:
            raise StorageError("the network is down" + ("" if start is None else f" at {start}"))
