"""A loader with a device: the same batches, errors, epochs and states, and an end that leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import batches
import leaks
import numpy as np
import pytest
import scripts
import torch
from batches import counted, gather, pack, plain
from leaks import copy_threads
from resuming import rows

import aioload
from aioload import ClosedError, ConfigError, Loader
from aioload._device.simulated import SimulatedDevice
from aioload.report import render
from aioload.stats import LoaderStats


def some_time() -> Callable[[str, int], float]:
    """Copies that take up to two milliseconds, all else none."""
    draws = random.Random(3)
    return lambda kind, size: draws.uniform(0, 0.002) if kind == "copy" else 0.0


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    """A device that has seen no mistake at the end, and of whose host memory nothing is left page-locked."""
    found = SimulatedDevice(seconds=some_time())
    yield found
    found.close()
    found.check()


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records in several shards."""
    return counted(tmp_path_factory.mktemp("hundred") / "set", shard_bytes=4000)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 records of 40 KB, each full of its number."""
    samples = ({"n": n, "x": np.full(10_000, n, np.int32)} for n in range(200))
    return pack(tmp_path_factory.mktemp("large") / "set", {"n": "int", "x": "ndarray"}, samples)


def take_sync(loader: Loader) -> list[Any]:
    """Take an epoch by a plain `for`."""
    return list(loader.sync())


def take_async(loader: Loader) -> list[Any]:
    """Take an epoch by `async for`."""
    return asyncio.run(gather(loader))


FACES = [take_sync, take_async]


# Content and order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("take", FACES)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 64])
def test_batches_are_those_of_a_loader_without_a_device(
    hundred: Path,
    device: SimulatedDevice,
    batch_size: int,
    num_workers: int,
    take: Callable[[Loader], list[Any]],
) -> None:
    """Values, dtypes, shapes, texts and order, over two epochs; and all tensors are on the device."""
    options = {"batch_size": batch_size, "shuffle": True, "transform": lambda sample: sample}
    with Loader(hundred, num_workers=0, **options).sync() as alone:
        expected = [[plain(batch) for batch in alone] for _ in range(2)]

    with Loader(hundred, num_workers=num_workers, device=device, **options).sync() as loader:
        found = [take(loader._loader) for _ in range(2)]
        device.synchronize()

    assert [[plain(batch) for batch in epoch] for epoch in found] == expected
    assert all(device.holds(batch[name]) for epoch in found for batch in epoch for name in ("n", "array"))


def test_any_make_of_batch_arrives(hundred: Path, device: SimulatedDevice) -> None:
    """What a collate makes keeps its containers; what is no tensor stays what it is."""

    def collate(samples: list[Any]) -> Any:
        arrays = [sample["array"] for sample in samples]
        return (
            np.stack(arrays),
            {"texts": [sample["text"] for sample in samples], "ragged": arrays[:2]},
            3,
        )

    with Loader(hundred, batch_size=20, num_workers=2, collate=collate, device=device).sync() as loader:
        found = list(loader)
        device.synchronize()
    with Loader(hundred, batch_size=20, num_workers=0, collate=collate).sync() as loader:
        expected = list(loader)

    assert [plain(batch) for batch in found] == [plain(batch) for batch in expected]


def test_a_batch_is_one_copy(large: Path, device: SimulatedDevice) -> None:
    """From where workers wrote it, unless it had to be made in the head's room, or lies in two pieces."""
    with Loader(large, batch_size=8, num_workers=1, device=device, memory_limit="32MiB").sync() as loader:
        found = [batch["x"][:, 0].tolist() for batch in loader if device.synchronize() is None]
        stats = loader.stats()

    assert list(itertools.chain(*found)) == list(range(200))
    assert (stats.device_batches, device.calls.count("copy")) == (25, 25)
    assert stats.device_staged == stats.copies
    assert stats.locked_bytes > 0
    assert device.pinned_bytes <= 8 << 20  # the staging buffers: the arena's is unlocked


