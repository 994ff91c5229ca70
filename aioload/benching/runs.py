"""Runs: how many samples a second come out of anything that gives batches, for as long as was asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError
from .cpu import tree_cpu

__all__ = ["Progress", "Rate", "lasts", "rows_of", "size_of", "timed"]

_WARM = 0.25  # of the time asked for: what was made ahead is taken before anything is counted

Progress = Callable[[float], object]
"""Is told of seconds that went by."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What came out in a stretch of time."""

    samples: int
    """Rows of all batches."""
    seconds: float
    """How long it took."""
    batch_bytes: int
    """Bytes of the batches."""
    cpu_seconds: float
    """What this process and those below it computed meanwhile."""
    first_seconds: float
    """From the first demand to the first batch, which does not count above."""
    batches: int = 0
    """How many came."""

    @property
    def samples_per_second(self) -> float:
        """The rate."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def bytes_per_second(self) -> float:
        """The rate of bytes."""
        return self.batch_bytes / self.seconds if self.seconds > 0 else 0.0


def timed(
    batches: Iterable[Any],
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress = float,
) -> Rate:
    """Take batches, epoch after epoch, for so long; at least one is counted.

    Args:
        batches: can be iterated over again and again.
        seconds: how long to count.
        clock: tells the time.
        progress: told of the seconds that went by.

    Raises:
        ConfigError: there are no batches.
    """
    began = told = clock()
    first = counted = cpu = 0.0
    taken = samples = size = 0
    is_counting = False
    for batch in _again(batches):
        now = clock()
        progress(now - told)
        told = now
        if is_counting:
            taken, samples, size = taken + 1, samples + rows_of(batch), size + size_of(batch)
            if now - counted >= seconds:
                break
            continue
        first = first or now - began
        if now - began - first >= _WARM * seconds:
            is_counting, counted, cpu = True, clock(), tree_cpu()
    spent = tree_cpu() - cpu
    return Rate(samples, now - counted, size, max(spent, 0.0), first, taken)


def lasts(seconds: float) -> float:
    """Return about how long `timed` takes for so many seconds that count."""
    return seconds * (1 + _WARM)


def _again(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ConfigError("there is not one batch in this set, so nothing can be measured")


def rows_of(batch: Any) -> int:
    """Return how many samples a batch holds: the length of its first leaf that has one."""
    for leaf in _leaves(batch):
        try:
            return len(leaf)
        except TypeError:
            continue
    return 1


def size_of(batch: Any) -> int:
    """Return the bytes of a batch's tensors, arrays, texts and bytes."""
    total = 0
    for leaf in _leaves(batch):
        if isinstance(leaf, list | tuple):
            total += sum(_bytes(value) for value in leaf)
        else:
            total += _bytes(leaf)
    return total


def _bytes(value: Any) -> int:
    found = getattr(value, "nbytes", None)
    if isinstance(found, int):
        return found
    if isinstance(value, str | bytes):
        return len(value)
    return size_of(value) if isinstance(value, Mapping | list | tuple) else 8


def _leaves(batch: Any) -> Iterator[Any]:
    """Yield what stands at the ends of dicts; a list of values is one leaf, one of containers is not."""
    if isinstance(batch, Mapping):
        for value in batch.values():
            yield from _leaves(value)
    elif isinstance(batch, tuple) or (isinstance(batch, Sequence) and _holds_columns(batch)):
        for value in batch:
            yield from _leaves(value)
    else:
        yield batch


def _holds_columns(batch: Sequence[Any]) -> bool:
    """Tell a list of columns, as torch's default makes of tuples, from a column that is a list."""
    return (
        isinstance(batch, list)
        and bool(batch)
        and all(getattr(value, "ndim", 0) > 0 and not isinstance(value, np.generic) for value in batch)
        and len({len(value) for value in batch}) == 1
        and len(batch) < len(batch[0])
    )
