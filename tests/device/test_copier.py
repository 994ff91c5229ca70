"""Copier: whatever the timing, the right values arrive, nothing is reused early, and all of it ends."""

from __future__ import annotations

import gc
import logging
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import batches
import numpy as np
import pytest
import torch

from aioload import ClosedError, ConfigError
from aioload._device.convert import Convert
from aioload._device.landing import Cargo
from aioload._device.locked import Locked
from aioload._device.simulated import SimulatedDevice
from aioload.stats import Counters

from .runs import begun, numbered, opened, take, until

NewDevice = Callable[..., SimulatedDevice]


class Slot:
    """A source whose batches lie in one piece of page-locked memory each, poisoned when it is given back."""

    waits = False
    calls = False
    over = False

    def __init__(self, device: SimulatedDevice, count: int, size: int = 256) -> None:
        self.count = count
        self.size = size
        self.memory = np.zeros((count, size), np.uint8)
        self.released: list[int] = []
        self.taken = 0
        self.closed = False
        device.register(self.memory.reshape(-1))

    def take(self) -> Cargo:
        number = self.taken
        if number == self.count or self.closed:
            raise anyio.EndOfStream
        self.taken += 1
        place = self.memory[number]
        place[:] = number % 256
        return Cargo({"x": torch.from_numpy(place)}, place, release=lambda: self.release(number))

    def release(self, number: int) -> None:
        self.released.append(number)
        self.memory[number] = 0xEE

    def wait(self, timeout: float) -> None: ...

    def errand(self) -> None: ...

    def close(self) -> None:
        self.closed = True


def random_times(seed: int) -> Callable[[str, int], float]:
    """Copies and kernels that take up to a millisecond."""
    draws = random.Random(seed)
    return lambda kind, size: draws.uniform(0, 0.001) if kind in ("copy", "kernel") else 0.0


def noted(seen: dict[int, Any], number: int) -> Callable[[Any], None]:
    """A kernel that notes what it reads."""

    def kernel(tensor: Any) -> None:
        seen[number] = (int(tensor.min()), int(tensor.max()))

    return kernel


# The right values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps", [0, 20], ids=["dropped", "kept"])
@pytest.mark.parametrize("own_stream", [False, True])
def test_five_hundred_batches_are_right(new_device: NewDevice, own_stream: bool, keeps: int) -> None:
    """With random delays, on the default or an own stream, batches dropped at once or kept for a while."""
    device, seen, kept = new_device(seconds=random_times(1)), {}, []
    stream = device.open_stream() if own_stream else device.current_stream()

    with opened(device) as copier, device.on(stream):
        source = Slot(device, 500)
        landing = copier.begin(source)
        for number in range(500):
            batch = take(landing)
            device.launch(noted(seen, number), batch["x"])
            kept = [*kept, batch][-keeps:] if keeps else []
        device.synchronize()
        values = [int(batch["x"][0]) for batch in kept]

    assert seen == {number: (number % 256, number % 256) for number in range(500)}
    assert values == [number % 256 for number in range(500 - keeps, 500)]
    assert source.released == list(range(500))


def test_slow_kernels_read_what_they_were_given(device: SimulatedDevice) -> None:
    """The host is far ahead of a device that has not begun: every kernel still reads its own batch."""
    seen: dict[int, Any] = {}
    with opened(device) as copier:
        landing = copier.begin(Slot(device, 6))
        events = []
        for number in range(6):
            batch = take(landing, device)
            events.append(device.launch(noted(seen, number), batch["x"], seconds=0.2))
            del batch
        device.finish(events[-1])

    assert seen == {number: (number, number) for number in range(6)}


def test_a_stream_that_is_changed_between_batches(new_device: NewDevice) -> None:
    """The stream counts that is current when a batch is taken; memory of the one before is kept for it."""
    device, seen = new_device(seconds=random_times(2)), {}
    streams = [device.current_stream(), device.open_stream(), device.open_stream()]

    with opened(device) as copier:
        landing = copier.begin(Slot(device, 90))
        for number in range(90):
            with device.on(streams[number % 3]):
                batch = take(landing)
                device.launch(noted(seen, number), batch["x"])
                del batch
        device.synchronize()

    assert seen == {number: (number, number) for number in range(90)}