@pytest.mark.parametrize("device_is", [False, True])
def test_conversion(tmp_path: Path, device: SimulatedDevice, device_is: bool) -> None:
    """Pictures are converted in the same way on the device and without one."""
    images = np.random.default_rng(1).integers(0, 256, (12, 8, 6, 3), dtype=np.uint8)
    path = pack(
        tmp_path / "set", {"x": "ndarray", "n": "int"}, [{"x": x, "n": n} for n, x in enumerate(images)]
    )
    options = {"channels_last": True, "dtype": torch.float16, "mean": (10, 20, 30), "std": 64.0}
    exact = (torch.from_numpy(images).float() - torch.tensor([10.0, 20.0, 30.0])) / 64

    where = device if device_is else None
    with Loader(path, batch_size=4, num_workers=1, device=where, **options).sync() as loader:
        found = list(loader)
        device.synchronize()

    pixels = torch.cat([batch["x"] for batch in found])
    assert pixels.equal(exact.half().permute(0, 3, 1, 2))
    assert all(batch["x"].is_contiguous(memory_format=torch.channels_last) for batch in found)
    assert [n for batch in found for n in batch["n"].tolist()] == list(range(12))


def test_kept_batches_cost_no_memory_of_the_pipeline(large: Path, device: SimulatedDevice) -> None:
    """All are kept, many times the limit: they are right, nothing is copied for it, and nobody is warned."""
    device.seconds_of = lambda kind, size: 0.01 if kind == "copy" else 0.0
    with batches.Warnings() as warned:
        loader = Loader(large, batch_size=8, num_workers=2, memory_limit="2MiB", device=device)
        with loader.sync() as source:
            kept = list(source)
            device.synchronize()
            peak = loader.stats().memory_peak

    assert [batch["x"].min(1).values.tolist() for batch in kept] == [batch["n"].tolist() for batch in kept]
    assert [batch["x"].max(1).values.tolist() for batch in kept] == [batch["n"].tolist() for batch in kept]
    assert peak <= 2 << 20
    assert warned.messages == []


def test_a_slow_device_and_little_memory(large: Path, device: SimulatedDevice) -> None:
    """Memory comes back with each copy, so the least limit is enough, as without a device."""
    with (
        pytest.raises(ConfigError) as refused,
        Loader(large, batch_size=8, memory_limit="64KiB").sync() as loader,
    ):
        next(iter(loader))
    needed = refused.value.needed
    device.seconds_of = lambda kind, size: 0.004 if kind == "copy" else 0.0

    with batches.Warnings() as warned:
        loader = Loader(large, batch_size=8, num_workers=2, memory_limit=needed, device=device)
        with loader.sync() as source:
            found = [rows(batch) for batch in source if device.synchronize() is None]

    assert warned.messages == []
    assert list(itertools.chain(*found)) == list(range(200))


def test_two_loaders_on_two_devices(large: Path, device: SimulatedDevice) -> None:
    """Side by side in one process."""
    other = SimulatedDevice(index=1, seconds=some_time())
    loaders = [Loader(large, batch_size=16, num_workers=1, device=one) for one in (device, other)]

    found = []
    for pair in zip(*(loader.sync() for loader in loaders), strict=True):
        device.synchronize()
        other.synchronize()
        found.append([rows(batch) for batch in pair])
    [loader.close() for loader in loaders]
    other.close()
    other.check()

    assert [one for one, _ in found] == [two for _, two in found]
    assert list(itertools.chain(*(one for one, _ in found))) == list(range(200))


def test_without_workers_samples_are_made_in_the_users_thread(hundred: Path, device: SimulatedDevice) -> None:
    """So that a debugger stops in a transform; and the user's generators are left alone."""
    threads = set()

    def transform(sample: Any) -> Any:
        threads.add(threading.current_thread())
        return {"n": sample["n"], "draw": np.random.rand()}

    np.random.seed(5)
    expected = np.random.rand()
    np.random.seed(5)
    with Loader(hundred, batch_size=10, num_workers=0, transform=transform, device=device).sync() as loader:
        found = [len(batch["n"]) for batch in loader]

    assert (found, threads) == ([10] * 10, {threading.current_thread()})
    assert np.random.rand() == expected


