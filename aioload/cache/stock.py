"""Stock: what one worker keeps and finds again, over all tiers."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from .folder import DiskWriter, SampleFolder
from .memory import MemoryStore
from .packed import Kept, Packed, Packer, Unkeepable, unpack

__all__ = ["FIRST_FILE", "IN_MEMORY", "NOT_KEPT", "TO_KEEP", "Lost", "Stock", "StockPlan", "Tally"]

NOT_KEPT, TO_KEEP, IN_MEMORY, FIRST_FILE = 0, 1, 2, 3
"""Of a record: the cache has nothing to do with it, it is to be kept once it is made, or where it lies."""

# what bytes that were never packed may come to, should their sum be right all the same
_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError, struct.error)
_WAIT_SECONDS, _WAIT_RATE = 0.001, 200e6  # what is in memory comes faster, in bytes a second
_MOST_FILES = 64  # open at a time
_MOST_BYTES = (1 << 32) - 1  # of a sample: what an entry can tell


class Lost(Exception):
    """A sample that was kept cannot be had; no error, its record is made anew."""


@dataclass(frozen=True, slots=True)
class StockPlan:
    """What a worker must know to keep samples."""

    first_slots: tuple[int, ...]
    """By set, where its records begin in the index of the memory."""
    folder: str | None = None
    """Of the disk's samples; None: there are none."""
    disk_limit: int = 0
    """Bytes that these may take."""
    keys: tuple[str, ...] = ()
    """By set, under which its samples lie there."""


@dataclass(slots=True)
class Tally:
    """What was kept and found in a job."""

    stored: int = 0
    """Samples that were kept."""
    stored_bytes: int = 0
    """Their bytes."""
    late: int = 0
    """Samples that were found though they were to be made."""
    late_bytes: int = 0
    """Their bytes."""
    read_seconds: float = 0.0
    """Time in bringing back what was kept."""
    waits: int = 0
    """Samples that took so long to read that they must have come from the disk itself."""
    saved_seconds: float = 0.0
    """What making that had taken."""
    lost: list[tuple[int, int, int]] = field(default_factory=list)
    """Samples that were not what had been kept: set, record, and where they lay."""
    notes: list[tuple[str, str]] = field(default_factory=list)
    """What the user should know once: of what kind, and what."""


