"""Timed runs: what is counted, and when."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from aioload import ConfigError
from aioload.benching.runs import in_epochs, size_of, timed


def test_what_was_ready_does_not_count() -> None:
    """Counting begins a quarter of the time after the first batch, and ends at the time asked for."""
    ticks = itertools.count()  # a second each time that anybody looks

    rate = timed([torch.zeros(3)] * 5, 8.0, lambda taken: 3 * taken, clock=lambda: float(next(ticks)))

    assert rate.samples == 3 * rate.batches > 0
    assert rate.batch_bytes == 12 * rate.batches
    assert 8 <= rate.seconds <= 10
    assert rate.samples_per_second == pytest.approx(rate.samples / rate.seconds)
    assert rate.first_seconds > 0


def test_a_slow_batch_counts_at_least_once() -> None:
    """However short the time is, one batch is measured."""
    rate = timed([{"x": np.zeros((4, 2), np.float32)}], 0.0, lambda taken: 4 * taken)

    assert (rate.samples, rate.batch_bytes, rate.batches) == (4, 32, 1)


def test_no_batches_are_an_error() -> None:
    """An empty set does not go on for ever."""
    with pytest.raises(ConfigError, match="not one batch"):
        timed([], 1.0, int)


def test_progress_adds_up() -> None:
    """What was told of is the time from the first demand on."""
    ticks, told = itertools.count(), list[float]()

    rate = timed([[1]], 5.0, int, clock=lambda: float(next(ticks)), progress=told.append)

    assert sum(told) >= rate.seconds


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        ({"x": torch.zeros(5, 2), "y": torch.zeros(5, dtype=torch.int64)}, 80),
        ({"x": {"inner": np.zeros((7, 3), np.uint8)}}, 21),
        ([torch.zeros(6, 2), torch.zeros(6)], 72),
        ((torch.zeros(4), ["a", "bc", "d", "e"]), 21),
        ({"text": ["ab", "c"], "raw": [b"xyz", b""]}, 6),
        ([np.zeros((2, 2), np.uint8), np.zeros((3, 3), np.uint8)], 13),
        (3.0, 8),
    ],
)
def test_bytes_of_batches(batch: Any, size: int) -> None:
    """Whatever collate has made of samples, its bytes are counted."""
    assert size_of(batch) == size


@pytest.mark.parametrize(("batches", "samples"), [(0, 0), (1, 4), (2, 8), (3, 10), (4, 14), (7, 24)])
def test_short_batches_at_the_end_of_epochs_count_as_they_are(batches: int, samples: int) -> None:
    """Ten records make batches of four, four and two, again and again."""
    assert in_epochs(batches, records=10, batch_size=4) == samples
