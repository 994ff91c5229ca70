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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from _data import DEFAULT_FOLDER, Places
from _measure import MIB, tree_cpu, watching

__all__ = ["Contender", "Figures", "Loops", "Unavailable", "Workload", "main", "races", "run_case"]

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


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run of one contender gave."""

    workload: str
    case: str
    workers: int
    samples_per_second: float
    first_batch_seconds: float
    second_first_seconds: float
    cpu_seconds_per_1000: float
    memory_mib: float
    shared_mib: float
    epochs: int
    samples: int


def measure(workload: Workload, case: str, places: Places, workers: int, seconds: float) -> Figures:
    """Run one contender in this process."""
    touch, make = workload.touch, workload.cases[case]
    began = time.perf_counter()
    contender = make(places, workers)
    batches = contender.epoch()
    samples = touch(next(batches))
    first = time.perf_counter() - began
    samples += sum(map(touch, batches))
    if samples != places.records:
        raise RuntimeError(f"{case} gave {samples} samples of {places.records}")

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
    return Figures(
        workload=workload.name,
        case=case,
        workers=workers,
        samples_per_second=samples / (now - began),
        first_batch_seconds=first,
        second_first_seconds=second_first,
        cpu_seconds_per_1000=cpu / samples * 1000,
        memory_mib=watch.peak.total / MIB,
        shared_mib=watch.shared / MIB,
        epochs=epochs,
        samples=samples,
    )


def main(workload: Workload, doc: str) -> None:
    """Run a workload's script: all contenders in turn, or one here with `--case`."""
    options = _parser(workload, doc).parse_args()
    places = workload.places(options.data, options.scale)
    if options.case:
        try:
            figures = asdict(measure(workload, options.case, places, options.workers, options.seconds))
        except Unavailable as reason:
            figures = {"workload": workload.name, "case": options.case, "unavailable": str(reason)}
        print(json.dumps(figures), flush=True)
        return
    _warm(places)
    names = options.only.split(",") if options.only else list(workload.cases)
    script = Path(sys.modules["__main__"].__file__ or "")
    print(f"{workload.name}: {places.records:,} samples, {options.rounds} rounds in turn\n", flush=True)
    found = races(
        script, names, options.rounds, "--data", options.data, "--scale", options.scale,
        "--workers", options.workers, "--seconds", options.seconds,
    )  # fmt: skip
    print(table(found))


def races(
    script: Path, names: Sequence[str], rounds: int, *options: object
) -> dict[str, list[dict[str, Any]]]:
    """Run contenders of a script round by round; return each one's lines."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(rounds):
        order = names if number % 2 == 0 else names[::-1]  # nobody always runs after the same one
        for name in order:
            if not any("unavailable" in line for line in found[name]):
                found[name].append(run_case(script, name, *options))
                print(_progress(found[name][-1]), file=sys.stderr, flush=True)
    return found


def run_case(script: Path, case: str, *options: object) -> dict[str, Any]:
    """Run one contender in a fresh interpreter; return the JSON line that it printed."""
    command = [sys.executable, str(script), "--case", case, *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        why = (done.stderr.strip() or "no output").splitlines()[-1]
        return {"case": case, "unavailable": f"failed with status {done.returncode}: {why}"}
    return dict(json.loads(lines[-1]))


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return a Markdown table: medians, and for the rate the least and the most too."""
    rows = [
        "| | samples/s (min, max) | first batch s | second first s | CPU s / 1,000 | MiB |",
        "|---|---|---|---|---|---|",
    ]
    for name, lines in found.items():
        reason = next((line["unavailable"] for line in lines if "unavailable" in line), None)
        if reason is not None:
            rows.append(f"| {name} | {reason} | | | | |")
        elif lines:
            rates = [line["samples_per_second"] for line in lines]
            middle = {key: statistics.median(line[key] for line in lines) for key in _SHOWN}
            rows.append(
                f"| {name} | {statistics.median(rates):,.0f} ({min(rates):,.0f}, {max(rates):,.0f})"
                f" | {middle['first_batch_seconds']:.2f} | {middle['second_first_seconds']:.2f}"
                f" | {middle['cpu_seconds_per_1000']:.3g} | {middle['memory_mib']:.0f} |"
            )
    return "\n".join(rows)


_SHOWN = ("first_batch_seconds", "second_first_seconds", "cpu_seconds_per_1000", "memory_mib")


def _progress(line: dict[str, Any]) -> str:
    """Say in a line how a contender fared."""
    if "unavailable" in line:
        return f"  {line['case']}: {line['unavailable']}"
    return f"  {line['case']}: {line['samples_per_second']:,.0f}/s, CPU {line['cpu_seconds_per_1000']:.3g} s"


def _parser(workload: Workload, doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DEFAULT_FOLDER, help="folder to keep the data in")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the records to take")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="measure epochs until so long")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", help=f"some of {','.join(workload.cases)}")
    parser.add_argument("--case", choices=workload.cases, help="run one here and print one line of JSON")
    return parser


def _warm(places: Places) -> None:
    """Read all files once, so that they are in the page cache."""
    for file in places.folder.rglob("*"):
        if file.is_file():
            with file.open("rb", buffering=0) as opened:
                while opened.read(8 << 20):
                    pass
