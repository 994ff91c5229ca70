"""Sizes: how much work goes into one job, and how much room its outcome may take; pure.

Nothing here decides what is in a batch, only how the work on it is cut.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .._workers.layout import Layout
from .._workers.space import align

if TYPE_CHECKING:
    from .._workers.jobs import Answer
    from .needs import Growth

__all__ = ["JOB_SECONDS", "MOST_PARTS", "Sizes"]

_REMEMBERED = 1024  # records whose cost decides: where one in fifty is costly, their mean is within a third
JOB_SECONDS = 0.05  # of work in one job: the way to a worker and back (0.3 ms) stays under 1%
MOST_PARTS = 4  # of a batch of known cost: several batches are in work, more would only add messages
_RUN_BYTES = 16 << 20  # of raw records in a run of several batches: four large reads
_FIRST_BYTES = 256 << 10  # of raw records in the first run
_FIRST_GROWTH = 8  # decoded bytes per raw byte before anything was decoded; what is not used is not touched
_UNREAD_BYTES = 1 << 20  # likewise of a sample that is made of no record: to make it twice costs more
_UNREAD_TEXT = 1 << 10  # of its texts
_ROOM = 1 << 16  # bytes on top of any guess, for texts, alignment and the descriptor
_MARGIN = 1.25  # over the largest outcome so far
_UNEVEN = 4  # times what others take, from which a record counts as one of the slow ones
_LONG_SECONDS = 0.01  # below, batches ahead make up for it
_MAX_MISFITS = 3  # batches that fell out of the layout before it is given up


class Sizes:
    """What is known about the cost and size of samples.

    Args:
        num_workers: processes that share the work; 0 counts as one.
        record_bytes: mean size of a raw record.
        max_run_bytes: raw bytes that one run may bring in.
        growth: what becomes of records, if that is known beforehand.
        job_seconds: of work in one job.
    """

    def __init__(
        self,
        num_workers: int,
        record_bytes: float,
        max_run_bytes: int,
        growth: Growth | None = None,
        *,
        job_seconds: float = JOB_SECONDS,
    ) -> None:
        self._workers = max(num_workers, 1)
        self._reads = record_bytes > 0
        self._job_seconds = job_seconds
        self._record_bytes = max(record_bytes, 1.0)
        self._run_bytes = min(_RUN_BYTES, max_run_bytes)
        self.growth = growth
        self._records = self._seconds = 0.0  # of the jobs of late
        self._sample_bytes: float | None = None  # largest mean per record in a packed outcome
        self._growth = 0.0  # largest size of a packed outcome in raw bytes; 0: unknown
        self._text_bytes = 0.0  # likewise, of texts beside rows
        self._misfits = 0
        self._layout: Layout | None = None

    @property
    def layout(self) -> Layout | None:
        """What samples look like, where they all look alike."""
        return self._layout

    @property
    def learning(self) -> bool:
        """Whether workers should tell the layout of what they see."""
        return self._layout is None and self._misfits < _MAX_MISFITS

    def learn(self, layout: Layout) -> None:
        """Take a layout that a worker has seen."""
        if self.learning:
            self._layout = layout

    def misfit(self) -> None:
        """Note a batch that did not fit: the layout is learnt anew, and given up after a few."""
        self._misfits += 1
        self._layout = None

    def took(self, records: int, seconds: float) -> None:
        """Note what a job cost."""
        if not records:
            return
        # what came before fades by number of records: so a job of few says little, unless it took long
        kept = _REMEMBERED / max(self._records, _REMEMBERED)
        self._records = self._records * kept + records
        self._seconds = self._seconds * kept + seconds

    def excess(self, records: int, answer: Answer) -> float:
        """Return by how much a job's longest record took longer than records do, if that is much.

        Time in which the job had no CPU is no record's own.
        """
        longest = answer.longest_seconds - answer.queued_seconds
        if longest < _LONG_SECONDS:
            return 0.0
        others = answer.decode_seconds + answer.prepare_seconds + answer.transform_seconds
        others -= answer.longest_seconds
        usual = self._record_seconds or 0.0
        if records > 1:
            usual = min(usual or math.inf, max(others, 0.0) / (records - 1))
        return longest - usual if usual and longest > _UNEVEN * usual else 0.0

    def outcome(self, records: int, size: int, raw_bytes: int) -> None:
        """Note the size of a packed outcome."""
        if raw_bytes:
            self._growth = max(self._growth, size / raw_bytes)
        self._sample_bytes = max(self._sample_bytes or 0.0, size / max(records, 1))

    def texts(self, records: int, size: int) -> None:
        """Note the size of texts beside rows."""
        self._text_bytes = max(self._text_bytes, size / max(records, 1))

    @property
    def _record_seconds(self) -> float | None:
        """What a record costs, in the mean; None before that is known."""
        return self._seconds / self._records if self._records else None

    def steps_per_run(self, batch_size: int) -> int:
        """Return how many batches should walk together."""
        batch_bytes = max(batch_size * self._record_bytes, 1.0)
        by_bytes = int(self._run_bytes // batch_bytes)
        if self._record_seconds is None:
            return max(1, min(by_bytes, self.first_steps(batch_size)))
        by_time = int(self._job_seconds / max(batch_size * self._record_seconds, 1e-9))
        return max(1, min(by_bytes, by_time, 256))

    def first_steps(self, batch_size: int) -> int:
        """Return how many batches the first run should have: one, where no size tells of the cost."""
        if not self._reads:
            return 1
        return max(1, int(_FIRST_BYTES // max(batch_size * self._record_bytes, 1.0)))

    def parts(self, rows: int) -> int:
        """Return into how many jobs one batch should be cut."""
        if self._record_seconds is None:
            return max(1, min(rows, self._workers))
        return max(1, min(rows, MOST_PARTS, int(rows * self._record_seconds / self._job_seconds)))

    def batch_bytes(self, rows: int) -> float:
        """Return a guess of what a batch holds: raw records, and what was made of them."""
        made = 0.0 if self._sample_bytes is None else rows * self._sample_bytes
        return rows * self._record_bytes + (made if self._layout is None else self._layout.starts(rows)[-1])

    def made(self, rows: int, raw_bytes: int) -> int:
        """Return what becomes of records, as rows or packed samples: at most if it is known, else so far."""
        if self.growth is not None:
            return self.growth.made(rows, raw_bytes)
        if self._sample_bytes is None:
            return 0
        # where records differ much in size, what is made of them may follow it or not
        by_rows, by_bytes = rows * self._sample_bytes, raw_bytes * self._growth
        return int(min(by_rows, by_bytes) if by_bytes else by_rows)

    def room(self, records: int, raw_bytes: int) -> int:
        """Return the bytes that a packed outcome needs, at most if that is known, or else a guess."""
        if self.growth is not None:
            return align(self.growth.part(records, raw_bytes))
        if self._sample_bytes is None:
            likely = raw_bytes * _FIRST_GROWTH if self._reads else records * _UNREAD_BYTES
            return align(likely + _ROOM)
        return align(int(self.made(records, raw_bytes) * _MARGIN) + _ROOM)

    def text_room(self, records: int, raw_bytes: int) -> int:
        """Return the bytes that the texts of rows need, at most if that is known, or else a guess."""
        if self.growth is not None and self.growth.exact:
            return align(self.growth.part_texts(records, raw_bytes))
        if not self._text_bytes:
            return align(raw_bytes + (16 if self._reads else _UNREAD_TEXT) * records + 1024)
        guess = align(int(records * self._text_bytes * _MARGIN) + 1024)
        return guess if self.growth is None else min(guess, self.growth.part_texts(records, raw_bytes))
