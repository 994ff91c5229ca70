"""The folder of a disk cache: what lies where, who uses it, how much it may hold, and what goes first.

    <folder>/aioload-cache-1/ledger          what is promised of the limit; locked while that is changed
                             0.use … f.use   locks on the versions that live processes use
                             0.get … f.get   locks on the ranges that are being fetched
                             trash/          evicted, about to be removed
                             <0-f>/<file>/<version>/sums, bytes-<random>

Names are sums of the file's key, size and tag: equal base names never meet, and no secret can be read from
them. A version appears and goes by one rename. What a killed process leaves is a promise that was not kept,
which the next count of the disk corrects, and at most a folder in `trash` or `new`, which it removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..bytelocks import Busy, ByteLock, locked_file
from .cachedfile import BLOCK_BYTES, LIST_NAME, CachedFile
from .cachesums import Head
from .unpackedfiles import UnpackedFile, UnpackedFiles

__all__ = ["CacheFolder", "CachedVersion", "Claim", "default_cache_folder"]

ROOT = "aioload-cache-1"  # in a folder that the user names there may be other things

_LEDGER = struct.Struct("<QQ")  # which count of the disk, bytes promised since and found then
_FOLDER_BYTES = 2 * BLOCK_BYTES  # of a version, besides its files
_MOST_PROMISED = 16 << 20
_RETRY_SECONDS = 30.0  # a full cache is not counted more often: a hundred milliseconds for 10,000 files
_PATIENCE = 2.0
_FREE_BYTES, _FREE_SHARE = 1 << 30, 0.05  # of the disk that the cache never takes: the lesser of these
_UNBOUNDED = 1 << 62
_SLOT_BITS = 60
_CLAIM_BITS = 22, 40  # a file, and a place in it: up to 1 TiB; beyond, claims only collide more often
_NAMES = re.compile(r"[0-9a-f]{32}")
_SECRETS = re.compile(r"//[^/@]*@|[?#].*")


def default_cache_folder() -> Path:
    """Return the user's folder for caches: XDG_CACHE_HOME, or what the platform uses."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # the specification says to ignore others
        return named / "aioload"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "aioload"


@dataclass(frozen=True, slots=True)
class CachedVersion:
    """What lies in a cache of one version of a file."""

    folder: str
    """Where, in the cache's own folder."""
    num_bytes: int
    """What it takes of the disk."""
    used: float
    """When it was last used, in seconds of the epoch."""


class Claim:
    """A range of a file that its holder is fetching; others wait a while, and find it cached.

    Args:
        held: whether it is ours; else somebody else is fetching there.
        lock: holds the bytes that stand for the range.
    """

    def __init__(self, held: bool, lock: ByteLock | None = None) -> None:
        self.held = held
        self._lock = lock

    def close(self) -> None:
        """Give it back; twice is free."""
        if self._lock is not None:
            self._lock.close()


