"""Arena: memory without a name, shared with workers, that outlives its closing but never its processes."""

from __future__ import annotations

import errno
import gc
import mmap
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioload import errors
from aioload._workers import arena as arena_module
from aioload._workers.arena import Arena, ArenaHandle, Kind

PAGE = mmap.PAGESIZE
KINDS: tuple[Kind, ...] = ("memfd", "shm", "file")


@pytest.fixture(params=KINDS)
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    """An arena of 64 pages, of each kind."""
    with Arena(64 * PAGE, kind=request.param) as arena:
        yield arena


@pytest.fixture
def memfd() -> Iterator[Arena]:
    """A sparse arena of 1 GiB."""
    with Arena(1 << 30, kind="memfd") as arena:
        yield arena


def held(arena: Arena) -> int:
    """Bytes of memory that an arena has cost so far."""
    return os.fstat(arena.fd).st_blocks * 512


class TestMemory:
    def test_array_and_memory_are_the_same_bytes(self, arena: Arena) -> None:
        """What is written through one view is read through the other, over the whole size."""
        arena.array[-1] = 7

        assert len(arena.memory) == len(arena.array) == arena.size == 64 * PAGE
        assert arena.memory[-1] == 7
        assert not arena.memory.readonly

    def test_first_kind_that_works_is_told(self) -> None:
        """On Linux that is memfd."""
        with Arena(PAGE) as arena:
            assert arena.kind == "memfd"
            assert repr(arena) == f"<Arena kind=memfd size={PAGE}>"

    def test_any_size_is_kept_to_the_byte(self) -> None:
        """A size that is no whole number of pages is neither cut nor rounded."""
        with Arena(PAGE + 1) as arena:
            arena.touch(0, arena.size)
            arena.array[:] = 3
            arena.discard(0, arena.size)

            assert len(arena.array) == PAGE + 1
            assert not arena.array.any()

    def test_nothing_has_a_name(self, arena: Arena) -> None:
        """No folder shows what a kill would then leave behind."""
        assert os.fstat(arena.fd).st_nlink == 0

    def test_size_is_sealed(self, memfd: Arena) -> None:
        """No process can cut the memory short under another's feet."""
        with pytest.raises(PermissionError):
            os.ftruncate(memfd.fd, PAGE)

    def test_descriptor_is_not_inherited_by_other_programs(self, arena: Arena) -> None:
        """Only children that are handed the arena have it."""
        assert not os.get_inheritable(arena.fd)


