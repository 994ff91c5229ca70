"""Devices for tests, which end with them and say what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aioload._device.simulated import SimulatedDevice, _local


@pytest.fixture
def new_device() -> Iterator[Callable[..., SimulatedDevice]]:
    """A function that makes devices; none of them may have seen a mistake at the end."""
    made: list[SimulatedDevice] = []

    def make(**options: Any) -> SimulatedDevice:
        made.append(SimulatedDevice(**options))
        return made[-1]

    yield make

    for device in made:
        device.close()
    _local.__dict__.clear()
    for device in made:
        device.check()


@pytest.fixture
def device(new_device: Callable[..., SimulatedDevice]) -> SimulatedDevice:
    """A device in whose time nothing happens unless the test says so."""
    return new_device(manual=True)
