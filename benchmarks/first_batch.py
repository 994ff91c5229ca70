"""First batch: how long does it take from `Loader(...)` to the tensors of the first photos?

    python benchmarks/first_batch.py --rounds 5

Photos as in `photos.py`, two workers; imports are done and pages cached. Three times: the first loader of a
process; a second one, while the first is open and has come to rest, as with training and validation sets; and
the beginning of the first loader's second epoch, from the request for an iterator.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import _data
import photos
from _cases import Contender, Workload, main
from _data import Places
from _measure import tree_cpu

from aioload import Loader as Loader  # imported on first use, which must not count

__all__ = ["WORKLOAD"]

CASES = ("torch", "aioload", "aioload-fast", "aioload-pillow")


def measure(
    workload: Workload, make: Callable[[], Contender], places: Places, seconds: float
) -> dict[str, float]:
    """Take the three times."""
    touch = workload.touch
    began = time.perf_counter()
    contender = make()
    batches = contender.epoch()
    touch(next(batches))
    first = time.perf_counter() - began
    for batch in batches:
        touch(batch)

    began = time.perf_counter()
    touch(next(batches := contender.epoch()))
    second_epoch = time.perf_counter() - began
    for batch in batches:
        touch(batch)

    _rest()
    began = time.perf_counter()
    other = make()
    touch(next(batches := other.epoch()))
    second_loader = time.perf_counter() - began
    del batches
    other.close()
    contender.close()
    return {
        "first_batch_seconds": first,
        "second_loader_seconds": second_loader,
        "second_epoch_seconds": second_epoch,
    }


def _rest() -> None:
    """Wait until no process of ours works: the first loader reads ahead for its next epoch."""
    while True:
        before = tree_cpu(os.getpid())
        time.sleep(0.3)
        if tree_cpu(os.getpid()) - before < 0.03:
            return


def _places(folder: Any, scale: float) -> Places:
    return _data.photos(folder, min(scale, 0.1))  # a longer epoch tells no more


WORKLOAD = Workload(
    "first batch",
    _places,
    photos.touch,
    {name: photos.WORKLOAD.cases[name] for name in CASES},
    measure,
    {
        "first_batch_seconds": "first loader s|.3f",
        "second_loader_seconds": "second loader s|.3f",
        "second_epoch_seconds": "second epoch s|.3f",
    },
)


if __name__ == "__main__":
    main(WORKLOAD, __doc__)
