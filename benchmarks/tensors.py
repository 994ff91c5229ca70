"""Tensors: how many float32 arrays of 602 KB a second, when there is nothing to decode?

    python benchmarks/tensors.py
    python benchmarks/tensors.py --scale 0.25 --rounds 3

Batches of 64 of shape (3, 224, 224), in random order, two workers.

- torch: `DataLoader` over one `.npy` file a record. torch-mapped: over one mapped `.npy` file of all records.
- aioload: `Loader(..., shuffle=True)` over a packed field of the kind `ndarray`. aioload-plain: not shuffled.
- bare: the limit, one process that copies records from a mapped file into a batch whose memory it reuses.
- bare-2: two such processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import _data
import numpy as np
import torch
from _bare import Bare
from _cases import Contender, Loops, Workload, main
from _data import TENSOR_SHAPE, Places
from _peers import Job, peers

import aioload

__all__ = ["BATCH", "WORKLOAD", "Files", "Mapped"]

BATCH = 64


class Files(torch.utils.data.Dataset[Any]):
    """A map-style dataset over one file a record."""

    def __init__(self, places: Places) -> None:
        self._files = [str(places.plain / f"{number:06}.npy") for number in range(places.records)]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.from_numpy(np.load(self._files[number]))


class Mapped(torch.utils.data.Dataset[Any]):
    """A map-style dataset over one mapped file: collating copies out of the page cache."""

    def __init__(self, places: Places) -> None:
        # "c": torch warns of arrays that it could not write to; nobody writes, so nothing is copied
        self._records = np.load(places.plain / "all.npy", mmap_mode="c")

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.from_numpy(self._records[number])


class Copies:
    """The bare loop: records in random order, copied into the same memory again and again."""

    def __init__(self, places: Places) -> None:
        self._records = np.load(places.plain / "all.npy", mmap_mode="r")
        self._order = np.random.default_rng(1).permutation(places.records)
        self._batch = np.zeros((BATCH, *TENSOR_SHAPE), np.float32)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for batch in range(math.ceil(len(self._order) / BATCH)):
            yield torch.from_numpy(self.copy(batch))

    def copy(self, batch: int) -> Any:
        """Copy the records of one batch."""
        numbers = self._order[batch * BATCH : (batch + 1) * BATCH].tolist()
        for row, number in enumerate(numbers):
            self._batch[row] = self._records[number]
        return self._batch[: len(numbers)]


def _torch(dataset: Any, workers: int) -> Contender:
    loader = torch.utils.data.DataLoader(
        dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return Loops(loader)


def _aioload(places: Places, workers: int, *, shuffle: bool = True) -> Contender:
    loader = aioload.Loader(places.packed, batch_size=BATCH, shuffle=shuffle, num_workers=workers)
    return Loops(loader.sync(), loader.close)


def _bare_processes(places: Places, workers: int) -> Contender:
    def start() -> Callable[[int], int]:
        copies = Copies(places)
        return lambda batch: len(copies.copy(batch))

    return Bare(start, math.ceil(places.records / BATCH), 2)


def finish(data: bytes, label: int) -> torch.Tensor:
    """Make torch's sample of a stored record."""
    return torch.frombuffer(bytearray(data), dtype=torch.float32).view(TENSOR_SHAPE)


def raw(places: Places) -> Iterator[tuple[bytes, int]]:
    """Give each record."""
    records = np.load(places.plain / "all.npy", mmap_mode="r")
    return ((array.tobytes(), 0) for array in records)


def touch(batch: Any) -> int:
    """Sum a row of each record."""
    if isinstance(batch, int):
        return batch
    arrays = batch["x"] if isinstance(batch, dict) else batch
    assert float(arrays[:, 0, 0].sum()) > 0
    assert arrays.dtype == torch.float32
    return len(arrays)


WORKLOAD = Workload(
    "tensors",
    _data.tensors,
    touch,
    {
        "torch": lambda places, workers: _torch(Files(places), workers),
        "torch-mapped": lambda places, workers: _torch(Mapped(places), workers),
        "aioload": _aioload,
        "aioload-plain": lambda places, workers: _aioload(places, workers, shuffle=False),
        "bare": lambda places, workers: Loops(Copies(places)),
        "bare-2": _bare_processes,
        **peers(Job(Mapped, raw, finish, BATCH)),
    },
)


if __name__ == "__main__":
    main(WORKLOAD, __doc__)
