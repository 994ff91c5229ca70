"""What was read once is read from disk: the same bytes, whatever becomes of disk, source and processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from contract import CONTENT, FILES, StorageContract
from sources import Source

from aioload.storage import Cached, MemoryStorage, Storage, read

MakeCache = Callable[..., Cached]
MIB = 1 << 20


def key_of(name: str) -> str:
    return f"https://example.org/set/{name}"


@pytest.fixture
async def cached(tmp_path: Path) -> AsyncIterator[MakeCache]:
    """Open caches over one folder, and close them at the end."""
    caches: list[Cached] = []

    def make(
        storage: Storage, limit_bytes: int | None = None, key_of: Any = key_of, **options: Any
    ) -> Cached:
        caches.append(Cached(storage, tmp_path / "cache", limit_bytes, key_of, **options))
        return caches[-1]

    yield make
    for cache in caches:
        await cache.aclose()


class TestCached(StorageContract):
    @pytest.fixture
    def storage(self, cached: MakeCache) -> Cached:
        return cached(MemoryStorage(FILES))


class TestCachedThatIsFull(StorageContract):
    @pytest.fixture
    async def storage(self, cached: MakeCache) -> Cached:
        for name in FILES:
            await read(cached(MemoryStorage(FILES)), name)
        return cached(MemoryStorage(FILES))


class TestCachedWithoutRoom(StorageContract):
    @pytest.fixture
    def storage(self, cached: MakeCache) -> Cached:
        return cached(MemoryStorage(FILES), 4096)
