"""A storage on loan: all that it does, but for closing it, which is its owner's."""

from __future__ import annotations

from typing import Any

from .base import Storage

__all__ = ["Lent"]


class Lent:
    """A user's storage as a loader gets it, who closes what it is given.

    Args:
        storage: the user's.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return await self._storage.size(name)

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on."""
        await self._storage.read_into(name, start, out)

    def __getattr__(self, name: str) -> Any:
        """Lend what a storage may have besides, such as `max_reads`."""
        if name == "aclose" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._storage, name)

    def __repr__(self) -> str:
        return repr(self._storage)
