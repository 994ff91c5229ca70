"""Pace: how fast a loader was between two moments, and what it waited for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .diagnosis import diagnose
from .words import byte_rate, number, share

if TYPE_CHECKING:
    from .diagnosis import Diagnosis
    from .watched import Moment

__all__ = ["Pace", "Recent", "pace"]

_SHORTEST = 1e-3  # seconds: of less, nothing can be told
_WORTH_TELLING = 0.01  # share of the time from which waits have a reason that is told


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a loader was for some time."""

    batches: float
    """A second."""
    samples: float
    """A second."""
    bytes: float
    """Of arrays that were handed out, a second."""
    stall: float
    """Share of the loop's time in which it waited."""
    stage: str
    """What it waited for; empty where it hardly did."""
    diagnosis: Diagnosis
    """Of this time."""

    def __str__(self) -> str:
        stage = f" ({self.stage})" if self.stage else ""
        return f"{number(self.samples)} samples/s  {byte_rate(self.bytes)}  stall {share(self.stall)}{stage}"


class Recent:
    """What was counted of late.

    Args:
        seconds: that it goes back.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._moments: deque[Moment] = deque()

    def add(self, moment: Moment) -> Pace | None:
        """Add a moment, later than all others; return the pace of late, or None while it cannot be told."""
        moments = self._moments
        moments.append(moment)
        while len(moments) > 2 and moment.now - moments[1].now >= self._seconds:
            moments.popleft()
        return pace(moments[0], moment)


def pace(earlier: Moment, later: Moment) -> Pace | None:
    """Return how fast a loader was between two moments; None where they are too close."""
    seconds = later.now - earlier.now
    if seconds < _SHORTEST:
        return None
    counted = later.stats.since(earlier.stats)
    found = diagnose(counted)
    # where nothing at all has come, there is no loop to take shares of
    stall = found.stall if counted.batches else min(max(counted.wait_seconds / seconds, 0.0), 1.0)
    told = counted.batches and stall >= _WORTH_TELLING and found.stage != "model"
    return Pace(
        counted.batches / seconds,
        counted.samples / seconds,
        counted.batch_bytes / seconds,
        stall,
        found.stage if told else "",
        found,
    )