def test_conversion_happens_behind_the_copy(new_device: NewDevice) -> None:
    """On the copy stream, into memory of its own; labels beside the pictures arrive as well."""
    device = new_device(seconds=random_times(3))
    images = [torch.randint(0, 256, (2, 8, 6, 3), dtype=torch.uint8) for _ in range(20)]
    options = {"channels_last": True, "dtype": torch.float16, "mean": (1.0, 2.0, 3.0), "std": 255.0}
    expected = [Convert(**options).on_host([image])[0] for image in images]

    with opened(device, convert=Convert(**options)) as copier:
        landing = begun(copier, [{"image": image, "label": torch.arange(2)} for image in images])
        found = [take(landing) for _ in images]
        device.synchronize()

    assert all(one["image"].equal(other) for one, other in zip(found, expected, strict=True))
    assert all(one["label"].tolist() == [0, 1] for one in found)
    assert {one["image"].stride() for one in found} == {expected[0].stride()}


def test_decoded_pictures_are_permuted_without_work(new_device: NewDevice) -> None:
    """Channels last alone is a view: nothing is computed on the device."""
    device, image = new_device(), torch.randint(0, 256, (2, 8, 6, 3), dtype=torch.uint8)

    with opened(device, convert=Convert(channels_last=True)) as copier:
        found = take(begun(copier, [image]))
        device.synchronize()

    assert found.equal(image.permute(0, 3, 1, 2))
    assert "fill" not in device.calls


def test_a_batch_without_tensors_is_passed_on(device: SimulatedDevice) -> None:
    """Texts, numbers and what is on the device already need no copy."""
    there = device.allocate(64, device.current_stream())
    batch = {"name": ["a"], "n": 3, "there": there}

    with opened(device) as copier:
        found = take(begun(copier, [batch]))

    assert (found["name"], found["n"], found["there"] is there) == (["a"], 3, True)
    assert "copy" not in device.calls


