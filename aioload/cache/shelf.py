"""Shelf: what is kept of all sets of a loader, as the process that plans sees it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .entries import ENTRY
from .folder import KeyFolder, SampleFolder
from .guard import Reading, affordable
from .keys import Key
from .memory import MemoryStore
from .sharing import Host, name_of_job, share
from .stock import FIRST_FILE, IN_MEMORY, TO_KEEP, StockPlan
from .tiers import Disk, Memory, Tiers

__all__ = ["Found", "Holding", "Shelf"]

_log = logging.getLogger("aioload.loader")

_FILE_BITS = 40  # of a place on disk: where in the file; above it, the file's number and one
_AGAIN = 20  # times what looking took is the least between two looks


@dataclass(frozen=True, slots=True)
class Holding:
    """What a loader keeps, and under which names."""

    tiers: Tiers
    """Where."""
    keys: tuple[Key, ...]
    """By set."""
    records: tuple[int, ...]
    """By set, how many there are."""
    ranks: int = 1
    """That share this machine."""
    memory_limit: int = 0
    """Bytes that the pipeline of each may take beside."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What is kept of some records, one entry for each."""

    tier: NDArray[np.uint32]
    """`TO_KEEP`, or where it lies."""
    start: NDArray[np.uint64]
    """First byte."""
    size: NDArray[np.uint64]
    """Bytes."""
    sum: NDArray[np.uint32]
    """CRC-32C of these."""

    @property
    def rows(self) -> NDArray[np.bool_]:
        """Which of them are kept."""
        found: NDArray[np.bool_] = self.tier >= IN_MEMORY
        return found


