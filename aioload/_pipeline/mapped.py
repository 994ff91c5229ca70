"""Mapped: shards that workers read through mappings of their own, so that nothing is copied on the way.

It serves files on a disk of this machine that are small enough to stay in memory. What remains for the engine
is to tell the kernel which bytes will be wanted, as long as workers say that they had to wait for the disk.

A file that cannot be mapped as the index says, or is cut while it is mapped, is read the usual way from then
on, which finds and names what is wrong with it.

Shards of the network that a disk cache has whole are such files too, where each record has a sum. Until they
are whole they are read through the cache; now and then somebody looks which have become so.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from .._workers.jobs import CACHED, MAPPED
from ..errors import AioloadError, ConfigError, StorageError
from ..machine import is_local, total_memory
from ..storage import Cached, LocalStorage
from .plan import stretches

if TYPE_CHECKING:
    from ..storage import Storage
    from .plan import Run

__all__ = ["Mapped", "choose"]

_log = logging.getLogger("aioload.engine")

_MEMORY_SHARE = 4  # of this machine's memory, what a set may be at most to be mapped
_QUIET_JOBS = 64  # without a wait for the disk, after which the kernel is no longer told what comes
_MOST_TOLD = 256  # stretches of a run: where records lie far apart, telling of all costs as much as it saves
_GAP_BYTES = 64 << 10  # bytes wanted this close are told of together
_LOOK_SECONDS = 1.0  # between two looks at what a cache has
_MOST_LACKING = 4  # shards that are not whole, after which a look ends: the next ones will hardly be
_MOST_REFUSALS = 3  # of what a cache has, before it is mapped no more

Extents = Sequence[tuple[int, int]]
"""Where the records of each shard begin and end in its file."""


class Mapped:
    """The shards that workers may map.

    Args:
        storages: where they lie, by set.
        shards: names of all shards, those of each set relative to its storage.
        sources: the set of each shard.
        extents: of each shard; looked at where there is a cache.
        clock: seconds.
    """

    def __init__(
        self,
        storages: Sequence[LocalStorage | Cached],
        shards: Sequence[str],
        sources: Sequence[int],
        extents: Callable[[], Extents] = tuple,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.paths = tuple(
            storages[source].path(shard) for shard, source in zip(shards, sources, strict=True)
        )
        self._clock = clock
        self._caches = {
            shard: storage
            for shard, source in enumerate(sources)
            if isinstance(storage := storages[source], Cached)
        }
        self._lacking = set(self._caches)
        self._extents = extents() if self._caches else ()
        self._looks = False
        self._look_at = -math.inf
        self._refusals = 0
        self._storages = storages
        self._shards = shards
        self._sources = sources
        self._refused: set[int] = set()
        self._quiet = 0

    @property
    def cold(self) -> bool:
        """Whether workers had to wait for the disk lately, as far as is known."""
        return self._quiet < _QUIET_JOBS

    def note(self, faults: int) -> None:
        """Note how often a job had to wait for the disk."""
        self._quiet = 0 if faults else self._quiet + 1

    @property
    def reads(self) -> bool:
        """Whether some shards are read, as a cache lacks them or they were refused."""
        return bool(self._lacking or self._refused)

    @property
    def due(self) -> bool:
        """Whether it is time for another look at what a cache has."""
        return bool(self._lacking) and not self._looks and self._clock() >= self._look_at

    async def look(self) -> None:
        """See which shards have become whole in a cache."""
        self._looks, lacking = True, 0
        try:
            for shard in sorted(self._lacking):
                if await self._caches[shard].holds(self._shards[shard], *self._extents[shard]):
                    self._lacking.discard(shard)
                elif (lacking := lacking + 1) >= _MOST_LACKING:
                    break
        except AioloadError:  # whoever wants the bytes will meet it
            _log.debug("no look at the cache", exc_info=True)
        finally:
            self._looks, self._look_at = False, self._clock() + _LOOK_SECONDS

    def serve(self, run: Run) -> bool:
        """Note in a run's table that its records are taken from mappings, if all of its shards may be."""
        shards = np.unique(run.table["shard"]).tolist() if self.reads or self._caches else ()
        if not (self._refused.isdisjoint(shards) and self._lacking.isdisjoint(shards)):
            return False
        run.table["mapped"] = MAPPED
        for shard in filter(self._caches.__contains__, shards):
            rows = run.table["shard"] == shard
            run.table["mapped"][rows] = CACHED
            self._caches[shard].mapped(int(rows.sum()), int(run.sizes[rows].sum()))
        return True

    def refuse(self, run: Run) -> None:
        """Map the shards of a run no more, as one of them cannot be; those of a cache, for now."""
        shards = set(np.unique(run.table["shard"]).tolist())
        cached = shards & self._caches.keys()
        if cached and self._refusals < _MOST_REFUSALS:
            self._refusals += 1
            self._lacking |= cached  # what is damaged is fetched again
            shards -= cached
        if shards - self._refused:
            _log.info("shards %s are read rather than mapped from now on", sorted(shards - self._refused))
        self._refused |= shards

    async def advise(self, run: Run) -> None:
        """Tell the kernel what a run will want, in one go for each file."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for piece in run.pieces:
            if piece.first_position >= run.first_position:  # else it was told before
                wanted.setdefault(piece.shard, []).append((piece.start, piece.stop))
        alone = run.alone
        shard, start = run.table["shard"][alone].astype(np.int64), run.offsets[alone]
        for members in stretches(shard, start, start + run.sizes[alone], _GAP_BYTES)[:_MOST_TOLD]:
            first, last = members[0], members[-1]  # in the order of the file
            place = int(start[first]), int(start[last] + run.sizes[alone[last]])
            wanted.setdefault(int(shard[first]), []).append(place)
        for number, places in wanted.items():
            try:
                await self._storages[self._sources[number]].advise(self._shards[number], places)
            except StorageError:  # whoever wants the bytes will meet it
                _log.debug("no advice for shard %d", number, exc_info=True)


def choose(
    reads: str,
    storages: Sequence[Storage],
    shards: Sequence[str],
    sources: Sequence[int],
    *,
    data_bytes: int,
    num_workers: int,
    checked: bool,
    extents: Callable[[], Extents] = tuple,
) -> Mapped | None:
    """Return the shards to be mapped, or None if records are to be read.

    Args:
        reads: "auto", "file" or "mmap".
        storages: by set.
        shards: as in `Mapped`.
        sources: as in `Mapped`.
        data_bytes: of all records.
        num_workers: processes; without any, a file that is cut would end the user's own.
        checked: whether all records have sums; else those at the end of a file that is cut would be zeros.
        extents: as in `Mapped`.

    Raises:
        ConfigError: "mmap" was asked for, and not all files are local.
    """
    local = [storage for storage in storages if _is_mappable(storage)]
    if reads == "file" or not num_workers or not shards or not storages or not checked:
        return None
    if len(local) < len(storages):
        if reads == "mmap":
            raise ConfigError(
                "reads='mmap' needs files on a local disk, or a cache there; pass reads='file' or 'auto'"
            )
        return None
    if reads == "auto" and (
        data_bytes > total_memory() // _MEMORY_SHARE
        or not all(is_local(storage.path("")) for storage in local)
    ):
        return None
    return Mapped(local, shards, sources, extents)


def _is_mappable(storage: Storage) -> TypeGuard[LocalStorage | Cached]:
    return type(storage) is LocalStorage or (isinstance(storage, Cached) and storage.mappable)
