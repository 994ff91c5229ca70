"""Arena: one anonymous stretch of memory that this process shares with its workers.

On Linux it is a memfd: it has no name, so nothing is left after a kill, and /dev/shm does not bound it. It is
sparse: a page costs memory from the moment it is first touched. Its size is sealed, so no process can shrink
it under another's feet (which would end in SIGBUS). Where memfd is missing, a file in /dev/shm and then a
temporary file take its place, both without a name and with all their room set aside at once: running out of
room is an error when the arena is made, never a SIGBUS when it is written.

The mapping lives as long as anything refers to it. Closing an arena gives up its own references and
invalidates nothing: an array or a tensor over it stays what it is, and the memory goes back when the last of
them has gone.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import pickle
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import context, reduction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import ClosedError, ConfigError

__all__ = ["Arena", "ArenaHandle", "Kind"]

Kind = Literal["memfd", "shm", "file"]

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; not among the constants of mmap
_NO_ROOM = frozenset({errno.ENOMEM, errno.EFAULT, errno.ENOSPC})
_ZEROS = bytes(1 << 20)

# mmap.madvise keeps the interpreter lock: touching 512 MiB through it stopped all threads for 1.5 s. ctypes
# lets go of it (Python 3.11, 2 cores).
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Arena:
    """A stretch of shared memory, mapped whole and touched nowhere.

    Args:
        size: bytes; a promise of room only as far as the kind sets it aside.
        kind: "memfd", "shm" or "file" takes that kind or fails; "auto" takes the first of them that works.
        spare: bytes more, behind `size`, that cost nothing before they are touched; none but in a memfd.

    Raises:
        ConfigError: there is no room for `size` bytes; `.size`, `.place` and `.cause` say what was tried.
    """

    _mapping: mmap.mmap | None = None

    def __init__(self, size: int, *, kind: Kind | Literal["auto"] = "auto", spare: int = 0) -> None:
        if size < 1:
            raise ConfigError(f"an arena needs at least one byte, got size={size}", size=size)
        if kind != "auto" and kind not in _OPENERS:
            raise ConfigError(f"kind must be 'auto', 'memfd', 'shm' or 'file', got {kind!r}")
        kinds: tuple[Kind, ...] = ("memfd", "shm", "file") if kind == "auto" else (kind,)
        fd, found = _open(size, kinds, spare)
        try:
            self._map(fd, found, size, spare if found == "memfd" else 0)
        except ConfigError:  # where a process may map only so much, it is better to have no spare
            if not spare:
                raise
            self._map(*_open(size, kinds, 0), size, 0)

    @property
    def fd(self) -> int:
        """The descriptor, which is the arena's own."""
        self._opened()
        return self._fd

    @property
    def array(self) -> NDArray[np.uint8]:
        """All of it, writable, as an array."""
        return np.frombuffer(self._opened(), dtype=np.uint8)

    @property
    def memory(self) -> memoryview:
        """All of it, writable, as a memoryview."""
        return memoryview(self._opened())

    def borrow(self, start: int, stop: int, on_release: Callable[[], object]) -> NDArray[np.uint8]:
        """Return an array over `start` to `stop`; call `on_release` once when nothing refers to it any more.

        Slices of the array, views with another dtype, memoryviews and tensors made from any of them count as
        references: each keeps the array alive. Of what is still alive at interpreter exit nothing is told.

        Args:
            start: first byte.
            stop: the byte after the last.
            on_release: called in whichever thread lets go last, possibly in the middle of any allocation
                there. It must not wait for a lock: let it append to a deque, or call
                `loop.call_soon_threadsafe`.
        """
        mapping = self._opened()
        self._check_range(start, stop)
        # The base of this array is the mapping, not an array. Views of it therefore have *it* as their base,
        # however often they are sliced: numpy only looks through arrays that are themselves views of arrays.
        loan = np.frombuffer(mapping, dtype=np.uint8, count=stop - start, offset=start)
        weakref.finalize(loan, on_release).atexit = False
        return loan

    def touch(self, start: int, stop: int) -> None:
        """Make the pages that hold `start` to `stop` present, without changing a byte.

        Blocks for 0.15 to 0.7 s a GiB, without the interpreter lock: call it in a thread, some MiB at a time.
        Kernels before Linux 5.14 cannot do it, and nothing happens there.

        Raises:
            ConfigError: there is not enough memory.
        """
        array = self.array
        self._check_range(start, stop)
        first = start - start % mmap.PAGESIZE
        error = _advise(array, first, stop, _POPULATE_WRITE)
        if error in _NO_ROOM:
            raise ConfigError(
                f"no memory for bytes {start} to {stop} of the arena ({self.kind}, {self.size} bytes): "
                f"{os.strerror(error)}; lower memory_limit, or free memory on this machine",
                size=self.size,
                place=self.kind,
                cause=os.strerror(error),
            )

    def discard(self, start: int, stop: int) -> None:
        """Give back the memory of the whole pages inside `start` to `stop`; they read as zeros from then on.

        Best effort, and only for memfd: in a file it would undo setting the room aside.
        """
        array = self.array
        self._check_range(start, stop)
        first, last = _page_up(start), stop if stop == self.size + self.spare else stop - stop % mmap.PAGESIZE
        if self.kind == "memfd" and first < last:
            _advise(array, first, last, mmap.MADV_REMOVE)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._mapping is None

    def close(self) -> None:
        """Close the descriptor and give up the mapping, which others may still hold; twice is free."""
        self._mapping = None
        self._close_fd()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Arena kind={self.kind} size={self.size}{' closed' if self.closed else ''}>"

    def _map(self, fd: int, kind: Kind, size: int, spare: int) -> None:
        """Map what `fd` stands for and own the descriptor from now on."""
        self.size, self.spare, self.kind, self._fd = size, spare, kind, fd
        self._close_fd = weakref.finalize(self, os.close, fd)
        try:
            mapping = mmap.mmap(fd, size + spare)
        except OSError as error:
            self._close_fd()
            raise _no_room(size, [(kind, error)]) from error
        with suppress(OSError):  # a kernel without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
        self._mapping = mapping

    def _opened(self) -> mmap.mmap:
        if self._mapping is None:
            raise ClosedError("the arena has been closed; take arrays from it before that, they stay valid")
        return self._mapping

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.size + self.spare:
            raise ValueError(f"bytes {start} to {stop} are not a range of an arena of {self.size} bytes")


