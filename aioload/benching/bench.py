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
from typing import TYPE_CHECKING, Any

import numpy as np

from ..machine import usable_cpus
from ..words import count
from .copying import copy_rate, find_device
from .figures import Bench, Knob, Measured, Sweep, Wanted
from .held import hold
from .knee import Point, find_knee
from .pattern import pattern_of, ranges_of
from .reading import replay
from .runs import Progress, Rate, in_epochs, lasts, timed
from .setup import TO_STACK, fitted
from .shape import access_of, plan_of

if TYPE_CHECKING:
    from ..collection import Collection
    from ..dataset import Dataset
    from .held import Held
    from .setup import Setup

__all__ = ["prefetch_values", "run_bench", "seconds_of", "worker_values"]

_ROUNDS = 3
_LEAST_SECONDS = 0.2  # of one measurement


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
        task = _Task(dataset, setup, wanted, progress)
        for _ in _contest(bench, task, held):
            yield bench
        if wanted.sweep:
            for _ in _sweep_all(bench, task):
                yield bench
    bench.is_complete = True
    yield bench


def seconds_of(wanted: Wanted, *, num_workers: int) -> float:
    """Return about how long all of it takes, for a bar."""
    contenders = 1 + 3 * wanted.stages + wanted.against_torch
    settings = len(worker_values(num_workers)) + len(prefetch_values()) if wanted.sweep else 0
    return (contenders + settings) * lasts(wanted.seconds)


def worker_values(num_workers: int, cpus: int | None = None) -> list[int]:
    """Return the numbers of workers to try: few, as many as CPUs, more; and the one that was asked for."""
    cpus = usable_cpus() if cpus is None else cpus
    doubled = {2**power for power in range(int(math.log2(max(cpus, 1))) + 1)}
    return sorted(doubled | {cpus, cpus + max(cpus // 2, 1), max(num_workers, 1)})


def prefetch_values() -> list[int]:
    """Return the numbers of batches ahead to try."""
    return [1, 2, 4, 8, 16]


@dataclass(frozen=True, slots=True)
class _Task:
    """What is measured, and how."""

    dataset: Dataset
    setup: Setup
    wanted: Wanted
    progress: Progress

    @property
    def rounds(self) -> int:
        """How often each setting is measured."""
        return max(min(_ROUNDS, int(self.wanted.seconds / _LEAST_SECONDS)), 1)

    def measure(self, rate_of: Callable[[float], Rate]) -> Rate:
        """Return the rate of one setting in one round."""
        seconds = self.wanted.seconds / self.rounds
        rate = rate_of(seconds)
        self.progress(lasts(seconds))
        return rate


def _contest(bench: Bench, task: _Task, held: Held) -> Iterator[None]:
    """Measure all contenders round by round; the figures so far are in the bench after each."""
    contenders = list(_contenders(task, held, bench.num_workers))
    rates: dict[str, list[Rate]] = {one.name: [] for one in contenders}
    for _ in range(task.rounds):
        for one in contenders:
            if one.missing is None:
                rates[one.name].append(task.measure(one.rate_of))
            bench.measured = [_summed(each, rates[each.name]) for each in contenders]
            yield


def _nothing(seconds: float) -> Rate:
    return Rate(0, 0.0, 0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Contender:
    name: str
    what: str
    rate_of: Callable[[float], Rate] = _nothing
    missing: str | None = None


def _contenders(task: _Task, held: Held, workers: int) -> Iterator[_Contender]:
    dataset, setup, wanted = task.dataset, task.setup, task.wanted
    where = count(workers, "worker") if workers else "no workers"
    yield _Contender("loader", f"all of it, {where}", partial(_loader_rate, dataset, setup))
    if wanted.stages:
        yield _Contender("read", "an epoch's reads, nothing behind them", partial(_read_rate, dataset, setup))
        mapped = workers and held.index.sums is not None  # else they are read into shared memory first
        what = f"{count(len(held), 'record')} from memory, {where}"
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
        return timed(batches, seconds, lambda taken: batches.stats().samples)


def _read_rate(dataset: Dataset, setup: Setup, seconds: float) -> Rate:
    plan, access = plan_of(dataset, setup), access_of(dataset, setup)
    found, pattern = replay(dataset, ranges_of(plan, access), seconds), pattern_of(plan, access)
    samples = round(found.read_bytes * pattern.records / max(pattern.read_bytes, 1))
    return Rate(samples, found.seconds, found.read_bytes, found.cpu_seconds, first_seconds=0.0)


def _copy_rate(held: Held, setup: Setup, device: str, seconds: float) -> Rate:
    with setup.loader(held, num_workers=0).sync() as batches:
        batch = next(iter(batches))
        samples = batches.stats().samples
    return copy_rate(batch, samples, seconds, device)


def _torch_rate(dataset: Dataset, setup: Setup, workers: int, seconds: float) -> Rate:
    from .against import torch_loader  # the one module here that torch comes with

    loader = torch_loader(dataset, setup, num_workers=workers)
    try:
        return timed(loader, seconds, partial(in_epochs, records=len(dataset), batch_size=setup.batch_size))
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
        samples_per_second=middle,
        bytes_per_second=float(np.median([rate.bytes_per_second for rate in rates])),
        cpu_seconds_per_1000=1000 * sum(rate.cpu_seconds for rate in rates) / max(samples, 1),
        first_batch_seconds=rates[0].first_seconds or None,
        spread=(max(each) - min(each)) / middle if middle else 0.0,
        rounds=len(rates),
    )


def _sweep_all(bench: Bench, task: _Task) -> Iterator[None]:
    """Sweep workers, then batches ahead with as many workers as do."""
    for sweep in _sweep(task, "workers", worker_values(bench.num_workers)):
        bench.sweeps = [sweep]
        yield
    (first,) = bench.sweeps
    task = replace(task, setup=replace(task.setup, num_workers=first.knee.value))
    for sweep in _sweep(task, "prefetch", prefetch_values()):
        bench.sweeps = [first, sweep]
        yield


def _sweep(task: _Task, knob: Knob, values: list[int]) -> Iterator[Sweep]:
    rates: dict[int, list[float]] = {}
    for _ in range(task.rounds):
        for value in values:
            rate = task.measure(partial(_loader_rate, task.dataset, _with(task.setup, knob, value)))
            rates.setdefault(value, []).append(rate.samples_per_second)
            points = tuple(Point(each, tuple(found)) for each, found in rates.items())
            yield Sweep(knob, points, find_knee(points))


def _with(setup: Setup, knob: Knob, value: int) -> Setup:
    return replace(setup, num_workers=value) if knob == "workers" else replace(setup, prefetch=value)


def _ragged(fields: Sequence[str]) -> str:
    return f"values of {', '.join(fields)} differ in shape and were kept as lists: {TO_STACK}"
