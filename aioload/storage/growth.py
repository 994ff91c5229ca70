"""Growth: how many bytes may be in flight, by what that brings; pure.

More in flight brings more until the link is full; from there on it only makes each read take longer. So the
limit is raised as a trial, while somebody waits for room, and stays where the throughput rose with it. A
server that throttles halves what is in flight; from then on the steps are small. What was undone rests, each
time for longer.
"""

from __future__ import annotations

__all__ = ["Growth"]

_SPAN = 0.25  # seconds that are measured at least, and a whole limit of bytes besides
_WANTED = 0.5  # of the reads in a span must have left others waiting: else more room would not be used
_FAST, _CAREFUL = 2.0, 1.25  # steps before and after the first throttling
_GAIN = 0.1  # of a step must show in the throughput
_FIRST_REST, _LONGEST_REST = 5.0, 300.0  # seconds, doubled from one trial that was undone to the next


class Growth:
    """A limit that follows what the link gives; the caller tells the time.

    Args:
        start: the first limit in bytes.
        least: what throttling leaves.
        most: where growing ends.
    """

    def __init__(self, start: int, least: int, most: int) -> None:
        if not 0 < least <= start <= most:
            raise ValueError(f"need 0 < least <= start <= most, got {least}, {start} and {most}")
        self.limit = start
        self._least = least
        self._most = most
        self._step = _FAST
        self._before: tuple[int, float] | None = None  # the limit and the throughput that a trial came from
        self._rest = _FIRST_REST
        self._resting_until = float("-inf")
        self._settling = False  # what is under way since before a change says nothing about it
        self._begin(None)

    def arrived(self, size: int, now: float, *, wanted: bool) -> None:
        """Note that a read of so many bytes ended, and whether others waited for its room."""
        if self._began is None:
            self._begin(now)
            return
        self._bytes += size
        self._reads += 1
        self._wanted += wanted
        seconds = now - self._began
        if seconds < _SPAN or self._bytes < self.limit:
            return
        if self._settling:
            self._settling = False
        elif self._wanted >= _WANTED * self._reads:
            self._judge(self._bytes / seconds, now)
        self._begin(now)

    def throttled(self, used: int, now: float) -> None:
        """Halve the limit, or what is in flight where that is less."""
        self._step = _CAREFUL
        self._before = None
        self._resting_until = now + _FIRST_REST
        self._set(max(min(self.limit, used) // 2, self._least), now)

    def _judge(self, throughput: float, now: float) -> None:
        """Undo a trial that brought nothing, else try more."""
        if self._before is not None:
            limit, before = self._before
            self._before = None
            if throughput < before * (1 + _GAIN * (self.limit / limit - 1)):
                self._resting_until = now + self._rest
                self._rest = min(2 * self._rest, _LONGEST_REST)
                self._set(limit, now)
                return
            self._rest = _FIRST_REST
        if now >= self._resting_until and self.limit < self._most:
            self._before = self.limit, throughput
            self._set(min(max(int(self.limit * self._step), self.limit + 1), self._most), now)

    def _set(self, limit: int, now: float) -> None:
        self.limit = limit
        self._settling = True
        self._begin(now)

    def _begin(self, now: float | None) -> None:
        """Begin a span."""
        self._began = now
        self._bytes = self._reads = self._wanted = 0