class TestRoom:
    def test_memfd_is_sparse(self, memfd: Arena) -> None:
        """A large arena costs nothing until it is used."""
        assert held(memfd) == 0

    def test_files_set_their_room_aside(self) -> None:
        """A write can never meet a full disk: the room is there from the beginning."""
        with Arena(1 << 20, kind="shm") as shm, Arena(1 << 20, kind="file") as file:
            assert held(shm) >= 1 << 20
            assert held(file) >= 1 << 20

    def test_files_set_their_room_aside_without_fallocate(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Systems without posix_fallocate keep the promise by writing."""
        monkeypatch.delattr(os, "posix_fallocate")

        with Arena((1 << 20) + 5, kind="file") as file:
            assert held(file) >= 1 << 20
            assert os.fstat(file.fd).st_size == (1 << 20) + 5

    def test_touch_makes_pages_present(self, memfd: Arena) -> None:
        """Touched memory is there before it is written, and keeps its content."""
        memfd.array[5] = 9

        memfd.touch(3, 16 * PAGE - 3)

        assert held(memfd) >= 16 * PAGE
        assert memfd.array[5] == 9

    def test_discard_gives_whole_pages_back(self, memfd: Arena) -> None:
        """Pages inside the range are freed and read as zeros; bytes around it stay."""
        memfd.array[: 1 << 22] = 1
        before = held(memfd)

        memfd.discard(PAGE - 1, (1 << 22) - 1)

        assert held(memfd) < before
        assert memfd.array[:PAGE].all()
        assert not memfd.array[PAGE : (1 << 22) - PAGE].any()
        assert memfd.array[(1 << 22) - PAGE : 1 << 22].all()

    @pytest.mark.parametrize("kind", ["shm", "file"])
    def test_discard_keeps_what_a_file_has_set_aside(self, kind: Kind) -> None:
        """Giving room back there could end in SIGBUS later, so nothing happens."""
        with Arena(64 * PAGE, kind=kind) as arena:
            arena.array[:] = 1

            arena.discard(0, arena.size)

            assert arena.array.all()

    def test_kernel_without_populate_is_no_error(self, memfd: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before Linux 5.14 touching is simply left to the first write."""
        monkeypatch.setattr(arena_module, "_POPULATE_WRITE", 9999)  # EINVAL, as those kernels say

        memfd.touch(0, PAGE)

        assert held(memfd) == 0

    @pytest.mark.parametrize("number", [errno.ENOMEM, errno.EFAULT])
    def test_touch_without_memory_is_a_config_error(
        self, memfd: Arena, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """The check up front says what is missing and what to change."""
        monkeypatch.setattr(arena_module, "_advise", lambda *_: number)

        with pytest.raises(errors.ConfigError, match="lower memory_limit") as caught:
            memfd.touch(0, PAGE)

        assert caught.value.facts["size"] == 1 << 30

    @pytest.mark.parametrize("kind", KINDS)
    def test_too_little_room_is_a_config_error(self, kind: Kind) -> None:
        """The error names the size and the place, and no descriptor is left open."""
        with pytest.raises(errors.ConfigError, match=f"{1 << 50} bytes.*lower memory_limit") as caught:
            Arena(1 << 50, kind=kind)

        assert caught.value.facts["size"] == 1 << 50
        assert caught.value.facts["place"] in ("anonymous memory", "/dev/shm", tempfile.gettempdir())

    @pytest.mark.parametrize("kind", KINDS)
    def test_spare_memory_is_there_only_where_it_costs_nothing(self, kind: Kind) -> None:
        """Behind its size a memfd goes on, and is given back there; files have set aside what they have."""
        with Arena(2 * PAGE, kind=kind, spare=3 * PAGE) as arena:
            arena.array[:] = 7
            arena.discard(2 * PAGE, 5 * PAGE if kind == "memfd" else 2 * PAGE)
            found = arena.array.reshape(-1, PAGE).max(axis=1).tolist()

        assert (arena.size, arena.spare) == (2 * PAGE, 3 * PAGE if kind == "memfd" else 0)
        assert found == [7, 7, 0, 0, 0][: len(found)]

    def test_where_too_little_can_be_mapped_there_is_no_spare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process that may map only so much gets what it asked for, and no more."""
        mapped = mmap.mmap

        def limited(fd: int, size: int) -> mmap.mmap:
            if size > 2 * PAGE:
                raise OSError(errno.ENOMEM, "too much")
            return mapped(fd, size)

        monkeypatch.setattr(arena_module.mmap, "mmap", limited)

        with Arena(2 * PAGE, spare=PAGE) as arena:
            assert (arena.size, arena.spare, arena.kind) == (2 * PAGE, 0, "memfd")

    def test_next_kind_is_used_where_one_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without memfd the file in /dev/shm takes its place."""
        monkeypatch.delattr(os, "memfd_create")

        with Arena(PAGE) as arena:
            assert arena.kind == "shm"

    def test_last_kind_is_used_where_both_are_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without either of them it is an unlinked temporary file."""
        monkeypatch.delattr(os, "memfd_create")
        monkeypatch.setitem(arena_module._OPENERS, "shm", refuse)

        with Arena(PAGE) as arena:
            assert arena.kind == "file"

    def test_all_kinds_that_failed_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where nothing works the error lists each place with its reason."""
        monkeypatch.delattr(os, "memfd_create")
        monkeypatch.setitem(arena_module._OPENERS, "shm", refuse)
        monkeypatch.setitem(arena_module._OPENERS, "file", refuse)

        with pytest.raises(errors.ConfigError, match=r"no memfd; /dev/shm: full; .*: full"):
            Arena(PAGE)

    @pytest.mark.parametrize("options", [{"size": 0}, {"size": PAGE, "kind": "heap"}])
    def test_impossible_arena_is_refused(self, options: dict[str, Any]) -> None:
        """Options that cannot work are told at once."""
        with pytest.raises(errors.ConfigError):
            Arena(**options)


class TestClose:
    def test_views_outlive_the_arena(self, arena: Arena) -> None:
        """What a user holds stays valid and keeps its values."""
        array, memory = arena.array[10:20], arena.memory[10:20]
        array[:] = 5

        arena.close()
        gc.collect()

        assert array.tolist() == [5] * 10
        assert memory.tolist() == [5] * 10

    def test_memory_goes_with_the_last_view(self) -> None:
        """The mapping ends when the arena is closed and no view of it is left."""
        arena = Arena(64 * PAGE)
        array = arena.array
        inode = str(os.fstat(arena.fd).st_ino)

        arena.close()
        while_held = inode in Path("/proc/self/maps").read_text()
        del array

        assert while_held
        assert inode not in Path("/proc/self/maps").read_text().split()

    def test_close_twice_is_free(self, arena: Arena) -> None:
        """The second close does nothing, also to a descriptor that has the number by now."""
        fd = arena.fd
        arena.close()
        reader, writer = os.pipe()

        arena.close()

        assert fd in (reader, writer)
        os.close(reader)
        os.close(writer)

    def test_use_after_close_says_so(self, arena: Arena) -> None:
        """Each use of a closed arena is a ClosedError."""
        arena.close()

        with pytest.raises(errors.ClosedError):
            _ = arena.array
        with pytest.raises(errors.ClosedError):
            _ = arena.memory
        with pytest.raises(errors.ClosedError):
            _ = arena.fd
        with pytest.raises(errors.ClosedError):
            arena.borrow(0, 1, list)
        with pytest.raises(errors.ClosedError):
            arena.touch(0, 1)
        with pytest.raises(errors.ClosedError):
            arena.discard(0, 1)
        assert repr(arena).endswith(" closed>")

    def test_forgotten_arena_closes_its_descriptor(self) -> None:
        """An arena that nobody closed leaves nothing open once it is collected."""
        arena = Arena(PAGE)
        fd = arena.fd

        del arena
        gc.collect()

        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


class TestBorrow:
    def test_last_reference_releases_once(self, arena: Arena) -> None:
        """The array itself is a reference; when it goes, the loan ends."""
        released: list[str] = []
        loan = arena.borrow(64, 128, lambda: released.append("loan"))
        loan[:] = 4

        before = list(released)
        del loan
        gc.collect()

        assert before == []
        assert released == ["loan"]
        assert arena.array[64:128].tolist() == [4] * 64

    @pytest.mark.parametrize(
        "take",
        [
            lambda loan: loan[3:],
            lambda loan: loan[3:][2:][1:],
            lambda loan: loan.view(np.float32)[1:].reshape(5, 3),
            lambda loan: np.asarray(loan[:4]).T,
            lambda loan: memoryview(loan)[2:4],
            lambda loan: np.frombuffer(memoryview(loan)[8:16], dtype=np.int64),
            lambda loan: {"nested": [loan[:1]]},
        ],
        ids=["slice", "slices", "dtype", "asarray", "memoryview", "frombuffer", "container"],
    )
    def test_views_are_references(self, arena: Arena, take: Any) -> None:
        """Whatever is made from the array without a copy keeps the loan."""
        released: list[str] = []
        loan = arena.borrow(0, 64, lambda: released.append("loan"))

        view = take(loan)
        del loan
        gc.collect()
        while_held = list(released)
        del view
        gc.collect()

        assert while_held == []
        assert released == ["loan"]

    def test_tensors_are_references(self, arena: Arena) -> None:
        """A torch tensor over a view, and views of that tensor, keep the loan too."""
        torch = pytest.importorskip("torch")
        released: list[str] = []
        loan = arena.borrow(0, 64, lambda: released.append("loan"))

        tensor = torch.from_numpy(loan[:16].view(np.float32))[2:]
        del loan
        gc.collect()
        while_held = list(released)
        del tensor
        gc.collect()

        assert while_held == []
        assert released == ["loan"]

    def test_copies_are_no_references(self, arena: Arena) -> None:
        """What was copied out does not hold the loan."""
        released: list[str] = []
        loan = arena.borrow(0, 64, lambda: released.append("loan"))

        copy = loan[3:].copy()
        del loan

        assert released == ["loan"]
        assert len(copy) == 61

    def test_loan_outlives_the_arena(self) -> None:
        """Closing neither ends a loan nor reports it."""
        released: list[str] = []
        arena = Arena(PAGE)
        loan = arena.borrow(0, 64, lambda: released.append("loan"))

        arena.close()
        loan[:] = 6
        while_held = list(released)
        del loan

        assert while_held == []
        assert released == ["loan"]

    def test_empty_loan_is_a_loan(self, arena: Arena) -> None:
        """A batch without rows takes the same road."""
        released: list[str] = []

        loan = arena.borrow(arena.size, arena.size, lambda: released.append("loan"))
        length = len(loan)
        del loan

        assert length == 0
        assert released == ["loan"]

    @pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 64 * PAGE + 1)])
    def test_range_outside_is_refused(self, arena: Arena, start: int, stop: int) -> None:
        """A range that is not inside the arena is a mistake of the caller."""
        with pytest.raises(ValueError, match="not a range of an arena"):
            arena.borrow(start, stop, list)

    def test_exit_does_not_report_what_is_alive(self) -> None:
        """At interpreter exit nobody is called back: the parts that would listen may be gone."""
        script = (
            "from aioload._workers.arena import Arena\n"
            "loan = Arena(4096).borrow(0, 1, lambda: print('released'))\n"
        )

        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

        assert done.stdout == done.stderr == ""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
