"""Figures: what a bench is to measure, and what it found, for tables, JSON and plots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .knee import Knee, Point

__all__ = ["Bench", "Knob", "Measured", "Sweep", "Wanted"]

Knob = Literal["workers", "prefetch"]
"""What can be swept."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be measured."""

    seconds: float = 3.0
    """For each setting, in all rounds together."""
    stages: bool = True
    """Each stage alone, too."""
    against_torch: bool = False
    """Torch's loader, too."""
    sweep: bool = False
    """With more and fewer workers, and batches ahead."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one contender gave."""

    name: str
    """`loader`, `read`, `decode`, `copy` or `torch`."""
    what: str
    """What it did, in words."""
    samples_per_second: float = 0.0
    """The median of its rounds."""
    bytes_per_second: float = 0.0
    """Bytes that came out: of batches, and of `read` those that were read."""
    cpu_seconds_per_1000: float = 0.0
    """What the machine computed for a thousand samples."""
    first_batch_seconds: float | None = None
    """From making it to the first batch, in the first round."""
    spread: float = 0.0
    """Largest rate less the smallest, as a share of the median."""
    rounds: int = 0
    """How often it was measured."""
    missing: str | None = None
    """Why there are no figures."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What came of a number of workers, or of batches ahead."""

    knob: Knob
    """Which."""
    points: tuple[Point, ...]
    """Rates by setting."""
    knee: Knee
    """Where more no longer helps."""


@dataclass(slots=True)
class Bench:
    """What was measured so far; it grows while it runs."""

    source: str
    """Where the records lie."""
    records: int
    """How many there are."""
    num_workers: int
    """Of all but the sweep."""
    batch_size: int
    """Of all."""
    measured: list[Measured]
    """Stages and contenders."""
    sweeps: list[Sweep]
    """What was swept."""
    notes: list[str]
    """What whoever reads the figures should know."""
    is_complete: bool = False
    """Whether nothing is missing because somebody was impatient."""

    def named(self, name: str) -> Measured | None:
        """Return what was measured under a name."""
        return next((one for one in self.measured if one.name == name and one.missing is None), None)

    @property
    def slowest(self) -> Measured | None:
        """The stage that is slowest alone."""
        stages = [found for name in ("read", "decode", "copy") if (found := self.named(name)) is not None]
        return min(stages, key=lambda stage: stage.samples_per_second, default=None)