class Travelling:
    """A batch with a way of its own."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def to(self, device: Any, *, non_blocking: bool = False) -> Travelling:
        assert non_blocking
        block = device.allocate(self.tensor.numel(), device.current_stream())
        device.copy(block, self.tensor, device.current_stream())
        return Travelling(block)


def test_batches_with_a_way_of_their_own(new_device: NewDevice) -> None:
    """`to(device, non_blocking=True)` is called on the copy stream; what comes of it is kept for its user."""
    device, seen = new_device(seconds=random_times(4)), {}
    things = [Travelling(device.pin(64).fill_(number)) for number in range(30)]

    with opened(device) as copier:
        landing = begun(copier, things)
        for number in range(30):
            thing = take(landing)
            device.launch(noted(seen, number), thing.tensor)
            del thing
        device.synchronize()

    assert seen == {number: (number, number) for number in range(30)}


class Half:
    """A batch whose lengths stay on the host, as those of a PackedSequence do, and that has no `__dict__`."""

    __slots__ = ("lengths", "values")

    def __init__(self, values: Any, lengths: Any) -> None:
        self.values, self.lengths = values, lengths

    def to(self, device: Any, *, non_blocking: bool = False) -> Half:
        return Half(Travelling(self.values).to(device, non_blocking=non_blocking).tensor, self.lengths)


def test_a_thing_that_is_only_partly_brought(new_device: NewDevice) -> None:
    """What it has on the device is kept for its user, what it has on the host is left alone."""
    device, seen = new_device(seconds=random_times(5)), {}
    things = [Half(device.pin(64).fill_(number), torch.ones(3)) for number in range(30)]

    with opened(device) as copier:
        landing = begun(copier, things)
        for number in range(30):
            thing = take(landing)
            device.launch(noted(seen, number), thing.values)
            assert thing.lengths is things[number].lengths
            del thing
        device.synchronize()

    assert seen == {number: (number, number) for number in range(30)}


@pytest.mark.parametrize("alone", [True, False])
def test_what_an_iterable_makes_on_the_device_is_waited_for(new_device: NewDevice, alone: bool) -> None:
    """It was computed on the copy thread's own stream, of which the user's knows nothing."""
    device, seen = new_device(seconds=random_times(6)), {}

    def made() -> Iterator[Any]:
        for number in range(30):
            device.enter()
            block = device.allocate(64, device.current_stream())
            device.launch(lambda out, number=number: out.fill_(number), outs=[block])
            yield {"made": block[3:]} if alone else {"made": block[3:], "n": torch.tensor(number)}
            del block

    with opened(device) as copier, device.on(device.open_stream()):
        landing = begun(copier, made())
        for number in range(30):
            device.launch(noted(seen, number), take(landing)["made"])
        device.synchronize()

    assert seen == {number: (number, number) for number in range(30)}


def test_tensors_of_a_batch_are_no_relations_for_autograd(new_device: NewDevice) -> None:
    """One may be written to though another of the same block is needed for a backward pass."""
    weight = torch.ones(4, requires_grad=True)

    device = new_device()
    with opened(device) as copier:
        batch = take(begun(copier, [{"x": torch.full((4,), 3.0), "label": torch.zeros(4)}]))
        device.synchronize()
        loss = (weight * batch["x"]).sum()
        batch["label"].add_(1)
        loss.backward()

    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0] * 4


# The host's memory ------------------------------------------------------------------------------------


def test_host_memory_is_kept_until_its_copy_has_run(device: SimulatedDevice) -> None:
    """Not only until somebody waits for it: nothing is given back before its copy is complete on the host."""
    device.seconds_of = lambda kind, size: 1.0 if kind == "copy" else 0.0
    with opened(device) as copier:
        source = Slot(device, 4)
        landing = copier.begin(source)
        batch = take(landing)
        device.advance(0.9)
        early = list(source.released)
        device.advance(0.2)
        device.advance(0)
        late = list(source.released)

    assert (early, late) == ([], [0])
    assert int(batch["x"][0]) == 0


def test_memory_comes_back_while_nothing_more_is_there(device: SimulatedDevice) -> None:
    """A source that waits for memory gets that of batches that were copied, also those nobody has taken."""
    with opened(device) as copier:
        source = Slot(device, 1)
        copier.begin(source)
        device.advance(1)
        until(lambda: source.released == [0])


class Dry(Slot):
    """A source that gives one batch, and then has none yet."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__(device, 1)
        self.asked, self.gate, self.waited = 0, threading.Event(), threading.Event()

    def take(self) -> Cargo:
        self.asked += 1
        if self.asked == 2:
            self.gate.wait(10)
        if self.asked > 1:
            raise anyio.WouldBlock
        return super().take()

    def wait(self, timeout: float) -> None:
        self.waited.set()
        self.gate.wait(timeout)


def test_memory_comes_back_while_the_source_has_nothing_yet(new_device: NewDevice) -> None:
    """It may wait for just that memory."""
    device = new_device(seconds=random_times(5))
    with opened(device) as copier:
        source = Dry(device)
        copier.begin(source)
        source.gate.set()
        until(lambda: source.released == [0])


def test_what_has_nothing_to_do_asks_the_device_nothing(new_device: NewDevice) -> None:
    """A thread that was in its source when a pause began is still away from the device when it returns."""
    device = new_device(seconds=lambda kind, size: 0.01 if kind == "copy" else 0.0)
    with opened(device) as copier:
        source = Dry(device)
        landing = copier.begin(source)
        take(landing)  # before its copy has run, so that a wait of the stream's is to be added up
        until(lambda: source.asked == 2)
        copier._sender.reap(0)
        copier._parked = True  # as it is where all copies had run before it went into its source
        with copier.pause(), device.capture():
            source.gate.set()
            source.waited.wait(10)


def test_an_iterable_may_use_its_memory_again(new_device: NewDevice) -> None:
    """It is asked for the next batch when the copy of the one before has run: one buffer serves them all."""
    device = new_device(seconds=random_times(5))
    buffer = device.pin(1 << 19)

    def refill() -> Iterator[Any]:
        for number in range(10):
            yield {"x": buffer.fill_(number)}

    with opened(device) as copier:
        landing = begun(copier, refill())
        found = [take(landing)["x"] for _ in range(10)]
        device.synchronize()

    assert [int(x[-1]) for x in found] == list(range(10))


