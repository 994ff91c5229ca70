"""Mapped: shards that workers read through mappings of their own, so that nothing is copied on the way.

It serves files on a disk of this machine that are small enough to stay in memory. What remains for the engine
is to tell the kernel which bytes will be wanted, as long as workers say that they had to wait for the disk.

A file that cannot be mapped as the index says, or is cut while it is mapped, is read the usual way from then
on, which finds and names what is wrong with it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ConfigError, StorageError
from ..machine import is_local, total_memory
from ..storage import LocalStorage
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


class Mapped:
    """The shards that workers may map.

    Args:
        storages: where they lie, by set.
        shards: names of all shards, those of each set relative to its storage.
        sources: the set of each shard.
    """

    def __init__(
        self, storages: Sequence[LocalStorage], shards: Sequence[str], sources: Sequence[int]
    ) -> None:
        self.paths = tuple(
            storages[source].path(shard) for shard, source in zip(shards, sources, strict=True)
        )
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

    def serves(self, run: Run) -> bool:
        """Tell whether all shards of a run may be mapped."""
        return not self._refused or self._refused.isdisjoint(np.unique(run.table["shard"]).tolist())

    def refuse(self, run: Run) -> None:
        """Map the shards of a run no more: one of them cannot be."""
        shards = set(np.unique(run.table["shard"]).tolist())
        _log.info("shards %s are read rather than mapped from now on", sorted(shards - self._refused))
        self._refused |= shards

    async def advise(self, run: Run) -> None:
        """Tell the kernel what a run will want, in one go for each file."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for piece in run.pieces:
            if piece.first_position >= run.first_position:  # else it was told before
                wanted.setdefault(piece.shard, []).append((piece.start, piece.stop))
        alone = np.flatnonzero(run.piece < 0)
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

    Raises:
        ConfigError: "mmap" was asked for, and not all files are local.
    """
    local = [storage for storage in storages if type(storage) is LocalStorage]
    if reads == "file" or not num_workers or not shards or not checked:
        return None
    if len(local) < len(storages):
        if reads == "mmap":
            raise ConfigError("reads='mmap' needs files on a local disk; pass reads='file' or 'auto'")
        return None
    if reads == "auto" and (
        data_bytes > total_memory() // _MEMORY_SHARE
        or not all(is_local(storage.path("")) for storage in local)
    ):
        return None
    return Mapped(local, shards, sources)
