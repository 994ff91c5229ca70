"""Reading: the files of a set without an event loop, be it a local folder or an address in the network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from ..errors import NotFoundError
from ..shard.reader import LocalReader, Reader
from .base import Storage, close, read
from .remote import Remote

__all__ = ["open_reader"]


@contextmanager
def open_reader(data: str, storage_options: Mapping[str, Any] | None) -> Iterator[Reader]:
    """Give the files of a set, without an event loop of the caller's.

    Raises:
        NotFoundError: there is no such folder.
        ConfigError: the address or an option cannot be.
    """
    if "://" not in data:
        if not Path(data).is_dir():
            raise NotFoundError(f"{data} is no folder")
        yield LocalReader(data)
        return

    remote = Remote(data, storage_options)
    with start_blocking_portal() as portal:
        storage = remote.open()
        try:
            yield _NetworkReader(storage, portal)
        finally:
            portal.call(close, storage)


class _NetworkReader:
    """Files of a network storage."""

    def __init__(self, storage: Storage, portal: BlockingPortal) -> None:
        self._storage = storage
        self._portal = portal

    def size(self, name: str) -> int:
        """Return the size of a file."""
        return self._portal.call(self._storage.size, name)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return bytes of a file, fewer where it ends early."""
        return self._portal.call(self._read, name, start, stop)

    async def _read(self, name: str, start: int, stop: int) -> bytes:
        stop = min(stop, await self._storage.size(name))
        return await read(self._storage, name, start, stop) if start < stop else b""
