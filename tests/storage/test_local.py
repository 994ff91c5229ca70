"""Files on disk keep the contract, in few handles, and a read that is stuck harms nobody."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable
from io import FileIO
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from contract import CONTENT, FILES, StorageContract

from aioload import errors
from aioload._workers.arena import Arena
from aioload.storage import LocalStorage, handles, read

MakeStorage = Callable[..., LocalStorage]


class Gate:
    """Makes files whose reads wait in their thread until the gate opens."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.arrived = asyncio.Event()
        self.opened = threading.Event()
        self.files: list[FileIO] = []
        self.gate_opening = False

    def open_file(self, path: str) -> FileIO:
        """Stand in for `FileIO`."""
        if self.gate_opening:
            self.wait()
        file = GateFile(path)
        file.gate = self
        self.files.append(file)
        return file

    def wait(self) -> None:
        self.loop.call_soon_threadsafe(self.arrived.set)
        self.opened.wait()


class GateFile(FileIO):
    """A file behind a gate."""

    gate: Gate

    def readinto(self, view: Any, /) -> int:
        self.gate.wait()
        return super().readinto(view)


class CountedFile(FileIO):
    """A file that is counted while it is open, with its seeks."""

    lock = threading.Lock()
    open_now = most_open = seeks = 0

    def __init__(self, path: str) -> None:
        super().__init__(path)
        with self.lock:
            CountedFile.open_now += 1
            CountedFile.most_open = max(CountedFile.most_open, CountedFile.open_now)

    def seek(self, *args: int) -> int:
        CountedFile.seeks += 1
        return super().seek(*args)

    def close(self) -> None:
        with self.lock:
            CountedFile.open_now -= not self.closed
        super().close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the files of the contract."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.fixture
async def make_storage(root: Path) -> AsyncIterator[MakeStorage]:
    """Open storages over the folder, and close them at the end."""
    storages: list[LocalStorage] = []

    def make(**options: Any) -> LocalStorage:
        storages.append(LocalStorage(root, **options))
        return storages[-1]

    yield make
    for storage in storages:
        await storage.aclose()


@pytest.fixture
async def gate(monkeypatch: pytest.MonkeyPatch, make_storage: MakeStorage) -> AsyncIterator[Gate]:
    """A gate in front of all reads in threads."""
    gate = Gate()
    monkeypatch.setattr(handles, "FileIO", gate.open_file)
    yield gate
    gate.opened.set()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[CountedFile]:
    """Files that are counted."""
    CountedFile.open_now = CountedFile.most_open = CountedFile.seeks = 0
    monkeypatch.setattr(handles, "FileIO", CountedFile)
    return CountedFile


class TestLocalStorage(StorageContract):
    @pytest.fixture
    def storage(self, make_storage: MakeStorage) -> LocalStorage:
        return make_storage()


class TestLocalStorageInThreads(StorageContract):
    @pytest.fixture
    def storage(self, make_storage: MakeStorage) -> LocalStorage:
        return make_storage(max_inline_bytes=0)


class TestLocalStorageWithOneHandle(StorageContract):
    @pytest.fixture
    def storage(self, make_storage: MakeStorage) -> LocalStorage:
        return make_storage(max_threads=1, max_handles=1)


