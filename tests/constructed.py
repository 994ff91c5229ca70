"""Constructed cases: loops in which it is known what limits them, for whoever tells what does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from batches import pack

import aioload
from aioload import Dataset, Loader, LoaderStats
from aioload.storage import LocalStorage, Storage, close

__all__ = ["CASES", "Case", "packed", "run"]

RECORDS = 400
ROW = (16, 128)  # float32: 8 KiB a record


class SlowStorage:
    """Files of this machine that come late, as over a network; as many reads at once as one likes."""

    max_reads, first_reads = 64, 4

    def __init__(self, storage: Storage, seconds: float, bytes_a_second: float) -> None:
        self._storage = storage
        self._seconds = seconds
        self._rate = bytes_a_second

    async def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return await self._storage.size(name)

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill memory after a while."""
        if name.startswith("shard"):
            await anyio.sleep(self._seconds + len(out) / self._rate)
        await self._storage.read_into(name, start, out)

    async def aclose(self) -> None:
        """Close the files."""
        await close(self._storage)


class SlowDataset(Dataset):
    """A set in such a storage."""

    def __init__(self, source: Path, *, seconds: float, bytes_a_second: float) -> None:
        super().__init__(source)
        self._late = seconds, bytes_a_second

    def open_storage(self) -> Storage:
        """Return a slow storage."""
        return SlowStorage(LocalStorage(self.source), *self._late)


@dataclass(frozen=True, slots=True)
class Spin:
    """Takes a value as it is, and computes for so many seconds of CPU time."""

    seconds: float

    def __call__(self, value: Any) -> Any:
        stop = time.thread_time() + self.seconds
        while time.thread_time() < stop:
            pass
        return value


@dataclass(frozen=True, slots=True)
class SpinningDecoder:
    """Decodes arrays slowly."""

    seconds: float

    def __call__(self, data: memoryview) -> Any:
        Spin(self.seconds)(None)
        return aioload.decode.NDArray()(data)


@dataclass(frozen=True, slots=True)
class SlowCollate:
    """Makes a batch as usual, and then takes its time."""

    seconds: float

    def __call__(self, samples: list[Any]) -> Any:
        return Spin(self.seconds)(aioload.collate.default(samples))


@dataclass(frozen=True, slots=True)
class Uneven:
    """A transform that waits at one record in `every`."""

    every: int
    seconds: float

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] % self.every == self.every // 2:
            time.sleep(self.seconds)
        return sample


@dataclass(frozen=True, slots=True)
class Case:
    """A loop, and the stage that limits it."""

    name: str
    stage: str
    options: Mapping[str, Any]
    consumer: float = 0.0  # seconds at each batch
    slow: tuple[float, float] | None = None  # seconds, and bytes a second of a storage


CASES = (
    Case("slow storage", "storage", {}, slow=(0.1, 2e6)),
    Case("storage over a network", "storage", {"shuffle": True}, consumer=0.005, slow=(0.15, 50e6)),
    Case("slow storage, no workers", "storage", {"num_workers": 0}, slow=(0.1, 2e6)),
    Case("slow decode", "decode", {"decode": {"x": SpinningDecoder(0.005)}}),
    Case("slow decode, no workers", "decode", {"decode": {"x": SpinningDecoder(0.002)}, "num_workers": 0}),
    Case("slow transform", "transform", {"transform": Spin(0.005)}, consumer=0.01),
    Case("slow collate", "collate", {"collate": SlowCollate(0.08)}, consumer=0.005),
    Case("uneven samples", "order", {"transform": Uneven(80, 0.5)}, consumer=0.005),
    Case("slow consumer", "model", {}, consumer=0.06),
    Case(
        "tiny memory",
        "memory",
        {"transform": Uneven(1, 0.002), "num_workers": 4, "memory_limit": "900KiB"},
    ),
    Case(
        "tiny memory, read",
        "memory",
        {"transform": Uneven(1, 0.002), "num_workers": 4, "memory_limit": "1200KiB", "reads": "file"},
    ),
)


def packed(folder: Path) -> Path:
    """Pack what all cases go through."""
    fields = {"n": "int", "x": "ndarray"}
    return pack(
        folder,
        fields,
        ({"n": number, "x": np.full(ROW, number, np.float32)} for number in range(RECORDS)),
        shard_bytes=1 << 20,
    )


@contextmanager
def loading(case: Case, path: Path) -> Iterator[Loader]:
    """Return a case's loader."""
    options: dict[str, Any] = {"batch_size": 16, "num_workers": 2, **case.options}
    make: Callable[[], Dataset] = lambda: Dataset(path)  # noqa: E731
    if case.slow is not None:
        seconds, rate = case.slow
        make = lambda: SlowDataset(path, seconds=seconds, bytes_a_second=rate)  # noqa: E731
    loader = Loader(make(), **options)
    try:
        yield loader
    finally:
        loader.close()


def run(case: Case, path: Path) -> tuple[LoaderStats, str]:
    """Go through an epoch of a case; return its stats and its report."""
    with loading(case, path) as loader:
        for _ in loader.sync():
            if case.consumer:
                time.sleep(case.consumer)
        return loader.stats(), loader.report()