class Shelf:
    """Opens the tiers and finds what is kept. Methods block, for as long as a local disk takes.

    Args:
        holding: what is kept.
        reading: how much memory there is.
    """

    def __init__(self, holding: Holding, reading: Reading) -> None:
        self._holding = holding
        firsts = np.cumsum([0, *holding.records])
        self._firsts = firsts[:-1]
        self._host: Host | None = None
        self.memory = self._open_memory(holding.tiers.memory, int(firsts[-1]), reading)
        self._folders: list[KeyFolder] = []
        self._index: list[NDArray[np.void]] = []
        self._files: list[str] = []
        self._numbers: dict[str, int] = {}
        self._stale = False
        self._looked = self._took = 0.0
        self._disk = self._open_disk(holding.tiers.disk)

    @property
    def plan(self) -> StockPlan | None:
        """What workers must know; None: nothing can be kept."""
        if self.memory is None and self._disk is None:
            return None
        firsts = tuple(self._firsts.tolist())
        if self._disk is None:
            return StockPlan(firsts)
        keys = tuple(key.digest for key in self._holding.keys)
        return StockPlan(firsts, str(self._disk.folder), self._disk.limit_bytes, keys)

    def find(self, sources: NDArray[np.integer], records: NDArray[np.integer]) -> Found:
        """Return what is kept of these records.

        Args:
            sources: their sets.
            records: their numbers there.
        """
        # hot: once per run
        tier = np.full(len(records), TO_KEEP, np.uint32)
        entries = np.zeros(len(records), ENTRY)
        self._look_again()
        for source, index in enumerate(self._index):
            rows = np.flatnonzero(sources == source)
            found = index[records[rows]]
            rows, found = rows[found["place"] > 0], found[found["place"] > 0]
            file = found["place"] >> np.uint64(_FILE_BITS)
            tier[rows] = file - np.uint64(1) + np.uint64(FIRST_FILE)
            found["place"] &= np.uint64((1 << _FILE_BITS) - 1)
            entries[rows] = found
        if self.memory is not None:
            found = self.memory.index[self._firsts[sources] + records]
            held = found["place"] > 0
            tier[held], entries[held] = IN_MEMORY, found[held]
        return Found(tier, entries["place"], entries["size"].astype(np.uint64), entries["sum"])

    def files(self, tiers: NDArray[np.uint32]) -> tuple[tuple[int, str], ...]:
        """Return number and path of the files in which these lie."""
        numbers = np.unique(tiers[tiers >= FIRST_FILE]) - FIRST_FILE
        return tuple((number, self._files[number]) for number in numbers.tolist())

    @property
    def folder(self) -> Path | None:
        """Where the files lie, if there is a disk."""
        return None if self._disk is None else SampleFolder(self._disk.folder, 1).root

    def name(self, file: int) -> str:
        """Return the name of a file in the folder, by number."""
        path = Path(self._files[file])
        return f"{path.parent.name}/{path.name}"

    def forget(self, source: int, record: int, start: int) -> None:
        """Keep a sample no more, as it is not what it was; unless it was kept anew elsewhere.

        Args:
            source: the record's set.
            record: its number there.
            start: where it lay.
        """
        if self.memory is not None:
            slot = int(self._firsts[source]) + record
            if int(self.memory.index["place"][slot]) == start:
                self.memory.forget(np.array([slot]))
        if self._index:
            places = self._index[source]["place"]
            if int(places[record]) & ((1 << _FILE_BITS) - 1) == start:
                places[record] = 0

    def note_written(self) -> None:
        """Note that there is more on the disk than is known."""
        self._stale = True

    def close(self) -> None:
        """Give all back; twice is free."""
        if self._host is not None:
            self._host.close()
            self._host = None
        if self.memory is not None:
            self.memory.close()
        self._close_folders()

    def _open_memory(self, tier: Memory | None, records: int, reading: Reading) -> MemoryStore | None:
        if tier is None:
            return None
        holding = self._holding
        most = affordable(reading, holding.ranks * holding.memory_limit)
        limit = min(tier.limit_bytes, most)
        if tier.limit_bytes > most:
            _log.warning(
                "cache=Memory(%d) would leave this machine too little memory; %d bytes are taken at most",
                tier.limit_bytes,
                most,
            )
        try:
            return self._shared(records, limit) or self._own(records, limit // holding.ranks)
        except OSError as error:
            _log.warning("nothing is kept in memory: the system gives none that can be shared (%s)", error)
            return None

    def _shared(self, records: int, limit: int) -> MemoryStore | None:
        """Return the memory that all ranks of this machine have together; None where that cannot be."""
        keys = self._holding.keys
        if self._holding.ranks == 1 or any(key.doubts or not key.is_found_again for key in keys):
            return None
        if limit <= MemoryStore.least(records):
            return None
        name = name_of_job([key.digest for key in keys], records, self._holding.tiers.memory)
        found = share(name, lambda: MemoryStore.create(records, limit))
        if found is None:
            return None
        store, self._host = found
        return store

    def _own(self, records: int, limit: int) -> MemoryStore | None:
        """Return memory for this rank alone."""
        if limit <= MemoryStore.least(records):
            _log.warning(
                "nothing is kept in memory: of %d bytes for this rank, the index of %d records takes %d",
                limit,
                records,
                MemoryStore.least(records),
            )
            return None
        return MemoryStore.create(records, limit)

    def _open_disk(self, tier: Disk | None) -> Disk | None:
        if tier is None:
            return None
        folder = SampleFolder(tier.folder, tier.limit_bytes)
        try:
            for key in self._holding.keys:
                self._folders.append(folder.open(key.digest, key.about))
        except OSError as error:
            _log.warning(
                "nothing is kept on the disk: %s cannot be used (%s)", tier.path, error.strerror or error
            )
            self._close_folders()
            return None
        self._index = [np.zeros(records, ENTRY) for records in self._holding.records]
        self._refresh()
        return tier

    def _close_folders(self) -> None:
        for folder in self._folders:
            folder.close()
        self._folders.clear()

    def _look_again(self) -> None:
        """Take up what has been written, unless that has just been done."""
        if self._stale and time.monotonic() - self._looked >= _AGAIN * self._took:
            self._refresh()

    def _refresh(self) -> None:
        began = time.monotonic()
        self._stale = False
        for source, folder in enumerate(self._folders):
            index = self._index[source]
            for name, entries in folder.fresh():
                known = entries[(entries["record"] < len(index)) & (entries["size"] > 0)]
                at = known["record"].astype(np.int64)
                place = known["start"] | np.uint64((self._number(folder, name) + 1) << _FILE_BITS)
                index["place"][at], index["size"][at], index["sum"][at] = place, known["size"], known["sum"]
        self._looked = time.monotonic()
        self._took = self._looked - began

    def _number(self, folder: KeyFolder, name: str) -> int:
        path = str(folder.place / name)
        if path not in self._numbers:
            self._numbers[path] = len(self._files)
            self._files.append(path)
        return self._numbers[path]