class Stock:
    """Keeps samples and finds them again.

    Args:
        plan: what to know.
        memory: where they are kept first, if anywhere.
    """

    def __init__(self, plan: StockPlan, memory: MemoryStore | None) -> None:
        self.tally = Tally()
        self._plan = plan
        self._memory = memory
        self._packer = Packer()
        self._files: dict[int, str] = {}
        self._open: OrderedDict[int, int] = OrderedDict()
        self._writers: dict[int, DiskWriter] = {}
        folder = plan.folder
        self._folder = None if folder is None else SampleFolder(Path(folder), plan.disk_limit)
        # without worker processes, another thread may close while the user's is at work: a descriptor that
        # was closed is somebody else's soon
        self._lock = threading.Lock()
        self._closed = False

    def know(self, files: Sequence[tuple[int, str]]) -> None:
        """Take the names of files, by number."""
        self._files.update(files)

    def find(self, source: int, record: int, tier: int, start: int, stop: int, sum_: int) -> Kept:
        """Return a sample that was kept.

        Args:
            source: the record's set.
            record: its number there.
            tier: where it lies.
            start: first byte.
            stop: byte after the last.
            sum_: of these.

        Raises:
            Lost: it cannot be had.
        """
        # hot: once per record that was kept
        began = time.perf_counter()
        data = np.empty(stop - start, np.uint8)
        if not self._fill(tier, start, data, sum_):
            raise Lost
        if tier >= FIRST_FILE and self._memory is not None:
            with self._lock:
                self._keep_in_memory(source, record, Packed([data], len(data), sum_))
        try:
            kept = unpack(data)
        except _DAMAGED as error:
            raise Lost from error
        took = time.perf_counter() - began
        self.tally.read_seconds += took
        self.tally.waits += tier >= FIRST_FILE and took > _WAIT_SECONDS + len(data) / _WAIT_RATE
        self.tally.saved_seconds += kept.seconds
        return kept

    def find_lost(self, table: NDArray[np.void]) -> None:
        """Count all of a job's samples that are not what was kept: where one is, there may be more."""
        kept = table[table["tier"] >= IN_MEMORY][["source", "record", "tier", "start", "stop", "sum"]]
        for source, record, tier, start, stop, sum_ in kept.tolist():
            if not self._fill(tier, start, np.empty(stop - start, np.uint8), sum_):
                self.tally.lost.append((source, record, start))

    def find_late(self, source: int, record: int) -> Kept | None:
        """Return a sample that was kept in memory since its run was planned; None if it was not.

        An epoch begins ahead, and other ranks keep samples, too.
        """
        if self._memory is None:
            return None
        slot = self._plan.first_slots[source] + record
        place, size, sum_ = self._memory.entry(slot)
        if not place:
            return None
        try:
            kept = self.find(source, record, IN_MEMORY, place, place + size, sum_)
        except Lost:  # half written, say: it is made, and whoever plans next forgets it
            return None
        self.tally.late += 1
        self.tally.late_bytes += size
        return kept

    def keep(self, source: int, record: int, sample: Any, key: str | None, seconds: float) -> None:
        """Keep a sample where there is room; what cannot be kept is noted."""
        if not self._has_room(source):
            return
        try:
            packed = self._packer.pack(sample, key, seconds)
        except (Unkeepable, ValueError, RecursionError) as error:
            self.tally.notes.append(("unkeepable", str(error)))
            return
        if packed.size > _MOST_BYTES:
            what = f"a sample of {packed.size} bytes, of {_MOST_BYTES} at most"
            self.tally.notes.append(("unkeepable", what))
            return
        with self._lock:
            if self._keep_in_memory(source, record, packed) or self._write(source, record, packed):
                self.tally.stored += 1
                self.tally.stored_bytes += packed.size

    def take_tally(self) -> Tally:
        """Return what was counted since the last call."""
        tally, self.tally = self.tally, Tally()
        return tally

    def close(self) -> None:
        """Give descriptors back; nothing is kept or found from now on."""
        with self._lock:
            self._closed = True
            for fd in self._open.values():
                os.close(fd)
            for writer in self._writers.values():
                writer.close()
            self._open.clear()
            self._writers.clear()

    def _has_room(self, source: int) -> bool:
        """Whether it is worth while to pack a sample."""
        if self._memory is not None and self._memory.may_take:
            return True
        writer = self._writers.get(source)
        return self._folder is not None and (writer is None or not writer.is_full)

    def _keep_in_memory(self, source: int, record: int, packed: Packed) -> bool:
        if self._memory is None or self._closed:
            return False
        return self._memory.put(self._plan.first_slots[source] + record, packed)

    def _write(self, source: int, record: int, packed: Packed) -> bool:
        if self._folder is None or self._closed:
            return False
        writer = self._writers.get(source)
        try:
            if writer is None:
                place = self._folder.root / self._plan.keys[source]
                writer = self._writers[source] = DiskWriter(self._folder, place)
            return writer.put(record, packed)
        except OSError as error:
            self._folder = None  # what is there can be read all the same
            self.tally.notes.append(("disk", f"{error.strerror or error} ({self._plan.folder})"))
            return False

    def _fill(self, tier: int, start: int, data: NDArray[np.uint8], sum_: int) -> bool:
        """Fill an array with what lies at a place; return whether it is what was kept there."""
        with self._lock:
            return self._read(tier, start, data) and google_crc32c.value(data) == sum_

    def _read(self, tier: int, start: int, data: NDArray[np.uint8]) -> bool:
        if self._closed:
            return False
        if tier == IN_MEMORY:
            return self._memory is not None and self._memory.get(start, data)
        try:
            return os.preadv(self._file(tier - FIRST_FILE), [data.data], start) == len(data)
        except (OSError, KeyError):
            return False

    def _file(self, number: int) -> int:
        fd = self._open.get(number)
        if fd is None:
            fd = self._open[number] = os.open(self._files[number], os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > _MOST_FILES:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(number)
        return fd
