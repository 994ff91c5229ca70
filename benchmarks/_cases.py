"""Runs the contenders of a workload, each in an interpreter of its own, in turn, and gathers what they print.

What is measured, the same for all:

- first batch: from before the contender is made to its first batch. Imports are done, pages are cached.
- samples/s: whole epochs from the second on, until `--seconds` have gone by, each timed from the request for
  an iterator to its last batch. So what an epoch's beginning costs counts.
- second first: from the request for the second epoch to its first batch.
- CPU s / 1,000: user and system time of the whole process tree over the same epochs.
- MiB: private and shared-anonymous memory of the tree (see `_measure`), the most that was seen in one more
  epoch, in which nothing else is measured, since looking takes time too.

Every batch is touched once by the same function, which sums a slice of it and counts its samples.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from _data import DEFAULT_FOLDER, Places
from _measure import MIB, tree_cpu, watching

__all__ = [
    "Contender",
    "Loops",
    "Run",
    "Unavailable",
    "Workload",
    "main",
    "parser",
    "run_case",
    "tabulate",
    "take_turns",
]

MEMORY_SECONDS = 3.0


class Unavailable(Exception):
    """A contender that cannot run here; the text says why."""


class Contender(Protocol):
    """Something that makes batches."""

    def epoch(self) -> Iterator[Any]:
        """Return the batches of one more epoch."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


@dataclass(frozen=True, slots=True)
class Loops:
    """A contender that is a plain iterable, once an epoch."""

    batches: Iterable[Any]
    """Makes an epoch each time it is iterated."""
    end: Callable[[], Any] = lambda: None
    """Ends what was started."""

    def epoch(self) -> Iterator[Any]:
        return iter(self.batches)

    def close(self) -> None:
        self.end()


def throughput(
    workload: Workload, make: Callable[[], Contender], places: Places, seconds: float
) -> dict[str, Any]:
    """Measure what stands at the head of this file."""
    touch = workload.touch
    began = time.perf_counter()
    contender = make()
    batches = contender.epoch()
    samples = touch(next(batches))
    first = time.perf_counter() - began
    samples += sum(map(touch, batches))
    if not places.records <= samples <= places.records * 1.02:  # some fill up the last batches
        raise RuntimeError(f"an epoch gave {samples} samples of {places.records}")

    samples, second_first, cpu = 0, 0.0, tree_cpu(os.getpid())
    began = now = time.perf_counter()
    epochs = 0
    while not epochs or now - began < seconds:
        batches = contender.epoch()
        samples += touch(next(batches))
        second_first = second_first or time.perf_counter() - began
        samples += sum(map(touch, batches))
        now, epochs = time.perf_counter(), epochs + 1
    cpu = tree_cpu(os.getpid()) - cpu

    with watching() as watch:
        until = time.perf_counter() + MEMORY_SECONDS
        for batch in contender.epoch():
            touch(batch)
            if time.perf_counter() > until:
                break
    contender.close()
    return {
        "samples_per_second": samples / (now - began),
        "first_batch_seconds": first,
        "second_first_seconds": second_first,
        "cpu_seconds_per_1000": cpu / samples * 1000,
        "memory_mib": watch.peak.total / MIB,
        "shared_mib": watch.shared / MIB,
        "epochs": epochs,
        "samples": samples,
    }


