"""Files held in memory keep the contract."""

from __future__ import annotations

import pytest
import trio
from contract import FILES, StorageContract

from aioload.storage import MemoryStorage, read


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> MemoryStorage:
        return MemoryStorage(FILES)


async def test_content_is_looked_at_on_each_read() -> None:
    """A test can change a file between two reads."""
    files = {"a": b"old"}
    storage = MemoryStorage(files)
    before = await read(storage, "a")

    files["a"] = b"newer"

    assert before == b"old"
    assert await read(storage, "a") == b"newer"


def test_runs_on_trio() -> None:
    """Nothing in it is asyncio's."""
    assert trio.run(read, MemoryStorage(FILES), "deep/er/small.bin") == b"0123456789"


def test_repr_shows_the_state() -> None:
    """The number of files, and no data."""
    assert repr(MemoryStorage(FILES)) == "<MemoryStorage files=3>"
