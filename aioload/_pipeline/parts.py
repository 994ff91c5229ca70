"""Parts: rows of one batch that are worked on together, and how they are cut; pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from .._workers.jobs import Segment
from .._workers.space import Span

if TYPE_CHECKING:
    from .._workers.layout import Layout

__all__ = ["Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows `first` to `first + rows` of one batch, and where the table of these records lies."""

    step: int
    first: int
    rows: int
    batch_rows: int
    table: Span
    raw_bytes: int

    def without(self, rows: set[int]) -> list[Part]:
        """Return what is left without some rows of the batch, in stretches."""
        own = [row - self.first for row in sorted(rows) if self.first <= row < self.first + self.rows]
        borders = pairwise([-1, *own, self.rows])
        return [self._cut(before + 1, after) for before, after in borders if after > before + 1]

    def around(self, place: int) -> list[Part]:
        """Return the row at a place by itself, and what comes before and after it."""
        cuts = [(0, place), (place, place + 1), (place + 1, self.rows)]
        return [self._cut(start, stop) for start, stop in cuts if start < stop]

    def halves(self) -> list[Part]:
        """Return the first and the second half, if there is one."""
        middle = self.rows // 2
        return [self._cut(start, stop) for start, stop in ((0, middle), (middle, self.rows)) if start < stop]

    def _cut(self, start: int, stop: int) -> Part:
        width = len(self.table) // self.rows
        table = Span(self.table.start + width * start, self.table.start + width * stop)
        raw_bytes = self.raw_bytes * (stop - start) // self.rows
        return Part(self.step, self.first + start, stop - start, self.batch_rows, table, raw_bytes)

    def segment(self, place: Span, layout: Layout | None = None, batch: Span | None = None) -> Segment:
        """Return the segment whose outcome is packed into a place, or with a layout written as rows."""
        return Segment(self.step, self.first, self.rows, self.batch_rows, place, layout, batch)