class CacheFolder:
    """A cache on disk, shared with all processes of this machine that name the same folder.

    Every method blocks.

    Args:
        folder: where; made when something is first stored.
        limit_bytes: what the cache may take; None leaves that to the disk.
    """

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self.root = folder / ROOT
        self.unpacked = UnpackedFiles(folder)
        """What lies unpacked beside it: within the same limit, and evicted alike."""
        self._limit = limit_bytes
        self._step = min(_MOST_PROMISED, (limit_bytes or _MOST_PROMISED << 6) >> 6)
        self._lock = threading.RLock()  # of what is in use
        self._room_lock = threading.Lock()
        self._promised = self._count = 0
        self._full_until = 0.0
        self.is_disk_full = False
        """Whether it was the disk, rather than the limit, that had no room when some was last asked for."""
        self._uses: dict[str, ByteLock] = {}
        self._used: dict[str, CachedFile] = {}
        self._closed = False

    def place(self, key: str) -> Path:
        """Return the folder in which the versions of a file lie."""
        return self.root / self._place(key)

    def find(self, key: str) -> list[CachedFile]:
        """Return the versions of a file that are cached, the newest first; they are in use from now on."""
        place = self._place(key)
        versions = [self._open(f"{place}/{version}") for version in _names(self.root / place)]
        return sorted(filter(None, versions), key=lambda file: -file.head.made)

    def create(self, key: str, size: int, tag: str | None) -> CachedFile | None:
        """Return a version of a file, made where it is not there; None where there is no room."""
        place = self._place(key)
        version = _digest(f"{key}\0{size}\0{tag}")
        folder = f"{place}/{version}"
        if (file := self._open(folder)) is not None:
            return file
        self._make_root()
        if not self.reserve(_FOLDER_BYTES + BLOCK_BYTES):
            return None
        head = Head(_SECRETS.sub(_shown, key), size, tag, f"bytes-{secrets.token_hex(8)}", time.time())
        with locked_file(self.root / "ledger", _PATIENCE):  # whoever counts removes what is in `new`
            new = self.root / "new" / secrets.token_hex(8)
            new.mkdir(parents=True)
            (new / LIST_NAME).write_bytes(head.render())
            with (new / head.data).open("wb") as file_of_bytes:
                file_of_bytes.truncate(size)
            (self.root / place).mkdir(parents=True, exist_ok=True)
            try:
                new.rename(self.root / folder)
            except OSError:
                shutil.rmtree(new, ignore_errors=True)
                if not (self.root / folder / LIST_NAME).exists():
                    raise
        return self._open(folder)

    def claim(self, key: str, start: int, stop: int) -> Claim:
        """Say that a range of a file is being fetched, unless somebody else has said so."""
        digest = _digest(key)
        file_bits, place_bits = _CLAIM_BITS
        slot = int(digest, 16) % (1 << file_bits) << place_bits
        try:
            self._make_root()
            lock = ByteLock(self.root / f"{digest[0]}.get")
        except OSError:  # a cache that cannot be written to; it is `store` that tells
            return Claim(held=True)
        place = start % (1 << place_bits)
        if lock.take(slot + place, min(stop - start, (1 << place_bits) - place)):
            return Claim(True, lock)
        lock.close()
        return Claim(held=False)

    def reserve(
        self, num_bytes: int, *, again: bool = False, spend: Callable[[], object] | None = None
    ) -> bool:
        """Take room for bytes, evicting what nobody uses; False where there is none.

        Args:
            num_bytes: so many.
            again: look even if there was none a moment ago, as the caller uses less by now.
            spend: called once the room is taken, before anybody counts the disk again: for much that will be
                written only later, it sets that room aside there.
        """
        with self._room_lock:
            if again:
                self._full_until = 0.0
            if self._promised >= num_bytes and self._count == self._read_count():
                self._promised -= num_bytes
                if spend is not None:
                    spend()
                return True
            if time.monotonic() < self._full_until:
                return False
            try:
                return self._promise(num_bytes, spend)
            except Busy:
                return False

    def release(self, file: CachedFile) -> None:
        """Use a version no longer."""
        with self._lock:
            if self._used.pop(file.folder, None) is not None:
                self._share(file.folder, False)

    def retire(self, file: CachedFile) -> None:
        """Take a version out of the cache that is no longer what the source holds, whoever uses it."""
        self.release(file)
        self._discard(file.folder)

    def versions(self) -> Iterator[CachedVersion]:
        """Look at all that is cached."""
        for bucket in "0123456789abcdef":
            for name in _names(self.root / bucket):
                for version in _names(self.root / bucket / name):
                    if (seen := self._look(f"{bucket}/{name}/{version}")) is not None:
                        yield seen

    def head(self, version: CachedVersion) -> Head | None:
        """Return what a version is of, if that can be told."""
        try:
            with (self.root / version.folder / LIST_NAME).open("rb") as file:
                return Head.parse(file.read(1 << 16))[0]
        except (OSError, ValueError):
            return None

    def in_use(self, version: CachedVersion) -> bool:
        """Tell whether a live process uses a version."""
        try:
            with contextlib.closing(ByteLock(self.root / f"{version.folder[0]}.use")) as lock:
                return not lock.is_free(_slot(version.folder))
        except OSError:  # not ours to look at
            return True

    def prune(
        self, keep_bytes: int, *, older_than: float | None = None
    ) -> list[CachedVersion | UnpackedFile]:
        """Evict the least recently used of what nobody uses, also of what lies unpacked.

        Args:
            keep_bytes: as much may stay.
            older_than: evict only what was last used before that time, in seconds of the epoch.

        Returns:
            What has gone.

        Raises:
            Busy: other processes change the cache all the time.
        """
        if not (self.root.is_dir() or self.unpacked.root.is_dir()):
            return []
        self._make_root()
        with locked_file(self.root / "ledger", _PATIENCE) as ledger:
            gone, used = self._evict(keep_bytes, older_than)
            self._write_ledger(ledger, used)
            return gone

    def close(self) -> None:
        """Give back what was promised, and use nothing any longer; twice is free."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(OSError):
                for file in self._used.values():
                    file.touch()
            with contextlib.suppress(OSError):
                if self._promised:
                    with locked_file(self.root / "ledger", _PATIENCE) as ledger:
                        count, used = _read_ledger(ledger)
                        if count == self._count:
                            os.pwrite(ledger, _LEDGER.pack(count, max(0, used - self._promised)), 0)
            for lock in self._uses.values():
                lock.close()
            self._uses.clear()
            self._used.clear()
            self._promised = 0

    def _place(self, key: str) -> str:
        digest = _digest(key)
        return f"{digest[0]}/{digest}"

    def _open(self, folder: str) -> CachedFile | None:
        """Open a version that is there, in use from then on."""
        with self._lock:
            if self._closed:  # meanwhile: what is used from now on, nobody would let go
                return None
            if (file := self._used.get(folder)) is not None:
                with contextlib.suppress(FileNotFoundError):
                    file.refresh()
                    if not file.gone:
                        return file
                self.release(file)  # somebody has removed it
            if not (self.root / folder).is_dir():
                return None
            if not self._share(folder, True):  # before the look: what is there under the lock stays there
                return None
            try:
                file = self._used[folder] = CachedFile(self.root, folder)
            except (OSError, ValueError) as error:
                self._share(folder, False)
                if isinstance(error, (ValueError, FileNotFoundError)):
                    self._discard(folder)  # useless as it is: made anew when it is fetched
                return None
            with contextlib.suppress(OSError):
                file.touch()
            return file

    def _make_root(self) -> None:
        if self.root.is_dir():
            return
        self.root.parent.mkdir(parents=True, exist_ok=True)
        self.root.mkdir(mode=0o700, exist_ok=True)  # data may be confidential, and is not for others to forge
        (self.root / "CACHEDIR.TAG").write_text(
            "Signature: 8a477f597d28d172789f06886806bc55\n# Made by aioload; see `aioload cache --help`.\n"
        )

    # room

    def _promise(self, num_bytes: int, spend: Callable[[], object] | None) -> bool:
        """Take a larger promise than is needed now, so that the next need no lock."""
        self._make_root()
        with locked_file(self.root / "ledger", _PATIENCE) as ledger:
            count, used = _read_ledger(ledger)
            if count and count == self._count:
                used = max(0, used - self._promised)
            self._promised = 0
            if not count or self._room(used) < num_bytes:
                _, used = self._evict(self._target(num_bytes), None)
                count += 1  # what others were promised before that was not seen: they ask again
            granted = min(num_bytes + self._step, self._room(used))
            full = granted < num_bytes
            self.is_disk_full = full and self._disk_room() < num_bytes
            os.pwrite(ledger, _LEDGER.pack(count, used if full else used + granted), 0)
            self._count = count
            if full:
                self._full_until = time.monotonic() + _RETRY_SECONDS
                return False
            self._promised = granted - num_bytes
            if spend is not None:
                spend()
            return True

    def _target(self, num_bytes: int) -> int:
        """Return what may stay so that there is room again for a while."""
        disk = self._disk_room() - num_bytes
        if self._limit is None:
            return _UNBOUNDED if disk >= 0 else self._taken() + disk
        wanted = self._limit - max(num_bytes, self._limit >> 5)
        return wanted if disk >= 0 else min(wanted, self._taken() + disk)

    def _taken(self) -> int:
        return sum(each.num_bytes for each in self._all())

    def _all(self) -> list[CachedVersion | UnpackedFile]:
        return [*self.versions(), *self.unpacked.files()]

    def _room(self, used: int) -> int:
        disk = self._disk_room()
        return disk if self._limit is None else min(disk, self._limit - used)

    def _disk_room(self) -> int:
        status = os.statvfs(self.root)
        kept = min(_FREE_BYTES, int(_FREE_SHARE * status.f_blocks * status.f_frsize))
        return status.f_bavail * status.f_frsize - kept

    def _evict(
        self, keep_bytes: int, older_than: float | None
    ) -> tuple[list[CachedVersion | UnpackedFile], int]:
        """Evict under the ledger's lock; return what has gone, and the bytes that are left."""
        for leftover in ("trash", "new"):
            shutil.rmtree(self.root / leftover, ignore_errors=True)
        every = sorted(self._all(), key=lambda each: each.used)
        used = sum(each.num_bytes for each in every)
        gone: list[CachedVersion | UnpackedFile] = []
        for each in every:
            if used <= keep_bytes or (older_than is not None and each.used >= older_than):
                break
            if self._remove(each):
                gone.append(each)
                used -= each.num_bytes
        return gone, used

    def _remove(self, each: CachedVersion | UnpackedFile) -> bool:
        """Remove what nobody uses; tell whether it has gone."""
        if isinstance(each, UnpackedFile):
            return self.unpacked.remove(each)
        try:
            with self._alone(each.folder) as alone:
                return alone and self._discard(each.folder)
        except OSError:  # not ours to remove
            return False

    def _look(self, folder: str) -> CachedVersion | None:
        try:
            files = [entry.stat() for entry in os.scandir(self.root / folder)]
            used = (self.root / folder / LIST_NAME).stat().st_mtime
        except OSError:  # gone meanwhile
            return None
        return CachedVersion(folder, _FOLDER_BYTES + sum(file.st_blocks * 512 for file in files), used)

    def _discard(self, folder: str) -> bool:
        """Remove a version; from the first step on nobody finds it."""
        trash = self.root / "trash"
        target = trash / secrets.token_hex(8)
        try:
            trash.mkdir(exist_ok=True)
            (self.root / folder).rename(target)
        except OSError:
            return False
        shutil.rmtree(target, ignore_errors=True)
        with contextlib.suppress(OSError):  # the folder of another version of the file
            (self.root / folder).parent.rmdir()
        return True

    def _read_count(self) -> int:
        try:
            with (self.root / "ledger").open("rb", buffering=0) as file:
                return _read_ledger(file.fileno())[0]
        except OSError:
            return 0

    def _write_ledger(self, ledger: int, used: int) -> None:
        os.pwrite(ledger, _LEDGER.pack(_read_ledger(ledger)[0] + 1, used), 0)

    # use

    def _share(self, folder: str, wanted: bool) -> bool:
        """Use a version, or no longer; False where it is being evicted."""
        try:
            if folder[0] not in self._uses:
                self._uses[folder[0]] = ByteLock(self.root / f"{folder[0]}.use")
        except OSError:  # a cache that cannot be written to is not evicted from
            return True
        lock = self._uses[folder[0]]
        if wanted:
            return lock.share(_slot(folder))
        lock.release(_slot(folder))
        return True

    @contextlib.contextmanager
    def _alone(self, folder: str) -> Iterator[bool]:
        """Tell whether nobody uses a version, and keep it so."""
        with contextlib.closing(ByteLock(self.root / f"{folder[0]}.use")) as lock:
            yield lock.take(_slot(folder))


def _names(folder: Path) -> list[str]:
    """Return the names in a folder that can be ours."""
    try:
        return [entry.name for entry in os.scandir(folder) if _NAMES.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _slot(folder: str) -> int:
    """Return the byte that stands for a version in its file of locks."""
    return int(folder.rpartition("/")[2], 16) % (1 << _SLOT_BITS)


def _shown(match: re.Match[str]) -> str:
    return "//" if match[0].startswith("//") else ""


def _read_ledger(fd: int) -> tuple[int, int]:
    data = os.pread(fd, _LEDGER.size, 0)
    return _LEDGER.unpack(data) if len(data) == _LEDGER.size else (0, 0)
