"""Trainer: does a loader slow down the Python code that trains, and does a step ever wait for data?

    python benchmarks/trainer.py --rounds 3

The training step is a pure-Python loop of about 20 ms, which needs the interpreter all the time: whatever a
loader does in this process, in whichever thread, makes it longer. It is fed with batches of 64 tiny records
by one worker, so that a core is left for it. Steps alone, fed and alone again are timed, and the fed ones
compared with the others: by their mean, since a few steps that are interrupted for long are what is looked
for, and by their median. A fed step has the look at its batch in it, and letting go of that. Waits are what
`next` took after the first ten steps; more than 2 ms is waiting.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import _data
import tiny
import torch
from _cases import Contender, Loops, Workload, main
from _data import Places

import aioload

__all__ = ["WORKLOAD"]

BATCH, STEP_SECONDS, WAIT_SECONDS, FIRST_STEPS = 64, 0.020, 0.002, 10


def measure(
    workload: Workload, make: Callable[[], Contender], places: Places, seconds: float
) -> dict[str, float]:
    """Time steps alone, fed, and alone again; each for so many seconds."""
    rounds, steps = _calibrated(), max(int(seconds / STEP_SECONDS), 2 * FIRST_STEPS)
    before = [_step(rounds) for _ in range(steps)]
    contender = make()
    fed, waits = [], []
    batches = _endless(contender)
    for _ in range(steps):
        began = time.perf_counter()
        batch = next(batches)
        came = time.perf_counter()
        waits.append(came - began)
        workload.touch(batch)
        del batch
        _step(rounds)
        fed.append(time.perf_counter() - came)
    batches.close()
    contender.close()
    alone = before + [_step(rounds) for _ in range(steps)]
    later = waits[FIRST_STEPS:]
    return {
        "step_ratio": statistics.fmean(fed[FIRST_STEPS:]) / statistics.fmean(alone),
        "step_ratio_median": statistics.median(fed[FIRST_STEPS:]) / statistics.median(alone),
        "alone_ms": statistics.fmean(alone) * 1000,
        "fed_ms": statistics.fmean(fed[FIRST_STEPS:]) * 1000,
        "wait_ms_median": statistics.median(later) * 1000,
        "wait_ms_most": max(later) * 1000,
        "waiting_steps": sum(wait > WAIT_SECONDS for wait in later),
    }


def _calibrated() -> int:
    """Return how many rounds take a step's time on this machine, at its best."""
    rounds = 10_000
    best = min(_step(rounds) for _ in range(20))
    return int(rounds * STEP_SECONDS / best)


def _step(rounds: int) -> float:
    """Keep the interpreter busy; return for how long."""
    began = time.perf_counter()
    total = 0
    for number in range(rounds):
        total += number & 3
    return time.perf_counter() - began


def _endless(contender: Contender) -> Generator[Any]:
    """Go through one epoch after another: a step must not wait at their border either."""
    while True:
        yield from contender.epoch()


def _torch(records: type[tiny.Records], places: Places) -> Contender:
    return Loops(
        torch.utils.data.DataLoader(
            records(places), BATCH, shuffle=True, num_workers=1, persistent_workers=True
        )
    )


def _aioload(places: Places) -> Contender:
    loader = aioload.Loader(places.packed, batch_size=BATCH, shuffle=True, num_workers=1)
    return Loops(loader.sync(), loader.close)


class _Nothing:
    """A batch that is always there: what the measuring itself makes of a step."""

    def __init__(self) -> None:
        self._batch = ([bytes(_data.TINY_BYTES)] * BATCH, torch.ones(BATCH, dtype=torch.int64))

    def __iter__(self) -> Iterator[Any]:
        return iter([self._batch] * 1000)


WORKLOAD = Workload(
    "trainer",
    lambda folder, scale: _data.tiny(folder, min(scale, 0.1)),
    tiny.touch,
    {
        "nothing": lambda places, workers: Loops(_Nothing()),
        "torch": lambda places, workers: _torch(tiny.Records, places),
        "aioload": lambda places, workers: _aioload(places),
    },
    measure,
    {
        "step_ratio": "fed / alone, mean|.3f",
        "step_ratio_median": "median|.3f",
        "alone_ms": "alone ms|.2f",
        "fed_ms": "fed ms|.2f",
        "wait_ms_median": "wait ms, median|.3f",
        "wait_ms_most": "most|.2f",
        "waiting_steps": "steps that waited|.0f",
    },
)


if __name__ == "__main__":
    main(WORKLOAD, __doc__)