class TestHandle:
    @pytest.mark.parametrize("kind", KINDS)
    def test_child_writes_what_parent_reads(self, method: str, kind: Kind) -> None:
        """A pool's workers map the same memory, each of them once."""
        context = multiprocessing.get_context(method)
        with (
            Arena(64 * PAGE, kind=kind) as arena,
            ProcessPoolExecutor(1, context, start_child, (ArenaHandle(arena),)) as pool,
        ):
            seen = pool.submit(write_in_child, 100, 42).result()

            assert seen == f"<Arena kind={kind} size={64 * PAGE}> once, inheritable=False"
            assert arena.array[100] == 42

    def test_handle_travels_with_a_process(self, method: str) -> None:
        """A plain process takes it among its arguments."""
        context = multiprocessing.get_context(method)
        with Arena(64 * PAGE) as arena:
            process = context.Process(target=fill_in_child, args=(ArenaHandle(arena), 9))

            process.start()
            process.join()

            assert process.exitcode == 0
            assert arena.array.tolist() == [9] * (64 * PAGE)
            process.close()

    def test_closed_arena_starts_no_child(self, method: str) -> None:
        """A worker cannot be started any more once the arena has been closed."""
        context = multiprocessing.get_context(method)
        arena = Arena(PAGE)
        process = context.Process(target=fill_in_child, args=(ArenaHandle(arena), 9))
        arena.close()

        with pytest.raises(errors.ClosedError):
            process.start()


