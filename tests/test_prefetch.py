"""DevicePrefetcher: any iterable's batches on a device, in a `for` or an `async for`, and its end."""

from __future__ import annotations

import asyncio
import gc
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import scripts
import torch
from leaks import copy_threads
from torch.utils.data import DataLoader, TensorDataset

import aioload
from aioload import ClosedError, ConfigError, DevicePrefetcher
from aioload._device.simulated import SimulatedDevice

Values = list[int]


@contextmanager
def simulated(**options: Any) -> Iterator[SimulatedDevice]:
    """A device for a while; it must have seen no mistake."""
    device = SimulatedDevice(seconds=lambda kind, size: 0.001 if kind == "copy" else 0.0, **options)
    try:
        yield device
    finally:
        device.close()
        device.check()


def numbered(number: int) -> list[Any]:
    """Batches that are full of their number."""
    return [{"x": torch.full((64,), one), "name": [str(one)]} for one in range(number)]


def take_sync(batches: Any) -> list[Any]:
    """Take an iteration by a plain `for`."""
    return list(batches)


def take_async(batches: Any) -> list[Any]:
    """Take an iteration by `async for`."""

    async def main() -> list[Any]:
        return [batch async for batch in batches]

    return asyncio.run(main())


FACES = [take_sync, take_async]


@pytest.mark.parametrize("take", FACES)
def test_batches_arrive_in_order(take: Callable[[Any], list[Any]]) -> None:
    """Twice over, with what is no tensor as it was; all are on the device."""
    batches = numbered(20)

    with simulated() as device, DevicePrefetcher(batches, device) as prefetcher:
        found = [take(prefetcher) for _ in range(2)]
        device.synchronize()

    assert [[int(batch["x"][3]) for batch in epoch] for epoch in found] == [list(range(20))] * 2
    assert [batch["name"] for batch in found[0]] == [batch["name"] for batch in batches]
    assert all(device.holds(batch["x"]) for epoch in found for batch in epoch)
    assert len(prefetcher) == 20


@pytest.mark.parametrize("take", FACES)
@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")], ids=str)
def test_without_a_device_there_is_no_thread(device: Any, take: Callable[[Any], list[Any]]) -> None:
    """The same code runs with the batches as they are."""
    batches = numbered(3)

    with DevicePrefetcher(batches, device) as prefetcher:
        iterator = iter(prefetcher)
        first, threads = next(iterator), copy_threads()
        found = take(prefetcher)

    assert first is batches[0]
    assert [id(batch) for batch in found] == [id(batch) for batch in batches]
    assert threads == []
    assert (prefetcher.stats().batches, prefetcher.stats().device_batches) == (4, 0)
    with pytest.raises(ClosedError):
        next(iterator)


def test_conversion_is_the_same_with_and_without_a_device() -> None:
    """Pictures become floats of the same values, channels last, there and here."""
    images = [torch.randint(0, 256, (2, 8, 6, 3), dtype=torch.uint8) for _ in range(3)]
    options = {"channels_last": True, "dtype": torch.bfloat16, "mean": 127.5, "std": 64.0}

    with simulated() as device, DevicePrefetcher(images, device, **options) as prefetcher:
        found = list(prefetcher)
        device.synchronize()
        here = list(DevicePrefetcher(images, None, **options))

    assert [one.equal(other) for one, other in zip(found, here, strict=True)] == [True] * 3
    assert [one.stride() for one in found] == [one.stride() for one in here]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_loader(num_workers: int) -> None:
    """Of torch, with persistent workers, left early and begun again: every epoch is whole and in order."""
    data = TensorDataset(torch.arange(40))
    loader = DataLoader(data, 4, num_workers=num_workers, persistent_workers=num_workers > 0)

    with simulated() as device, DevicePrefetcher(loader, device) as prefetcher:
        for _ in prefetcher:
            break
        found = [list(prefetcher) for _ in range(2)]
        device.synchronize()
    del loader, prefetcher
    gc.collect()

    assert [torch.cat([batch[0] for batch in epoch]).tolist() for epoch in found] == [list(range(40))] * 2


@pytest.mark.parametrize("take", FACES)
def test_an_error_of_the_iterable_is_raised_as_it_is(take: Callable[[Any], list[Any]]) -> None:
    """After the batches before it, with its traceback; then that iteration is over; the next one works."""

    def batches() -> Iterator[Any]:
        yield from numbered(2)
        raise KeyError("of the user")

    class Failing:
        def __iter__(self) -> Iterator[Any]:
            return batches()

    with simulated() as device, DevicePrefetcher(Failing(), device) as prefetcher:
        iterator = iter(prefetcher)
        found = [next(iterator), next(iterator)]
        with pytest.raises(KeyError, match="of the user") as caught:
            next(iterator)
        rest = list(iterator)
        with pytest.raises(KeyError, match="of the user"):
            take(prefetcher)

    assert (len(found), rest) == (2, [])
    assert "batches" in [entry.name for entry in caught.traceback]


