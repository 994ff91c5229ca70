"""Extents: which stretches of a file are there, as few ranges as will say it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

__all__ = ["Extents", "Range", "joined"]

Range = tuple[int, int]
"""Start, and the byte behind the last."""


class Extents:
    """A set of bytes, kept as sorted ranges that neither overlap nor touch.

    Args:
        ranges: what is in it, in any order.
    """

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in sorted(ranges):
            self.add(start, stop)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._starts, self._stops, strict=True)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._starts)

    def add(self, start: int, stop: int) -> None:
        """Put a range in."""
        if start >= stop:
            return
        first, last = bisect_left(self._stops, start), bisect_right(self._starts, stop)
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def remove(self, start: int, stop: int) -> None:
        """Take a range out, wherever it is in."""
        if start >= stop:
            return
        first, last = bisect_right(self._stops, start), bisect_left(self._starts, stop)
        if first >= last:
            return
        head, tail = (self._starts[first], start), (stop, self._stops[last - 1])
        left = [(begin, end) for begin, end in (head, tail) if begin < end]
        self._starts[first:last] = [begin for begin, _ in left]
        self._stops[first:last] = [end for _, end in left]

    def covers(self, start: int, stop: int) -> bool:
        """Tell whether a range is in, whole."""
        # hot: once per read
        place = bisect_right(self._starts, start) - 1
        return place >= 0 and self._stops[place] >= stop

    def gaps(self, start: int, stop: int) -> list[Range]:
        """Return what of a range is not in."""
        found: list[Range] = []
        place = bisect_right(self._stops, start)
        while start < stop and place < len(self._starts) and self._starts[place] < stop:
            if start < self._starts[place]:
                found.append((start, self._starts[place]))
            start = self._stops[place]
            place += 1
        if start < stop:
            found.append((start, stop))
        return found


def joined(ranges: Iterable[Range], distance: int) -> list[Range]:
    """Return ranges, sorted, with those made one that lie less than `distance` apart."""
    found: list[Range] = []
    for start, stop in sorted(ranges):
        if found and start - found[-1][1] < distance:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found
