"""Knee: the least that is as good as the most, from rates that were measured several times each; pure.

Every rate wavers. A number of workers counts as good enough where its median is within the tolerance of the
best median, give or take what the two medians waver by; so noise makes the answer smaller, never larger, and
how large it is, is told beside it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Knee", "Point", "find_knee"]

_MAD_TO_SIGMA = 1.4826  # of a normal distribution
_MEDIAN_ERROR = 1.2533  # of a median, in those of a mean


@dataclass(frozen=True, slots=True)
class Point:
    """One setting, and the rates that were measured with it."""

    value: int
    """The setting: workers, or batches ahead."""
    rates: tuple[float, ...]
    """Samples a second, one for each measurement."""

    @property
    def rate(self) -> float:
        """The median."""
        return statistics.median(self.rates)

    @property
    def error(self) -> float:
        """What the median wavers by: its standard error, from the distances to it; 0 of one measurement."""
        if len(self.rates) < 2:
            return 0.0
        spread = statistics.median(abs(rate - self.rate) for rate in self.rates)
        return _MEDIAN_ERROR * _MAD_TO_SIGMA * spread / math.sqrt(len(self.rates))


@dataclass(frozen=True, slots=True)
class Knee:
    """Where more no longer helps."""

    value: int
    """The least setting that is as good as the best."""
    rate: float
    """Its median rate."""
    best: int
    """The setting with the best median."""
    best_rate: float
    """That median."""
    noise: float
    """What rates waver by, as a share of the best."""
    is_clear: bool
    """Whether that is less than the tolerance, so that a second run would find the same."""


def find_knee(points: Sequence[Point], *, tolerance: float = 0.05) -> Knee:
    """Return the least setting within a tolerance of the best.

    Args:
        points: at least one, in any order.
        tolerance: share of the best rate that may be missing.

    Raises:
        ValueError: there is no point, or one without a measurement.
    """
    if not points or not all(point.rates for point in points):
        raise ValueError("a knee needs points, each with a measurement at least")
    best = max(points, key=lambda point: (point.rate, -point.value))
    for point in sorted(points, key=lambda point: point.value):
        waver = math.hypot(point.error, best.error)
        if point.rate >= best.rate * (1 - tolerance) - waver:
            break
    noise = math.hypot(point.error, best.error) / best.rate if best.rate > 0 else 0.0
    return Knee(point.value, point.rate, best.value, best.rate, noise, noise < tolerance)
