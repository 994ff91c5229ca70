"""Deal: which source gives the sample at each position of a mix's epoch; arithmetic on whole numbers.

An epoch has N positions, in L lanes as in `order`: position t is place t div L of lane t mod L. How many
samples a source gives, its *draws*, is decided before; here they are dealt to the positions so that three
things hold.

*Even in time.* The lanes are cut into cycles of some thousand places. In a cycle of n positions, position t
is sent to cell t * g mod n, and each source has as many neighbouring cells as it has draws there. With g /
n close to the golden ratio, neighbouring positions fall far apart, so that any stretch of them meets every
source in its share: in 1,000 consecutive positions a source is never more than a few samples away from it.

*Exact.* Positions and cells are one to one, so each source gives exactly its draws. All full cycles give
every lane the same number of them and the last one gives the rest; what is less than a place in each lane,
fewer than L positions, comes after it.

*Lanes stay apart.* g has no factor in common with n, so the cells of a lane are those of one class modulo
L. The draws d that a lane takes of a source are therefore those of one class d mod L, in increasing order;
only the last, incomplete row is free of that. So each lane draws from a lane of the source that no other
draws from, and ranks that share out the lanes of the mix share out those of its sources.

Within a lane a cycle is a *word*: the sources in the order in which the lane meets their cells; another
lane begins at another turn of it. Which draw a place takes, and which place takes a draw, is looked up in
the word's sorted list. Memory goes with the length of a cycle, never with N, and no position takes longer
to find than another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError
from .shares import share_out

__all__ = ["MAX_LANES", "MAX_POSITIONS", "Deal"]

Records = NDArray[np.int64]

MAX_POSITIONS = 1 << 40  # of an epoch: up to here no product below leaves 64 bits
MAX_LANES = 1 << 20

_CYCLE = 1024  # places of a full cycle: shares are off by less than two places of it
_GOLDEN = (math.sqrt(5) - 1) / 2
_CANDIDATES = 256  # steps that are looked at on either side of the golden one
_HALF = 20  # bits


class Deal:
    """Draws of several sources, dealt to the positions of an epoch.

    Args:
        counts: draws of each source.
        lanes: of the order; 1 if it has none.
    """

    def __init__(self, counts: Sequence[int], lanes: int) -> None:
        size = sum(counts)
        if not 0 < size <= MAX_POSITIONS or not 0 < lanes <= MAX_LANES:
            raise ConfigError(
                f"a mix has 1 to {MAX_POSITIONS} samples and 1 to {MAX_LANES} lanes, got {size} and {lanes}"
            )
        self.counts = tuple(counts)
        self.lanes = lanes
        rows, rest = divmod(size, lanes)
        self._full = max(rows // _CYCLE - 1, 0)  # cycles; the last has the places of one to two more
        last = share_out(rest, counts)
        even = self._share_cycles(last)
        self._tree = _Tree(even)
        self._even = np.array(even, np.int64)  # draws in all full cycles, of each lane
        self._free = np.array([count - some for count, some in zip(counts, last, strict=True)], np.int64)
        self._cells = _edges(self._free - self._even * lanes)  # of the last cycle
        self._row_cells = _edges(last)  # of the incomplete row
        self._row_step = _golden_step(rest, 1)
        self._grid = _Grid.make(lanes, _CYCLE)
        self._last_grid = _Grid.make(lanes, rows - self._full * _CYCLE)
        # lanes of the last cycle take the same of each source if their classes lie between the same edges
        self._edge_classes = np.unique(self._cells % lanes)

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def in_lanes(self) -> Records:
        """Draws of each source that keep to the lanes: all before the last, incomplete row."""
        return self._free

    def draws(self, positions: Records) -> tuple[Records, Records]:
        """Return the source of each position, and the number of its draw among the source's."""
        row, lane = np.divmod(positions, self.lanes)
        source, draw = np.zeros_like(positions), np.zeros_like(positions)
        for part, rows in _groups(self._part(row, lane)):
            if part < 0:
                cell = lane[rows] * self._row_step % max(int(self._row_cells[-1]), 1)
                found = np.searchsorted(self._row_cells, cell, side="right") - 1
                source[rows], draw[rows] = found, self._free[found] + cell - self._row_cells[found]
                continue
            word, before, first_row, grid = self._turns(part)
            found, count = word.find(grid.first_turn[lane[rows]], row[rows] - first_row)
            source[rows] = found
            draw[rows] = (self._class(lane[rows]) - self._cells[found]) % self.lanes
            draw[rows] += (before[found] + count) * self.lanes
        return source, draw

    def positions(self, source: Records, draw: Records) -> Records:
        """Return the positions that take these draws."""
        positions = np.zeros_like(draw)
        lane = self._last_grid.lane_of((draw + self._cells[source]) % self.lanes)
        part = self._part_of_draw(source, draw, lane)
        for number, rows in _groups(part):
            some = source[rows]
            if number < 0:
                size = max(int(self._row_cells[-1]), 1)
                cell = self._row_cells[some] + draw[rows] - self._free[some]
                lane_of = cell * pow(self._row_step, -1, size) % size
                positions[rows] = len(self) - size + lane_of
                continue
            word, before, first_row, grid = self._turns(number)
            row = word.place(grid.first_turn[lane[rows]], some, draw[rows] // self.lanes - before[some])
            positions[rows] = (first_row + row) * self.lanes + lane[rows]
        return positions

    def _share_cycles(self, last: Sequence[int]) -> list[int]:
        """Return what each lane takes of each source in all full cycles."""
        places = self._full * _CYCLE
        most = [(count - some) // self.lanes for count, some in zip(self.counts, last, strict=True)]
        even = [min(places * count // len(self), some) for count, some in zip(self.counts, most, strict=True)]
        for i in sorted(range(len(even)), key=lambda i: (even[i] - most[i], i)):
            even[i] += min(most[i] - even[i], places - sum(even))
        return even

    def _class(self, lane: Records) -> Records:
        """Return the class, modulo the lanes, of the cells of a lane in the last cycle."""
        return lane * self._last_grid.step % self.lanes

    def _part(self, row: Records, lane: Records) -> Records:
        """Return the number of the cycle, in the last one plus that of the lane's group; -1 after it."""
        cycle = np.minimum(row // _CYCLE, self._full)
        group = np.searchsorted(self._edge_classes, self._class(lane), side="right")
        part = np.where(cycle == self._full, self._full + group, cycle)
        return np.where(row == len(self) // self.lanes, -1, part)

    def _part_of_draw(self, source: Records, draw: Records, lane: Records) -> Records:
        """Return the same by the draw."""
        count = draw // self.lanes
        early = count < self._even[source]
        row = np.where(early, self._tree.place(source, np.where(early, count, 0)), self._full * _CYCLE)
        part = self._part(row, lane)
        return np.where(draw >= self._free[source], -1, part)

    def _turns(self, part: int) -> tuple[_Word, Records, int, _Grid]:
        """Return a part's word, the draws a lane takes before it, its first row and its grid."""
        if part < self._full:
            before = self._tree.counts(part * _CYCLE)
            quotas = self._tree.counts((part + 1) * _CYCLE) - before
            return _word(tuple(quotas.tolist()), self._grid), before, part * _CYCLE, self._grid
        group = part - self._full
        one = int(self._edge_classes[group - 1]) if group else 0  # a class of the group; all take the same
        taken = (self._cells - one + self.lanes - 1) // self.lanes
        word = _word(tuple(np.diff(taken).tolist()), self._last_grid)
        return word, self._even, self._full * _CYCLE, self._last_grid


@dataclass(frozen=True, eq=False)
class _Grid:
    """Where the positions of a cycle are sent."""

    step: int
    """Cells from one position to the next."""
    places: int
    """Of a lane."""
    first_turn: Records
    """[lanes] the turn of the word with which a lane begins."""

    @staticmethod
    @lru_cache(maxsize=16)
    def make(lanes: int, places: int) -> _Grid:
        """Return the grid of so many lanes and places."""
        if not places:
            return _Grid(0, 0, np.zeros(lanes, np.int64))
        step = _golden_step(lanes * places, places)
        cell = np.arange(lanes, dtype=np.int64) * step % (lanes * places)
        return _Grid(step, places, cell // lanes * pow(step, -1, places) % places)

    def lane_of(self, of_class: Records) -> Records:
        """Return the lanes whose cells are of these classes."""
        lanes = len(self.first_turn)
        return of_class * pow(self.step, -1, lanes) % lanes if self.places else np.zeros_like(of_class)


class _Word:
    """The sources in the order in which the lanes of a cycle take from them.

    Args:
        quotas: places of each source.
        step: cells from one place of a lane to the next, modulo the number of places.
    """

    def __init__(self, quotas: Sequence[int], step: int) -> None:
        self._size = sum(quotas)
        self._edges = _edges(quotas)
        self._quotas = np.array(quotas, np.int64)
        turn = np.arange(self._size, dtype=np.int64)
        self._source: Records = np.searchsorted(self._edges, turn * step % self._size, side="right") - 1
        self._sorted = np.sort(self._source * self._size + turn)

    def find(self, first: Records, place: Records) -> tuple[Records, Records]:
        """Return the source at each place of a lane that begins with turn `first`, and its count before."""
        lap, turn = np.divmod(first + place, self._size)
        source = self._source[turn]
        count = lap * self._quotas[source]
        count += self._before(source, turn) - self._before(source, first)
        return source, count

    def place(self, first: Records, source: Records, count: Records) -> Records:
        """Return the place at which a lane takes from a source after so many times."""
        lap, at = np.divmod(self._before(source, first) + count, self._quotas[source])
        turn = self._sorted[self._edges[source] + at] - source * self._size
        return lap * self._size + turn - first

    def _before(self, source: Records, turn: Records) -> Records:
        """Return how many turns before these are the source's."""
        before: Records = np.searchsorted(self._sorted, source * self._size + turn) - self._edges[source]
        return before


class _Tree:
    """Turns of several sources without end of their number: halves of them share turns as evenly as can be.

    Args:
        totals: turns of each source.
    """

    def __init__(self, totals: Sequence[int]) -> None:
        self._count = len(totals)
        self._width = 1 << (self._count - 1).bit_length()
        self._edges = np.append(_edges(totals), np.full(self._width - self._count, sum(totals), np.int64))

    def counts(self, turns: int) -> Records:
        """Return how many of the first turns are each source's."""
        counts = [turns]
        width = self._width
        while width > 1:
            edges = self._edges[:: width // 2].tolist()
            halves: list[int] = []
            for node, count in enumerate(counts):
                low, middle, high = edges[2 * node : 2 * node + 3]
                left = (count * (middle - low) + (high - low) // 2) // (high - low) if high > low else 0
                halves += [left, count - left]
            counts, width = halves, width // 2
        return np.array(counts[: self._count], np.int64)

    def place(self, source: Records, count: Records) -> Records:
        """Return the turn that is the source's after so many of its own."""
        width = 1
        while width < self._width:
            node = source // (2 * width) * (2 * width)
            low, middle, high = (self._edges[node + i * width] for i in range(3))
            left = (source // width) % 2 == 0
            whole, share = high - low, np.where(left, middle - low, high - middle)
            extra = np.where(left, whole - 1 - whole // 2, whole // 2)
            count = np.where(share > 0, _times_over(count, whole, extra, np.maximum(share, 1)), count)
            width *= 2
        return count


@lru_cache(maxsize=512)
def _word(quotas: tuple[int, ...], grid: _Grid) -> _Word:
    return _Word(quotas, grid.step)


def _groups(part: Records) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield each number that there is, and where it stands."""
    for number in np.unique(part).tolist():
        yield number, np.flatnonzero(part == number)


def _edges(counts: Sequence[int] | Records) -> Records:
    return np.cumsum(np.append(0, counts), dtype=np.int64)


def _times_over(a: Records, b: Records, extra: Records, over: Records) -> Records:
    """Return (a * b + extra) // over where the product may need twice the bits; all are up to 2^40."""
    whole, rest = np.divmod((a >> _HALF) * b, over)
    return (whole << _HALF) + ((rest << _HALF) + (a & (1 << _HALF) - 1) * b + extra) // over


@lru_cache(maxsize=64)
def _golden_step(cells: int, places: int) -> int:
    """Return a step without factors in common with the cells, as evenly spread as the golden ratio's.

    It is so when no partial quotient of step / cells is large, and none of what is left of it for one lane.
    """
    middle = round(cells * _GOLDEN)
    near = {(middle + distance) % cells for distance in range(-_CANDIDATES, _CANDIDATES)} if cells else set()
    steps = sorted(step for step in near if math.gcd(step, cells) == 1)

    def unevenness(step: int) -> tuple[int, int, int]:
        quotients = [*_partial_quotients(step, cells), *_partial_quotients(step % places, places)]
        return max(quotients, default=0), sum(quotients), step

    return min(steps, key=unevenness, default=1)


def _partial_quotients(number: int, over: int) -> Iterator[int]:
    """Yield the partial quotients of a fraction below one."""
    while number:
        yield over // number
        over, number = number, over % number
