"""Locked: what may be copied from where it is, and staging buffers that wait for their copies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from aioload._device.locked import Locked, Stage
from aioload._device.simulated import SimulatedDevice

NewDevice = Callable[..., SimulatedDevice]
MIB = 1 << 20


def read_by_copy(device: SimulatedDevice, stage: Stage) -> None:
    """Ask for a copy that reads a staging buffer."""
    stream = device.current_stream()
    block = device.allocate(len(stage), stream)
    device.copy(block, stage.memory, stream)
    stage.free_after = device.record(stream)


@pytest.mark.parametrize("size", [MIB, 3 * MIB], ids=["as large", "larger"])
def test_a_ring_that_is_full_waits_for_its_oldest_copy(new_device: NewDevice, size: int) -> None:
    """A buffer is used again, or given up for a larger one, when nothing reads it any more."""
    device = new_device(seconds=lambda kind, size: 0.5 if kind == "copy" else 0.0)
    locked = Locked(device, stages=2)
    first = locked.stage(MIB)
    read_by_copy(device, first)
    second = locked.stage(MIB)
    read_by_copy(device, second)
    event = first.free_after

    third = locked.stage(size)

    assert event is not None
    assert event.query()
    assert (third is first) == (size == MIB)
    assert second.free_after is not None


def test_a_buffer_that_is_free_is_used_again(new_device: NewDevice) -> None:
    """One serves copies that follow each other, and sizes that differ a little share it."""
    device = new_device()
    locked = Locked(device, stages=3)

    stages = []
    for size in (100, 5000, MIB):
        stages.append(locked.stage(size))
        read_by_copy(device, stages[-1])
        device.synchronize()

    assert stages[0] is stages[1] is stages[2]
    assert device.calls.count("pin") == 1


def test_memory_that_is_not_adopted_is_what_the_device_says(device: SimulatedDevice) -> None:
    """Pinned by the user, or not."""
    locked = Locked(device, stages=1)

    assert locked.is_locked(device.pin(100))
    assert not locked.is_locked(torch.zeros(100))


def test_memory_that_cannot_be_touched_is_not_locked(
    device: SimulatedDevice, caplog: pytest.LogCaptureFixture
) -> None:
    """Where there is no memory for it the error is a warning, and what lies there is staged."""
    locked, memory = Locked(device, stages=1), np.zeros(1 << 16, np.uint8)

    def touch(start: int, stop: int) -> None:
        raise MemoryError("none left")

    locked.adopt(memory, touch)

    assert not locked.is_locked(torch.from_numpy(memory[:100]))
    assert "none left" in caplog.text
    assert (locked.registered_bytes, device.calls) == (0, [])


def test_less_than_a_page_is_not_registered(device: SimulatedDevice) -> None:
    """Nothing to register would be an error of the driver's."""
    locked = Locked(device, stages=1)

    locked.adopt(np.zeros(100, np.uint8), lambda start, stop: None)

    assert (locked.registered_bytes, device.calls) == (0, [])
