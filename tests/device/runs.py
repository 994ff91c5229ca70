"""Copy threads under test: opened over a simulated device, and known to rest or not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import torch

from aioload._device.convert import Convert
from aioload._device.copier import Copier
from aioload._device.landing import Landing
from aioload._device.simulated import SimulatedDevice
from aioload._device.sources import FromIterable
from aioload.stats import Counters

__all__ = ["PATIENCE_SECONDS", "numbered", "opened", "rests", "take", "until"]

PATIENCE_SECONDS = 10.0


@contextmanager
def opened(device: SimulatedDevice, counters: Counters | None = None, **options: Any) -> Iterator[Copier]:
    """Open a copy thread, and close it; in manual time only what was asked for by then is done."""
    convert = options.pop("convert", Convert())
    copier = Copier(device, Counters() if counters is None else counters, convert, **options)
    device.settled = lambda: rests(copier, device)
    try:
        yield copier
    finally:
        device.settled = None
        copier.begin_close()
        while copier._thread.is_alive():
            if device._manual:
                device.advance(3600)
            copier._thread.join(0.01)


def rests(copier: Copier, device: SimulatedDevice) -> bool:
    """Whether the thread does nothing more before time goes on, or somebody else has done something."""
    with copier._changed:
        landing = copier._landing
        if not copier._thread.is_alive() or device.waiting:
            return True
        if not copier._parked or copier._closing or copier._adopts is not None:
            return False
        if copier._paused_by or landing is None or landing.over:
            return True
        if landing.starving_since is not None:
            return False  # all sources of these tests have what they give at once
        return not copier._has_room(landing)


def take(landing: Landing, device: SimulatedDevice | None = None) -> Any:
    """Take the next batch, waiting for it; where time is manual, a millisecond after the other goes by."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return landing.take_nowait()
        except anyio.WouldBlock:
            assert time.monotonic() < deadline, "no batch came"
            if device is None:
                landing.wait(0.1)
            else:
                device.advance(0.001)


def until(condition: Any) -> None:
    """Wait until something is the case that another thread brings about."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.001)


def numbered(count: int, size: int = 64) -> list[Any]:
    """Batches that are full of their number."""
    return [{"x": torch.full((size,), number, dtype=torch.int32)} for number in range(count)]


def begun(copier: Copier, iterable: Any) -> Landing:
    """Begin an iteration over an iterable."""
    return copier.begin(FromIterable(iterable))
