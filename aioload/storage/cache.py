"""A disk cache around any storage: what was read once is read from this disk from then on.

What is cached are the very ranges that were asked for. Shuffled reads are a few hundred KiB and lie where the
set's blocks lie, in every epoch. Chunks of a fixed size would either fetch several times as much in the first
epoch, or leave holes at the edges of each read for the second; exact ranges cost no byte more than was asked,
fill the caller's memory in place, and any later range is made of the earlier ones that cover it. Only where
holes of a read lie close together is the little between them fetched again, since a request costs more.

Which version of a file it is: the *key* of a file is its address, with whatever its opener knows of the
version, such as a fingerprint of the set, whose manifest and index are read from the source on every opening.
So a file that is cached whole is used without asking anybody, also without a network. Before bytes of one
that is cached in part are used, the source is asked once for its tag and size; `revalidate` asks for every
file. Bytes of another tag are never served, and a file that changed under a reader is an error.

Where the key tells the content and whoever reads checks each record, it is `vouched` for: then nobody is
asked before bytes are missing, and the answer that brings those tells the tag. Should it be another than that
of what is cached, all of that read is fetched, and what is cached of the file is dropped.

Between processes, whoever is about to fetch a range claims it; others wait a moment and find it cached. What
a process has touched is in use until it closes, and nobody evicts that. Hence of a set that is larger than
the limit stays what was cached first, and each epoch finds that share of it again. If the least recently used
went within an epoch, each byte would go shortly before its turn, and none would be found.

The first time that a process reads bytes which it did not write, they are compared with their sum. What does
not fit is fetched again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from ..errors import ConfigError, ShardError, StorageError
from .base import Storage, check_name, check_range, close, read
from .cachedfile import CachedFile
from .cachedisk import CacheCounts, CacheDisk, CacheTally, Identity
from .extents import Range, joined

__all__ = ["CacheCounts", "Cached"]

_NEAR = 128 << 10  # holes closer together are one request: 3 ms of a 40 MB/s connection, against 50 to ask
_WISHES = ("max_reads", "first_reads", "max_read_bytes")
_CLAIM_PATIENCE = 2.0  # seconds for somebody else to fetch what we need too; then we fetch it ourselves
_LEAST_PATIENCE, _MOST_PATIENCE = 0.1, 10.0  # seconds to wait for a disk that is behind
_FIRST_WAIT, _LONGEST_WAIT = 0.002, 0.05  # seconds between two looks at what somebody else is fetching


class Cached:
    """A storage that keeps on disk what it reads from another one. Making one does no I/O.

    Args:
        storage: the source. If it has `version(name)`, that gives the tag of the bytes that all its reads of
            a file give, or None; it is called once a file: when some of it was read and is about to be
            cached, or before bytes are used that are cached in part.
        folder: of the cache; shared with all caches of this machine that name it.
        limit_bytes: what the folder may take of the disk; None: all but the disk's last gibibyte.
        key_of: gives, for a file's name, a stable text that no other file has, without secrets.
        revalidate: ask for the tag of each file once, also of those that are cached whole.
        vouched: the key tells the content, and whoever reads checks it; see above.
        passed: names of files that are not kept, as whoever reads them keeps what it makes of them.
        tally: counts what this cache does, and others that were given it.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str | os.PathLike[str],
        limit_bytes: int | None,
        key_of: Callable[[str], str],
        *,
        revalidate: bool = False,
        vouched: bool = False,
        passed: Container[str] = (),
        tally: CacheTally | None = None,
    ) -> None:
        if limit_bytes is not None and limit_bytes <= 0:
            raise ConfigError(f"cache_bytes must be positive, got {limit_bytes}")
        self._storage = storage
        self._disk = CacheDisk(Path(folder).absolute(), limit_bytes, tally)
        self._key_of = key_of
        self._revalidate = revalidate
        self._vouched = vouched
        self._passed = passed
        self._files: dict[str, CachedFile] = {}
        self._identities: dict[str, Identity] = {}
        self._asking: dict[tuple[object, str], anyio.Lock] = {}
        self._changed: dict[str, tuple[str | None, str | None]] = {}
        self._earned = 0.0  # seconds that reads of the source took, less those that waited for the disk

    def __getattr__(self, name: str) -> Any:
        """Tell how the source wants to be read, where it says so."""
        if name not in _WISHES:
            raise AttributeError(name)
        return getattr(self._storage, name)

    # what workers may map

    @property
    def mappable(self) -> bool:
        """Whether bytes may be taken from the cache by somebody who checks them, without asking here."""
        return self._vouched and not self._revalidate

    def path(self, name: str) -> str:
        """Return the place of a file in the cache, with a slash at its end; no name is the cache's folder."""
        return f"{self._disk.place(self._key_of(name))}/" if name else str(self._disk.path)

    async def holds(self, name: str, start: int, stop: int) -> bool:
        """Tell whether bytes are on this disk, by this process or another; nobody else is asked."""
        if not self._disk.on or name in self._passed:
            return False
        file = await self._file(name)
        return file is not None and await self._disk.covers(file, start, stop)

    async def advise(self, name: str, places: Sequence[Range]) -> None:
        """Tell the kernel that bytes will be wanted soon of what is cached of a file."""
        file = self._current(name)
        if file is not None:
            await self._disk.local.advise(file.data, places)

    def mapped(self, records: int, num_bytes: int) -> None:
        """Count records that were taken from the cache by somebody else."""
        self._disk.tally.add(hits=records, bytes=num_bytes)

    def counts(self) -> CacheCounts:
        """Return what the cache did so far."""
        return self._disk.tally.counts()

    async def size(self, name: str) -> int:
        """Return the bytes of a file."""
        check_name(name)
        file = await self._file(name) if self._disk.on and name not in self._passed else None
        return await self._storage.size(name) if file is None else file.size

    async def version(self, name: str) -> str | None:
        """Return the tag of a file at its source, where the source knows one."""
        version = getattr(self._storage, "version", None)
        return None if version is None else await version(name)

    async def get(self, name: str) -> bytes:
        """Return all of a small file, such as a manifest: always from its source, never cached."""
        return await read(self._storage, name)

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on."""
        # hot: once per read
        view = check_range(start, out)
        file = self._files.get(name)
        trusted = file is not None and view and self._disk.on and file.trusts(start, start + len(view))
        if file is not None and trusted:
            try:
                await self._disk.local.read_into(file.data, start, view)
            except (StorageError, ShardError) as error:
                self._disk.failed(file, start, len(view), error)
            else:
                file.served = True
                self._disk.hit(len(view))
                return
        check_name(name)
        if not view or not self._disk.on or name in self._passed:
            await self._storage.read_into(name, start, view)
            return
        fetched = await self._fill(name, start, view)
        self._disk.tally.add(hits=not fetched, misses=fetched > 0, bytes=len(view) - fetched)

    async def aclose(self) -> None:
        """Close the source and the cache, waiting a bounded time for the disk; twice is free."""
        try:
            await close(self._storage)
        finally:
            await self._disk.aclose()

    def __repr__(self) -> str:
        return f"<Cached {self._storage!r} files={len(self._files)} on {self._disk!r}>"

    # bytes

    async def _fill(self, name: str, start: int, view: memoryview) -> int:
        """Fill memory from the disk and, where that has holes, from the source; return the bytes fetched."""
        stop = start + len(view)
        file = await self._file(name)
        holes = [(start, stop)]
        if file is not None and stop <= file.size:
            holes = joined(file.gaps(start, stop), _NEAR)
            for part in list(_between(holes, start, stop)):
                holes += await self._take(file, part, _part(view, start, part))
            holes = joined(holes, _NEAR)
            if holes and not self._vouched and not await self._confirm(name, file):
                holes = [(start, stop)]
        fetched = await self._bring_all(name, {hole: _part(view, start, hole) for hole in holes})
        if fetched and holes != [(start, stop)] and self._current(name) is not file:
            # what came told that the source has another version: none of this read may be of the old one
            return await self._bring(name, (start, stop), view)
        return fetched

    async def _bring_all(self, name: str, holes: dict[Range, memoryview]) -> int:
        """Fill holes side by side; where several fail, the error of the first one is raised."""
        if len(holes) < 2:
            return sum([await self._bring(name, hole, view) for hole, view in holes.items()])
        fetched: list[int] = []
        failures: dict[Range, Exception] = {}

        async def bring(hole: Range) -> None:
            try:
                fetched.append(await self._bring(name, hole, holes[hole]))
            except Exception as error:
                failures[hole] = error

        async with anyio.create_task_group() as group:
            for hole in holes:
                group.start_soon(bring, hole)
        if failures:
            raise failures[min(failures)]
        return sum(fetched)

    async def _bring(self, name: str, hole: Range, view: memoryview) -> int:
        """Fill a hole from the source, or from the disk where somebody else has just fetched it."""
        key = self._key_of(name)
        wait, deadline = _FIRST_WAIT, anyio.current_time() + _CLAIM_PATIENCE
        while True:
            async with self._disk.looking(key, self._current(name), hole) as look:
                file = await self._choose(name, look.found)
                if file is not None and file.covers(*hole):
                    if not await self._take(file, hole, view):
                        return 0
                elif look.claim.held or anyio.current_time() > deadline:
                    began = anyio.current_time()
                    await self._fetch(name, hole[0], view)
                    if self._vouched and (used := self._current(name)) is not None:
                        await self._confirm(name, used)
                    await self._keep(name, key, hole[0], view, anyio.current_time() - began)
                    return len(view)
            await anyio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    async def _fetch(self, name: str, start: int, view: memoryview) -> None:
        """Read from the source."""
        try:
            await self._storage.read_into(name, start, view)
        except StorageError as error:
            if error.facts.pop("filled", 0):  # counted from here, not from where the caller asked
                vars(error).pop("filled", None)
            raise

    async def _take(self, file: CachedFile, part: Range, view: memoryview) -> list[Range]:
        """Fill memory from the disk; return the ranges for which that has not what it should have."""
        grains = file.unchecked(*part)  # before the read: another one may find them damaged meanwhile
        known = bool(grains) or file.trusts(*part)
        if not (known and await self._disk.read(file, part[0], view)):
            return [part]
        if not grains:
            return []
        wholes: list[memoryview] = []
        for grain in grains:
            if part[0] <= grain.start and grain.stop <= part[1]:
                wholes.append(_part(view, part[0], grain[:2]))
                continue
            wholes.append(memoryview(bytearray(grain.stop - grain.start)))
            if not await self._disk.read(file, grain.start, wholes[-1]):
                return [part]
        bad: list[Range] = []
        for grain, whole, total in zip(grains, wholes, await self._disk.sums(wholes), strict=True):
            inside = max(grain.start, part[0]), min(grain.stop, part[1])
            if total != grain.sum:
                file.forget(grain.start, grain.stop)
                self._disk.fault(file, f"bytes {grain.start} to {grain.stop} are damaged")
                bad.append(inside)
                continue
            file.trust(grain.start, grain.stop)
            if inside != grain[:2]:  # those that the sum is of, not those read before
                _part(view, part[0], inside)[:] = _part(whole, grain.start, inside)
        return bad

    async def _keep(self, name: str, key: str, start: int, view: memoryview, seconds: float) -> None:
        """Have bytes cached that took some seconds to come; whatever goes wrong is no fault of the read."""
        if not self._disk.storing or name in self._changed:
            return
        try:
            identity = await self._identify(name)
        except StorageError:
            return
        # a disk that is slower than the network at most halves the pace; a short stall is paid from what
        # was earned before
        self._earned = min(self._earned + seconds, _MOST_PATIENCE)
        patience = max(seconds, self._earned, _LEAST_PATIENCE)
        began = anyio.current_time()
        stored = await self._disk.store(key, identity, self._current(name), start, view, patience=patience)
        self._earned = max(self._earned - (anyio.current_time() - began), 0.0)
        if stored is not None and self._current(name) is None:
            self._files[name] = stored

    # versions

    async def _file(self, name: str) -> CachedFile | None:
        """Return what is cached of a file, if it may be used."""
        if name in self._changed:
            raise self._source_changed(name)
        file = self._current(name)
        return await self._choose(name, await self._disk.find(self._key_of(name))) if file is None else file

    def _current(self, name: str) -> CachedFile | None:
        """Return the version in use, if one was chosen and is still there."""
        file = self._files.get(name)
        return None if file is None or file.gone else file

    async def _choose(self, name: str, found: Sequence[CachedFile]) -> CachedFile | None:
        """Take one of the versions that are cached, for as long as this storage is open."""
        if found and self._current(name) is None and self._must_ask(found[0]):
            await self._identify(name)
        if found and self._current(name) is None:
            known = self._identities.get(name)
            right = next((file for file in found if known is None or (file.size, file.tag) == known), None)
            if right is not None:
                self._files[name] = right
        for file in found:
            if file is not self._current(name):
                await self._disk.let_go(file)
        return self._current(name)

    def _must_ask(self, file: CachedFile) -> bool:
        """Tell whether a version may be used only if the source has the same."""
        return self._revalidate or not (self._vouched or file.complete)

    async def _identify(self, name: str) -> Identity:
        """Return size and tag of what the source's reads give, having asked once."""
        asking = self._asking.setdefault((anyio.lowlevel.current_token(), name), anyio.Lock())
        async with asking:
            if name not in self._identities:
                tag = await self.version(name)
                self._identities[name] = await self._storage.size(name), tag
        return self._identities[name]

    async def _confirm(self, name: str, file: CachedFile) -> bool:
        """Tell whether the version in use is the source's, before bytes of both come together.

        Raises:
            StorageError: it is not, and bytes of it were served that nobody vouches for.
        """
        identity = await self._identify(name)
        if identity == (file.size, file.tag):
            return True
        if self._files.get(name) is file:
            del self._files[name]
        await self._disk.let_go(file, stale=True)
        if file.served and not self._vouched:
            self._changed[name] = file.tag, identity[1]
            raise self._source_changed(name)
        return False

    def _source_changed(self, name: str) -> StorageError:
        before, now = self._changed[name]
        return StorageError(
            f"the source of {name} has changed: it was read from the cache as of version {before}, and the "
            f"source now has {now}; open the set again",
            shard=name,
            before=before,
            now=now,
            final=True,
        )


def _part(view: memoryview, start: int, part: Range) -> memoryview:
    """Return the memory of a part, where `view` begins with byte `start`."""
    return view[part[0] - start : part[1] - start]


def _between(holes: Sequence[Range], start: int, stop: int) -> Iterator[Range]:
    """Yield what of a range is in no hole."""
    for first, last in holes:
        if start < first:
            yield start, first
        start = last
    if start < stop:
        yield start, stop
