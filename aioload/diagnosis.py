"""Diagnosis: which one stage of a loader limits it, told from what was counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .stats import LoaderStats

__all__ = ["Diagnosis", "diagnose"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What limits a loader."""

    stage: str
    """The stage that limits."""
    stall: float
    """Share of the loop's time in which it waited."""
    rate: float
    """Samples a second."""
    reach: float
    """Samples a second if that stage were free."""
    evidence: str
    """What it is told from."""
    advice: str
    """What to do."""


def diagnose(stats: LoaderStats) -> Diagnosis:
    """Return what limits a loader."""
    waited = max(stats.wait_seconds - stats.first_batch_seconds, 0.0)
    loop = waited + stats.consumer_seconds
    stall = waited / loop if loop > 0 else 0.0
    rate = stats.samples / loop if loop > 0 else 0.0
    seconds = {
        "storage": stats.read_seconds,
        "decode": stats.decode_seconds,
        "transform": stats.transform_seconds,
        "collate": stats.collate_seconds,
    }
    stage = "model" if stall < 0.05 else max(seconds, key=lambda name: seconds[name])
    return Diagnosis(stage, stall, rate, rate, "", "")
