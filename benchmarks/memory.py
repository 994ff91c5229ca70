"""Memory: what does a loader of photos hold, with two workers and with each further one?

    python benchmarks/memory.py --rounds 3

Photos as in `photos.py`, shuffled. Private and shared-anonymous memory of the whole process tree, as
`_measure.py` tells it; the interpreter with torch and all else that was imported is part of it, the same for
all. Measured with two and with four workers; "a further one" is half of the difference.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import photos
from _cases import Run, parser, take_turns

__all__ = ["CASES", "runs", "summary"]

CASES = ("torch", "aioload", "aioload-fast", "aioload-pillow")
FEW, MANY = 2, 4


def runs(cases: tuple[str, ...], *options: object) -> list[Run]:
    """Return what is to be run: each case with few and with many workers."""
    script = Path(photos.__file__)
    return [
        Run(f"{case}@{workers}", script, case, (*options, "--workers", workers))
        for workers in (FEW, MANY)
        for case in cases
    ]


def summary(found: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return, by case, MiB with few workers, of which shared, and MiB for each further one: medians."""
    result = {}
    for name in {name.partition("@")[0]: None for name in found}:
        few, many = found[f"{name}@{FEW}"], found[f"{name}@{MANY}"]
        if few and not any("unavailable" in figures for figures in few + many):
            middle = [statistics.median(each["memory_mib"] for each in figures) for figures in (few, many)]
            result[name] = {
                "memory_mib": middle[0],
                "shared_mib": statistics.median(each["shared_mib"] for each in few),
                "further_mib": (middle[1] - middle[0]) / (MANY - FEW),
            }
    return result


def _main() -> None:
    """Print a line for each case."""
    options = parser(WORKLOAD, __doc__ or "").parse_args()
    common = ("--data", options.data, "--scale", options.scale, "--seconds", options.seconds)
    names = tuple(options.only.split(",")) if options.only else CASES
    found = summary(take_turns(runs(names, *common), options.rounds))
    print("| | MiB, 2 workers | of it shared | a further worker |\n|---|---|---|---|")
    for name, row in found.items():
        print(f"| {name} | {row['memory_mib']:.0f} | {row['shared_mib']:.0f} | {row['further_mib']:.0f} |")


WORKLOAD = replace(
    photos.WORKLOAD, name="memory", cases={name: photos.WORKLOAD.cases[name] for name in CASES}
)


if __name__ == "__main__":
    _main()