class TestHandleAtHome:
    def test_attach_where_it_was_made_is_the_arena(self, arena: Arena) -> None:
        """Without workers the same code runs on the same arena."""
        assert ArenaHandle(arena).attach() is arena

    def test_handle_is_not_pickled_at_any_other_time(self, arena: Arena) -> None:
        """Handing it over with a task is an error that says what to do."""
        with pytest.raises(pickle.PicklingError, match="initialiser"):
            pickle.dumps(ArenaHandle(arena))


@pytest.mark.parametrize("kind", KINDS)
def test_sigkill_leaves_nothing(kind: Kind, tmp_path: Path) -> None:
    """A killed parent leaves no file in /dev/shm and none among the temporary files."""
    script = (
        "import os, signal\n"
        "from aioload._workers.arena import Arena\n"
        f"arena = Arena(1 << 20, kind={kind!r})\n"
        "arena.array[:] = 1\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    segments = set(Path("/dev/shm").glob("aioload-*"))

    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"TMPDIR": str(tmp_path)}, check=False
    )

    assert done.returncode == -signal.SIGKILL
    assert set(Path("/dev/shm").glob("aioload-*")) <= segments
    assert list(tmp_path.iterdir()) == []


def refuse(size: int) -> int:
    """Stand in for a place without room."""
    raise OSError(errno.ENOSPC, "full")


class _Child:
    """What a child keeps between tasks."""

    handle: ArenaHandle


def start_child(handle: ArenaHandle) -> None:
    """Run in a pool's worker when it starts."""
    _Child.handle = handle


def write_in_child(position: int, value: int) -> str:
    """Write one byte and say what the arena looks like from here."""
    arena = _Child.handle.attach()
    arena.array[position] = value
    times = "once" if _Child.handle.attach() is arena else "again"
    return f"{arena!r} {times}, inheritable={os.get_inheritable(arena.fd)}"


def fill_in_child(handle: ArenaHandle, value: int) -> None:
    """Fill the whole arena."""
    handle.attach().array[:] = value
