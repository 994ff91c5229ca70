"""Caching: samples that were kept are found before anything is read for them; in the engine's loop.

A run is told, when it is planned, which of its records were kept. These are neither read nor decoded: a
worker takes them from where they lie. It keeps what it makes of the others, if there is room, and says
nothing of where: the index of the memory, and the lists on the disk, say it to everybody.

A sample that cannot be had, or is not what it was, is `Lost`: it is forgotten, and the run's other steps are
made once more as if nothing had been kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .._workers.task import is_lost
from ..cache.guard import Guard, Pressure
from ..cache.shelf import Shelf
from ..cache.stock import FIRST_FILE, NOT_KEPT, Lost
from ..errors import StorageError
from .plan import stretches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._workers.jobs import Answer, Decode
    from ..cache.shelf import Found
    from ..cache.stock import StockPlan
    from ..stats import Counters
    from ..storage import LocalStorage
    from .plan import Piece, Plan, Run
    from .tuner import Tuner

__all__ = ["Caching", "warn"]

_log = logging.getLogger("aioload.loader")

_DENSE = 1.25  # a piece may be so much longer than what is missing of it, before it is better not read whole
_QUIET_JOBS = 64  # without a wait for the disk, after which the kernel is no longer told what comes
_MOST_TOLD = 256  # stretches of a run
_GAP_BYTES = 64 << 10  # bytes wanted this close are told of together
_NOTES = {
    "random": "prepare draws random numbers (from %s), but should always give the same: what a cache keeps "
    "of it never changes. Draw them in transform, from its rng",
    "unkeepable": "not kept: %s. Samples can be kept that are made of arrays, tensors, numbers, texts, "
    "bytes, and dicts, lists and tuples of these",
    "disk": "nothing more is kept on the disk: %s",
}


class Caching:
    """What is kept, for the passes of a loader.

    Args:
        shelf: where.
        counters: told of what was found.
        tuner: told of pressure.
        guard: tells of it.
        storage: of the disk's files, if there are any.
    """

    def __init__(
        self,
        shelf: Shelf,
        counters: Counters,
        tuner: Tuner,
        guard: Guard,
        storage: LocalStorage | None = None,
    ) -> None:
        self._shelf = shelf
        self._counters = counters
        self._tuner = tuner
        self._guard = guard
        self._storage = storage
        self._quiet = 0  # jobs since one that waited for the disk
        self._finds = False  # something was kept at least once
        self._late = 0  # samples found (lost: less) after their run was planned, and not counted yet

    @property
    def plan(self) -> StockPlan | None:
        """What workers must know."""
        return self._shelf.plan

    def begin(self) -> None:
        """Note that a pass begins: others may have written meanwhile."""
        self._shelf.note_written()

    def mark(self, run: Run, *, anew: bool = False) -> Run:
        """Return a run that knows which of its records were kept; they belong to no piece any more.

        Args:
            run: which was planned.
            anew: make all of them as if nothing had been kept, as some of it was lost.
        """
        self._look()
        found = self._shelf.find(run.table["source"], run.table["record"])
        rows = found.rows
        if anew:
            tier = np.where(rows, np.uint32(NOT_KEPT), found.tier).astype(np.uint32)
            return replace(run, kept=replace(found, tier=tier))
        if not rows.any():
            return replace(run, kept=found)
        self._finds = True
        piece = np.where(rows, -1, run.piece)
        numbers, again = np.unique(piece[piece >= 0], return_inverse=True)
        piece[piece >= 0] = again
        pieces = tuple(run.pieces[number] for number in numbers.tolist())
        return replace(run, kept=found, piece=piece, pieces=pieces)

    def is_cold(self, run: Run) -> bool:
        """Whether it is worth while to tell the kernel what a run will want of the disk."""
        kept = run.kept
        if self._storage is None or kept is None or self._quiet >= _QUIET_JOBS:
            return False
        return bool((kept.tier >= FIRST_FILE).any())

    async def advise(self, run: Run) -> None:
        """Tell the kernel what a run will want of the disk, in one go for each file."""
        kept = run.kept
        assert kept is not None
        assert self._storage is not None
        rows = np.flatnonzero(kept.tier >= FIRST_FILE)
        file, start = kept.tier[rows].astype(np.int64) - FIRST_FILE, kept.start[rows].astype(np.int64)
        stop = start + kept.size[rows].astype(np.int64)
        wanted: dict[int, list[tuple[int, int]]] = {}
        for members in stretches(file, start, stop, _GAP_BYTES)[:_MOST_TOLD]:
            place = int(start[members[0]]), int(stop[members[-1]])
            wanted.setdefault(int(file[members[0]]), []).append(place)
        for number, places in wanted.items():
            try:
                await self._storage.advise(self._shelf.name(number), places)
            except StorageError:  # whoever wants the bytes makes them anew
                _log.debug("no advice for kept samples", exc_info=True)

    def count(self, run: Run) -> None:
        """Count what was found of a run, which has been made: a number that was told never shrinks."""
        if run.kept is not None:
            rows = run.kept.rows
            hits, size = int(rows.sum()), int(run.kept.size[rows].sum())
            misses = len(run.table) - hits
            late = min(max(self._late, -hits), misses)  # some may be of another run, which counts them then
            self._late -= late
            self._counters.add(sample_hits=hits + late, sample_misses=misses - late, sample_cache_bytes=size)

    def is_wanted(self, plan: Plan, piece: Piece) -> bool:
        """Tell whether so much of a piece is missing that it is worth reading whole."""
        if not self._finds:
            return True
        places = plan.table.places(np.arange(piece.key, piece.stop_key, dtype=np.int64))
        missing = ~self._shelf.find(places.source, places.record).rows
        size = int((places.stop - places.start)[missing].sum())
        return piece.stop - piece.start <= size * _DENSE

    def write(self, run: Run) -> None:
        """Write into a run's table where what was kept lies; what was kept since it was planned, too."""
        kept = run.kept
        if kept is None:
            return
        table = run.table
        table["tier"] = kept.tier
        rows = kept.rows
        self._write_places(table, rows, kept)
        late = np.flatnonzero(~rows & (kept.tier != NOT_KEPT))
        if len(late):
            found = self._shelf.find(table["source"][late], table["record"][late])
            now = found.rows
            if now.any():
                table["tier"][late] = found.tier
                part = table[late]
                self._write_places(part, now, found)
                table[late] = part
                self._late += int(now.sum())
                self._counters.add(sample_cache_bytes=int(found.size[now].sum()))

    def with_files(self, job: Decode, table: NDArray[np.void]) -> Decode:
        """Return a job that names the files in which samples of its rows lie."""
        files = self._shelf.files(table["tier"])
        return replace(job, files=files) if files else job

    def take_in(self, answer: Answer, *, is_repeated: bool = False) -> None:
        """Take in what a worker tells of what it kept.

        Args:
            answer: of a job.
            is_repeated: the job was done before, as its outcome needed another place.

        Raises:
            Lost: it could not find something; that is forgotten.
        """
        tally = answer.kept
        notes = [*answer.notes]
        if tally is not None:
            notes += tally.notes
            self._quiet = 0 if tally.waits else self._quiet + 1
            if tally.stored:
                self._shelf.note_written()
            self._counters.add(
                sample_stored=tally.stored_bytes,
                sample_cache_seconds=tally.read_seconds,
                saved_seconds=tally.saved_seconds,
            )
            if not is_repeated:
                self._late += tally.late
                self._counters.add(sample_cache_bytes=tally.late_bytes)
        warn(self._counters, notes)
        for source, record, start in () if tally is None else tally.lost:
            self._shelf.forget(source, record, start)
            self._late -= 1
            self._counters.add(sample_errors=1)
        if any(map(is_lost, answer.outcomes)):
            raise Lost

    def close(self) -> None:
        """Give all back."""
        self._shelf.close()

    def _look(self) -> None:
        """See whether memory is scarce."""
        before, pressure = self._guard.pressure, self._guard.look()
        if pressure != before:
            self._tuner.squeeze(pressure > Pressure.NONE)
            if self._shelf.memory is not None:
                self._shelf.memory.close_admission(pressure == Pressure.SEVERE)
            _log.debug("memory pressure: %s", pressure.name)

    @staticmethod
    def _write_places(table: NDArray[np.void], rows: NDArray[np.bool_], found: Found) -> None:
        table["start"][rows] = found.start[rows]
        table["stop"][rows] = found.start[rows] + found.size[rows]
        table["sum"][rows] = found.sum[rows]
        table["mapped"][rows] = 0


def warn(counters: Counters, notes: Iterable[tuple[str, str]]) -> None:
    """Warn of what workers noted, once of each kind."""
    for kind, what in notes:
        if kind not in counters.warned:
            counters.warned.add(kind)
            _log.warning(_NOTES[kind], what)
