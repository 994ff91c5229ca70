"""Soak: does every batch stay right while workers are killed, records damaged and loops left at random?

    python benchmarks/soak.py --minutes 10

A thread kills a random worker every 0.3 s or so. Meanwhile loaders with random options are opened, iterated,
left by `break` or by a timeout, resumed from their state with other workers, and closed. Every batch is
compared with the order that a loader without workers gives. A record may be missing only if it was damaged,
or if the loader says that workers died over it twice: chance does that now and then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import aioload
from aioload._workers import context

__all__ = ["Report", "soak"]

RECORDS = 400
KILL_SECONDS = 0.3
GRACE_SECONDS = 5.0


@dataclass
class Report:
    """What a soak has seen."""

    loaders: int = 0
    """Opened and closed."""
    batches: int = 0
    """Compared."""
    deaths: int = 0
    """Workers killed."""
    left_out: int = 0
    """Damaged records that were missing as they should."""
    unlucky: int = 0
    """Records over which chance killed two workers."""
    cancelled: int = 0
    """Loops left by a timeout."""
    wrong: list[str] = field(default_factory=list)
    """What was not as it should be."""
    leaks: list[str] = field(default_factory=list)
    """What was left behind."""
    descriptors: tuple[int, int] = (0, 0)
    """Open early on and at the end."""
    memory: tuple[int, int] = (0, 0)
    """MiB resident early on and at the end."""

    def __str__(self) -> str:
        lines = [
            f"{self.loaders} loaders, {self.batches} batches, {self.deaths} deaths",
            f"{self.cancelled} loops cancelled",
            f"{self.left_out} damaged records left out, {self.unlucky} unlucky",
            f"descriptors {self.descriptors[0]} -> {self.descriptors[1]}",
            f"memory {self.memory[0]} -> {self.memory[1]} MiB",
            *self.wrong[:20],
            *self.leaks[:20],
            f"wrong = {len(self.wrong)}, leaks = {len(self.leaks)}",
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Slow:
    """A transform that takes a while, so that deaths find something to hit."""

    seconds: float

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.seconds)
        return sample


def soak(folder: Path, seconds: float, seed: int) -> Report:
    """Run scenarios for so long."""
    whole, damaged = _set(folder / "whole"), folder / "damaged"
    report, chance = Report(), random.Random(seed)
    told = time.monotonic()
    deadline = told + seconds
    with _killing(report, random.Random(seed + 1)):
        while time.monotonic() < deadline:
            bad = _damage(whole, damaged, chance) if chance.random() < 0.4 else set()
            _Scenario(damaged if bad else whole, bad, whole, chance, report).run(deadline)
            report.loaders += 1
            report.leaks += _left_behind()
            now = (len(os.listdir("/proc/self/fd")), _resident())  # noqa: PTH208 - names, not paths
            if report.loaders <= 10:
                report.descriptors, report.memory = (now[0], now[0]), (now[1], now[1])
            report.descriptors, report.memory = (report.descriptors[0], now[0]), (report.memory[0], now[1])
            if time.monotonic() > told + 60:
                told = time.monotonic()
                print(
                    f"{report.deaths} deaths, {report.batches} batches, {now[1]} MiB",
                    file=sys.stderr,
                    flush=True,
                )
    if report.descriptors[1] > report.descriptors[0] + 16:
        report.leaks.append(f"descriptors grew from {report.descriptors[0]} to {report.descriptors[1]}")
    if report.memory[1] > report.memory[0] + 200:
        report.leaks.append(f"memory grew from {report.memory[0]} to {report.memory[1]} MiB")
    return report


class _Scenario:
    """One loader with random options, and others that go on from its state.

    Args:
        path: of the set.
        bad: its damaged records.
        whole: the same set, undamaged.
        chance: decides.
        report: told of all.
    """

    def __init__(self, path: Path, bad: set[int], whole: Path, chance: random.Random, report: Report) -> None:
        self._path = path
        self._bad = bad
        self._chance = chance
        self._report = report
        self._options = {
            "batch_size": chance.choice([1, 3, 8, 25, 64]),
            "shuffle": chance.choice([False, True, "full"]),
            "seed": chance.randrange(100),
        }
        self._skips = bool(bad) or chance.random() < 0.5
        self._named: set[int] = set()  # what loaders have said they left out for want of a living worker
        with aioload.Loader(whole, num_workers=0, transform=_number, **self._options).sync() as batches:
            self._expected = [[batch["n"].tolist() for batch in batches] for _ in range(2)]

    def run(self, deadline: float) -> None:
        """Run one loader, or a chain of loaders each of which goes on from the state of the one before."""
        state: Any = None
        while time.monotonic() < deadline:
            loader = self._loader()
            if state is not None:
                loader.load_state_dict(state)
            try:
                if self._chance.random() < 0.5:
                    asyncio.run(self._iterate(loader, deadline))
                else:
                    self._loop(loader, deadline)
                state = loader.state_dict()
            except aioload.WorkerError as error:
                self._unlucky(error)
                return
            except Exception as error:
                self._wrong(f"{type(error).__name__}: {error}")
                return
            finally:
                loader.close()
            if self._chance.random() < 0.5 or state["epoch"] > 1:
                return

    def _loader(self) -> aioload.Loader:
        chance = self._chance
        return aioload.Loader(
            self._path,
            transform=Slow(chance.choice([0, 0.001, 0.004])),
            num_workers=chance.choice([1, 2, 2, 3]),
            prefetch=chance.choice(["auto", 1, 4]),
            on_error=aioload.Skip(1.0) if self._skips else "raise",
            worker_timeout=chance.choice([None, 20]),
            max_jobs_per_worker=chance.choice([None, None, 3]),
            **self._options,
        )

    def _loop(self, loader: aioload.Loader, deadline: float) -> None:
        """Iterate by a plain `for` that is left now and then."""
        for _ in range(self._chance.choice([1, 2])):
            stop = self._chance.choice([None, self._chance.randrange(1, 60)])
            expected = self._rest(loader)
            if expected is None:
                return
            for number, batch in enumerate(loader.sync()):
                self._compare(loader, batch, expected[number])
                if number + 1 == stop or time.monotonic() > deadline:
                    break

    async def _iterate(self, loader: aioload.Loader, deadline: float) -> None:
        """Iterate by `async for` under a timeout, and go on from the state where that struck."""
        for _ in range(self._chance.choice([1, 2, 3])):
            expected = self._rest(loader)
            if expected is None:
                return
            state, number, limit = loader.state_dict(), 0, deadline - time.monotonic()
            try:
                async with asyncio.timeout(min(self._chance.choice([0.05, 0.3, 1.0, 60]), limit)):
                    async for batch in loader:
                        self._compare(loader, batch, expected[number])
                        number += 1
                        state = loader.state_dict()
            except TimeoutError:
                self._report.cancelled += 1
                loader.load_state_dict(state)

    def _rest(self, loader: aioload.Loader) -> list[list[int]] | None:
        """Return what the next iteration should bring; None after the epochs that are known."""
        state = loader.state_dict() if loader.remaining != len(loader) else None
        if loader.epoch >= len(self._expected):
            return None
        order = [n for batch in self._expected[loader.epoch] for n in batch]
        begin = state["position"] if state else 0
        size = self._options["batch_size"]
        return [order[start : start + size] for start in range(begin, len(order), size)]

    def _compare(self, loader: aioload.Loader, batch: Any, expected: list[int]) -> None:
        self._report.batches += 1
        found = batch["n"].tolist() if batch else []
        lost = {skipped.record for skipped in loader.skipped if "worker process" in skipped.error}
        self._report.unlucky += len(lost - self._named)
        self._named |= lost
        self._report.left_out += len(self._bad & set(expected))
        if found != [n for n in expected if n not in self._bad and (n not in lost or n in found)]:
            self._wrong(f"found {found} for {expected}")
        elif batch and batch["text"] != [f"t{n}" for n in found]:
            self._wrong(f"texts {batch['text']} for {found}")
        elif batch and not np.array_equal(batch["array"], np.repeat(found, 12).reshape(-1, 3, 4)):
            self._wrong(f"another array for {found}")

    def _unlucky(self, error: aioload.WorkerError) -> None:
        """Take an error for bad luck if it is of the kind that chance brings about."""
        if "each time" in str(error) or "each worker process" in str(error):
            self._report.unlucky += 1
        else:
            self._wrong(f"WorkerError: {error}")

    def _wrong(self, what: str) -> None:
        self._report.wrong.append(f"{self._path.name} {self._options}: {what}"[:400])


def _number(sample: dict[str, Any]) -> dict[str, Any]:
    return {"n": sample["n"]}


def _set(path: Path) -> Path:
    """Write a set."""
    fields = {"n": "int", "text": "str", "array": "ndarray"}
    with aioload.Writer(path, fields=fields, shard_bytes=12_000) as writer:
        for n in range(RECORDS):
            writer.write({"n": n, "text": f"t{n}", "array": np.full((3, 4), n)}, key=f"k{n}")
    return path


def _damage(whole: Path, damaged: Path, chance: random.Random) -> set[int]:
    """Copy a set and flip a bit in some records of the copy; return which."""
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(whole, damaged)
    bad = set(chance.sample(range(RECORDS), chance.randrange(1, 20)))
    index = aioload.Dataset(whole).index
    for n in bad:
        place = index.locate(np.array([n]))
        file = damaged / index.shards[int(place.shard[0])]
        content = bytearray(file.read_bytes())
        content[chance.randrange(int(place.start[0]), int(place.stop[0]))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
    return bad


@contextlib.contextmanager
def _killing(report: Report, chance: random.Random) -> Iterator[None]:
    """Kill a worker now and then."""
    over = threading.Event()

    def kill() -> None:
        while not over.wait(chance.expovariate(1 / KILL_SECONDS)):
            workers = _workers()
            if workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(workers), signal.SIGKILL)
                    report.deaths += 1

    thread = threading.Thread(target=kill, name="soak-kill")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _workers() -> list[int]:
    """Process ids of the workers that run."""
    server = context._server._forkserver_pid
    if server is None:
        return []
    try:
        return [int(pid) for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split()]
    except OSError:
        return []


def _left_behind() -> list[str]:
    """Tell what a closed loader has left, once it had its time to go."""
    deadline = time.monotonic() + GRACE_SECONDS
    while found := [f"process {pid}" for pid in _workers()] + [
        f"thread {thread.name}" for thread in threading.enumerate() if thread.name.startswith("aioload")
    ]:
        if time.monotonic() > deadline:
            return found
        time.sleep(0.01)
    return []


def _resident() -> int:
    """MiB that this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = soak(Path(folder), options.minutes * 60, options.seed)
    print(report)
    return 1 if report.wrong or report.leaks else 0


if __name__ == "__main__":
    sys.exit(main())
