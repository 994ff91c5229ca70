"""Stats: what does counting cost, where it costs most?

    python benchmarks/stats_cost.py

Tiny records in order, as in `tiny.py`, by one loader whose counters count in every other epoch, and else do
nothing, so that the watch has nothing to add up. (Two loaders differ by more than what is looked for.) By
default without workers, so that all of it, the worker's part too, is CPU time of one process, which can be
told exactly; with workers it is the parent's. What remains in both are looks at the clock, about ten for each
run of batches.

On a machine with neighbours that difference drowns in noise. So another loader tells how often counters are
called in an epoch, which times the cost of a call is what counting takes.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import timeit
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import _data
from tiny import BATCH, touch

import aioload
from aioload import loader as loader_module
from aioload.stats import Counters

__all__ = ["Deaf"]

GOAL = 1.01
AHEAD = 64  # given: what counts nothing cannot adapt it


class Deaf(Counters):
    """Counters that count hardly anything."""

    def add(self, **amounts: float) -> None:
        """Do nothing."""

    def set(self, **amounts: float) -> None:
        """Do nothing."""

    def read(self, size: int, seconds: float) -> None:
        """Do nothing."""

    def arrive(self) -> float:
        """Do nothing."""
        return 0.0

    def leave(self, arrived: float, samples: int, size: int) -> None:
        """Count the batch: else the engine would look at each of them whether it is the first."""
        self._values["batches"] += 1

    def pause(self) -> None:
        """Do nothing."""

    def loop(self) -> tuple[float, float]:
        """Do nothing."""
        return 0.0, 0.0


class Called(Counters):
    """Counters that count how often they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def add(self, **amounts: float) -> None:
        """Add."""
        self.calls["add"] += 1
        super().add(**amounts)

    def set(self, **amounts: float) -> None:
        """Set."""
        self.calls["add"] += 1
        super().set(**amounts)

    def leave(self, arrived: float, samples: int, size: int) -> None:
        """Note a batch."""
        self.calls["step"] += 1
        super().leave(arrived, samples, size)

    def loop(self) -> tuple[float, float]:
        """Tell the time."""
        self.calls["look"] += 1
        return super().loop()


def unit_costs() -> dict[str, float]:
    """Return what calls of each kind cost, in seconds: the least of several tries."""
    counters = Counters()
    amounts = {"worker_seconds": 1.0, "busy_seconds": 1.0, "wait_work_seconds": 1.0, "wait_late_seconds": 1.0}
    kinds: dict[str, Callable[[], object]] = {
        "add": lambda: counters.add(**amounts),
        "step": lambda: counters.leave(counters.arrive(), 256, 1 << 19),
        "look": counters.loop,
    }
    return {name: min(timeit.repeat(call, number=5000, repeat=9)) / 5000 for name, call in kinds.items()}


def main() -> None:
    """Take turns, and print medians."""
    options = _options()
    places = _data.tiny(options.data, options.scale)
    kinds: dict[str, type[Counters]] = {"on": Counters, "off": Deaf}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    with loading(places, options.workers, Counters) as loader:
        epoch(loader)
        samples = 0
        for number in range(options.rounds):
            for name in ("on", "off") if number % 2 else ("off", "on"):
                loader.counters.__class__ = kinds[name]
                before = loader.counters["samples"]
                found[name].append(epoch(loader))
                samples += int(loader.counters["samples"] - before)
    ratio = statistics.median(one / other for one, other in zip(found["on"], found["off"], strict=True))
    medians = {name: statistics.median(values) for name, values in found.items()}
    with loading(places, options.workers, Called) as loader:
        before = Counter(loader.counters.calls)  # type: ignore[attr-defined]  # of this kind
        each = epoch(loader)
        calls = loader.counters.calls - before  # type: ignore[attr-defined]
    units = unit_costs()
    counting = sum(units[name] * count for name, count in calls.items())
    told = {
        "records": places.records,
        "workers": options.workers,
        "rounds": options.rounds,
        "on_us_per_record": medians["on"] / places.records * 1e6,
        "off_us_per_record": medians["off"] / places.records * 1e6,
        "ratio": ratio,
        "ratio_of_medians": medians["on"] / medians["off"],
        "calls": dict(calls),
        "call_us": {name: round(cost * 1e6, 3) for name, cost in units.items()},
        "calls_ratio": counting / min(each, medians["on"]),
        "samples": samples,
    }
    print(json.dumps(told))
    print(
        f"counting costs {ratio - 1:+.2%} of CPU time, on against off; the goal is less than {GOAL - 1:.0%}"
    )
    print(f"calls by what each costs: {told['calls_ratio']:.2%}")


@contextmanager
def loading(places: _data.Places, workers: int, counters: type[Counters]) -> Iterator[aioload.Loader]:
    """Open a loader with counters of a kind."""
    usual = loader_module.Counters
    loader_module.Counters = counters  # type: ignore[misc]  # for the one that is made now
    try:
        loader = aioload.Loader(places.packed, batch_size=BATCH, num_workers=workers, prefetch=AHEAD)
    finally:
        loader_module.Counters = usual  # type: ignore[misc]
    with loader.sync():
        yield loader


def epoch(loader: aioload.Loader) -> float:
    """Go through an epoch; return the CPU seconds that this process took."""
    gc.collect()
    began = time.process_time()
    samples = sum(map(touch, loader.sync()))
    assert samples
    return time.process_time() - began


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=_data.DEFAULT_FOLDER, help="folder to keep the data in")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the records to take")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--workers", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