def test_staging_buffers_are_not_overwritten(device: SimulatedDevice) -> None:
    """What is in ordinary memory goes through a small ring, each buffer of which waits for its copy."""
    with opened(device) as copier:
        landing = begun(copier, numbered(12))
        found = []
        for _ in range(12):
            device.advance(1)
            found.append(take(landing)["x"])
        device.advance(1)

    assert [int(x[0]) for x in found] == list(range(12))
    assert device.calls.count("pin") <= 3


def test_the_memory_of_batches_is_locked_in_pieces(device: SimulatedDevice) -> None:
    """The first before the first batch, others as far as batches lie, none twice; unlocked at the end."""
    page, memory = 4096, np.zeros(64 << 12, np.uint8)[: 40 << 12]
    start = -memory.ctypes.data % page
    memory, touched = memory[start : start + (32 << 12)], []
    places = [memory[first : first + 3000] for first in (0, 7000, 70_000)]
    counters = Counters()

    def cargo() -> Iterator[Any]:
        for number, place in enumerate(places):
            place[:] = number
            yield place

    class Places(Slot):
        def __init__(self) -> None:
            self.places = cargo()
            self.released = []

        def take(self) -> Cargo:
            place = next(self.places, None)
            if place is None:
                raise anyio.EndOfStream
            return Cargo([torch.from_numpy(place)], place)

    locked = Locked(device, stages=3, piece_bytes=2 * page)
    with opened(device, counters, locked=locked) as copier:
        copier.adopt(memory, lambda first, stop: touched.append((first, stop)))
        device.advance(0)
        first = device.pinned_bytes
        landing = copier.begin(Places())
        found = []
        for _ in range(3):
            found.append(take(landing)[0])
            device.advance(1)
        pinned = device.pinned_bytes

    assert (first, pinned, device.pinned_bytes) == (2 * page, 18 * page, 0)
    assert touched == [(place, place + 2 * page) for place in range(0, 18 * page, 2 * page)]
    assert [int(x[0]) for x in found] == [0, 1, 2]
    assert counters.snapshot().device_staged == 0
    assert device.calls.count("copy") == 4  # the second lies in two pieces


def test_where_memory_cannot_be_locked_there_is_one_warning(new_device: NewDevice) -> None:
    """And the way through staging buffers, with the same values."""
    device, memory, counters = new_device(can_register=False), np.zeros(1 << 16, np.uint8), Counters()

    class Arena(Slot):
        def __init__(self) -> None:
            self.memory, self.count, self.taken, self.closed = memory[:4096].reshape(8, 512), 8, 0, False
            self.released: list[int] = []

    with batches.Warnings() as warnings, opened(device, counters) as copier:
        copier.adopt(memory, lambda first, stop: None)
        landing = copier.begin(Arena())
        found = [take(landing)["x"] for _ in range(8)]
        device.synchronize()

    assert len(warnings.messages) == 1
    assert "staging" in warnings.messages[0]
    assert [int(x[0]) for x in found] == list(range(8))
    assert counters.snapshot().device_staged == 8


# The device's memory ----------------------------------------------------------------------------------


def test_device_memory_stays_flat(new_device: NewDevice) -> None:
    """Three epochs take no more than one, and one stream serves them all."""
    device = new_device(seconds=random_times(6))
    held = []

    with opened(device) as copier:
        for _ in range(3):
            landing = copier.begin(Slot(device, 50))
            for _ in range(50):
                batch = take(landing)
                device.launch(lambda tensor: None, batch["x"])
                del batch
            device.synchronize()
            held.append(device.held_bytes)

    assert max(held) <= 5 * 512  # those that are ready, on their way, and the user's
    assert device.calls.count("open_stream") == 1


def test_batches_that_were_dropped_on_their_way_harm_nobody(device: SimulatedDevice) -> None:
    """Who leaves early frees blocks that are still being written; whoever has them next waits for that."""
    device.seconds_of = lambda kind, size: 1.0 if kind == "copy" else 0.0
    with opened(device) as copier:
        left = copier.begin(Slot(device, 5))
        until(lambda: left.ready)
        left.close()
        gc.collect()
        landing = copier.begin(Slot(device, 5))
        found = [take(landing, device)["x"] for _ in range(5)]
        device.advance(9)

    assert [int(x[0]) for x in found] == list(range(5))


