"""Space: which bytes of the arena are free, as pure arithmetic.

A lease takes the lowest place that holds it (first fit), so that what is in use stays together at the bottom
and only memory that was needed at some time is ever touched. Every span begins and ends at a multiple of
`ALIGNMENT`, and neighbouring free spans are always one span. Leasing and releasing look through the free
spans only, of which there is at most one more than there are leases.

Nothing here locks. Whoever leases from several threads, or from finalisers (which run wherever memory happens
to be let go, also in the middle of a `lease`), has to bring the calls to one place first.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

__all__ = ["ALIGNMENT", "Space", "Span", "align"]

ALIGNMENT = 64  # a cache line: workers that write neighbouring spans never share one


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` to `stop` of the arena."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class Space:
    """What of the bytes 0 to `size` is leased and what is free.

    Args:
        size: bytes to share out, rounded down to a multiple of `ALIGNMENT`.
    """

    def __init__(self, size: int) -> None:
        if size < ALIGNMENT:
            raise ValueError(f"size must be at least {ALIGNMENT}, got {size}")
        self.size = size - size % ALIGNMENT
        self.used = 0
        # Free spans by address, as two lists side by side, so that one can be searched by bisection.
        self._starts = [0]
        self._stops = [self.size]
        self._leases: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Bytes that are not leased, in one piece or in many."""
        return self.size - self.used

    @property
    def largest(self) -> int:
        """Bytes of the largest free span: a lease of as much succeeds, one of more does not."""
        return max((stop - start for start, stop in zip(self._starts, self._stops, strict=True)), default=0)

    def lease(self, size: int, *, within: tuple[int, int] | None = None) -> Span | None:
        """Take the lowest free span that holds `size` bytes.

        Args:
            size: bytes needed; the span is rounded up to `ALIGNMENT` and never empty.
            within: `(low, high)` bounds for the span, where the caller keeps the rest for something else.

        Returns:
            The span, or None where no free span is large enough.
        """
        if size < 0:
            raise ValueError(f"size must not be negative, got {size}")
        low, high = (0, self.size) if within is None else within
        low, need = _round_up(max(low, 0)), max(_round_up(size), ALIGNMENT)
        # hot: once per read, through what small leases have left between them
        for place, (free_start, free_stop) in enumerate(zip(self._starts, self._stops, strict=True)):
            if free_stop - free_start < need:
                continue
            start = max(free_start, low)
            if start + need <= min(free_stop, high):
                return self._take(place, start, start + need)
        return None

    def release(self, span: Span) -> None:
        """Give a span back; one that is not leased, or not any more, is a ValueError."""
        if self._leases.get(span.start) != span.stop:
            raise ValueError(
                f"bytes {span.start} to {span.stop} are not leased; was the span released twice?"
            )
        del self._leases[span.start]
        self.used -= span.stop - span.start
        self._join(span.start, span.stop)

    def trim(self, span: Span, size: int) -> Span:
        """Give back the end of a span and return what is left of it: at least `size` bytes."""
        stop = span.start + max(_round_up(size), ALIGNMENT)
        if stop >= span.stop:
            return span
        self.release(span)
        kept = self.lease(stop - span.start, within=(span.start, stop))
        assert kept is not None, "these bytes were released a moment ago"
        return kept

    def __len__(self) -> int:
        return len(self._leases)

    def __bool__(self) -> bool:
        return True  # a space without leases is still a space

    def __repr__(self) -> str:
        return f"<Space used={self.used} free={self.free} leases={len(self)} free_spans={len(self._starts)}>"

    def _take(self, place: int, start: int, stop: int) -> Span:
        """Cut `start` to `stop` out of a free span and leave what remains on either side."""
        free_start, free_stop = self._starts[place], self._stops[place]
        left = [(free_start, start), (stop, free_stop)]
        rest = [(rest_start, rest_stop) for rest_start, rest_stop in left if rest_start < rest_stop]
        self._starts[place : place + 1] = [rest_start for rest_start, _ in rest]
        self._stops[place : place + 1] = [rest_stop for _, rest_stop in rest]
        self._leases[start] = stop
        self.used += stop - start
        return Span(start, stop)

    def _join(self, start: int, stop: int) -> None:
        """Add a free span and make it one with the free neighbours it touches."""
        first = last = bisect_left(self._starts, start)
        if first > 0 and self._stops[first - 1] == start:
            first -= 1
            start = self._starts[first]
        if last < len(self._starts) and self._starts[last] == stop:
            stop = self._stops[last]
            last += 1
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]


def _round_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def align(place: int) -> int:
    """Return the next place at which an array may start."""
    return -(-place // ALIGNMENT) * ALIGNMENT