def test_what_is_no_ordinary_error_is_raised_as_it_is() -> None:
    """SystemExit, say, would end the copy thread without a word."""

    def batches() -> Iterator[Any]:
        yield from numbered(1)
        raise SystemExit("of the user")

    with simulated() as device, DevicePrefetcher(batches(), device) as prefetcher:
        iterator = iter(prefetcher)
        found = [next(iterator)]
        with pytest.raises(SystemExit, match="of the user"):
            next(iterator)
        rest = list(iterator)

    assert (len(found), rest) == (1, [])


def test_one_iteration_at_a_time() -> None:
    """A new one takes over, and the old one says so at its next step."""
    with simulated() as device, DevicePrefetcher(numbered(9), device) as prefetcher:
        old = iter(prefetcher)
        next(old)
        new = iter(prefetcher)
        next(new)

        with pytest.raises(ClosedError, match="another iteration has begun"):
            next(old)
        assert len(list(new)) == 8


def test_closing_ends_the_thread() -> None:
    """Twice is free; later use is a ClosedError, on both faces."""
    with simulated() as device:
        prefetcher = DevicePrefetcher(numbered(9), device)
        iterator = iter(prefetcher)
        next(iterator)
        before = copy_threads()

        prefetcher.close()
        prefetcher.close()

        assert (len(before), copy_threads()) == (1, [])
        with pytest.raises(ClosedError):
            next(iterator)
        with pytest.raises(ClosedError):
            iter(prefetcher)


async def test_an_async_with_closes() -> None:
    """The thread is gone when the block ends, also after a `break`."""
    with simulated() as device:
        async with DevicePrefetcher(numbered(9), device) as prefetcher:
            async for _ in prefetcher:
                break

        assert copy_threads() == []


async def test_a_cancelled_step_loses_no_batch() -> None:
    """What was not handed out stays first in line."""
    gate = threading.Event()

    def batches() -> Iterator[Any]:
        yield torch.zeros(4)
        gate.wait(10)
        yield torch.ones(4)

    with simulated() as device, DevicePrefetcher(batches(), device) as prefetcher:
        iterator = aiter(prefetcher)
        await anext(iterator)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(iterator)
        gate.set()
        second = await anext(iterator)
        device.synchronize()

    assert second.tolist() == [1, 1, 1, 1]


def test_a_prefetcher_that_nobody_has_ends_by_itself() -> None:
    """Not while its iterator is used; then its thread goes with it."""
    with simulated() as device:
        found = [batch["x"].numel() for batch in DevicePrefetcher(numbered(5), device)]
        gc.collect()
        left_at = time.monotonic()
        while copy_threads() and time.monotonic() < left_at + 10:
            threading.Event().wait(0.001)

    assert found == [64] * 5
    assert copy_threads() == []


def test_an_iteration_that_has_ended_is_nobodys() -> None:
    """It goes with its last reference, and with it what it goes through, without a garbage collection."""
    gc.collect()
    gc.disable()
    try:
        with simulated() as device, DevicePrefetcher(numbered(3), device) as prefetcher:
            iterator = iter(prefetcher)
            found = len(list(iterator))
            gone = weakref.ref(iterator)

            del iterator

            assert (found, gone()) == (3, None)
    finally:
        gc.enable()


def test_a_fork_leaves_the_thread_to_the_parent(tmp_path: Path) -> None:
    """The child says so at its next step, and ends by itself, though a lock was held when it was made."""
    script = """
    import torch
    from aioload import ClosedError, DevicePrefetcher
    from aioload._device.simulated import SimulatedDevice

    prefetcher = DevicePrefetcher([torch.zeros(1000)] * 100, SimulatedDevice())
    batches = iter(prefetcher)
    next(batches)

    def child():
        told = []
        for what in (lambda: next(batches), lambda: iter(prefetcher), lambda: prefetcher.pause().__enter__()):
            try:
                what()
            except ClosedError as error:
                told.append("forked" in str(error))
        return 7 if told == [True] * 3 else 8

    print(fork_while_held(child, prefetcher._copier._changed), len(list(batches)))
    prefetcher.close()
    """
    ended = scripts.run(scripts.FORKING + textwrap.dedent(script), folder=tmp_path)

    assert (ended.status, ended.out, ended.err) == (0, "7 99\n", "")