class ArenaHandle:
    """An arena on its way to a child process.

    It can be pickled only while a child is being started, as an argument of the process or of a pool's
    initialiser: the descriptor travels beside the pickle.

    Args:
        arena: the arena to hand over; it must be open whenever a child starts.
        beside: another descriptor that goes with it, likewise.
    """

    def __init__(self, arena: Arena, beside: int | None = None) -> None:
        self.beside = beside
        """The descriptor that came with the arena, which is its taker's; none before it was attached."""
        self._arena: Arena | None = arena
        self._arrived: Callable[[], Arena] | None = None

    def attach(self) -> Arena:
        """Return the arena, mapped on the first call; where it was made, that is the arena itself."""
        if self._arena is None:
            assert self._arrived is not None
            self._arena = self._arrived()
        return self._arena

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is None:
            raise pickle.PicklingError(
                "an ArenaHandle reaches a child only while the child is being started; "
                "pass it to the process or the pool's initialiser, not to a task",
            )
        arena = self.attach()
        beside = None if self.beside is None else reduction.DupFd(self.beside)
        return _arrive, (reduction.DupFd(arena.fd), beside, arena.kind, arena.size, arena.spare)


def _arrive(duplicate: Any, beside: Any, kind: Kind, size: int, spare: int) -> ArenaHandle:
    """Make the handle again in the child; nothing is mapped yet."""
    handle = ArenaHandle.__new__(ArenaHandle)

    def attach() -> Arena:
        if beside is not None:
            handle.beside = beside.detach()
            os.set_inheritable(handle.beside, False)
        return _attach(duplicate.detach(), kind, size, spare)

    handle._arena, handle._arrived, handle.beside = None, attach, None
    return handle


def _attach(fd: int, kind: Kind, size: int, spare: int) -> Arena:
    # it was inherited to get here; programs that user code starts have no business with it
    os.set_inheritable(fd, False)
    arena = Arena.__new__(Arena)
    arena._map(fd, kind, size, spare)
    return arena


def _open(size: int, kinds: tuple[Kind, ...], spare: int) -> tuple[int, Kind]:
    """Open the first kind that works."""
    failures: list[tuple[Kind, OSError]] = []
    for kind in kinds:
        try:
            return _OPENERS[kind](size + spare if kind == "memfd" else size), kind
        except OSError as error:
            failures.append((kind, error))
    raise _no_room(size, failures) from failures[-1][1]


def _open_memfd(size: int) -> int:
    """Open memory without a name and fix its size for ever."""
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, "this system has no memfd")
    fd = os.memfd_create("aioload-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError:
        os.close(fd)
        raise
    return fd


def _open_shm(size: int) -> int:
    return _open_unlinked(size, "/dev/shm")


def _open_file(size: int) -> int:
    return _open_unlinked(size, tempfile.gettempdir())


def _open_unlinked(size: int, folder: str) -> int:
    """Open a file that has lost its name before it gets its room: a kill in between leaves nothing."""
    with tempfile.TemporaryFile(dir=folder, prefix="aioload-", buffering=0) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            for start in range(0, size, len(_ZEROS)):
                file.write(_ZEROS[: size - start])
        return os.dup(file.fileno())


_OPENERS: dict[Kind, Callable[[int], int]] = {"memfd": _open_memfd, "shm": _open_shm, "file": _open_file}


def _no_room(size: int, failures: list[tuple[Kind, OSError]]) -> ConfigError:
    """Say what was tried and why none of it worked."""
    places = {"memfd": "anonymous memory", "shm": "/dev/shm", "file": tempfile.gettempdir()}
    tried = "; ".join(f"{places[kind]}: {error.strerror}" for kind, error in failures)
    return ConfigError(
        f"cannot set aside {size} bytes of shared memory ({tried}); lower memory_limit, or make room there",
        size=size,
        place=places[failures[-1][0]],
        cause=tried,
    )


def _advise(array: NDArray[np.uint8], start: int, stop: int, advice: int) -> int:
    """Call madvise without the interpreter lock and return its error number, 0 where there was none."""
    if start == stop:
        return 0
    failed: int = _libc.madvise(array.ctypes.data + start, stop - start, advice)
    return ctypes.get_errno() if failed else 0


def _page_up(position: int) -> int:
    return -(-position // mmap.PAGESIZE) * mmap.PAGESIZE