class TestOpening:
    async def test_making_one_does_no_io(self, make_storage: MakeStorage) -> None:
        """Neither a thread nor a handle exists before the first read, and the folder need not exist."""
        threads = threading.active_count()

        storage = LocalStorage("/no/such/folder")

        assert repr(storage) == "<LocalStorage root='/no/such/folder' handles=0 stuck=0>"
        assert threading.active_count() == threads

    async def test_root_stays_where_it_was(
        self, root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A relative root is meant as of now; changing the directory later does not move it."""
        monkeypatch.chdir(root.parent)
        storage = LocalStorage(root.name)

        monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))

        assert await read(storage, "deep/er/small.bin") == b"0123456789"
        await storage.aclose()

    @pytest.mark.parametrize(("threads", "limit"), [(0, 4), (5, 4)])
    async def test_impossible_limits_are_refused(self, threads: int, limit: int) -> None:
        """Each thread needs a handle."""
        with pytest.raises(errors.ConfigError, match="max_threads"):
            LocalStorage(".", max_threads=threads, max_handles=limit)

    @pytest.mark.parametrize("use_uvloop", [False, True])
    def test_one_storage_serves_several_loops(self, root: Path, use_uvloop: bool) -> None:
        """Handles opened in one event loop are used in the next, on asyncio and on uvloop."""
        if use_uvloop:
            pytest.importorskip("uvloop")
        storage, options = LocalStorage(root), {"use_uvloop": use_uvloop}

        first = anyio.run(read, storage, "data.bin", backend_options=options)
        second = anyio.run(read, storage, "data.bin", 1, 9, backend_options=options)
        state = repr(storage)
        anyio.run(storage.aclose, backend_options=options)

        assert first == CONTENT
        assert second == CONTENT[1:9]
        assert "handles=1 " in state


class TestHandles:
    async def test_handle_is_kept_and_reused(
        self, make_storage: MakeStorage, counted: type[CountedFile]
    ) -> None:
        """Reads one after the other share one handle, without a seek where one goes on from the last."""
        storage = make_storage(max_inline_bytes=0)

        parts = [await read(storage, "data.bin", start, start + 1000) for start in range(0, 10_000, 1000)]

        assert b"".join(parts) == CONTENT[:10_000]
        assert counted.most_open == 1
        assert counted.seeks == 0

    async def test_reader_takes_the_handle_that_stands_right(
        self, make_storage: MakeStorage, counted: type[CountedFile]
    ) -> None:
        """Two streams through one file keep a handle each."""
        storage = make_storage(max_inline_bytes=0)
        async with anyio.create_task_group() as group:
            group.start_soon(read, storage, "data.bin", 0, 500_000)
            group.start_soon(read, storage, "data.bin", 0, 600_000)
        seeks = counted.seeks

        await read(storage, "data.bin", 500_000, 510_000)
        await read(storage, "data.bin", 600_000, 610_000)
        await read(storage, "data.bin", 510_000, 520_000)

        assert counted.seeks == seeks

    async def test_no_more_handles_than_allowed(
        self, root: Path, make_storage: MakeStorage, counted: type[CountedFile]
    ) -> None:
        """However many files are read at once, few are open."""
        names = [f"{number}.bin" for number in range(40)]
        for name in names:
            (root / name).write_bytes(name.encode())
        storage = make_storage(max_threads=4, max_handles=6)
        buffers = [bytearray(len(name)) for name in names]

        async with anyio.create_task_group() as group:
            for name, buffer in zip(names, buffers, strict=True):
                group.start_soon(storage.read_into, name, 0, memoryview(buffer))

        assert [buffer.decode() for buffer in buffers] == names
        assert counted.most_open <= 6
        assert "handles=6 " in repr(storage)

    async def test_least_recently_used_is_closed(
        self, root: Path, make_storage: MakeStorage, counted: type[CountedFile]
    ) -> None:
        """A file in use again and again stays open."""
        (root / "other.bin").write_bytes(b"other")
        storage = make_storage(max_threads=1, max_handles=2, max_inline_bytes=0)
        await read(storage, "data.bin", 0, 10)
        await read(storage, "deep/er/small.bin", 0, 1)
        await read(storage, "data.bin", 10, 20)

        await read(storage, "other.bin", 0, 1)
        await read(storage, "data.bin", 20, 30)

        assert counted.open_now == counted.most_open == 2
        assert counted.seeks == 0

    async def test_replaced_file_is_opened_again_after_a_failure(
        self, root: Path, make_storage: MakeStorage
    ) -> None:
        """A retry does not read from the file that has just failed."""
        storage = make_storage()
        await read(storage, "deep/er/small.bin", 0, 5)
        (root / "new.bin").write_bytes(b"a longer file")
        (root / "new.bin").rename(root / "deep/er/small.bin")

        with pytest.raises(errors.ShardError):
            await read(storage, "deep/er/small.bin", 0, 13)

        assert await read(storage, "deep/er/small.bin", 0, 13) == b"a longer file"


class TestInline:
    async def test_small_cached_read_needs_no_thread(
        self, make_storage: MakeStorage, counted: type[CountedFile], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Once a file is open, small reads of it are made on the spot."""
        if not hasattr(os, "RWF_NOWAIT"):
            pytest.skip("this system cannot read only what is cached")
        storage = make_storage()
        await read(storage, "data.bin", 0, 10)
        monkeypatch.setattr(storage._threads, "submit", no_thread)

        part = await read(storage, "data.bin", 5000, 70_000)

        assert part == CONTENT[5000:70_000]

    async def test_large_read_is_left_to_a_thread(
        self, make_storage: MakeStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The loop never copies more than a small read."""
        storage = make_storage(max_inline_bytes=1000)
        await read(storage, "data.bin", 0, 1001)
        monkeypatch.setattr(os, "preadv", no_thread)

        part = await read(storage, "data.bin", 0, 1001)

        assert part == CONTENT[:1001]

    @pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
    async def test_unsupported_is_tried_once(
        self, make_storage: MakeStorage, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """Where the file system cannot do it, it is not asked again."""
        storage, fake = make_storage(), FakePreadv(OSError(number, "no"))
        await read(storage, "data.bin", 0, 10)
        monkeypatch.setattr(os, "preadv", fake)

        parts = [await read(storage, "data.bin", start, start + 10) for start in (7, 70, 700)]

        assert parts == [CONTENT[start : start + 10] for start in (7, 70, 700)]
        assert fake.calls == 1

    @pytest.mark.parametrize(
        "error", [BlockingIOError(errno.EAGAIN, "not cached"), OSError(errno.EIO, "disk")]
    )
    async def test_thread_reads_what_is_not_cached(
        self, make_storage: MakeStorage, monkeypatch: pytest.MonkeyPatch, error: OSError
    ) -> None:
        """Nothing in the cache means a read in a thread, and the next small read tries again."""
        storage, fake = make_storage(), FakePreadv(error)
        await read(storage, "data.bin", 0, 10)
        monkeypatch.setattr(os, "preadv", fake)

        parts = [await read(storage, "data.bin", start, start + 10) for start in (7, 70, 700)]

        assert parts == [CONTENT[start : start + 10] for start in (7, 70, 700)]
        assert fake.calls == 3

    async def test_thread_reads_the_rest(
        self, make_storage: MakeStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was cached is kept, what was not comes after it."""
        storage = make_storage()
        await read(storage, "data.bin", 0, 10)
        monkeypatch.setattr(os, "preadv", read_three_bytes)

        part = await read(storage, "data.bin", 100, 1000)

        assert part == CONTENT[100:1000]

    async def test_neighbours_run_between_cached_reads(self, make_storage: MakeStorage) -> None:
        """A task that reads on and on from the cache does not keep the loop for itself."""
        storage, neighbour_ran = make_storage(), asyncio.Event()
        await read(storage, "data.bin", 0, 10)
        asyncio.get_running_loop().call_soon(neighbour_ran.set)

        for start in range(100):
            await storage.read_into("data.bin", start, memoryview(bytearray(10)))

        assert neighbour_ran.is_set()


class TestErrors:
    async def test_folder_is_a_storage_error(self, make_storage: MakeStorage) -> None:
        """A name that stands for a folder is told apart from a file that is missing."""
        storage = make_storage()

        with pytest.raises(errors.StorageError, match="is not a file"):
            await storage.size("deep")
        with pytest.raises(errors.StorageError, match=r"cannot read .*deep: Is a directory") as caught:
            await storage.read_into("deep", 0, memoryview(bytearray(1)))

        assert not isinstance(caught.value, errors.NotFoundError)

    async def test_fault_of_the_disk_is_a_storage_error(
        self, root: Path, make_storage: MakeStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The system's reason, the place and its cause are kept; the handle is not."""
        storage = make_storage()
        monkeypatch.setattr(handles, "FileIO", BrokenFile)

        with pytest.raises(errors.StorageError, match="Input/output error") as caught:
            await read(storage, "data.bin", 0, 10)

        assert str(root / "data.bin") in str(caught.value)
        assert (caught.value.shard, caught.value.errno) == ("data.bin", errno.EIO)
        assert isinstance(caught.value.__cause__, OSError)
        assert "handles=0 " in repr(storage)

    async def test_seek_that_fails_is_a_storage_error(
        self, make_storage: MakeStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A seek is a read's first half, and fails like one."""
        storage = make_storage()
        monkeypatch.setattr(handles, "FileIO", BrokenFile)

        with pytest.raises(errors.StorageError, match="Illegal seek"):
            await read(storage, "data.bin", 5, 10)

    async def test_truncated_file_is_a_shard_error(self, root: Path, make_storage: MakeStorage) -> None:
        """A file that was cut after it was opened ends where it ends now."""
        storage = make_storage()
        await read(storage, "data.bin")
        os.truncate(root / "data.bin", 1000)

        with pytest.raises(errors.ShardError) as caught:
            await read(storage, "data.bin", 900, 1100)

        assert caught.value.offset == 1000


class TestCancelling:
    async def test_cancelled_read_waits_for_its_thread(self, make_storage: MakeStorage, gate: Gate) -> None:
        """It returns only when nobody writes to its memory any more."""
        storage, memory = make_storage(grace=30), bytearray(10)
        reading = asyncio.create_task(storage.read_into("data.bin", 5, memoryview(memory)))
        await gate.arrived.wait()

        reading.cancel()
        await asyncio.wait([reading], timeout=0.05)
        waits = not reading.done()
        gate.opened.set()
        await asyncio.wait([reading])

        assert waits
        assert reading.cancelled()
        assert memory == CONTENT[5:15]
        assert storage.stuck == 0

    async def test_cancelled_scope_waits_too(self, make_storage: MakeStorage, gate: Gate) -> None:
        """The same holds for anyio's cancellation, which comes again and again."""
        storage, memory = make_storage(grace=30), bytearray(10)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(storage.read_into, "data.bin", 5, memoryview(memory))
                await gate.arrived.wait()
                asyncio.get_running_loop().call_later(0.05, gate.opened.set)
                scope.cancel()

        assert scope.cancelled_caught
        assert memory == CONTENT[5:15]

    async def test_stuck_read_is_left_behind_with_its_memory(
        self, make_storage: MakeStorage, gate: Gate, caplog: pytest.LogCaptureFixture
    ) -> None:
        """After the grace the caller goes on, and the memory stays leased until the thread returns."""
        storage, released = make_storage(grace=0.05), list[str]()
        arena = Arena(4096)
        loan = arena.borrow(0, 10, lambda: released.append("loan"))
        reading = asyncio.create_task(storage.read_into("data.bin", 5, loan.data))
        del loan
        await gate.arrived.wait()

        reading.cancel()
        await asyncio.wait([reading])
        cancelled = reading.cancelled()
        del reading
        gc.collect()
        while_stuck = (storage.stuck, list(released))
        gate.opened.set()
        await storage.aclose()
        gc.collect()

        assert cancelled
        assert while_stuck == (1, [])
        assert (storage.stuck, released) == (0, ["loan"])
        assert np.array_equal(arena.array[:10], list(CONTENT[5:15]))
        assert "data.bin is stuck and keeps its memory" in caplog.text
        assert gate.files[0].closed
        arena.close()

    async def test_read_that_waits_its_turn_is_cancelled_at_once(
        self, make_storage: MakeStorage, gate: Gate
    ) -> None:
        """Nothing was begun for it, so there is nothing to wait for."""
        storage = make_storage(max_threads=1, grace=30)
        first = asyncio.create_task(read(storage, "data.bin", 0, 10))
        await gate.arrived.wait()
        second = asyncio.create_task(read(storage, "data.bin", 10, 20))
        await asyncio.sleep(0)

        second.cancel()
        done, _ = await asyncio.wait([second], timeout=10)
        gate.opened.set()

        assert done == {second}
        assert await first == CONTENT[:10]

    async def test_file_that_opens_too_late_is_closed(self, make_storage: MakeStorage, gate: Gate) -> None:
        """An open that was cancelled is not waited for, and leaves no open file."""
        storage = make_storage(grace=30)
        gate.gate_opening = True
        reading = asyncio.create_task(read(storage, "data.bin", 0, 10))
        await gate.arrived.wait()

        reading.cancel()
        done, _ = await asyncio.wait([reading], timeout=10)
        gate.opened.set()
        await storage.aclose()

        assert done == {reading}
        assert [file.closed for file in gate.files] == [True]

    async def test_storage_works_on_after_a_cancelled_read(
        self, make_storage: MakeStorage, gate: Gate
    ) -> None:
        """A cancel in the middle of a read spoils no later one."""
        storage = make_storage(grace=30)
        reading = asyncio.create_task(read(storage, "data.bin", 0, 10))
        await gate.arrived.wait()
        reading.cancel()
        gate.opened.set()
        await asyncio.wait([reading])

        part = await read(storage, "data.bin", 10, 20)

        assert part == CONTENT[10:20]


class TestClosing:
    async def test_close_leaves_no_thread_and_no_file(
        self, make_storage: MakeStorage, counted: type[CountedFile]
    ) -> None:
        """What reading opened is closed."""
        storage, threads = make_storage(), threading.active_count()
        await read(storage, "data.bin")
        await read(storage, "deep/er/small.bin")

        await storage.aclose()

        assert counted.open_now == 0
        assert threading.active_count() == threads
        assert repr(storage).endswith("handles=0 stuck=0 closed>")

    async def test_close_twice_is_free_and_use_says_so(self, make_storage: MakeStorage) -> None:
        """A closed storage reads no more."""
        storage = make_storage()
        await storage.aclose()

        await storage.aclose()

        with pytest.raises(errors.ClosedError):
            await storage.size("data.bin")
        with pytest.raises(errors.ClosedError):
            await storage.read_into("data.bin", 0, memoryview(bytearray(1)))

    async def test_close_lets_a_read_in_its_thread_finish(
        self, make_storage: MakeStorage, gate: Gate
    ) -> None:
        """A read that had begun gets its bytes, and its file is closed after it."""
        storage = make_storage(grace=30)
        reading = asyncio.create_task(read(storage, "data.bin", 0, 10))
        await gate.arrived.wait()
        closing = asyncio.create_task(storage.aclose())
        await asyncio.sleep(0)

        gate.opened.set()
        await closing

        assert await reading == CONTENT[:10]
        assert gate.files[0].closed

    async def test_read_that_waits_its_turn_learns_of_the_close(
        self, make_storage: MakeStorage, gate: Gate
    ) -> None:
        """It ends with a ClosedError, not with silence."""
        storage = make_storage(max_threads=1, grace=30)
        first = asyncio.create_task(read(storage, "data.bin", 0, 10))
        await gate.arrived.wait()
        second = asyncio.create_task(read(storage, "deep/er/small.bin", 0, 10))
        await asyncio.sleep(0)
        closing = asyncio.create_task(storage.aclose())
        await asyncio.sleep(0)

        gate.opened.set()
        await asyncio.wait([first, second, closing])

        assert first.result() == CONTENT[:10]
        assert isinstance(second.exception(), errors.ClosedError)

    async def test_close_does_not_wait_for_a_stuck_thread(
        self, make_storage: MakeStorage, gate: Gate, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It gives up after the grace and says what it left behind."""
        storage = make_storage(grace=0.05)
        reading = asyncio.create_task(read(storage, "data.bin", 0, 10))
        await gate.arrived.wait()

        await storage.aclose()
        still_reading = not reading.done()
        gate.opened.set()
        await asyncio.wait([reading])

        assert still_reading
        assert "left a thread behind" in caplog.text
        assert [record.levelno for record in caplog.records] == [logging.WARNING]


class BrokenFile(FileIO):
    """A file on a bad disk that cannot seek either."""

    def readinto(self, view: Any, /) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def seek(self, *args: int) -> int:
        raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))


class FakePreadv:
    """Stands in for `os.preadv` and fails."""

    def __init__(self, error: OSError) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, *args: object) -> int:
        self.calls += 1
        raise self.error


def read_three_bytes(fd: int, views: list[memoryview], start: int, flags: int) -> int:
    """Stand in for `os.preadv` where the cache ends after three bytes."""
    views[0][:3] = os.pread(fd, 3, start)
    return 3


def no_thread(*args: object) -> None:
    """Stand in for what must not be used."""
    raise AssertionError("used though it should not be")
