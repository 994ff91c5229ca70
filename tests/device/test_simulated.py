"""SimulatedDevice: work happens late and in order, and each mistake with memory is found at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from aioload._device.interface import RegisterError
from aioload._device.simulated import POISON, SimulatedDevice

SIZE = 512


def pinned(device: SimulatedDevice, value: int, size: int = SIZE) -> Any:
    """Page-locked memory that is full of a value."""
    return device.pin(size).fill_(value)


def copied(device: SimulatedDevice, stream: Any, value: int) -> Any:
    """A block of the current stream's to which a value is being copied."""
    block = device.allocate(SIZE, device.current_stream())
    device.wait(stream, device.record(device.current_stream()))
    device.copy(block, pinned(device, value), stream)
    return block


def found(device: SimulatedDevice) -> list[str]:
    """The faults so far, which are then forgotten."""
    faults, device.faults[:] = list(device.faults), []
    return faults


def noted(values: list[int]) -> Callable[[Any], None]:
    """A kernel that notes the first value it reads."""
    return lambda tensor: values.append(int(tensor[0]))


def test_a_copy_happens_late(device: SimulatedDevice) -> None:
    """The block is poison until time has come to the copy, which a stream that waits for it sees."""
    stream, seen = device.open_stream(), []
    block = copied(device, stream, 7)
    done = device.record(stream)

    device.wait(device.current_stream(), done)
    device.launch(noted(seen), block)
    before = int(block[0])
    device.advance(1)

    assert (before, seen, done.query()) == (POISON, [7], True)


def test_operations_take_the_time_they_are_told(new_device: Callable[..., SimulatedDevice]) -> None:
    """Times between events are the device's own, to the microsecond."""
    device = new_device(manual=True, seconds=lambda kind, size: 0.005 if kind == "copy" else 0.0)
    stream = device.open_stream()
    begun = device.record(stream, timed=True)
    block = copied(device, stream, 1)
    done = device.record(stream, timed=True)

    device.advance(0.004)
    early = done.query()
    device.advance(0.002)

    assert (early, done.query(), int(block[0])) == (False, True, 1)
    assert device.seconds(begun, done) == pytest.approx(0.005)


def test_a_kernel_that_does_not_wait_for_the_copy_is_found(device: SimulatedDevice) -> None:
    """Even where the copy has run by then: it might not have."""
    stream = device.open_stream()
    block = copied(device, stream, 7)
    device.advance(1)

    device.launch(noted([]), block)

    assert found(device) == ["device memory is read by a stream that does not wait for what fills it"]


def test_a_host_that_has_waited_needs_no_event(device: SimulatedDevice) -> None:
    """What is launched after a query that said yes comes after what was asked for."""
    stream, seen = device.open_stream(), []
    block = copied(device, stream, 7)
    done = device.record(stream)
    device.advance(1)

    assert done.query()
    device.launch(noted(seen), block)
    device.advance(1)

    assert seen == [7]


def test_memory_that_another_stream_reads_must_be_kept(device: SimulatedDevice) -> None:
    """Letting go while another stream's kernel is queued is a fault, and the kernel reads poison."""
    other, seen = device.open_stream(), []
    block = copied(device, device.current_stream(), 7)
    device.wait(other, device.record(device.current_stream()))
    device.launch(noted(seen), block, stream=other, seconds=5)

    del block
    device.advance(10)

    assert found(device) == ["device memory was given back while another stream may still use it"]
    assert seen == [POISON]


def test_kept_memory_waits_for_its_user(device: SimulatedDevice) -> None:
    """With `keep` the block goes back when that stream is done with it."""
    other, seen = device.open_stream(), []
    block = copied(device, device.current_stream(), 7)
    device.wait(other, device.record(device.current_stream()))
    device.launch(noted(seen), block, stream=other, seconds=5)

    device.keep(block, other)
    del block
    held = device.used_bytes
    device.advance(10)

    assert (seen, held, device.used_bytes) == ([7], SIZE, 0)


def test_memory_is_used_again_in_the_order_of_its_stream(device: SimulatedDevice) -> None:
    """Who writes from another stream without waiting for the block's own is found."""
    stream = device.open_stream()
    block = copied(device, device.current_stream(), 7)
    device.launch(noted([]), block, seconds=5)
    del block

    again = device.allocate(SIZE, device.current_stream())
    device.copy(again, pinned(device, 8), stream)

    assert found(device) == ["device memory is written before the stream it comes from has done with it"]
    assert device.held_bytes == SIZE


def test_host_memory_that_is_reused_early_is_found(device: SimulatedDevice) -> None:
    """The copy brings what is there when it runs, and says that this is not what was meant."""
    host = pinned(device, 7)
    block = device.allocate(SIZE, device.current_stream())
    device.copy(block, host, device.current_stream())

    host.fill_(8)
    device.advance(1)

    assert found(device) == ["host memory was reused before its copy had run"]
    assert int(block[0]) == 8


def test_only_page_locked_memory_is_copied(device: SimulatedDevice) -> None:
    """Ordinary memory, what crosses a border of pieces, and what was unlocked too early are found."""
    stream, memory = device.current_stream(), np.zeros(2 * SIZE, np.uint8)
    block = device.allocate(SIZE, stream)
    device.register(memory[:SIZE])
    device.register(memory[SIZE:])

    device.copy(block, torch.zeros(SIZE, dtype=torch.uint8), stream)
    device.copy(block, torch.from_numpy(memory)[SIZE // 2 :][:SIZE], stream)
    device.copy(block, torch.from_numpy(memory)[:SIZE], stream)
    device.unregister(memory[:SIZE])
    device.advance(1)

    assert [fault.partition(" ")[0] for fault in found(device)] == ["memory", "memory", "host"]


def test_a_thread_that_has_not_entered_is_found(new_device: Callable[..., SimulatedDevice]) -> None:
    """A host thread is on device 0 until it says otherwise."""
    device = new_device(index=1, manual=True)

    device.open_stream()
    early = found(device)
    device.enter()
    device.open_stream()

    assert early == ["open_stream from a thread that is on device 0"]


def test_memory_of_another_device_is_found(new_device: Callable[..., SimulatedDevice]) -> None:
    """A tensor of one device is not read on another."""
    first, second = new_device(manual=True), new_device(manual=True)
    block = first.allocate(SIZE, first.current_stream())

    with pytest.raises(RuntimeError, match="no such memory"):
        second.launch(noted([]), block)

    assert len(found(second)) == 1


def test_memory_that_cannot_be_locked(new_device: Callable[..., SimulatedDevice]) -> None:
    """A device may refuse to register memory."""
    device = new_device(manual=True, can_register=False)

    with pytest.raises(RegisterError):
        device.register(np.zeros(SIZE, np.uint8))


def test_real_time_goes_by_itself(new_device: Callable[..., SimulatedDevice]) -> None:
    """On a thread of its own, in the order of the stream."""
    device, seen = new_device(seconds=lambda kind, size: 0.001), []
    stream = device.open_stream()
    block = copied(device, stream, 7)
    device.wait(device.current_stream(), device.record(stream))

    device.launch(noted(seen), block).synchronize()

    assert seen == [7]