# Epochs and states ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_counts_what_was_handed_out(hundred: Path, device: SimulatedDevice, num_workers: int) -> None:
    """Not what waits on the device: whoever goes on from it gets the very next record."""
    options = {"batch_size": 7, "num_workers": num_workers, "device": device, "shuffle": True}
    found, state = [], None
    with Loader(hundred, batch_size=7, num_workers=0, shuffle=True).sync() as alone:
        expected = [rows(batch) for batch in alone]

    for _ in range(5):
        with Loader(hundred, **options).sync() as loader:
            if state is not None:
                loader.load_state_dict(state)
            for batch in itertools.islice(loader, 3):
                device.synchronize()
                found.append(rows(batch))
            state = loader.state_dict()

    assert found == expected[:15]
    assert len(expected) == 15
    assert (state["epoch"], state["position"]) == (1, 0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_leaving_early_starts_the_epoch_anew(
    hundred: Path, device: SimulatedDevice, num_workers: int
) -> None:
    """What had been copied ahead is dropped; `set_epoch` and a new iterator take over as ever."""
    with Loader(hundred, batch_size=10, num_workers=num_workers, device=device).sync() as loader:
        for _ in loader:
            break
        again = iter(loader)
        first = next(again)
        newer = iter(loader)
        with pytest.raises(ClosedError, match="another iteration"):
            next(again)
        next(newer)
        loader.set_epoch(3)
        with pytest.raises(ClosedError, match="set_epoch"):
            next(newer)
        last = list(loader)
        device.synchronize()

    assert rows(first) == list(range(10))
    assert [rows(batch) for batch in last] == [list(range(first, first + 10)) for first in range(0, 100, 10)]
    assert loader.epoch == 4


def test_an_iteration_that_had_its_last_batch_is_over(hundred: Path, device: SimulatedDevice) -> None:
    """Also before the loop has seen its end; a new one does not make it stale."""
    with Loader(hundred, batch_size=50, num_workers=1, device=device).sync() as loader:
        source = iter(loader)
        states = [(next(source) and None) or loader.state_dict() for _ in range(2)]
        new = iter(loader)
        over, found = list(source), list(new)

    assert [(state["epoch"], state["position"]) for state in states] == [(0, 50), (1, 0)]
    assert (over, len(found)) == ([], 2)


def test_device_memory_is_flat_over_epochs(large: Path, device: SimulatedDevice) -> None:
    """One stream and a handful of blocks serve all of them."""
    with Loader(large, batch_size=8, num_workers=2, device=device).sync() as loader:
        for _ in range(3):
            for batch in loader:
                device.launch(lambda x: None, batch["x"])
                del batch

    assert device.calls.count("open_stream") == 1
    assert device.held_bytes <= 6 * (8 * 40_008 + 4096)


# Failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_arrives_at_its_own_step(hundred: Path, device: SimulatedDevice, num_workers: int) -> None:
    """Earlier batches come out first, then the error, bare; then it is over."""

    def no_23(sample: Any) -> Any:
        if sample["n"] == 23:
            raise ValueError("not this one")
        return sample

    options = {"batch_size": 10, "num_workers": num_workers, "transform": no_23, "device": device}
    with Loader(hundred, **options).sync() as loader:
        iterator = iter(loader)
        found = [next(iterator), next(iterator)]
        device.synchronize()
        with pytest.raises(aioload.SampleError, match="not this one") as caught:
            next(iterator)
        rest = list(iterator)

    assert [rows(batch) for batch in found] == [list(range(10)), list(range(10, 20))]
    assert (caught.value.record, caught.value.step, rest) == (23, 2, [])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_samples_are_left_out(hundred: Path, device: SimulatedDevice, num_workers: int) -> None:
    """Batches become smaller, never fewer; one of which nothing is left has no rows, on the device too."""

    def transform(sample: Any) -> Any:
        return 1 // 0 if sample["n"] in (3, 40, 41) else sample

    options = {"batch_size": 2, "on_error": "skip", "num_workers": num_workers, "transform": transform}
    with Loader(hundred, device=device, **options).sync() as loader:
        found = list(loader)
        device.synchronize()
        skipped = [one.record for one in loader.skipped]

    assert [len(batch["n"]) for batch in found] == [2 if n not in (1, 20) else 1 - n // 20 for n in range(50)]
    assert [record for batch in found for record in rows(batch)] == [
        record for record in range(100) if record not in (3, 40, 41)
    ]
    assert skipped == [3, 40, 41]


def test_a_worker_that_dies_while_it_writes(large: Path, device: SimulatedDevice, tmp_path: Path) -> None:
    """It is replaced, its work done again, and no batch on the device holds a byte of the first attempt."""
    mark = tmp_path / "died"

    def transform(sample: Any) -> Any:
        if sample["n"] == 50 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    with Loader(large, batch_size=8, num_workers=2, transform=transform, device=device).sync() as loader:
        found = list(loader)
        device.synchronize()
        restarts = loader.stats().restarts

    assert restarts >= 1
    assert [n for batch in found for n in batch["x"].max(1).values.tolist()] == list(range(200))
    assert [n for batch in found for n in batch["x"].min(1).values.tolist()] == list(range(200))


@pytest.mark.parametrize("take", FACES)
def test_an_error_of_the_device_is_raised(
    hundred: Path, device: SimulatedDevice, take: Callable[[Loader], list[Any]]
) -> None:
    """As it is, with the batch it is about; the loader can be iterated anew."""
    loader = Loader(hundred, batch_size=10, num_workers=1, device=device)
    device.broken["allocate"] = RuntimeError("CUDA out of memory")

    with pytest.raises(RuntimeError, match="out of memory") as caught:
        take(loader)
    again = take(loader)
    loader.close()

    assert "batch 0 was copied" in caught.value.__notes__[0]
    assert len(again) == 10


@pytest.mark.parametrize("take", FACES)
def test_a_device_that_cannot_be_opened_is_told(
    hundred: Path, device: SimulatedDevice, take: Callable[[Loader], list[Any]]
) -> None:
    """By its own error, though the thread began and ended before anybody iterated; nothing is left."""
    before = leaks.observe()
    device.broken["open_stream"] = RuntimeError("all of its memory is in use")

    with Loader(hundred, batch_size=10, num_workers=0, device=device).sync() as loader:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="all of its memory is in use"):
                take(loader._loader)

    assert leaks.leftovers(before) == []


def test_memory_that_cannot_be_locked(large: Path) -> None:
    """One warning, and the same batches through staging buffers."""
    device = SimulatedDevice(seconds=some_time(), can_register=False)
    with (
        batches.Warnings() as warned,
        Loader(large, batch_size=8, num_workers=2, device=device).sync() as loader,
    ):
        found = [rows(batch) for batch in loader if device.synchronize() is None]
        stats = loader.stats()
    device.close()
    device.check()

    assert list(itertools.chain(*found)) == list(range(200))
    assert [message for message in warned.messages if "page-locked" in message] == warned.messages
    assert (len(warned.messages), stats.device_staged, stats.locked_bytes) == (1, 25, 0)


def test_a_device_that_is_not_there_is_refused(hundred: Path) -> None:
    """At construction, before anything starts."""
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    with pytest.raises(ConfigError, match="cuda"):
        Loader(hundred, batch_size=8, device="cuda")


@pytest.mark.parametrize("options", [{"dtype": torch.int8}, {"mean": 1.0}], ids=str)
def test_conversions_that_cannot_work_are_refused(hundred: Path, options: Any) -> None:
    """At construction, with or without a device."""
    with pytest.raises(ConfigError, match=r"dtype|mean"):
        Loader(hundred, batch_size=8, **options)


# Leaving and closing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [None, "cpu"])
def test_without_a_device_there_is_no_copy_thread(hundred: Path, where: Any) -> None:
    """And batches are where they always were."""
    with Loader(hundred, batch_size=50, num_workers=0, device=where).sync() as loader:
        found = [(rows(batch), copy_threads()) for batch in loader]

    assert [threads for _, threads in found] == [[], []]
    assert [len(numbers) for numbers, _ in found] == [50, 50]


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_closing_leaves_nothing(large: Path, device: SimulatedDevice, taken: int) -> None:
    """No thread, process or page-locked memory of the arena, wherever the loop was left."""
    before = leaks.observe()

    with Loader(large, batch_size=8, num_workers=2, device=device).sync() as loader:
        iterator = iter(loader)
        found = [next(iterator) for _ in range(taken)]
    device.synchronize()

    assert leaks.leftovers(before) == []
    assert device.calls.count("unregister") == device.calls.count("register")
    assert [rows(batch) for batch in found] == [list(range(8 * n, 8 * n + 8)) for n in range(taken)]


async def test_an_async_with_closes(large: Path, device: SimulatedDevice) -> None:
    """Also after a `break`, and cancelling a step loses no batch."""
    async with Loader(large, batch_size=8, num_workers=1, device=device) as loader:
        source = loader.batches()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(source)
        async for batch in source:
            device.synchronize()
            first = rows(batch)
            break

    assert first == list(range(8))
    assert copy_threads() == []


@pytest.mark.filterwarnings("ignore:.*never closed:ResourceWarning")
def test_a_loader_that_is_forgotten_ends(hundred: Path, device: SimulatedDevice) -> None:
    """Its copy thread too."""
    before = leaks.observe()
    loader = Loader(hundred, batch_size=8, num_workers=0, device=device)
    next(iter(loader.sync()))

    del loader
    gc.collect()

    assert leaks.leftovers(before) == []


def test_a_program_that_does_not_close_ends(large: Path, tmp_path: Path) -> None:
    """With copies on their way, in time and without a word."""
    script = f"""
    import aioload
    from aioload._device.simulated import SimulatedDevice

    device = SimulatedDevice(seconds=lambda kind, size: 0.01 if kind == "copy" else 0.0)
    loader = aioload.Loader({str(large)!r}, batch_size=8, num_workers=1, device=device)
    batches = iter(loader.sync())
    next(batches)
    print(device.faults)
    """
    ended = scripts.run(script, folder=tmp_path)

    assert (ended.status, ended.out, ended.err) == (0, "[]\n", "")


def test_a_pause_leaves_the_device_alone(large: Path, device: SimulatedDevice) -> None:
    """A graph can be captured at any time in the loop, and before it."""
    loader = Loader(large, batch_size=8, num_workers=1, device=device, memory_limit="32MiB")
    found = []

    with loader.sync() as source:
        with loader.pause(), device.capture(), pytest.raises(ConfigError, match="before or after pause"):
            next(iter(source))
        for batch in source:
            with source.pause(), device.capture():
                device.launch(lambda x: None, batch["x"])
            found.append(batch)
        device.synchronize()

    assert list(itertools.chain(*map(rows, found))) == list(range(200))


# What is told -----------------------------------------------------------------------------------------


def test_the_report_tells_of_copies(large: Path, device: SimulatedDevice) -> None:
    """Bytes, rate, and how much of it was hidden; only where there is a device."""
    with Loader(large, batch_size=8, num_workers=1, device=device).sync() as loader:
        list(loader)
        found = loader.report()
    with Loader(large, batch_size=8, num_workers=0).sync() as loader:
        list(loader)
        other = loader.report()

    assert "copy" in found
    assert "behind the model's work" in found
    assert "behind the model's work" not in other


@pytest.mark.parametrize(
    ("lost", "limits"),
    [
        ({}, False),
        ({"device_stall_seconds": 0.5}, True),
        ({"device_wait_seconds": 0.5, "wait_seconds": 0.5}, True),
        ({"device_wait_seconds": 0.5, "wait_seconds": 3.0}, False),
    ],
    ids=str,
)
def test_the_report_names_copies_where_they_limit(lost: dict[str, float], limits: bool) -> None:
    """Where the loop loses more to them than to all that comes before."""
    stats = LoaderStats(
        batches=100, samples=800, consumer_seconds=2.0, device_batches=100, device_seconds=1.0, **lost
    )

    assert ("limit:   copy: copies to the device" in render(stats)) == limits


def test_overlap_is_a_share() -> None:
    """Of the copies' time, what nobody stood still for; all of it where nothing is copied."""
    fields = {"device_seconds": 2.0, "device_stall_seconds": 0.25, "device_wait_seconds": 0.25}

    assert LoaderStats().device_overlap == 1.0
    assert LoaderStats(**fields).device_overlap == 0.75
    assert LoaderStats(**{**fields, "device_stall_seconds": 5.0}).device_overlap == 0.0
