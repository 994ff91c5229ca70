"""Lateness: when a read is later than others of its size, and how many of those may be asked again; pure."""

from __future__ import annotations

from collections import deque

__all__ = ["Allowance", "Latencies"]

_KEPT = 128  # reads that are remembered of each size
_ENOUGH = 20  # of them, before they say anything
_FRESH = 8  # further reads after which the figures are made anew
_FLOOR = 0.05  # seconds: what is faster is never late
_SMALL_BITS = 16  # reads of up to 64 KiB are of one size: all of their time is the way there and back


class Latencies:
    """What recent reads took, by size: each power of two is a class of its own."""

    def __init__(self) -> None:
        self._classes: dict[int, _Recent] = {}

    def note(self, size: int, seconds: float) -> None:
        """Note that a read of so many bytes took so long."""
        self._classes.setdefault(_class(size), _Recent()).note(seconds)

    def late(self, size: int) -> float | None:
        """Return after how many seconds a read of so many bytes is late; None as long as nobody can know.

        That is the 95th percentile, but never less than twice the median: where all reads take about the same
        time, one of twenty is the last by chance alone. A size without enough reads of its own goes by
        the next larger one, as it should take no longer.
        """
        own = _class(size)
        for number in sorted(self._classes):
            if number >= own and (late := self._classes[number].late) is not None:
                return late
        return None


class _Recent:
    """The last reads of one size."""

    def __init__(self) -> None:
        self.late: float | None = None
        self._seconds = deque[float](maxlen=_KEPT)
        self._fresh = 0

    def note(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._fresh += 1
        if len(self._seconds) >= _ENOUGH and (self.late is None or self._fresh >= _FRESH):
            self._fresh = 0
            row = sorted(self._seconds)
            self.late = max(_FLOOR, row[int(0.95 * (len(row) - 1))], 2 * row[len(row) // 2])


class Allowance:
    """A token bucket: a small share of extra requests, some of which may be saved up.

    Args:
        every: requests that allow one extra one.
        most: extra requests that can be saved up.
    """

    def __init__(self, every: int = 20, most: int = 8) -> None:
        self._every = every
        self._most = every * most
        self._saved = 0  # in requests, so that the share is exact

    def earn(self) -> None:
        """Count a request."""
        self._saved = min(self._saved + 1, self._most)

    @property
    def is_left(self) -> bool:
        """Whether an extra request is allowed now."""
        return self._saved >= self._every

    def spend(self) -> None:
        """Count an extra request."""
        self._saved -= self._every


def _class(size: int) -> int:
    return max(size - 1 >> _SMALL_BITS, 0).bit_length()
