"""Goals: what must be reached, and whether it was, by ratios taken within a round of runs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

__all__ = ["Goal", "Round", "Verdict", "by_round", "judge", "machine", "more", "of", "over", "verdict_table"]

PACKAGES = (
    *("torch", "numpy", "pillow", "aiohttp", "obstore", "uvloop"),
    *("webdataset", "mosaicml-streaming", "litdata", "spdl", "tensorflow"),
    *("simplejpeg", "opencv-python-headless", "PyTurboJPEG"),
)

Round = dict[str, dict[str, Any]]
"""What all contenders gave in one round, by workload and name: `photos:torch`."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure that must be reached."""

    workload: str
    """To which it belongs."""
    text: str
    """What is compared."""
    figure: Callable[[Round], float]
    """Takes it from a round; KeyError where somebody did not run."""
    target: float
    """What it must be."""
    at_least: bool = True
    """Else at most."""
    digits: int = 2
    """To show."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a goal came out."""

    goal: Goal
    values: tuple[float, ...]
    """One of each round; none where somebody did not run."""

    @property
    def middle(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the target; None if nobody knows."""
        if not self.values:
            return None
        return self.middle >= self.goal.target if self.goal.at_least else self.middle <= self.goal.target


def over(one: str, *others: str, key: str = "samples_per_second") -> Callable[[Round], float]:
    """Make a figure: one contender's over the best one's of others."""
    return lambda found: found[one][key] / max(found[other][key] for other in others)


def of(one: str, key: str) -> Callable[[Round], float]:
    """Make a figure: one contender's own."""
    return lambda found: found[one][key]


def more(one: str, other: str, key: str = "memory_mib", *, each: int = 1) -> Callable[[Round], float]:
    """Make a figure: by how much one contender's is more, shared among so many."""
    return lambda found: (found[one][key] - found[other][key]) / each


def judge(rounds: Sequence[Round], goals: Sequence[Goal]) -> list[Verdict]:
    """Say of each goal how it came out in the rounds in which all that it needs did run."""
    verdicts = []
    for goal in goals:
        values = []
        for found in rounds:
            try:
                values.append(goal.figure(found))
            except KeyError:
                continue
        verdicts.append(Verdict(goal, tuple(values)))
    return verdicts


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """Return the goals as a Markdown table."""
    rows = ["| workload | figure | median | min | max | must be | met |", "|---" * 7 + "|"]
    for verdict in verdicts:
        goal, values = verdict.goal, verdict.values
        sign = ">=" if goal.at_least else "<="
        shown = (
            [f"{value:.{goal.digits}f}" for value in (verdict.middle, min(values), max(values))]
            if values
            else []
        )
        cells = " | ".join(shown or ["not available", "", ""])
        met = {True: "yes", False: "**no**", None: "?"}[verdict.met]
        rows.append(f"| {goal.workload} | {goal.text} | {cells} | {sign} {goal.target:g} | {met} |")
    return "\n".join(rows)


def by_round(found: dict[str, list[dict[str, Any]]], rounds: int) -> list[Round]:
    """Turn figures by contender into figures by round."""
    return [
        {
            name: lines[number]
            for name, lines in found.items()
            if number < len(lines) and "unavailable" not in lines[number]
        }
        for number in range(rounds)
    ]


def machine() -> dict[str, Any]:
    """Say where and with what this ran."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": str(date.today()),
        "cpu": models[0] if models else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
    }
