"""A storage around one whose files are compressed whole: each is unpacked to this disk at its first touch.

A compressed file can only be read from its beginning, and reads here come from anywhere. So the first read of
one fetches it in parts, and unpacks them as they come into a file of a folder; all later reads are of that
file. In memory are a few parts at most, however large the file is or becomes.

The folder is shared by all processes and all runs of this machine. One makes a file, and the others wait. It
holds a lock that the system ends with it; if it lives, but the file does not grow for `patience` seconds,
whoever waits makes the file too, as the name is given by one rename. What names a file there is its address
with its sums, or else with its size and version, so a file that changed at its source is unpacked anew.

Where the folder has a limit, files make room that were used longest ago and that nobody uses now, a process's
own among them: what it still needs of them it unpacks again, which a warning tells.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakKeyDictionary

import anyio

from ..bytelocks import ByteLock
from ..errors import ConfigError, NotFoundError, ShardError
from .base import Storage, check_name, check_range, ends_early, read
from .codecs import SIZED, check_codec
from .local import LocalStorage
from .threads import DaemonExecutor, undo_result
from .unpackedroom import UnpackedRoom
from .unpacking import Packed, Place, UnpackedFolder, Unpacking
from .wrapping import Wrapping

__all__ = ["Packed", "Unpacked"]

T = TypeVar("T")

_log = logging.getLogger("aioload.storage")

_PART_BYTES = 8 << 20  # fetched at a time; one more is being unpacked meanwhile
_AT_ONCE = 4  # files
_THREADS = 2 * _AT_ONCE  # whoever looks for a file must not wait for those who make one
_FREE_BYTES = 16 << 20  # that any file may become
_FIRST_WAIT, _LONGEST_WAIT = 0.01, 0.25  # seconds, between two looks at what somebody else is making
_GRACE = 1.5  # seconds, for what is under way in a thread when nobody waits for it any more


class Unpacked(Wrapping):
    """Unpacks files of another storage to a folder, and reads them there. Making one does no I/O.

    Args:
        storage: holds the compressed files, and others, which are passed through.
        folder: for unpacked files.
        codec_of: tells how a file is stored, by the name of the unpacked one; None: as it is.
        key_of: gives, for a file's name, a stable text that no other file has, without secrets.
        limit_bytes: what the folder may take of the disk, with the cache of network storage that may lie
            there; None leaves that to the disk.
        max_ratio: how many times longer a file of unknown size may become; any may become 16 MiB.
        patience: seconds to wait for somebody else's file that does not grow.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str | os.PathLike[str],
        codec_of: Callable[[str], Packed | None],
        key_of: Callable[[str], str],
        *,
        limit_bytes: int | None = None,
        max_ratio: float = 100,
        patience: float = 30,
    ) -> None:
        if max_ratio <= 0 or patience <= 0:
            raise ConfigError(f"max_ratio and patience must be positive, got {max_ratio} and {patience}")
        super().__init__(storage)
        self._codec_of = codec_of
        self._key_of = key_of
        self._max_ratio = max_ratio
        self._patience = patience
        self._folder = UnpackedFolder(Path(folder).absolute())
        self._room = UnpackedRoom(Path(folder).absolute(), limit_bytes, self._forget)
        self._local = LocalStorage(self._folder.root)
        self._retired: list[LocalStorage] = []
        self._threads = DaemonExecutor(_THREADS, name="aioload-unpack")
        self._places: dict[str, Place] = {}
        self._digests: dict[str, str] = {}
        self._loops = WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns]()

    async def size(self, name: str) -> int:
        """Return the bytes of an unpacked file."""
        check_name(name)
        packed = self._codec_of(name)
        if packed is None:
            return await self._storage.size(name)
        if packed.size is not None:
            return packed.size
        return (await self._touch(name, packed)).size

    async def version(self, name: str) -> str | None:
        """Return what tells this content of a file from another; None where the storage does not know."""
        packed = self._codec_of(name)
        return await super().version(name if packed is None else packed.name or name)

    async def get(self, name: str) -> bytes:
        """Return all of a small file."""
        check_name(name)
        packed = self._codec_of(name)
        if packed is None:
            return await read(self._storage, name)
        place = await self._touch(name, packed)
        whole = bytearray(place.size)
        await self.read_into(name, 0, memoryview(whole))
        return bytes(whole)

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of an unpacked file from `start` on."""
        # hot: once per read
        view = check_range(start, out)
        if name not in self._places:
            check_name(name)
            if self._codec_of(name) is None:
                await self._storage.read_into(name, start, view)
                return
        if self._room.is_bounded:
            with self._room.reading(name):
                await self._read_unpacked(name, start, view)
        else:
            await self._read_unpacked(name, start, view)

    async def _read_unpacked(self, name: str, start: int, view: memoryview) -> None:
        place = self._places.get(name)
        if place is None:
            place = await self._touch(name, self._packed(name))
        if start + len(view) > place.size:
            raise ends_early(name, place.size, start + len(view))
        try:
            await self._local.read_into(place.name, start, view)
        except (NotFoundError, ShardError):  # somebody has removed it, or cut it
            place = await self._again(name, place)
            await self._local.read_into(place.name, start, view)

    async def unpack(self, name: str) -> str:
        """Return where an unpacked file lies on this disk, once it is there.

        Raises:
            NotFoundError: there is no such file.
            ShardError: it is damaged, or not what is known of it.
            StorageError: the storage did not answer as it should, or the disk is full.
            ConfigError: it is not compressed, or what unpacks it is not installed.
        """
        check_name(name)
        self._room.keep(name)  # whoever has the path may open it at any time
        return self._local.path((await self._touch(name, self._packed(name))).name)

    def _packed(self, name: str) -> Packed:
        packed = self._codec_of(name)
        if packed is None:
            raise ConfigError(f"{name} is not compressed; read it as it is", shard=name)
        return packed

    async def aclose(self) -> None:
        """Close both storages, and end the threads, waiting a bounded time for them; twice is free."""
        try:
            await super().aclose()
        finally:
            for local in (self._local, *self._retired):
                await local.aclose()
            self._room.close()
            self._folder.close()
            self._threads.shutdown(wait=False)
            with anyio.move_on_after(_GRACE, shield=True):
                await asyncio.wrap_future(self._threads.ended)
            if self._threads.ended.done():
                self._threads.shutdown(wait=True)  # no call is left, and a thread's last step never waits
            else:
                _log.warning("closed %r, but left a thread behind that is still unpacking", self)

    def __repr__(self) -> str:
        return f"<Unpacked {self._storage!r} files={len(self._places)} in {str(self._folder.root)!r}>"

    # whose turn it is

    async def _touch(self, name: str, packed: Packed) -> Place:
        """Return where a file lies, having unpacked it if need be."""
        async with self._turns.of(name):
            place = self._places.get(name)
            if place is None:
                place = self._places[name] = await self._find_or_make(name, _checked(name, packed))
                self._room.came(name, place.size)
            return place

    def _forget(self, name: str) -> None:
        """Use a file no longer, for whose room there is another need; called in any thread."""
        place = self._places.pop(name, None)
        if place is not None:
            self._local.forget(place.name)
            self._folder.let_go(self._digests[name])

    async def _again(self, name: str, place: Place) -> Place:
        """Make a file once more that is not what it was; return where it lies."""
        async with self._turns.of(name):
            if self._places.get(name) == place:
                del self._places[name]
                await self._run(partial(self._folder.discard, place, name))
                self._retired.append(self._local)  # it may hold the old one open, and others read from it
                self._local = LocalStorage(self._folder.root)
        return await self._touch(name, self._packed(name))

    async def _find_or_make(self, name: str, packed: Packed) -> Place:
        digest = self._digests[name] = await self._digest(name, packed)
        await self._run(partial(self._folder.use, digest))  # before the look: what is there then stays there
        wait, progress, deadline = _FIRST_WAIT, None, 0.0
        while True:
            place = await self._run(partial(self._folder.find, digest, name))
            if place is not None:
                return place
            lock = await self._run(partial(self._folder.lock, digest, name), undo=_close)
            if lock is not None:
                try:
                    # somebody may have made it between the two
                    place = await self._run(partial(self._folder.find, digest, name))
                    return place or await self._make(name, packed, digest, alone=True)
                finally:
                    lock.close()
            now = anyio.current_time()
            seen = await self._run(partial(self._folder.progress, digest, name))
            if seen != progress:
                progress, deadline = seen, now + self._patience
            elif now > deadline:
                _log.warning(
                    "somebody else is unpacking %s and has not gone on for %g s; unpacking it here too",
                    name,
                    self._patience,
                )
                return await self._make(name, packed, digest, alone=False)
            await anyio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    async def _digest(self, name: str, packed: Packed) -> str:
        """Return a name for this content of a file, asking the source only where no sum tells it."""
        sums = sorted(packed.packed_hashes.items()), sorted(packed.hashes.items())
        known = (self._key_of(name), packed.name, packed.codec, packed.packed_size, packed.size, sums)
        told: tuple[object, ...] = ()
        if not any(sums):
            stored = packed.name or name
            told = await self._storage.size(stored), await self._tag(stored)
        return hashlib.sha256(repr((known, told)).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    async def _tag(self, stored: str) -> object:
        """Return what tells this content of a stored file from another, as well as can be."""
        if hasattr(self._storage, "version"):
            return await super().version(stored)
        path = getattr(self._storage, "path", None)
        return None if path is None else await self._run(partial(_modified, Path(path(stored))))

    # making a file

    async def _make(self, name: str, packed: Packed, digest: str, *, alone: bool) -> Place:
        """Unpack a file; one that came damaged is fetched once more."""
        turns = self._turns
        # of files that take room as they grow, one at a time: two could wait for each other
        one = turns.growing if self._room.is_bounded and packed.size is None else nullcontext()
        async with turns.makers, one:
            with self._room.making(name):
                try:
                    return await self._make_from(name, packed, digest, alone=alone)
                except ShardError as error:
                    _log.warning("%s; it is fetched once more", error)
                    return await self._make_from(name, packed, digest, alone=alone)

    async def _make_from(self, name: str, packed: Packed, digest: str, *, alone: bool) -> Place:
        stored = packed.name or name
        stored_bytes = await self._storage.size(stored)
        if packed.packed_size not in (None, stored_bytes):
            raise ShardError(
                f"{stored} has {stored_bytes} bytes, and its index says {packed.packed_size}; copy it again",
                shard=stored,
                category="truncated" if stored_bytes < (packed.packed_size or 0) else "broken",
            )
        packed = replace(packed, packed_size=stored_bytes)
        limit = packed.size
        if limit is None:
            limit = max(_FREE_BYTES, int(stored_bytes * self._max_ratio))
        begin = partial(
            self._folder.begin,
            digest,
            name,
            packed,
            limit,
            alone=alone,
            of=self._key_of(stored),
            reserve=partial(self._room.reserve, name) if self._room.is_bounded else None,
        )
        unpacking = await self._run(begin, undo=Unpacking.abandon)
        try:
            await self._pour(stored, stored_bytes, unpacking)
            return await self._run(unpacking.finish, stop=unpacking.abandon)
        finally:
            unpacking.abandon()

    async def _pour(self, stored: str, stored_bytes: int, unpacking: Unpacking) -> None:
        """Fetch a part while the one before it is unpacked."""
        part: bytearray | None = None
        for start in range(0, stored_bytes, _PART_BYTES):
            following = bytearray(min(_PART_BYTES, stored_bytes - start))
            await _side_by_side(
                partial(self._storage.read_into, stored, start, memoryview(following)),
                self._feeding(unpacking, part),
            )
            part = following
        await self._feeding(unpacking, part)()

    def _feeding(self, unpacking: Unpacking, part: bytearray | None) -> Callable[[], Awaitable[None]]:
        async def feed() -> None:
            if part is not None:
                await self._run(partial(unpacking.feed, memoryview(part)), stop=unpacking.abandon)

        return feed

    # threads

    @property
    def _turns(self) -> _Turns:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops[loop] = _Turns()
        return self._loops[loop]

    async def _run(
        self,
        work: Callable[[], T],
        *,
        undo: Callable[[T], object] | None = None,
        stop: Callable[[], object] | None = None,
    ) -> T:
        """Do something in a thread; whoever is cancelled waits for that to end, for a bounded time.

        Args:
            work: to do.
            undo: called with its result where nobody waits for that any more.
            stop: called where nobody waits for it any more.
        """
        future = self._threads.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if stop is not None:
                stop()
            if undo is not None:
                future.add_done_callback(partial(undo_result, undo))
            if not future.done():
                with anyio.move_on_after(_GRACE, shield=True), suppress(Exception):
                    await asyncio.wrap_future(future)
            raise


class _Turns:
    """Who waits for whom within one event loop."""

    def __init__(self) -> None:
        self.makers = anyio.Semaphore(_AT_ONCE, fast_acquire=True)
        self.growing = anyio.Lock()
        self._names: dict[str, anyio.Lock] = {}

    def of(self, name: str) -> anyio.Lock:
        """Return the lock of a file."""
        return self._names.setdefault(name, anyio.Lock())


async def _side_by_side(*steps: Callable[[], Awaitable[None]]) -> None:
    """Do several things at once, to the end of all; where several fail, the error of the last is raised."""
    failures: dict[int, Exception] = {}

    async def do(number: int) -> None:
        try:
            await steps[number]()
        except Exception as error:
            failures[number] = error

    async with anyio.create_task_group() as group:
        for number in range(len(steps)):
            group.start_soon(do, number)
    if failures:
        raise failures[max(failures)]


def _checked(name: str, packed: Packed) -> Packed:
    """Return what is known of a file, with its codec's plain name, if it can be unpacked."""
    codec = check_codec(packed.codec)
    if packed.size is None and codec in SIZED:
        raise ConfigError(
            f"{name} is compressed with {codec}, which is read only where an index says how long it becomes; "
            "unpack it yourself",
            shard=name,
        )
    return replace(packed, codec=codec)


def _modified(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # whoever opens it says so
        return None


def _close(lock: ByteLock | None) -> None:
    if lock is not None:
        lock.close()
