"""Planning: what training on a set will cost, and what to do about it, before anything is trained.

`forecast` brings it together. What decides is pure: `media` knows kinds of storage, `costs` what an epoch
takes, `verdict` what to do; `probe` and a short run of a loader measure what they are given.
"""

from __future__ import annotations

from .costs import Demand, Epochs, Stage, Subject, Work, epochs_of
from .forecast import Forecast, Wanted, forecast, open_subject, seconds_of
from .media import PRESETS, Medium, guess, read_seconds
from .verdict import Choice, Verdict, judge

__all__ = [
    "PRESETS",
    "Choice",
    "Demand",
    "Epochs",
    "Forecast",
    "Medium",
    "Stage",
    "Subject",
    "Verdict",
    "Wanted",
    "Work",
    "epochs_of",
    "forecast",
    "guess",
    "judge",
    "open_subject",
    "read_seconds",
    "seconds_of",
]
