"""Copies to a device: rows of the case file under their ids, on the simulated device."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import pack

from aioload import Loader
from aioload._device.simulated import SimulatedDevice

RECORDS, ITEMS = 500, 64


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 records that are full of their number."""
    samples = ({"x": np.full(ITEMS, n, np.int64)} for n in range(RECORDS))
    return pack(tmp_path_factory.mktemp("numbered") / "set", {"x": "ndarray"}, samples)


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    """A device whose copies take up to a millisecond, and kernels up to two."""
    draws = random.Random(198)
    longest = {"copy": 0.001, "kernel": 0.002}
    found = SimulatedDevice(seconds=lambda kind, size: draws.uniform(0, longest.get(kind, 0.0)))
    yield found
    found.close()
    found.check()


def summing(sums: dict[int, int], number: int) -> Callable[[Any], None]:
    """A kernel that sums what it reads."""

    def kernel(x: Any) -> None:
        sums[number] = int(x.sum())

    return kernel


@pytest.mark.parametrize("own_stream", [False, True])
def test_g01_every_sum_on_the_device_is_right(
    numbered: Path, device: SimulatedDevice, own_stream: bool
) -> None:
    """G01: batch i is full of i; long kernels are queued, nobody waits; three epochs take no more memory."""
    stream = device.open_stream() if own_stream else device.current_stream()
    held, sums = [], {}
    streams = device.calls.count("open_stream")

    with device.on(stream), Loader(numbered, batch_size=1, num_workers=1, device=device).sync() as loader:
        for epoch in range(3):
            for number, batch in enumerate(loader):
                device.launch(summing(sums, epoch * RECORDS + number), batch["x"])
                del batch
            held.append(device.held_bytes)
    device.synchronize()

    assert sums == {epoch * RECORDS + n: ITEMS * n for epoch in range(3) for n in range(RECORDS)}
    assert device.calls.count("open_stream") - streams == 1
    assert max(held) <= 6 * 4096
