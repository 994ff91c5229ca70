"""Runs: how many samples a second come out of anything that gives batches, for as long as was asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from .cpu import tree_cpu

__all__ = ["Progress", "Rate", "in_epochs", "lasts", "size_of", "timed"]

_WARM = 0.25  # of the time asked for: what was made ahead is taken before anything is counted

Progress = Callable[[float], object]
"""Is told of seconds that went by."""
Count = Callable[[int], int]
"""Tells how many samples so many batches were, from the first on."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What came out in a stretch of time."""

    samples: int
    """Of all batches."""
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
    samples: Count,
    *,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress = float,
) -> Rate:
    """Take batches, epoch after epoch, for so long; at least one is counted.

    Samples are not counted in the batches: what is a row there depends on what collate made of samples.

    Args:
        batches: can be iterated over again and again.
        seconds: how long to count.
        samples: tells how many samples the batches were that were taken so far.
        clock: tells the time.
        progress: told of the seconds that went by.

    Raises:
        ConfigError: there are no batches.
    """
    began = told = clock()
    first = counted = cpu = 0.0
    taken = before = already = size = 0
    is_counting = False
    for batch in _again(batches):
        now = clock()
        taken += 1
        progress(now - told)
        told = now
        if is_counting:
            size += size_of(batch)
            if now - counted >= seconds:
                break
            continue
        first = first or now - began
        if now - began - first >= _WARM * seconds:
            is_counting, before, cpu = True, taken, tree_cpu()
            already = samples(before)
            counted = clock()
    spent = tree_cpu() - cpu
    return Rate(samples(taken) - already, now - counted, size, max(spent, 0.0), first, taken - before)


def in_epochs(batches: int, *, records: int, batch_size: int) -> int:
    """Return how many samples so many batches are, where the last one of each epoch may be short.

    Args:
        batches: taken, over as many epochs as it needs.
        records: of an epoch.
        batch_size: of all others.
    """
    epochs, rest = divmod(batches, -(-records // batch_size))
    return epochs * records + rest * batch_size


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


def size_of(batch: Any) -> int:
    """Return the bytes of a batch's tensors, arrays, texts and bytes."""
    found = getattr(batch, "nbytes", None)
    if isinstance(found, int):
        return found
    if isinstance(batch, str | bytes):
        return len(batch)
    if isinstance(batch, Mapping):
        return sum(map(size_of, batch.values()))
    return sum(map(size_of, batch)) if isinstance(batch, list | tuple) else 8
