"""Wrapping: a storage around a storage, which passes on whatever it does not change."""

from __future__ import annotations

from typing import Any

from ..errors import AioloadError
from .base import Storage, close, folders, listing, read

__all__ = ["MOST_READS", "Wrapping", "annotate"]

MOST_READS = 256  # at once, where the storage inside does not say: each takes a connection


class Wrapping:
    """Passes everything on to the storage inside, also what not every storage has.

    Args:
        storage: the one inside; closed together with this one.
    """

    first_reads = 64
    """Reads that should be under way at once before anything was measured: a network answers late."""
    max_read_bytes = 64 << 20
    """Bytes of a read, from which on two are better: what is too much for a request is split by itself."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def max_reads(self) -> int:
        """Reads that can be under way at once."""
        return int(getattr(self._storage, "max_reads", MOST_READS))

    async def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return await self._storage.size(name)

    async def get(self, name: str) -> bytes:
        """Return all of a small file, in one request where the storage can do that."""
        return await read(self._storage, name)

    async def version(self, name: str) -> str | None:
        """Return what tells this content of a file from another; None where the storage does not know."""
        if not hasattr(self._storage, "version"):
            return None
        tag: str | None = await self._storage.version(name)
        return tag

    async def listing(self) -> list[str]:
        """Return the names of the files in the folder.

        Raises:
            ConfigError: the storage cannot list.
        """
        return await listing(self._storage)

    async def folders(self) -> list[str]:
        """Return the names of the folders in the folder, where the storage tells."""
        return await folders(self._storage)

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on."""
        await self._storage.read_into(name, start, out)

    async def aclose(self) -> None:
        """Close the storage inside."""
        await close(self._storage)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} around {self._storage!r}>"


def annotate(error: AioloadError, **facts: Any) -> None:
    """Write facts into an error that has been made."""
    for name, value in facts.items():
        error.facts[name] = value
        setattr(error, name, value)
