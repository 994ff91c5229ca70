"""The folder of unpacked files: who makes what, and how one is made; `unpackedfiles` tells what lies where.

A file appears by one rename, when all of it is there and was held against its size and sums. What a killed
process leaves is a part, which the next one to make the file removes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..bytelocks import ByteLock
from ..errors import AioloadError, ClosedError, ShardError, StorageError
from ..shard.hashes import Sums
from .codecs import SIZED, BadData, allocate, open_stream, unpack_whole
from .unpackedfiles import LOCKS, OF, UNPACKED_ROOT, USES, slot_of

__all__ = ["Packed", "Place", "UnpackedFolder", "Unpacking"]

_NAMES = re.compile(r"bytes-(\d{1,15})")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PIECE_BYTES = 1 << 20  # read or written at a time


@dataclass(frozen=True, slots=True)
class Packed:
    """What is known of a file that is stored compressed."""

    codec: str
    """How: gzip, zlib, bz2, xz, zstd, brotli, snappy or lz4, or as the ends of file names say it."""
    name: str | None = None
    """What it is called where it is stored; None: as the unpacked one."""
    packed_size: int | None = None
    """Bytes that are stored."""
    size: int | None = None
    """Bytes when unpacked; zstd, brotli, snappy and lz4 need it."""
    packed_hashes: Mapping[str, str] = field(default_factory=dict)
    """Sums of what is stored, hexadecimal, by algorithm."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Sums of the unpacked bytes."""


Reserve = Callable[[int, Callable[[], object] | None], object]


class Place(NamedTuple):
    """An unpacked file that is there."""

    name: str
    """Relative to the root."""
    size: int
    """Its bytes."""


