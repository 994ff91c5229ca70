"""What every storage must do, as a class of tests for whoever writes a storage of their own.

It stands apart from the package, which never imports it: it needs pytest, and something that runs async tests
(pytest-asyncio in its auto mode, or anyio's plugin with `anyio_mode = auto`).

    from aioload.testing import FILES, StorageContract

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def storage(self, tmp_path):
            return MyStorage(filled_with(FILES))
"""

from __future__ import annotations

import anyio
import pytest

from . import errors
from .storage import Storage, read

__all__ = ["CONTENT", "FILES", "StorageContract"]

CONTENT = bytes(range(256)) * 4099  # a little over 1 MiB, and no power of two
"""What `data.bin` holds."""

FILES = {"data.bin": CONTENT, "empty.bin": b"", "deep/er/small.bin": b"0123456789"}
"""What a storage under test must hold, by name."""

_NO_NAMES = ["", ".", "..", "/etc/passwd", "../secret", "deep/../../secret", "deep/..", "nul\0byte"]


class StorageContract:
    """What every storage promises; a subclass gives the fixture `storage`, which holds `FILES`."""

    @pytest.fixture
    def storage(self) -> Storage:
        """Give a storage that holds `FILES`; the subclass does."""
        raise NotImplementedError("give a storage that holds FILES")

    async def test_is_a_storage(self, storage: Storage) -> None:
        """The two methods are there."""
        assert isinstance(storage, Storage)

    @pytest.mark.parametrize("name", FILES)
    async def test_size_is_the_number_of_bytes(self, storage: Storage, name: str) -> None:
        """Sizes are exact, also of an empty file and of one in a folder."""
        assert await storage.size(name) == len(FILES[name])

    @pytest.mark.parametrize("name", FILES)
    async def test_whole_file_comes_back(self, storage: Storage, name: str) -> None:
        """Reading without bounds gives all bytes."""
        assert await read(storage, name) == FILES[name]

    @pytest.mark.parametrize(
        ("start", "stop"),
        [(0, 1), (0, 10), (255, 257), (len(CONTENT) - 1, len(CONTENT)), (3, len(CONTENT)), (65536, 400_000)],
    )
    async def test_ranges_are_exact(self, storage: Storage, start: int, stop: int) -> None:
        """A range is the bytes from `start` to before `stop`, the same on every read."""
        first = await read(storage, "data.bin", start, stop)
        second = await read(storage, "data.bin", start, stop)

        assert first == second == CONTENT[start:stop]

    async def test_only_the_given_memory_is_written(self, storage: Storage) -> None:
        """Bytes beside `out` stay as they are."""
        memory = bytearray(b"." * 20)

        await storage.read_into("deep/er/small.bin", 2, memoryview(memory)[5:10])

        assert memory == b".....23456.........."

    async def test_memory_of_any_type_is_filled(self, storage: Storage) -> None:
        """`out` counts in bytes, whatever its items are."""
        memory = memoryview(bytearray(8)).cast("I")

        await storage.read_into("deep/er/small.bin", 1, memory)

        assert memory.tobytes() == b"12345678"

    @pytest.mark.parametrize("start", [0, 5, 10])
    async def test_filling_nothing_is_free(self, storage: Storage, start: int) -> None:
        """An empty `out` is full at once, up to the end of the file."""
        assert await read(storage, "deep/er/small.bin", start, start) == b""

    @pytest.mark.parametrize(
        ("start", "stop"),
        [(0, 11), (9, 11), (10, 11), (500, 600), (1 << 40, (1 << 40) + 8), (1 << 62, (1 << 62) + 1)],
    )
    async def test_file_that_ends_early_is_a_shard_error(
        self, storage: Storage, start: int, stop: int
    ) -> None:
        """Missing bytes are never made up: the error says which file ends where."""
        with pytest.raises(
            errors.ShardError, match=f"ends at byte 10, but should go on to byte {stop}"
        ) as caught:
            await read(storage, "deep/er/small.bin", start, stop)

        assert caught.value.shard == "deep/er/small.bin"
        assert caught.value.offset == 10

    @pytest.mark.parametrize("start", [(1 << 63) - 1, 1 << 63, (1 << 64) - 1])
    async def test_start_that_no_system_call_takes_is_a_shard_error(
        self, storage: Storage, start: int
    ) -> None:
        """An index that points anywhere at all gives the same error."""
        with pytest.raises(errors.ShardError, match="ends at byte 10"):
            await storage.read_into("deep/er/small.bin", start, memoryview(bytearray(4)))

    async def test_start_after_the_end_is_a_shard_error(self, storage: Storage) -> None:
        """Reading from beyond the end to the end is not an empty read."""
        with pytest.raises(errors.ShardError, match="ends at byte 10"):
            await read(storage, "deep/er/small.bin", 11)

    async def test_read_of_an_empty_file_is_a_shard_error(self, storage: Storage) -> None:
        """A file without bytes ends at byte 0."""
        with pytest.raises(errors.ShardError, match="ends at byte 0"):
            await read(storage, "empty.bin", 0, 1)

    @pytest.mark.parametrize(
        "name", ["missing.bin", "deep/missing.bin", "nowhere/missing.bin", "data.bin/inside"]
    )
    async def test_missing_file_is_a_not_found_error(self, storage: Storage, name: str) -> None:
        """Both methods say so, and the error is the builtin one too."""
        with pytest.raises(errors.NotFoundError, match="there is no") as caught:
            await storage.size(name)
        with pytest.raises(FileNotFoundError):
            await storage.read_into(name, 0, memoryview(bytearray(1)))

        assert caught.value.shard == name

    @pytest.mark.parametrize("name", _NO_NAMES)
    async def test_name_that_leads_out_is_a_config_error(self, storage: Storage, name: str) -> None:
        """Names stay inside the storage."""
        with pytest.raises(errors.ConfigError, match="not a file name inside a storage"):
            await storage.size(name)
        with pytest.raises(errors.ConfigError, match="not a file name inside a storage"):
            await storage.read_into(name, 0, memoryview(bytearray(1)))

    @pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4)])
    async def test_impossible_range_is_a_value_error(self, storage: Storage, start: int, stop: int) -> None:
        """A range that is none is a mistake of the caller, not of the storage."""
        with pytest.raises(ValueError, match="must not be"):
            await read(storage, "data.bin", start, stop)

    async def test_many_reads_at_once_do_not_mix(self, storage: Storage) -> None:
        """A hundred reads of one file, in flight together, each get their own bytes."""
        starts = range(0, 100 * 10_007, 10_007)
        parts = [bytearray(12_345) for _ in starts]

        async with anyio.create_task_group() as group:
            for start, part in zip(starts, parts, strict=True):
                group.start_soon(storage.read_into, "data.bin", start, memoryview(part))

        assert parts == [CONTENT[start : start + 12_345] for start in starts]

    async def test_cancelled_read_leaves_its_memory_alone(self, storage: Storage) -> None:
        """After a cancelled read has returned its memory can be used for something else."""
        memory = bytearray(len(CONTENT))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await storage.read_into("data.bin", 0, memoryview(memory))
        memory[:] = bytes(len(memory))

        whole = await read(storage, "data.bin")

        assert whole == CONTENT
        assert not any(memory)

    async def test_failed_read_can_be_tried_again(self, storage: Storage) -> None:
        """An error is no state: the next read of the same file works."""
        with pytest.raises(errors.ShardError):
            await read(storage, "deep/er/small.bin", 5, 50)

        assert await read(storage, "deep/er/small.bin") == b"0123456789"
