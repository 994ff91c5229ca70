"""Bench: a loader on the user's data and machine, its stages alone, torch beside it, and how many workers do.

Whatever is measured for a comparison is measured in rounds, each setting once a round: machines have moods,
and what comes close in time is compared fairly.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..machine import usable_cpus
from .copying import copy_rate, find_device
from .held import hold
from .knee import Knee, Point, find_knee
from .pattern import pattern_of, ranges_of
from .reading import replay
from .runs import Rate, timed
from .setup import fitted
from .shape import access_of, plan_of

if TYPE_CHECKING:
    from ..collection import Collection
    from ..dataset import Dataset
    from .held import Held
    from .setup import Setup

__all__ = [
    "Bench",
    "Measured",
    "Sweep",
    "Wanted",
    "prefetch_values",
    "run_bench",
    "seconds_of",
    "worker_values",
]

_ROUNDS = 3
_LEAST_SECONDS = 0.2  # of one measurement

Knob = Literal["workers", "prefetch"]
Progress = Callable[[float], object]


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


def run_bench(
    dataset: Dataset, setup: Setup, wanted: Wanted, progress: Progress = float
) -> Generator[Bench, None, None]:
    """Measure; what there is so far comes again after each step.

    Args:
        dataset: whose records.
        setup: how they are loaded.
        wanted: what to measure.
        progress: told of the seconds that went by, out of `seconds_of`.

    Raises:
        ConfigError: an option cannot work, or the set is empty.
        SampleError: a sample cannot be made.
    """
    workers = setup.loader(dataset).num_workers
    bench = Bench(dataset.source, len(dataset), workers, setup.batch_size, [], [], [])
    with hold(dataset) as held:
        setup, ragged = fitted(replace(setup, num_workers=workers), held)
        if ragged:
            bench.notes.append(_ragged(ragged))
        yield bench
        for _ in _contest(bench, dataset, held, setup, wanted, progress):
            yield bench
        if wanted.sweep:
            for _ in _sweep_all(bench, dataset, setup, wanted, progress):
                yield bench
    bench.is_complete = True
    yield bench


def seconds_of(wanted: Wanted, *, num_workers: int) -> float:
    """Return about how long all of it takes, for a bar."""
    contenders = 1 + 3 * wanted.stages + wanted.against_torch
    settings = len(worker_values(num_workers)) + len(prefetch_values()) if wanted.sweep else 0
    return (contenders + settings) * wanted.seconds * 1.25


def worker_values(num_workers: int, cpus: int | None = None) -> list[int]:
    """Return the numbers of workers to try: few, as many as CPUs, more; and the one that was asked for."""
    cpus = usable_cpus() if cpus is None else cpus
    doubled = {2**power for power in range(int(math.log2(max(cpus, 1))) + 1)}
    return sorted(doubled | {cpus, cpus + max(cpus // 2, 1), max(num_workers, 1)})


def prefetch_values() -> list[int]:
    """Return the numbers of batches ahead to try."""
    return [1, 2, 4, 8, 16]


def _contest(
    bench: Bench, dataset: Dataset, held: Held, setup: Setup, wanted: Wanted, progress: Progress
) -> Iterator[None]:
    """Measure all contenders round by round; the figures so far are in the bench after each."""
    contenders = list(_contenders(bench, dataset, held, setup, wanted))
    rounds = max(min(_ROUNDS, int(wanted.seconds / _LEAST_SECONDS)), 1)
    rates: dict[str, list[Rate]] = {one.name: [] for one in contenders}
    for _ in range(rounds):
        for one in contenders:
            if one.missing is None:
                rates[one.name].append(one.run(wanted.seconds / rounds))
                progress(wanted.seconds / rounds * 1.25)
            bench.measured = [_summed(each, rates[each.name]) for each in contenders]
            yield


@dataclass(frozen=True, slots=True)
class _Contender:
    name: str
    what: str
    run: Callable[[float], Rate] = lambda seconds: Rate(0, 0.0, 0, 0.0, 0.0)
    missing: str | None = None


def _contenders(
    bench: Bench, dataset: Dataset, held: Held, setup: Setup, wanted: Wanted
) -> Iterator[_Contender]:
    workers = bench.num_workers
    where = f"{workers} workers" if workers else "no workers"
    yield _Contender("loader", f"all of it, {where}", partial(_loader_rate, dataset, setup))
    if wanted.stages:
        yield _Contender("read", "an epoch's reads, nothing behind them", partial(_read_rate, dataset, setup))
        mapped = workers and held.index.sums is not None  # else they are read into shared memory first
        what = f"{len(held):,} records from memory, {where}"
        reads: dict[str, Any] = {"reads": "mmap" if mapped else "file"}
        yield _Contender("decode", what, partial(_loader_rate, held, setup, **reads))
        device = find_device()
        if device is None:
            yield _Contender("copy", "batches to a device", missing="no device on this machine")
        else:
            yield _Contender("copy", f"a batch to {device}", partial(_copy_rate, held, setup, device))
    if wanted.against_torch:
        what = f"DataLoader, same records and decoders, {where}"
        yield _Contender("torch", what, partial(_torch_rate, dataset, setup, workers))


def _loader_rate(dataset: Collection, setup: Setup, seconds: float, **options: Any) -> Rate:
    with setup.loader(dataset, **options).sync() as batches:
        return timed(batches, seconds)


def _read_rate(dataset: Dataset, setup: Setup, seconds: float) -> Rate:
    plan, access = plan_of(dataset, setup), access_of(dataset, setup)
    found, pattern = replay(dataset, ranges_of(plan, access), seconds), pattern_of(plan, access)
    samples = round(found.read_bytes * pattern.records / max(pattern.read_bytes, 1))
    return Rate(samples, found.seconds, found.read_bytes, found.cpu_seconds, 0.0)


def _copy_rate(held: Held, setup: Setup, device: str, seconds: float) -> Rate:
    with setup.loader(held, num_workers=0).sync() as batches:
        batch = next(iter(batches))
    return copy_rate(batch, seconds, device)


def _torch_rate(dataset: Dataset, setup: Setup, workers: int, seconds: float) -> Rate:
    from .against import torch_loader  # the one module here that torch comes with

    loader = torch_loader(dataset, setup, num_workers=workers)
    try:
        return timed(loader, seconds)
    finally:
        iterator = getattr(loader, "_iterator", None)
        if iterator is not None:  # else its workers would end whenever memory is collected
            with contextlib.suppress(AttributeError):
                iterator._shutdown_workers()


def _summed(contender: _Contender, rates: Sequence[Rate]) -> Measured:
    if not rates:
        return Measured(contender.name, contender.what, missing=contender.missing or "not measured")
    each = [rate.samples_per_second for rate in rates]
    middle, samples = float(np.median(each)), sum(rate.samples for rate in rates)
    return Measured(
        contender.name,
        contender.what,
        middle,
        float(np.median([rate.bytes_per_second for rate in rates])),
        1000 * sum(rate.cpu_seconds for rate in rates) / max(samples, 1),
        rates[0].first_seconds or None,
        (max(each) - min(each)) / middle if middle else 0.0,
        len(rates),
    )


def _sweep_all(
    bench: Bench, dataset: Dataset, setup: Setup, wanted: Wanted, progress: Progress
) -> Iterator[None]:
    """Sweep workers, then batches ahead with as many workers as do."""
    values = worker_values(bench.num_workers)
    for sweep in _sweep("workers", values, dataset, setup, wanted, progress):
        bench.sweeps = [sweep]
        yield
    setup = replace(setup, num_workers=bench.sweeps[0].knee.value)
    first = bench.sweeps[0]
    for sweep in _sweep("prefetch", prefetch_values(), dataset, setup, wanted, progress):
        bench.sweeps = [first, sweep]
        yield


def _sweep(
    knob: Knob, values: list[int], dataset: Dataset, setup: Setup, wanted: Wanted, progress: Progress
) -> Iterator[Sweep]:
    rounds = max(min(_ROUNDS, int(wanted.seconds / _LEAST_SECONDS)), 1)
    rates: dict[int, list[float]] = {}
    for _ in range(rounds):
        for value in values:
            chosen = (
                replace(setup, num_workers=value) if knob == "workers" else replace(setup, prefetch=value)
            )
            rate = _loader_rate(dataset, chosen, wanted.seconds / rounds)
            rates.setdefault(value, []).append(rate.samples_per_second)
            progress(wanted.seconds / rounds * 1.25)
            points = tuple(Point(each, tuple(found)) for each, found in rates.items())
            yield Sweep(knob, points, find_knee(points))


def _ragged(fields: Sequence[str]) -> str:
    return (
        f"values of {', '.join(fields)} differ in shape and were kept as lists; give --size and --crop, or "
        "--with, as your training has them"
    )
