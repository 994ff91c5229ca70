"""What does an executor of the user's cost, in CPU seconds a gigabyte and in samples a second?

    python benchmarks/executors.py
    python benchmarks/executors.py --scale 0.1 --rounds 3 --only pool,processes,dask

The photos of `photos.py`, batches of 64 in random order, two workers. `pool` is what a loader has by itself.
Beside it are threads, a `ProcessPoolExecutor`, and a Dask cluster on the loopback address, with two processes
of one thread each. With `-reads` the workers read the folder themselves; with `-direct` Dask's client fetches
results from them, rather than by way of the scheduler.

Cases without more decode and crop (without antialias); those with `-raw` hand out the JPEGs as they are, so
that little but the way is left. Bytes are those of the records and those of the batches, as both have to
travel. CPU seconds are those of the whole process tree, a cluster's scheduler included.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import _data
from _cases import Contender, Unavailable, Workload, main
from _data import Places
from _measure import MIB, tree_cpu

import aioload

__all__ = ["WORKLOAD", "Executed"]

BATCH = 64
SIZE = 224
GB = 1e9

Open = Callable[[int, contextlib.ExitStack], Executor | None]


@dataclass(frozen=True, slots=True)
class Executed:
    """A loader with an executor, and what has to be closed."""

    loader: aioload.Loader
    stack: contextlib.ExitStack

    def epoch(self) -> Iterator[Any]:
        """Return the batches of one more epoch."""
        return iter(self.loader.sync())

    def close(self) -> None:
        """End the loader, then the executor."""
        self.loader.close()
        self.stack.close()


def _pool(workers: int, stack: contextlib.ExitStack) -> None:
    """Have no executor."""


def _threads(workers: int, stack: contextlib.ExitStack) -> Executor:
    return stack.enter_context(ThreadPoolExecutor(workers))


def _processes(workers: int, stack: contextlib.ExitStack) -> Executor:
    return stack.enter_context(ProcessPoolExecutor(workers, get_context("forkserver")))


def _dask(workers: int, stack: contextlib.ExitStack, *, direct: bool = False) -> Executor:
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise Unavailable("not installed: distributed") from error
    cluster = stack.enter_context(
        LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=":0", host="127.0.0.1", silence_logs=50
        )
    )
    executor: Executor = stack.enter_context(Client(cluster, direct_to_workers=direct)).get_executor()
    return executor


def _make(open_: Open, raw: bool, reads: bool, places: Places, workers: int) -> Contender:
    decode: Any = "raw" if raw else aioload.decode.Image(size=SIZE, crop="random_resized", antialias=False)
    stack = contextlib.ExitStack()
    options = {"batch_size": BATCH, "shuffle": True, "decode": {"image": decode}, "num_workers": workers}
    executor = open_(workers, stack)
    return Executed(
        aioload.Loader(places.packed, executor=executor, remote_reads=reads, **options),  # type: ignore[arg-type]  # of many kinds
        stack,
    )


def touch(batch: Any) -> int:
    """Look at a batch and count its samples."""
    images = batch["image"]
    assert images[0][:2] == b"\xff\xd8" if isinstance(images, list) else int(images[:, 0, 0].sum()) > 0
    return len(batch["label"])


def measure(
    workload: Workload, make: Callable[[], Contender], places: Places, seconds: float
) -> dict[str, Any]:
    """Measure whole epochs from the second on."""
    contender = make()
    assert isinstance(contender, Executed)
    sum(map(touch, contender.epoch()))
    samples = epochs = 0
    before, cpu, began = contender.loader.stats(), tree_cpu(os.getpid()), time.perf_counter()
    while not epochs or time.perf_counter() - began < seconds:
        samples += sum(map(touch, contender.epoch()))
        epochs += 1
    took, cpu, stats = time.perf_counter() - began, tree_cpu(os.getpid()) - cpu, contender.loader.stats()
    contender.close()
    stored = sum(shard.stat().st_size for shard in places.packed.glob("*.aio")) / places.records
    # texts and bytes do not count there
    is_raw = stats.batch_bytes - before.batch_bytes < samples * stored / 2
    moved = samples * (2 * stored if is_raw else stored + 3 * SIZE * SIZE)
    return {
        "samples_per_second": samples / took,
        "mib_per_second": moved / took / MIB,
        "cpu_seconds_per_1000": cpu / samples * 1000,
        "cpu_seconds_per_gb": cpu / moved * GB,
        "jobs": (stats.jobs - before.jobs) / epochs,
        "epochs": epochs,
        "samples": samples,
    }


_OPEN: dict[str, tuple[Open, bool]] = {
    "pool": (_pool, False),
    "threads": (_threads, False),
    "processes": (_processes, False),
    "processes-reads": (_processes, True),
    "dask": (_dask, False),
    "dask-reads": (_dask, True),
    "dask-direct": (partial(_dask, direct=True), False),
}

WORKLOAD = Workload(
    "executors",
    _data.photos,
    touch,
    {
        f"{name}{'-raw' if raw else ''}": partial(_make, open_, raw, reads)
        for raw in (False, True)
        for name, (open_, reads) in _OPEN.items()
    },
    measure,
    {
        "samples_per_second": "samples/s|,.0f",
        "mib_per_second": "MiB/s moved|,.0f",
        "cpu_seconds_per_1000": "CPU s / 1,000|.3g",
        "cpu_seconds_per_gb": "CPU s / GB moved|.3g",
        "jobs": "jobs an epoch|.0f",
    },
)


if __name__ == "__main__":
    main(WORKLOAD, __doc__)