THROUGHPUT = {
    "samples_per_second": "samples/s|,.0f",
    "first_batch_seconds": "first batch s|.2f",
    "second_first_seconds": "second first s|.2f",
    "cpu_seconds_per_1000": "CPU s / 1,000|.3g",
    "memory_mib": "MiB|.0f",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Who races over what."""

    name: str
    """In tables."""
    places: Callable[[Path, float], Places]
    """Makes the data, or finds it."""
    touch: Callable[[Any], int]
    """Looks at a batch and counts its samples."""
    cases: dict[str, Callable[[Places, int], Contender]]
    """Makers of contenders, by name: of the data and a number of workers."""
    measure: Callable[[Workload, Callable[[], Contender], Places, float], dict[str, Any]] = throughput
    """Runs one of them in this process, for about so many seconds; returns its figures."""
    columns: dict[str, str] = field(default_factory=lambda: dict(THROUGHPUT))
    """Of the table: titles and formats by figure, the first with least and most."""


def main(workload: Workload, doc: str) -> None:
    """Run a workload's script: all contenders in turn, or one here with `--case`."""
    options = parser(workload, doc).parse_args()
    places = workload.places(options.data, options.scale)
    if options.case:
        print(json.dumps(_run_here(workload, places, options)), flush=True)
        return
    warm(places)
    names = options.only.split(",") if options.only else list(workload.cases)
    script = Path(sys.modules["__main__"].__file__ or "")
    print(f"{workload.name}: {places.records:,} samples, {options.rounds} rounds in turn\n", flush=True)
    common = ("--data", options.data, "--scale", options.scale, "--seconds", options.seconds)
    runs = [Run(name, script, name, (*common, "--workers", options.workers)) for name in names]
    print(tabulate(take_turns(runs, options.rounds), workload.columns))


def _run_here(workload: Workload, places: Places, options: argparse.Namespace) -> dict[str, Any]:
    head = {"workload": workload.name, "case": options.case, "workers": options.workers}
    make = partial(workload.cases[options.case], places, options.workers)
    try:
        return head | workload.measure(workload, make, places, options.seconds)
    except Unavailable as reason:
        return head | {"unavailable": str(reason)}


@dataclass(frozen=True, slots=True)
class Run:
    """One contender of one script, with its options."""

    name: str
    """In the table."""
    script: Path
    """Takes `--case`."""
    case: str
    """Of the script."""
    options: tuple[object, ...] = ()
    """Further ones."""
    checkout: Path | None = None
    """Where to import aioload from, if not from where this process does."""


def take_turns(runs: Sequence[Run], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Run all, round by round; return each one's figures, one of each round."""
    found: dict[str, list[dict[str, Any]]] = {run.name: [] for run in runs}
    for number in range(rounds):
        for run in runs if number % 2 == 0 else runs[::-1]:  # nobody always runs after the same one
            if not any("unavailable" in figures for figures in found[run.name]):
                found[run.name].append(run_case(run))
                print(f"  {number + 1}/{rounds} {run.name}: {_brief(found[run.name][-1])}", file=sys.stderr)
    return found


def run_case(run: Run) -> dict[str, Any]:
    """Run one contender in a fresh interpreter; return the JSON line that it printed."""
    command = [sys.executable, str(run.script), "--case", run.case, *map(str, run.options)]
    path = {"PYTHONPATH": str(run.checkout)} if run.checkout else {}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **path})
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        why = (done.stderr.strip() or "no output").splitlines()[-1]
        return {"case": run.case, "unavailable": f"failed with status {done.returncode}: {why}"}
    return dict(json.loads(lines[-1]))


def tabulate(found: dict[str, list[dict[str, Any]]], columns: dict[str, str]) -> str:
    """Return a Markdown table of medians, and for the first column the least and the most too."""
    titles = [text.partition("|")[0] for text in columns.values()]
    rows = ["| | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for name, figures in found.items():
        reason = next((each["unavailable"] for each in figures if "unavailable" in each), None)
        if reason is not None:
            rows.append(f"| {name} | {reason} |" + " |" * (len(titles) - 1))
        elif figures:
            rows.append(f"| {name} | " + " | ".join(_cells(figures, columns)) + " |")
    return "\n".join(rows)


def _cells(figures: list[dict[str, Any]], columns: dict[str, str]) -> Iterator[str]:
    """Show medians; the first with its range."""
    for number, (key, text) in enumerate(columns.items()):
        values, spec = [each[key] for each in figures], text.partition("|")[2]
        shown = format(statistics.median(values), spec)
        if number == 0 and len(values) > 1:
            shown += f" ({min(values):{spec}} to {max(values):{spec}})"
        yield shown


def _brief(figures: dict[str, Any]) -> str:
    """Say in a line how a contender fared."""
    shown = {key: value for key, value in figures.items() if isinstance(value, float)}
    return (
        str(figures.get("unavailable"))
        if "unavailable" in figures
        else ", ".join(f"{key} {value:.4g}" for key, value in list(shown.items())[:4])
    )


def parser(workload: Workload, doc: str) -> argparse.ArgumentParser:
    """Return the options that all scripts share."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DEFAULT_FOLDER, help="folder to keep the data in")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the records to take")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="measure epochs until so long")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", help=f"some of {','.join(workload.cases)}")
    parser.add_argument("--case", choices=workload.cases, help="run one here and print one line of JSON")
    return parser


def warm(places: Places) -> None:
    """Read all files once, so that they are in the page cache."""
    for file in places.folder.rglob("*"):
        if file.is_file():
            with file.open("rb", buffering=0) as opened:
                while opened.read(8 << 20):
                    pass
