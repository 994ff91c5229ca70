"""Benching: a loader measured on the user's data and machine, beside its own stages and torch's.

`run_bench` measures, `Setup` says how the set is loaded, `find_knee` tells where more workers no longer help.
"""

from __future__ import annotations

from .bench import run_bench, seconds_of
from .figures import Bench, Measured, Sweep, Wanted
from .knee import Knee, Point, find_knee
from .pattern import Access, Pattern, pattern_of
from .setup import Setup

__all__ = [
    "Access",
    "Bench",
    "Knee",
    "Measured",
    "Pattern",
    "Point",
    "Setup",
    "Sweep",
    "Wanted",
    "find_knee",
    "pattern_of",
    "run_bench",
    "seconds_of",
]