def test_a_host_far_ahead_does_not_fill_the_device(device: SimulatedDevice) -> None:
    """Dropped batches whose kernels have not run hold memory: only a few of them there are."""
    used = []
    with opened(device) as copier:
        landing = copier.begin(Slot(device, 40))
        for _ in range(40):
            batch = take(landing, device)
            last = device.launch(lambda tensor: None, batch["x"], seconds=0.2)
            del batch
            used.append(device.used_bytes)
        device.finish(last)

    assert max(used) <= 7 * 512


def test_no_more_than_the_depth_lies_ready(device: SimulatedDevice) -> None:
    """Two batches wait, and a further one is not even taken from its source."""
    with opened(device, depth=2) as copier:
        source = Slot(device, 9)
        landing = copier.begin(source)
        device.advance(1)
        ready = landing.ready, source.taken
        take(landing)
        device.advance(1)

        assert ready == (2, 2)
        assert (landing.ready, source.taken) == (2, 3)


def test_bytes_bound_what_lies_ready(device: SimulatedDevice) -> None:
    """Large batches wait one by one, though the depth would allow more."""
    with opened(device, depth=4, max_bytes=500) as copier:
        source = Slot(device, 9)
        landing = copier.begin(source)
        device.advance(1)

        assert (landing.ready, source.taken) == (1, 1)


def test_two_devices_in_one_process(new_device: NewDevice) -> None:
    """Each has its thread, its stream and its memory."""
    first, second = new_device(seconds=random_times(7)), new_device(index=1, seconds=random_times(8))

    with opened(first) as one, opened(second) as other:
        landings = [begun(copier, numbered(20)) for copier in (one, other)]
        found = [[take(landing)["x"] for landing in landings] for _ in range(20)]
        first.synchronize()
        second.synchronize()

    assert [[int(x[0]) for x in pair] for pair in found] == [[number, number] for number in range(20)]
    assert [first.holds(one) and second.holds(two) for one, two in found] == [True] * 20


# Overlap ----------------------------------------------------------------------------------------------


def test_copies_hide_behind_steps(new_device: NewDevice) -> None:
    """Copies of 5 ms beside steps of 20: the stream stands still for the first one alone."""
    device, counters = new_device(manual=True), Counters()
    device.seconds_of = lambda kind, size: 0.005 if kind == "copy" else 0.0

    with opened(device, counters) as copier:
        landing, ready = copier.begin(Slot(device, 60)), []
        for _ in range(60):
            device.advance(0)
            ready.append(landing.ready)
            batch = take(landing)
            step = device.launch(lambda tensor: None, batch["x"], seconds=0.020)
            device.finish(step)  # as a loop that looks at its loss
        device.advance(1)
    stats = counters.snapshot()

    assert stats.device_seconds == pytest.approx(60 * 0.005)
    assert stats.device_stall_seconds <= 0.005 + 1e-9
    assert stats.device_overlap >= 0.95
    assert 0 not in ready  # so the host waits for none


def test_copies_that_are_too_slow_are_told(new_device: NewDevice) -> None:
    """Where copies take longer than steps, the difference is counted as standing still."""
    device, counters = new_device(manual=True), Counters()
    device.seconds_of = lambda kind, size: 0.030 if kind == "copy" else 0.0

    with opened(device, counters) as copier:
        landing = copier.begin(Slot(device, 40))
        for _ in range(40):
            device.advance(0)
            batch = take(landing)
            device.finish(device.launch(lambda tensor: None, batch["x"], seconds=0.020))
        device.advance(1)
    stats = counters.snapshot()

    assert stats.device_stall_seconds == pytest.approx(0.030 + 39 * 0.010, rel=0.1)
    assert stats.device_overlap == pytest.approx(2 / 3, abs=0.05)


# Pausing ----------------------------------------------------------------------------------------------


def go_another_way(new_device: NewDevice) -> None:
    """Do so much with another device that a thread of the first would have had the time to do something."""
    device = new_device()
    with opened(device) as copier:
        landing = copier.begin(Slot(device, 50))
        [take(landing) for _ in range(50)]


