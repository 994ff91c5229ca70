"""Plan: is an epoch as long as `aioload plan` says before it has run?

    python benchmarks/plan_accuracy.py
    python benchmarks/plan_accuracy.py --scale 0.1 --rounds 2 --only hdd,slow

Photos, random crops of 224, batches of 64, block shuffle, as many workers as CPUs. `--raw` decodes nothing,
so that storage limits; with `--wait 5` a transform waits in place of decoding, for a look on a machine that
has other work. For each case an estimate is made, then three epochs are run, of which the last counts, in
rounds; the table has medians, and of the errors those of the rounds' own pairs.

- warm: the local disk, from the page cache: the later epochs of the estimate.
- cold: the local disk, out of the page cache by `posix_fadvise`: storage measured, the first epoch.
- hdd: a disk with one head that is emulated (9 ms where a read does not go on where one ended, 150 MB/s); the
  estimate takes the preset `hdd`, and measures nothing of it.
- slow: 20 ms before each read and 40 MB/s for all together, emulated, measured.
- far: a server on the loopback address, 50 ms before each answer and 2 MB/s a connection, measured.

Emulated times are waits: they cost no CPU. Epochs of hdd are of a fifth of the photos.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import _data
from _server import serving

import aioload
from aioload.benching import Setup
from aioload.benching.evicting import evict
from aioload.benching.pattern import ranges_of
from aioload.benching.shape import access_of, plan_of
from aioload.planning import PRESETS, Demand, Forecast, Wanted, forecast
from aioload.storage import LocalStorage

__all__ = ["Head", "Slow"]

BATCH = 64
LATENCY, BANDWIDTH = 0.05, 2e6
WITHIN = 0.25
EPOCHS = 3
"""Each reads what the next needs early, and how much that is settles in the first two."""


class Slow:
    """A storage that waits before each read, and gives so many bytes a second in all.

    Args:
        storage: what is read.
        delay: seconds.
        bandwidth: bytes a second.
    """

    def __init__(self, storage: LocalStorage, delay: float, bandwidth: float) -> None:
        self._storage = storage
        self._delay = delay
        self._bandwidth = bandwidth
        self._free = 0.0  # when the line is

    async def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return await self._storage.size(name)

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, late."""
        await asyncio.sleep(self._delay)
        now = time.monotonic()
        self._free = max(self._free, now) + len(out) / self._bandwidth
        await asyncio.sleep(self._free - now)
        await self._storage.read_into(name, start, out)


class Head:
    """A disk with one head, which takes time to get elsewhere.

    Args:
        storage: what is read.
        seek: seconds.
        bandwidth: bytes a second.
    """

    def __init__(self, storage: LocalStorage, seek: float, bandwidth: float) -> None:
        self._storage = storage
        self._seek = seek
        self._bandwidth = bandwidth
        self._free = 0.0
        self._at: tuple[str, int] = ("", -1)

    async def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return await self._storage.size(name)

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, late."""
        now = time.monotonic()
        seek = 0.0 if self._at == (name, start) else self._seek
        self._at = (name, start + len(out))
        self._free = max(self._free, now) + seek + len(out) / self._bandwidth
        await asyncio.sleep(self._free - now)
        await self._storage.read_into(name, start, out)


@dataclass(frozen=True, slots=True)
class Case:
    """One storage."""

    open: Callable[[], aioload.Dataset]
    wanted: Wanted
    is_first: bool = False
    """Whether the first epoch is looked at, and the page cache is emptied before it."""


def cases(places: _data.Places, small: _data.Places, url: str, seconds: float) -> dict[str, Case]:
    """Return all cases."""
    measured = Wanted(is_measured=True, seconds=seconds)
    packed = places.packed
    return {
        "warm": Case(lambda: aioload.Dataset(packed), Wanted(seconds=seconds)),
        "cold": Case(lambda: aioload.Dataset(packed), measured, is_first=True),
        "hdd": Case(
            lambda: aioload.Dataset(Head(LocalStorage(small.packed), 9e-3, 150e6)),
            replace(measured, is_measured=False, medium=PRESETS["hdd"]),
        ),
        "slow": Case(lambda: aioload.Dataset(Slow(LocalStorage(packed), 0.02, 40e6)), measured),
        "far": Case(lambda: aioload.Dataset(url), measured),
    }


def waiting(seconds: float) -> Callable[[Any], Any]:
    """Return a transform that takes time and no CPU."""

    def wait(sample: Any) -> Any:
        time.sleep(seconds)
        return {"label": sample["label"]}

    return wait


def epochs(dataset: aioload.Dataset, setup: Setup, count: int) -> Iterator[float]:
    """Yield how long each epoch takes, from the demand to its last batch."""
    with setup.loader(dataset).sync() as batches:
        for _ in range(count):
            began = time.perf_counter()
            rows = sum(len(batch["label"]) for batch in batches)
            assert rows == len(dataset)
            yield time.perf_counter() - began


def measure(case: Case, setup: Setup) -> tuple[float, float, Forecast]:
    """Return estimate and measure of an epoch, and all of the estimate."""
    dataset = case.open()
    found = forecast(dataset, setup, Demand(BATCH), case.wanted)
    if case.is_first:
        ranges = ranges_of(plan_of(dataset, setup), access_of(dataset, setup))
        evict(dataset, ranges)
        return found.epochs.first_seconds, next(epochs(case.open(), setup, 1)), found
    return found.epochs.later_seconds, list(epochs(case.open(), setup, EPOCHS))[-1], found


@contextmanager
def stage(places: _data.Places) -> Iterator[str]:
    """Serve the photos far away."""
    with serving(places.folder) as server:
        server.set(latency=LATENCY, bandwidth=BANDWIDTH)
        yield f"{server.url}/{places.packed.name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=_data.DEFAULT_FOLDER)
    parser.add_argument("--scale", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement of the plan")
    parser.add_argument("--raw", action="store_true", help="decode nothing")
    parser.add_argument("--wait", type=float, help="milliseconds that a transform waits in place of decoding")
    parser.add_argument("--only", default="", help="names of cases, with commas")
    options = parser.parse_args()

    places = _data.photos(options.data, options.scale)
    small = _data.photos(options.data, options.scale / 5)
    image = aioload.decode.Image(size=224, crop="random_resized", flip=True)
    decode = {"image": "raw" if options.raw or options.wait else image}
    wait = waiting(options.wait / 1000) if options.wait else None
    setup = Setup(BATCH, len(os.sched_getaffinity(0)), decode=decode, transform=wait)
    with stage(places) as url:
        chosen = cases(places, small, url, options.seconds)
        chosen = {name: chosen[name] for name in (options.only.split(",") if options.only else chosen)}
        pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
        limits: dict[str, Any] = {}
        for number in range(options.rounds):
            for name, case in chosen.items():
                told, took, found = measure(case, setup)
                pairs[name].append((told, took))
                limits[name] = found.epochs.limit.name
                print(f"round {number} {name}: told {told:.2f} s, took {took:.2f} s", flush=True)

    print(
        "\n| case | limited by | estimate, s | measured, s | error, median | of single rounds | within 25% |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, found_pairs in pairs.items():
        errors = [told / took - 1 for told, took in found_pairs]
        told, took = (statistics.median(values) for values in zip(*found_pairs, strict=True))
        error = statistics.median(errors)
        print(
            f"| {name} | {limits[name]} | {told:.2f} | {took:.2f} | {error:+.0%} | "
            f"{min(errors):+.0%} to {max(errors):+.0%} | {'yes' if abs(error) <= WITHIN else '**no**'} |"
        )


if __name__ == "__main__":
    main()
