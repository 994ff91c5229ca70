"""Folder: kept samples on a disk; what lies where, how much it may be, and what goes first.

    <folder>/aioload-samples-1/ledger                 locked while room is given out or taken back
                               <key>/use              locked, shared, by whoever reads or writes there
                               <key>/about.json       what the key was made of, for people
                               <key>/<writer>.data    samples, appended by one process and never changed
                               <key>/<writer>.list    what is whole in it: a `LISTED` for each sample
                               gone-…/                evicted, about to be removed

A sample is written before the entry that speaks of it, so a writer may be killed at any moment. A file is
made longer before it is written, by whoever holds the ledger's lock, and its length is what counts against
the limit: there is no other account, and none that could be wrong. What a killed writer had taken and not
used, the next who opens the folder gives back. Room for a new key comes from those used least lately, whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bytelocks import Busy, locked_file
from .entries import LISTED, listed, parse_list
from .packed import Packed

__all__ = ["DATA", "LIST", "DiskWriter", "KeyFolder", "SampleFolder", "last_use", "taken"]

ROOT = "aioload-samples-1"
DATA, LIST = ".data", ".list"
_PATIENCE = 2.0  # for the ledger
_LEAST_STEP, _MOST_STEP = 64 << 10, 64 << 20
_STEP_SHARE = 1024  # of the limit: what writers leave unused of their last steps stays below a hundredth
_FREE_BYTES, _FREE_SHARE = 1 << 30, 0.05  # of the disk that is left free: the lesser of these


class SampleFolder:
    """All that is kept under one folder. Every method blocks.

    Args:
        folder: where.
        limit: bytes that it may take.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.root = folder / ROOT
        self.limit = limit
        self.step = min(max(limit // _STEP_SHARE, _LEAST_STEP), _MOST_STEP, limit)

    def open(self, key: str, about: Mapping[str, Any]) -> KeyFolder:
        """Return what is kept under a key, made if nothing is; it is in use until it is closed.

        Raises:
            OSError: it cannot be made or read.
        """
        place = self.root / key
        use = None
        while use is None:  # somebody may remove what nobody uses, just now
            use = _used_by_us(place)
        try:
            os.utime(place / "use")
            if not (place / "about.json").exists():
                (place / "about.json").write_text(json.dumps(about, indent=1, sort_keys=True))
        except BaseException:
            os.close(use)
            raise
        found = KeyFolder(place, use)
        found.trim()
        return found

    def extend(self, fd: int, length: int, least: int) -> int:
        """Make a file longer within the limit; return its new length, or the old one if there is no room.

        Args:
            fd: of a file in here.
            length: it has now.
            least: bytes that are wanted at least.

        Raises:
            OSError: the disk has no room, or cannot be written to.
        """
        with locked_file(self.root / "ledger", _PATIENCE):
            step = max(self.step, least)
            left = self.limit - self.used()
            while left < step:
                if left >= least:
                    step = least
                    break
                if not self._evict():
                    return length
                left = self.limit - self.used()
            if self._free() < step:
                raise OSError(errno.ENOSPC, "the disk is nearly full", str(self.root))
            os.ftruncate(fd, length + step)
        return length + step

    def used(self) -> int:
        """Return the bytes that all of it may take."""
        return sum(map(taken, self.kept()))

    def kept(self) -> Iterator[Path]:
        """Yield the folder of each key."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield Path(entry.path)

    def _evict(self) -> bool:
        """Remove the key that was used least lately, of those that nobody uses; False: there is none."""
        return any(self.remove(key) for key in sorted(self.kept(), key=last_use))

    def remove(self, key: Path) -> bool:
        """Remove a key, or what is left of one; False: somebody uses it, or it is not ours to remove."""
        with contextlib.suppress(OSError):
            if key.name.startswith("gone-"):
                shutil.rmtree(key)
                return True
            fd = os.open(key / "use", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                gone = self.root / f"gone-{secrets.token_hex(8)}"
                key.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
            finally:
                os.close(fd)
            return True
        return False

    def _free(self) -> int:
        disk = os.statvfs(self.root)
        kept = min(_FREE_BYTES, int(disk.f_blocks * disk.f_frsize * _FREE_SHARE))
        return disk.f_bavail * disk.f_frsize - kept


class KeyFolder:
    """What is kept under one key.

    Args:
        place: its folder.
        use: descriptor that holds the lock on its use.
    """

    def __init__(self, place: Path, use: int) -> None:
        self.place = place
        self._use = use
        self._read: dict[str, int] = {}  # bytes of each list that were looked at

    def fresh(self) -> Iterator[tuple[str, NDArray[np.void]]]:
        """Yield files, and what was listed of each since the last call; older files come first."""
        for name in self._grown():
            data = _read_from(self.place / name, self._read.get(name, 0))
            entries, looked_at = parse_list(data)
            self._read[name] = self._read.get(name, 0) + looked_at
            if len(entries):
                yield name.removesuffix(LIST) + DATA, entries

    def trim(self) -> None:
        """Give back what writers that have ended had taken and not used."""
        for path, size in list(_files(self.place)):
            if path.suffix != DATA:
                continue
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    entries, _ = parse_list(_read_from(path.with_suffix(LIST), 0))
                    stop = int((entries["start"] + entries["size"]).max(initial=0))
                    if stop < size:
                        os.ftruncate(fd, stop)
                finally:
                    os.close(fd)

    def close(self) -> None:
        """Use it no more; twice is free."""
        use, self._use = self._use, -1
        if use >= 0:
            self.trim()
            os.close(use)

    def _grown(self) -> list[str]:
        """Return the lists that were written to since the last look, older ones first."""
        lists = []
        # somebody may have removed it all: then nothing is new, and what is known will be found missing
        with contextlib.suppress(OSError), os.scandir(self.place) as entries:
            for entry in entries:
                if entry.name.endswith(LIST):
                    found = entry.stat()
                    if found.st_size >= self._read.get(entry.name, 0) + LISTED.itemsize:
                        lists.append((found.st_mtime_ns, entry.name))
        return [name for _, name in sorted(lists)]


class DiskWriter:
    """Writes samples to a file of its own, which it makes when the first comes.

    Args:
        folder: within whose limit.
        place: the folder of the key.
    """

    def __init__(self, folder: SampleFolder, place: Path) -> None:
        self._folder = folder
        self._place = place
        self._data = self._list = -1
        self._length = self._stop = 0
        self.is_full = False

    def put(self, record: int, packed: Packed) -> bool:
        """Write a sample, if there is room.

        Args:
            record: its number.
            packed: the sample.

        Raises:
            OSError: the disk cannot be written to.
        """
        if self.is_full:
            return False
        size = packed.size
        if self._data < 0:
            self._open()
        if self._stop + size > self._length:
            least = self._stop + size - self._length
            try:
                self._length = self._folder.extend(self._data, self._length, least)
            except Busy:
                return False  # this one is not kept, the next may be
            if self._stop + size > self._length:
                self.is_full = True
                return False
        written = os.pwritev(self._data, packed.pieces, self._stop)  # type: ignore[arg-type]  # arrays are buffers
        if written < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._place))
        entry = listed(record, self._stop, size, packed.sum)
        if os.write(self._list, entry) < len(entry):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._place))
        self._stop += size
        return True

    def close(self) -> None:
        """Write no more."""
        for fd in (self._data, self._list):
            if fd >= 0:
                os.close(fd)
        self._data = self._list = -1

    def _open(self) -> None:
        name = self._place / secrets.token_hex(8)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._data = os.open(name.with_suffix(DATA), flags, 0o600)
        fcntl.flock(self._data, fcntl.LOCK_EX)  # until this process ends: nobody trims the file
        self._list = os.open(name.with_suffix(LIST), flags | os.O_APPEND, 0o600)


def _used_by_us(place: Path) -> int | None:
    """Return a descriptor that keeps others from removing a key; None where one has done so meanwhile."""
    place.mkdir(parents=True, exist_ok=True)
    try:
        fd = os.open(place / "use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)  # whoever has it alone is about to remove it, and soon done
        is_there = _is_there(place / "use", fd)
    except BaseException:
        os.close(fd)
        raise
    if is_there:
        return fd
    os.close(fd)
    return None


def _is_there(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _files(key: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files of a key, and their sizes."""
    with contextlib.suppress(OSError), os.scandir(key) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                yield Path(entry.path), entry.stat(follow_symlinks=False).st_size


def taken(key: Path) -> int:
    """Return the bytes that a key takes."""
    return sum(size for _, size in _files(key))


def last_use(key: Path) -> float:
    """Return when a key was last opened, in seconds of the epoch."""
    try:
        return (key / "use").stat().st_mtime
    except OSError:
        return 0.0


def _read_from(path: Path, start: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except OSError:  # what cannot be read is not kept
        return b""