def test_nothing_touches_the_device_while_paused(new_device: NewDevice) -> None:
    """All copies are complete when the pause begins, and the thread stays away until it ends."""
    device = new_device(seconds=random_times(9))

    with opened(device) as copier:
        landing = copier.begin(Slot(device, 30))
        found, quiet = [], []
        for _ in range(5):
            found.append(take(landing)["x"])
            with copier.pause(), device.capture():
                quiet.append(len(device._streams[1].queue))
                device.launch(lambda tensor: None, found[-1])
            found.append(take(landing)["x"])
        device.synchronize()

    assert quiet == [0] * 5
    assert [int(x[0]) for x in found] == list(range(10))


def test_a_batch_that_is_taken_in_a_pause_makes_room_for_no_copy(new_device: NewDevice) -> None:
    """The next one is copied when the pause has ended."""
    device = new_device()
    with opened(device) as copier:
        landing = copier.begin(Slot(device, 9))
        until(lambda: landing.ready == 2)
        with copier.pause():
            copies = device.calls.count("copy")
            take(landing)
            go_another_way(new_device)
            again = device.calls.count("copy")
        rest = [take(landing) for _ in range(8)]

    assert (copies, again, len(rest)) == (2, 2, 8)


def test_what_is_ready_can_be_taken_while_paused(device: SimulatedDevice) -> None:
    """And where nothing is, the error says so: nobody could ever bring it."""
    with opened(device) as copier:
        landing = copier.begin(Slot(device, 9))
        device.advance(1)
        until(lambda: not copier._sender.flights)
        with copier.pause():
            found = [int(take(landing)["x"][0]) for _ in range(2)]
            with pytest.raises(ConfigError, match="before or after pause"):
                take(landing)
        device.advance(1)

    assert found == [0, 1]


def test_pauses_can_be_nested(device: SimulatedDevice) -> None:
    """The end of the inner one ends nothing: also then nobody waits for what cannot come."""
    with opened(device) as copier:
        with copier.pause():
            with copier.pause():
                pass
            landing = copier.begin(Slot(device, 1))
            with pytest.raises(ConfigError, match="before or after pause"):
                take(landing)
            calls = list(device.calls)
        found = take(landing, device)["x"].numel()

    assert calls == ["register"]
    assert found == 256