class UnpackedFolder:
    """The folder, shared with all processes of this machine that name the same one. Every method blocks.

    Args:
        folder: where; made when something is first unpacked.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / UNPACKED_ROOT
        self._uses: ByteLock | None = None
        self._lock = threading.Lock()

    def find(self, digest: str, name: str) -> Place | None:
        """Return an unpacked file, if it is there and whole.

        Args:
            digest: of what it is.
            name: of the file, for errors.
        """
        with _telling(self.root, name):
            for entry in _entries(self.root / _place(digest)):
                match = _NAMES.fullmatch(entry.name)
                if match is None:
                    continue
                if _pace(entry)[0] == int(match[1]):
                    with contextlib.suppress(OSError):  # when it was last used, for whoever clears up
                        os.utime(entry)
                    return Place(f"{_place(digest)}/{entry.name}", int(match[1]))
                # the machine went down before all of it was on the disk
                Path(entry).unlink(missing_ok=True)
        return None

    def lock(self, digest: str, name: str) -> ByteLock | None:
        """Say that a file is being made, unless somebody else has said so; the system forgets the dead.

        Args:
            digest: of what it is.
            name: of the file, for errors.
        """
        with _telling(self.root, name):
            self._make_root()
            lock = ByteLock(self.root / LOCKS)
        try:
            held = lock.take(slot_of(digest))
        except OSError:  # a file system without locks: at worst a file is made twice
            held = True
        if held:
            return lock
        lock.close()
        return None

    def use(self, digest: str) -> None:
        """Keep a file from being removed by those who make room, from now on."""
        # a folder that cannot be written to, or has no locks, loses nothing
        with contextlib.suppress(OSError), self._lock:
            if self._uses is None:
                self._make_root()
                self._uses = ByteLock(self.root / USES)
            self._uses.share(slot_of(digest))

    def let_go(self, digest: str) -> None:
        """Let others remove a file."""
        with contextlib.suppress(OSError), self._lock:
            if self._uses is not None:
                self._uses.release(slot_of(digest))

    def close(self) -> None:
        """Use nothing any longer; twice is free."""
        with self._lock:
            if self._uses is not None:
                self._uses.close()
                self._uses = None

    def progress(self, digest: str, name: str) -> object:
        """Return something that changes while anybody makes a file.

        Args:
            digest: of what it is.
            name: of the file, for errors.
        """
        with _telling(self.root, name):
            return sorted((entry.name, *_pace(entry)) for entry in _entries(self.root / _place(digest)))

    def discard(self, place: Place, name: str) -> None:
        """Remove an unpacked file that is not what it should be.

        Args:
            place: where it is.
            name: of the file, for errors.
        """
        with _telling(self.root, name):
            (self.root / place.name).unlink(missing_ok=True)

    def begin(
        self,
        digest: str,
        name: str,
        packed: Packed,
        limit: int,
        *,
        alone: bool,
        of: str = "",
        reserve: Reserve | None = None,
    ) -> Unpacking:
        """Begin to make a file.

        Args:
            digest: of what it is.
            name: of the file, for errors.
            packed: what is known of it.
            limit: bytes that it may become.
            alone: whether the lock is held, so that other parts are leftovers.
            of: what it is of, for people.
            reserve: takes room for bytes, and calls what sets it aside; raises where there is none.
        """
        folder = self.root / _place(digest)
        with _telling(self.root, name):
            self._make_root()
            folder.mkdir(parents=True, exist_ok=True)
            for entry in _entries(folder) if alone else ():
                if entry.name.startswith("part-"):
                    Path(entry).unlink(missing_ok=True)
            (folder / OF).write_text(of, encoding="utf-8", errors="replace")
            return Unpacking(self.root, folder, name, packed, limit, reserve)

    def _make_root(self) -> None:
        self.root.parent.mkdir(parents=True, exist_ok=True)
        self.root.mkdir(mode=0o700, exist_ok=True)  # data may be confidential, and is not for others to forge


class Unpacking:
    """A file in the making. Its methods block, are called one after the other, and from any thread.

    Args:
        root: of the folder.
        folder: of the file.
        name: of the file, for errors.
        packed: what is known of it.
        limit: bytes that it may become.
        reserve: takes room for bytes, and calls what sets it aside; raises where there is none.
    """

    def __init__(
        self,
        root: Path,
        folder: Path,
        name: str,
        packed: Packed,
        limit: int,
        reserve: Reserve | None = None,
    ) -> None:
        self._root, self._folder, self._name, self._packed = root, folder, name, packed
        self._limit = limit
        self._reserve = reserve
        self._room = 0  # bytes that may be written
        # all at once: who has some of what he needs would stand in the way of others
        self._expected = (packed.size or 0) + ((packed.packed_size or 0) if packed.codec in SIZED else 0)
        self._size = 0
        self._stored = packed.name or name
        self._packed_sums = Sums(self._stored, packed.packed_hashes)
        self._sums = Sums(name, packed.hashes)
        self._stream = open_stream(packed.codec)
        self._part = folder / f"part-{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._left = False
        self._files = [os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)]
        if self._stream is None:
            self._files.append(os.open(f"{self._part}.packed", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes of the packed file.

        Raises:
            ShardError: they are damaged, or become too many.
            StorageError: the disk is full.
        """
        with self._working():
            self._packed_sums.add(data)
            if self._stream is None:
                self._take_room(len(data))
                _write(self._files[1], data)
                return
            for piece in self._stream.feed(data):
                self._add(piece)

    def finish(self) -> Place:
        """Give the file its name, after the last bytes.

        Raises:
            ShardError: it is not what it should be.
            StorageError: the disk is full.
        """
        with self._working():
            self._packed_sums.check()  # first: that says more than what the codec makes of damage
            if self._stream is None:
                self._unpack_whole()
            else:
                self._stream.finish()
            if self._packed.size not in (None, self._size):
                raise self._damaged(f"it unpacks to {self._size} bytes, and should to {self._packed.size}")
            self._sums.check()
            self._part.replace(self._folder / f"bytes-{self._size}")
            return Place(f"{self._folder.relative_to(self._root)}/bytes-{self._size}", self._size)

    def abandon(self) -> None:
        """Close and remove what is not finished, as soon as no method is at work; twice is free."""
        self._left = True
        if self._lock.acquire(blocking=False):
            self._clear()
            self._lock.release()

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        with self._lock:
            try:
                with _telling(self._root, self._name):
                    yield
            except BadData as error:
                raise self._damaged(str(error)) from error
            finally:
                if self._left:
                    self._clear()

    def _add(self, piece: bytes) -> None:
        """Write unpacked bytes."""
        if self._left:  # between two pieces
            raise ClosedError(f"nobody waits for {self._name} any longer", shard=self._name)
        self._size += len(piece)
        if self._size > self._limit:
            raise self._too_long()
        self._sums.add(piece)
        self._take_room(len(piece))
        _write(self._files[0], piece)

    def _take_room(self, num_bytes: int) -> None:
        """Have room reserved before bytes are written: all that will be needed, where that is known."""
        if self._reserve is None:
            return
        if num_bytes > self._room:
            more = max(num_bytes, self._expected)
            whole = partial(allocate, self._files[0], self._packed.size or 0)
            self._reserve(more, whole if self._expected else None)
            self._room, self._expected = self._room + more, 0
        self._room -= num_bytes

    def _unpack_whole(self) -> None:
        assert self._packed.size is not None, "checked when it was begun"
        target, packed = self._files
        self._take_room(self._packed.size)
        self._size = unpack_whole(self._packed.codec, packed, target, self._packed.size)
        for start in range(0, self._size if self._sums else 0, _PIECE_BYTES):
            self._sums.add(os.pread(target, min(_PIECE_BYTES, self._size - start), start))

    def _clear(self) -> None:
        files, self._files = self._files, []
        for fd in files:
            os.close(fd)
        if files:
            with contextlib.suppress(OSError):
                self._part.unlink(missing_ok=True)  # it is not there under this name when it was finished
                Path(f"{self._part}.packed").unlink(missing_ok=True)

    def _too_long(self) -> ShardError:
        if self._packed.size is not None:
            return self._damaged(f"it unpacks to more than the {self._packed.size} bytes that its index says")
        return ShardError(
            f"{self._stored} unpacks to more than {self._limit} bytes, which is more than a file of its size "
            "should; if that is right, unpack it yourself",
            shard=self._stored,
            category="too_long",
        )

    def _damaged(self, why: str) -> ShardError:
        return ShardError(
            f"{self._stored} cannot be unpacked as {self._packed.codec}: {why}; copy it again",
            shard=self._stored,
            category="broken",
            cause=why,
        )


@contextlib.contextmanager
def _telling(root: Path, name: str) -> Iterator[None]:
    """Turn the disk's errors into ours."""
    try:
        yield
    except AioloadError:  # some are OSErrors too
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        cure = (
            "free room there, or take a folder on another disk"
            if error.errno in _FULL
            else "take a folder that can be written to"
        )
        raise StorageError(
            f"{name} cannot be unpacked into {root}: {reason}; {cure}",
            shard=name,
            folder=str(root),
            errno=error.errno,
            cause=reason,
            final=True,
        ) from error


def _place(digest: str) -> str:
    return f"{digest[:2]}/{digest}"


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _pace(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except OSError:  # it has its name by now, or somebody has removed it
        return -1, 0
    return status.st_size, status.st_mtime_ns


def _write(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[:_PIECE_BYTES]) :]
