"""Race: does aioload reach what it must, beside torch's DataLoader, the bare limit and others, in one run?

    python benchmarks/race.py
    python benchmarks/race.py --only photos,tiny --rounds 5
    python benchmarks/race.py --quick

All contenders of all workloads run in turn, each in an interpreter of its own, and again in the next round in
reverse order. A ratio is taken within a round, from runs that were close in time, so that a machine that gets
slower in between spoils no comparison; the median, the least and the most of the rounds are shown. Other
loaders (`_peers.py`) take part where they are installed. Written to `--out`: `race.md`, `race.json` with all
runs, and `race.png` where matplotlib is installed. The exit status is 1 where a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _data
import first_batch
import memory
import photos
import tensors
import tiny
import trainer
from _cases import Run, Workload, tabulate, take_turns, warm
from _goals import Goal, Round, Verdict, by_round, judge, machine, more, of, over, verdict_table

__all__ = ["GOALS", "Goal", "Verdict", "judge"]

HERE = Path(__file__).parent
WORKLOADS: dict[str, Workload] = {
    "photos": photos.WORKLOAD,
    "tiny": tiny.WORKLOAD,
    "tensors": tensors.WORKLOAD,
    "first_batch": first_batch.WORKLOAD,
    "memory": photos.WORKLOAD,
    "trainer": trainer.WORKLOAD,
}


def _goals() -> list[Goal]:
    """Return the table of what must be reached."""
    goals = []
    for case, bare, target in (
        ("aioload", "bare", 1.7),
        ("aioload-fast", "bare-fast", 2.1),
        ("aioload-pillow", "bare-pillow", 1.08),
    ):
        goals.append(Goal("photos", f"{case} / torch", over(f"photos:{case}", "photos:torch"), target))
        goals.append(Goal("photos", f"{case} / {bare}", over(f"photos:{case}", f"photos:{bare}"), 0.93))
    for case, target in (("aioload", 2.5), ("aioload-fast", 2.0)):
        cpu = of(f"photos:{case}", "cpu_seconds_per_1000")
        goals.append(Goal("photos", f"{case}: CPU s / 1,000", cpu, target, at_least=False))
    tensors_torch = ("tensors:torch", "tensors:torch-mapped")
    goals += [
        Goal("tiny", "aioload / torch", over("tiny:aioload", "tiny:torch"), 8.0),
        Goal("tiny", "aioload / bare", over("tiny:aioload", "tiny:bare"), 0.3),
        Goal("tiny", "shuffled: aioload / torch", over("tiny:aioload-shuffled", "tiny:torch-shuffled"), 8.0),
        Goal("tiny", "shuffled: aioload / bare", over("tiny:aioload-shuffled", "tiny:bare-shuffled"), 0.3),
        Goal("tensors", "aioload / the faster torch", over("tensors:aioload", *tensors_torch), 3.0),
        Goal("tensors", "aioload / bare", over("tensors:aioload", "tensors:bare"), 0.5),
    ]
    for key, text, target in (
        ("first_batch_seconds", "first loader, s", 0.30),
        ("second_loader_seconds", "second loader, s", 0.30),
        ("second_epoch_seconds", "second epoch, s", 0.15),
    ):
        for case in ("aioload", "aioload-pillow"):
            figure = of(f"first_batch:{case}", key)
            goals.append(Goal("first_batch", f"{case}: {text}", figure, target, at_least=False, digits=3))
    for case in ("aioload", "aioload-fast", "aioload-pillow"):
        beyond = more(f"memory:{case}@2", "memory:torch@2")
        further = more(f"memory:{case}@4", f"memory:{case}@2", each=2)
        goals.append(Goal("memory", f"{case} - torch, MiB", beyond, 96, at_least=False, digits=0))
        goals.append(Goal("memory", f"{case}: a further worker, MiB", further, 45, at_least=False, digits=0))
    goals += [
        Goal("trainer", "fed / alone", of("trainer:aioload", "step_ratio"), 1.05, at_least=False, digits=3),
        Goal(
            "trainer",
            "steps that waited",
            of("trainer:aioload", "waiting_steps"),
            0,
            at_least=False,
            digits=0,
        ),
    ]
    return goals


GOALS = _goals()


def runs_of(workload: str, options: argparse.Namespace) -> list[Run]:
    """Return all contenders of a workload."""
    common = ("--data", options.data, "--scale", options.scale, "--seconds", options.seconds)
    if workload == "memory":
        runs = memory.runs(memory.CASES, "--data", options.data, "--scale", options.scale, "--seconds", 0)
        return [Run(f"memory:{run.name}", run.script, run.case, run.options) for run in runs]
    script = HERE / f"{workload}.py"
    return [Run(f"{workload}:{case}", script, case, common) for case in WORKLOADS[workload].cases]


def render(found: dict[str, list[dict[str, Any]]], verdicts: Sequence[Verdict], about: dict[str, Any]) -> str:
    """Return the whole report as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    parts = [
        f"{about['cpu']}, {about['cpus']} CPUs, {about['memory_gib']} GiB, Python {about['python']}, "
        f"{about['date']}; {versions}",
        verdict_table(verdicts),
    ]
    for workload, known in WORKLOADS.items():
        mine = {
            name.partition(":")[2]: lines for name, lines in found.items() if name.startswith(workload + ":")
        }
        if mine:
            parts.append(f"**{workload}**\n\n{tabulate(mine, known.columns)}")
    return "\n\n".join(parts) + "\n"