def test_a_pause_that_is_interrupted_is_over(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while it waits for copies: they go on afterwards."""
    device.seconds_of = lambda kind, size: 1.0 if kind == "copy" else 0.0

    def interrupted(timeout: float) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with opened(device) as copier:
        landing = copier.begin(Slot(device, 9))
        until(lambda: device.waiting)
        with copier._changed:  # the copy thread waits for the device, and nobody else here
            monkeypatch.setattr(copier._changed, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt), copier.pause():
                pass
        found = [int(take(landing, device)["x"].numel()) for _ in range(9)]
        device.advance(9)

    assert found == [256] * 9


def test_a_pause_before_anything_began(new_device: NewDevice) -> None:
    """Not even a stream is opened in it; one of a thread that has ended is free."""
    device = new_device()
    with opened(device) as copier:
        source = Slot(device, 3)
        with copier.pause(), device.capture():
            landing = copier.begin(source)
            go_another_way(new_device)
            calls = list(device.calls)
        found = [int(take(landing)["x"].numel()) for _ in range(3)]
    with copier.pause():
        pass

    assert calls == ["register"]
    assert found == [256] * 3


def test_a_pause_that_another_thread_ends(device: SimulatedDevice) -> None:
    """The one that began it may wait for batches again."""
    with opened(device) as copier:
        pause = copier.pause()
        pause.__enter__()
        landing = begun(copier, numbered(1))
        thread = threading.Thread(target=pause.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
        found = take(landing, device)
        device.advance(1)

    assert found["x"].tolist() == [0] * 64


def test_a_pause_that_is_interrupted_before_it_begins(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while copies are waited for leaves no pause behind."""
    with opened(device) as copier:
        landing = begun(copier, numbered(3))
        until(lambda: copier._sender.flights)
        main, wait = threading.get_ident(), copier._changed.wait

        def interrupted(timeout: float | None = None) -> bool:
            if threading.get_ident() == main:
                raise KeyboardInterrupt
            return wait(timeout)

        with monkeypatch.context() as patch:
            patch.setattr(copier._changed, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt), copier.pause():
                pytest.fail("copies were under way")
        device.advance(1)
        batches = [take(landing, device)["x"] for _ in range(3)]
        device.advance(1)

    assert [int(x[0]) for x in batches] == [0, 1, 2]


def test_no_batch_is_taken_into_a_graph(device: SimulatedDevice) -> None:
    """Its events would never come to be, and asking for others breaks the capture; afterwards it is there."""
    with opened(device) as copier:
        landing = begun(copier, numbered(1))
        until(lambda: landing.ready)
        device.advance(1)
        with copier.pause(), device.capture(), pytest.raises(ConfigError, match="captured"):
            landing.take_nowait()
        found = take(landing, device)

    assert found["x"].tolist() == [0] * 64


# Failures ---------------------------------------------------------------------------------------------


class OddError(Exception):
    """Of the user's."""


def failing(after: int) -> Iterator[Any]:
    """Batches, and then an error."""
    yield from numbered(after)
    raise OddError("of the source")


def test_an_error_of_the_source_comes_after_what_was_before_it(device: SimulatedDevice) -> None:
    """The same object, with the traceback of where it came up."""
    with opened(device) as copier:
        landing = begun(copier, failing(2))
        found = [int(take(landing, device)["x"].numel()) for _ in range(2)]
        with pytest.raises(OddError, match="of the source") as caught:
            take(landing, device)

    assert len(found) == 2
    assert "failing" in [entry.name for entry in caught.traceback]


@pytest.mark.parametrize("method", ["allocate", "copy", "pin"])
def test_an_error_of_the_device_takes_its_batchs_place(device: SimulatedDevice, method: str) -> None:
    """Earlier batches come out, then the error, which says what it was about; the next iteration works."""
    with opened(device) as copier:
        landing = begun(copier, numbered(1))
        take(landing)
        device.broken[method] = RuntimeError("out of memory")
        landing = begun(copier, [{"x": torch.zeros(1 << 21, dtype=torch.uint8)}])
        with pytest.raises(RuntimeError, match="out of memory") as caught:
            take(landing, device)
        again = begun(copier, numbered(1))
        device.advance(1)
        found = take(again)

    assert found["x"].numel() == 64
    assert "batch 0 was copied to simulated:0" in caught.value.__notes__[0]


def test_a_batch_that_cannot_be_rebuilt_is_let_go_once(device: SimulatedDevice) -> None:
    """Its copies have run by then, and nothing is left to be released with a later batch."""
    released: list[bool] = []

    def fail(batch: Any) -> Any:
        raise OddError("of a container")

    class Odd(Slot):
        def take(self) -> Cargo:
            cargo = super().take()
            return Cargo(cargo.batch, cargo.whole, fail, lambda: released.append(True))

    with opened(device) as copier:
        landing = copier.begin(Odd(device, 1))
        with pytest.raises(OddError, match="of a container"):
            take(landing, device)

    assert released == [True]


def test_a_copy_that_was_begun_is_waited_for_when_the_next_fails(device: SimulatedDevice) -> None:
    """Memory that the first half of a batch is still read from is not given back with the error."""
    released: list[bool] = []
    large = device.pin(1 << 19)

    class Halves(Slot):
        def take(self) -> Cargo:
            batch = [torch.ones(3), large]
            return Cargo(
                batch, release=lambda: released.append(int(device.calls.count("copy")) and last.done)
            )

    device.seconds_of = lambda kind, size: 1.0
    with opened(device) as copier:
        given: list[Any] = []
        copy = device.copy

        def second_fails(block: Any, host: Any, stream: Any) -> None:
            if given:
                raise RuntimeError("of the second copy")
            copy(block, host, stream)
            given.append(stream.queue[-1])

        device.copy = second_fails  # type: ignore[method-assign]  # one call of many is to fail
        landing = copier.begin(Halves(device, 1))
        until(lambda: given and device.waiting)
        last, early = given[0], list(released)
        device.advance(5)
        with pytest.raises(RuntimeError, match="of the second copy"):
            take(landing)

    assert (early, released) == ([], [True])


def test_a_thread_that_fails_waits_for_its_copies(device: SimulatedDevice) -> None:
    """Whatever it dies of: memory is not unlocked while a copy reads it."""
    device.seconds_of = lambda kind, size: 1.0 if kind == "copy" else 0.0

    def fail() -> None:
        raise OddError("of whoever is woken")

    with opened(device) as copier:
        memory = np.zeros(1 << 16, np.uint8)
        copier.adopt(memory[-memory.ctypes.data % 4096 :][: 8 << 12], lambda first, stop: None)
        landing = copier.begin(Whole(memory[-memory.ctypes.data % 4096 :][:512]))
        landing.call_when_ready(fail)
        until(lambda: device.waiting)
        device.advance(5)
        until(lambda: not copier._thread.is_alive())

    assert device.calls[-2:] == ["copy", "unregister"]


class Whole(Slot):
    """A source of one batch, which fills a piece of memory."""

    def __init__(self, memory: Any) -> None:
        self.memory, self.count, self.taken, self.closed = memory[None], 1, 0, False
        self.released: list[int] = []


def test_a_thread_that_cannot_begin_says_so(device: SimulatedDevice) -> None:
    """An error before the first batch comes out at the first step; nobody waits for ever."""
    device.broken["open_stream"] = RuntimeError("no such device any more")

    with opened(device) as copier:
        landing = begun(copier, numbered(3))
        until(lambda: not copier._thread.is_alive())
        copier.check()  # has nothing to add: the next step says why
        with pytest.raises(RuntimeError, match="no such device any more"):
            take(landing)
        with pytest.raises(RuntimeError, match="no such device any more"):
            begun(copier, numbered(3))


def test_a_new_iteration_takes_over(device: SimulatedDevice) -> None:
    """The old one's batches are dropped, and its next step says that it has ended."""
    with opened(device) as copier:
        old = begun(copier, numbered(9))
        device.advance(1)
        new = begun(copier, numbered(3))
        device.advance(1)

        with pytest.raises(ClosedError):
            old.take_nowait()
        assert int(take(new)["x"].numel()) == 64


def test_the_end_comes_after_the_last_batch(device: SimulatedDevice) -> None:
    """Again and again."""
    with opened(device) as copier:
        landing = begun(copier, numbered(1))
        device.advance(1)
        take(landing)

        for _ in range(2):
            with pytest.raises(anyio.EndOfStream):
                take(landing)


def test_closing_waits_for_copies_and_unlocks(new_device: NewDevice) -> None:
    """Copies under way first, then page-locked memory; afterwards all is the host's again, twice is free."""
    device = new_device(seconds=lambda kind, size: 0.01 if kind == "copy" else 0.0)
    memory = np.zeros(1 << 16, np.uint8)
    with opened(device) as copier:
        copier.adopt(memory, lambda first, stop: None)
        landing = begun(copier, numbered(9))
        take(landing)

        copier.close()
        copier.close()
        left = [len(stream.queue) for stream in device._streams]

        with pytest.raises(ClosedError):
            take(landing)
        with pytest.raises(ClosedError):
            begun(copier, numbered(1))
    assert device.calls[-1] == "unregister"
    assert not any(left)


def test_a_device_that_is_stuck_does_not_hold_up_the_end(
    device: SimulatedDevice, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing gives up after its time, and says so."""
    with opened(device) as copier:
        landing = begun(copier, numbered(9))
        until(lambda: landing.ready)
        with caplog.at_level(logging.WARNING, "aioload.device"):
            copier.begin_close()
            copier.join(0.05)
            copier.join(60)  # no second time

    assert caplog.text.count("did not answer") == 1


def test_a_thread_that_waits_for_its_source_ends(device: SimulatedDevice) -> None:
    """Closing tells the source, whose wait ends with it."""
    told = threading.Event()

    class Empty(Slot):
        def take(self) -> Cargo:
            raise anyio.WouldBlock

        def wait(self, timeout: float) -> None:
            told.wait(timeout)

        def close(self) -> None:
            told.set()

    with opened(device) as copier:
        copier.begin(Empty(device, 1))

    assert told.is_set()


def test_batches_that_were_taken_are_nobody_elses(device: SimulatedDevice) -> None:
    """Neither the thread nor the hand-over keeps what the user has let go of."""
    with opened(device) as copier:
        landing = begun(copier, numbered(3))
        batch = take(landing, device)
        device.advance(1)
        device.advance(0)
        gone = weakref.ref(batch["x"])
        used = device.used_bytes

        del batch
        gc.collect()
        device.advance(0)

        assert gone() is None
        until(lambda: device.used_bytes <= used)
