"""Tiny records: how many records of 2 KB and a label come through, when nothing is to be done with them?

    python benchmarks/tiny.py
    python benchmarks/tiny.py --only torch,aioload --rounds 3

Batches of 256 in the order of the file, two workers. A batch is a list of `bytes` and an int64 tensor of
labels.

- torch: `DataLoader` over files in class folders, as most people have them. torch-0: without workers.
- torch-one-file: over all records in one large file, from which `__getitem__` reads by `os.pread`.
  torch-one-file-0: without workers. torch-batched: with `__getitems__`, which reads a batch in one call.
- aioload: `Loader(...)`. aioload-0: without workers. aioload-1: one worker.
- bare: the limit, one process that copies records out of a mapped file.
- torch-shuffled, aioload-shuffled, bare-shuffled: in random order, each epoch in another.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator
from typing import Any

import _data
import numpy as np
import torch
from _cases import Contender, Loops, Workload, main
from _data import TINY_BYTES, Places
from _peers import Job, peers

import aioload

__all__ = ["BATCH", "WORKLOAD", "Records"]

BATCH = 256


class Folder(torch.utils.data.Dataset[Any]):
    """A map-style dataset over class folders."""

    def __init__(self, places: Places) -> None:
        labels = np.load(places.plain / "labels.npy").tolist()
        self._files = [
            (str(places.plain / f"class-{label:03}" / f"{number:06}.bin"), label)
            for number, label in enumerate(labels)
        ]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[bytes, int]:
        path, label = self._files[number]
        with open(path, "rb") as file:  # noqa: PTH123 - a Path costs more than the file
            return file.read(), label


class Records(torch.utils.data.Dataset[Any]):
    """A map-style dataset over a file of records end to end."""

    def __init__(self, places: Places) -> None:
        self._file = os.open(places.plain / "records.bin", os.O_RDONLY)
        self._labels = np.load(places.plain / "labels.npy")

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> tuple[bytes, int]:
        return os.pread(self._file, TINY_BYTES, number * TINY_BYTES), int(self._labels[number])


class BatchedRecords(Records):
    """The same, asked once a batch."""

    def __getitems__(self, numbers: list[int]) -> list[tuple[bytes, int]]:
        file, labels, pread = self._file, self._labels[numbers].tolist(), os.pread
        records = [pread(file, TINY_BYTES, number * TINY_BYTES) for number in numbers]
        return list(zip(records, labels, strict=True))


class Copies:
    """The bare loop: each record of a mapped file becomes bytes of its own."""

    def __init__(self, places: Places, *, shuffle: bool) -> None:
        self._shuffle = shuffle
        with (places.plain / "records.bin").open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._labels = np.load(places.plain / "labels.npy")

    def __iter__(self) -> Iterator[tuple[list[bytes], torch.Tensor]]:
        count = len(self._labels)
        order = np.random.default_rng(1).permutation(count) if self._shuffle else np.arange(count)
        for start in range(0, len(order), BATCH):
            numbers, mapped = order[start : start + BATCH], self._mapped
            starts = (numbers * TINY_BYTES).tolist()
            records = [mapped[start : start + TINY_BYTES] for start in starts]
            yield records, torch.from_numpy(self._labels[numbers])


def _torch(
    records: type[Folder | Records], places: Places, workers: int, *, shuffle: bool = False
) -> Contender:
    loader = torch.utils.data.DataLoader(
        records(places), BATCH, shuffle=shuffle, num_workers=workers, persistent_workers=workers > 0
    )
    return Loops(loader)


def _aioload(places: Places, workers: int, *, shuffle: bool = False) -> Contender:
    loader = aioload.Loader(places.packed, batch_size=BATCH, shuffle=shuffle, num_workers=workers)
    return Loops(loader.sync(), loader.close)


def finish(data: bytes, label: int) -> tuple[bytes, int]:
    """Make torch's sample of a stored record."""
    return bytes(data), label


def raw(places: Places) -> Iterator[tuple[bytes, int]]:
    """Give each record and its label."""
    records = Records(places)
    return (records[number] for number in range(len(records)))


def touch(batch: Any) -> int:
    """Look at a record and sum the labels."""
    records, labels = (batch["data"], batch["label"]) if isinstance(batch, dict) else batch
    assert len(records[random.randrange(len(records))]) == TINY_BYTES
    assert int(labels.sum()) >= 0
    return len(records)


WORKLOAD = Workload(
    "tiny",
    _data.tiny,
    touch,
    {
        "torch": lambda places, workers: _torch(Folder, places, workers),
        "torch-0": lambda places, workers: _torch(Folder, places, 0),
        "torch-one-file": lambda places, workers: _torch(Records, places, workers),
        "torch-one-file-0": lambda places, workers: _torch(Records, places, 0),
        "torch-batched": lambda places, workers: _torch(BatchedRecords, places, workers),
        "aioload": _aioload,
        "aioload-0": lambda places, workers: _aioload(places, 0),
        "aioload-1": lambda places, workers: _aioload(places, 1),
        "bare": lambda places, workers: Loops(Copies(places, shuffle=False)),
        "torch-shuffled": lambda places, workers: _torch(Folder, places, workers, shuffle=True),
        "aioload-shuffled": lambda places, workers: _aioload(places, workers, shuffle=True),
        "bare-shuffled": lambda places, workers: Loops(Copies(places, shuffle=True)),
        **peers(Job(BatchedRecords, raw, finish, BATCH)),
    },
)


if __name__ == "__main__":
    main(WORKLOAD, __doc__)
