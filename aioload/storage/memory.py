"""Files that are held in memory, for tests and small sets."""

from __future__ import annotations

from collections.abc import Mapping

import anyio.lowlevel

from ..errors import NotFoundError
from .base import check_name, check_range, ends_early

__all__ = ["MemoryStorage"]


class MemoryStorage:
    """A storage over a mapping from name to content.

    Args:
        files: content by name; looked at on each read, so that a test can change it.
    """

    def __init__(self, files: Mapping[str, bytes | bytearray | memoryview]) -> None:
        self._files = files

    async def size(self, name: str) -> int:
        """Return the bytes of a file."""
        await anyio.lowlevel.checkpoint()
        return len(self._content(name))

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on."""
        view = check_range(start, out)
        await anyio.lowlevel.checkpoint()
        content = self._content(name)
        if start + len(view) > len(content):
            raise ends_early(name, len(content), start + len(view))
        view[:] = content[start : start + len(view)]

    def __repr__(self) -> str:
        return f"<MemoryStorage files={len(self._files)}>"

    def _content(self, name: str) -> memoryview:
        check_name(name)
        if name not in self._files:
            raise NotFoundError(
                f"there is no {name} in this storage; it holds {len(self._files)} files", shard=name
            )
        return memoryview(self._files[name]).cast("B")