def test_stats_tell_what_was_copied() -> None:
    """Batches, bytes, times."""
    with simulated() as device, DevicePrefetcher(numbered(5), device) as prefetcher:
        list(prefetcher)
        prefetcher.close()

    stats = prefetcher.stats()
    assert (stats.batches, stats.device_batches, stats.device_bytes) == (5, 5, 5 * 512)
    assert stats.device_seconds >= 5 * 0.001
    assert 0 <= stats.device_overlap <= 1


def test_a_pause_leaves_the_device_alone() -> None:
    """For the capture of a graph, while batches go on coming out."""
    with simulated() as device, DevicePrefetcher(numbered(9), device) as prefetcher:
        iterator = iter(prefetcher)
        found = [next(iterator)]
        with prefetcher.pause(), device.capture():
            device.launch(lambda tensor: None, found[0]["x"])
        found += list(iterator)
        device.synchronize()

    assert [int(batch["x"][0]) for batch in found] == list(range(9))


async def test_a_pause_of_a_neighbour_is_waited_for() -> None:
    """A task gets its batch after another task's pause; in a pause of its own waiting is an error."""
    gate = threading.Event()

    def batches() -> Iterator[Any]:
        yield torch.zeros(4)
        gate.wait(10)
        yield torch.ones(4)

    with simulated() as device:
        async with DevicePrefetcher(batches(), device) as prefetcher:
            iterator = aiter(prefetcher)
            await anext(iterator)
            neighbour = asyncio.create_task(anext(iterator))
            with prefetcher.pause():
                await asyncio.sleep(0)
                waits = not neighbour.done()
                with pytest.raises(ConfigError, match="before or after pause"):
                    await anext(iterator)
            gate.set()
            found = await neighbour
            device.synchronize()

    assert waits
    assert found.tolist() == [1, 1, 1, 1]


def test_a_step_that_a_pause_holds_up_ends_nothing() -> None:
    """The error says so, and afterwards every batch still comes."""
    with simulated() as device, DevicePrefetcher(numbered(9), device) as prefetcher:
        iterator, found = iter(prefetcher), []
        with prefetcher.pause(), pytest.raises(ConfigError, match="before or after pause"):
            found.extend(iterator)
        found += list(iterator)
        device.synchronize()

    assert [int(batch["x"][0]) for batch in found] == list(range(9))


@pytest.mark.parametrize(
    ("batches", "device", "options", "message"),
    [
        ([], "cuda", {}, "built without CUDA" if torch.version.cuda is None else "cannot be used"),
        ([], "cuda:1", {}, "cannot be used"),
        ([], "xpu", {}, "cannot be used"),
        ([], "mps", {}, "mps"),
        ([], "meta", {}, "cannot copy to meta"),
        ([], "nowhere", {}, "what torch.device takes"),
        ([], 1.5, {}, "what torch.device takes"),
        ([], None, {"depth": 0}, "depth must be"),
        ([], None, {"max_bytes": 0}, "max_bytes must be"),
        ([], None, {"mean": 3}, "mean and std need dtype"),
        (3, None, {}, "got a int"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(
    batches: Any, device: Any, options: dict[str, Any], message: str
) -> None:
    """At construction, with what to do; nothing was started."""
    if torch.cuda.is_available():
        pytest.skip("there is such a device here")

    with pytest.raises(ConfigError, match=message):
        DevicePrefetcher(batches, device, **options)

    assert copy_threads() == []


def test_loaders_bring_their_batches_themselves(tiny_set: Any) -> None:
    """They know better what was handed out: who wraps one is told the option."""
    loader = aioload.Loader(tiny_set.path, batch_size=4)

    for wrapped in (loader, loader.sync()):
        with pytest.raises(ConfigError, match="device="):
            DevicePrefetcher(wrapped, None)


def test_a_program_that_does_not_close_ends(tmp_path: Path) -> None:
    """With batches on their way, and nothing to say about it; the thread ends before all else does."""
    script = """
import atexit, threading
import torch
from aioload import DevicePrefetcher
from aioload._device.simulated import SimulatedDevice

device = SimulatedDevice(seconds=lambda kind, size: 0.01)
batches = iter(DevicePrefetcher([torch.zeros(1000)] * 100, device))
next(batches)
atexit.register(lambda: print([thread.name for thread in threading.enumerate() if "copy" in thread.name]))
"""
    ended = scripts.run(script, folder=tmp_path)

    assert (ended.status, ended.out, ended.err) == (0, "[]\n", "")