def plot(verdicts: Sequence[Verdict], rounds: Sequence[Round], file: Path) -> bool:
    """Draw rates over torch's; False without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in ("photos", "tiny", "tensors") if any(f"{name}:torch" in one for one in rounds)]
    figure, axes = plt.subplots(1, max(len(names), 1), figsize=(5 * max(len(names), 1), 5), squeeze=False)
    for axis, name in zip(axes[0], names, strict=False):
        _bars(axis, name, verdicts, rounds)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
    return True


def _bars(axis: Any, workload: str, verdicts: Sequence[Verdict], rounds: Sequence[Round]) -> None:
    """Draw a workload: a bar for each contender, a line from least to most, a mark for the goal."""
    cases = [case for case in WORKLOADS[workload].cases if any(f"{workload}:{case}" in one for one in rounds)]
    colours = {"torch": "tab:gray", "aioload": "tab:blue", "bare": "tab:green"}
    middles = []
    for place, case in enumerate(reversed(cases)):
        ratio = over(f"{workload}:{case}", f"{workload}:torch")
        values = judge(rounds, [Goal(workload, case, ratio, 0)])[0].values
        middle, kind = statistics.median(values), case.partition("-")[0]
        error = [[middle - min(values)], [max(values) - middle]]
        axis.barh(place, middle, xerr=error, color=colours.get(kind, "tab:orange"), capsize=3)
        middles.append(middle)
        for verdict in verdicts:
            if verdict.goal.workload == workload and verdict.values and _beside_torch(verdict.goal, case):
                goal = middle * verdict.goal.target / verdict.middle
                axis.plot([goal, goal], [place - 0.45, place + 0.45], color="black", linewidth=3)
    axis.axvline(1, color="black", linewidth=0.5)
    axis.set_yticks(range(len(cases)), list(reversed(cases)))
    if max(middles) > 10:  # else a bar's length can be read off
        axis.set_xscale("log")
        axis.set_xlim(left=min(0.1, min(middles) / 1.5))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_title(workload)
    axis.set_xlabel("samples/s over torch's (black: the goal)")


def _beside_torch(goal: Goal, case: str) -> bool:
    return goal.text.startswith(f"{case} / ") and goal.text.endswith("torch")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=_data.DEFAULT_FOLDER, help="folder to keep the data in")
    parser.add_argument("--out", type=Path, help="folder for race.md, race.json and race.png")
    parser.add_argument("--only", help=f"some of {','.join(WORKLOADS)}")
    parser.add_argument("--contenders", help="only those whose names begin so, such as torch,aioload,bare")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the records to take")
    parser.add_argument("--seconds", type=float, default=2.0, help="measure epochs until so long")
    parser.add_argument("--quick", action="store_true", help="a look: few records, one round")
    options = parser.parse_args()
    if options.quick:
        options.scale, options.seconds, options.rounds = min(options.scale, 0.02), 0.3, 1
    out = options.out or options.data / "race"
    names = options.only.split(",") if options.only else list(WORKLOADS)
    for name in names:
        warm(WORKLOADS[name].places(options.data, options.scale))
    runs = [run for name in names for run in runs_of(name, options)]
    if options.contenders:
        runs = [
            run for run in runs if run.name.partition(":")[2].startswith(tuple(options.contenders.split(",")))
        ]

    found = take_turns(runs, options.rounds)
    rounds = by_round(found, options.rounds)
    verdicts = judge(rounds, [goal for goal in GOALS if goal.workload in names])
    about = machine() | {"rounds": options.rounds, "scale": options.scale}
    text = render(found, verdicts, about)
    out.mkdir(parents=True, exist_ok=True)
    (out / "race.md").write_text(text)
    (out / "race.json").write_text(json.dumps({"machine": about, "runs": found}, indent=1))
    print(text, end="")
    if not plot(verdicts, rounds, out / "race.png"):
        print("no race.png: matplotlib is not installed", file=sys.stderr)
    return int(any(verdict.met is False for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
