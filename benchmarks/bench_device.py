"""Do copies to a device hide behind training, at which speed, and is every byte right?

    python benchmarks/bench_device.py              # on CUDA, in under four minutes; else it says "no device"
    python benchmarks/bench_device.py --simulated  # what can be told without one: hand-over and overlap

On CUDA:

- *speed* of copies of 64 MiB from shared memory that worker processes have written, registered where it lies,
  against `pin_memory()`, pageable memory, and a pin copy for each batch;
- *overlap* with a training step of 20 ms that spins the device: share of the copies' time behind it, and what
  the training stream waited a step, after the first two;
- *integrity*: 500 batches, each full of its number, kernels queued without a synchronize, sums on the device;
- *loaders*: a step with batches of 16 MiB, beside torch's DataLoader with `pin_memory=True` and
  `.to(non_blocking=True)`.

Simulated copies take 5 ms and steps 20, in real time; the hand-over's own cost is the time of `next` where a
batch is ready, and the copy thread's CPU time a batch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aioload
from aioload._device.simulated import SimulatedDevice

SIZE, STEP_SECONDS, BATCH = 64 << 20, 0.020, 16
ITEMS = 1 << 20  # bytes of a record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--simulated", action="store_true", help="use the simulated device")
    parser.add_argument("--steps", type=int, default=200, help="training steps of each measurement")
    options = parser.parse_args()
    if options.simulated:
        print_rows(simulated(options.steps))
        return
    if not torch.cuda.is_available():
        print("no device")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = packed(Path(folder) / "set", records=512)
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
        print_rows(
            [*speeds(), *overlap(path, options.steps), *integrity(path), *loaders(path, options.steps)]
        )


def packed(path: Path, records: int) -> Path:
    """Write records of a MiB that are full of their number."""
    with aioload.Writer(path, {"n": "int", "x": "ndarray"}) as writer:
        for number in range(records):
            writer.write({"n": number, "x": np.full(ITEMS // 4, number, np.int32)}, key=str(number))
    return path


# Speed ------------------------------------------------------------------------------------------------


def speeds() -> Iterator[tuple[str, str]]:
    """Time copies from each kind of memory; the registered one is an arena that another process writes."""
    from multiprocessing import get_context

    from aioload._device.torch_device import TorchDevice
    from aioload._workers.arena import Arena, ArenaHandle

    device = TorchDevice(torch.device("cuda", torch.cuda.current_device()))
    block = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
    with Arena(2 * SIZE) as arena:
        writer = get_context("spawn").Process(target=fill, args=(ArenaHandle(arena),))
        writer.start()
        writer.join()
        began = time.perf_counter()
        device.register(arena.array)
        yield "register, s/GiB", f"{(time.perf_counter() - began) / (2 * SIZE) * (1 << 30):.3f}"
        shared = torch.from_numpy(arena.array[:SIZE])
        yield "registered shared memory, GB/s", rate(lambda: block.copy_(shared, non_blocking=True))
        expected = int(shared.sum(dtype=torch.int64))
        yield "its sum on the device is right", str(int(block.sum(dtype=torch.int64)) == expected)
        device.unregister(arena.array)
        pinned = torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
        yield "pin_memory(), GB/s", rate(lambda: block.copy_(pinned, non_blocking=True))
        pageable = torch.zeros(SIZE, dtype=torch.uint8)
        yield "pageable, GB/s", rate(lambda: block.copy_(pageable))
        yield (
            "pinned for each batch, GB/s",
            rate(lambda: block.copy_(pageable.pin_memory(), non_blocking=True)),
        )


def fill(handle: Any) -> None:
    """Write from another process."""
    array = handle.attach().array
    array[:] = np.random.default_rng(0).integers(0, 256, len(array), dtype=np.uint8)


def rate(copy: Callable[[], object]) -> str:
    """Return the median rate of a copy."""
    copy()
    seconds = []
    for _ in range(20):
        torch.cuda.synchronize()
        began = time.perf_counter()
        copy()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return f"{SIZE / statistics.median(seconds) / 1e9:.1f}"


# Training ---------------------------------------------------------------------------------------------


def spin_cycles() -> int:
    """Return the cycles that take a step's time."""
    cycles, begun, ended = (
        10_000_000,
        torch.cuda.Event(enable_timing=True),
        torch.cuda.Event(enable_timing=True),
    )
    torch.cuda._sleep(cycles)
    begun.record()
    torch.cuda._sleep(cycles)
    ended.record()
    ended.synchronize()
    return int(cycles * STEP_SECONDS * 1000 / begun.elapsed_time(ended))


def overlap(path: Path, steps: int) -> Iterator[tuple[str, str]]:
    """Train on batches of 16 MiB, and ask what the stream that trains waited."""
    cycles = spin_cycles()
    with aioload.Loader(path, batch_size=BATCH, num_workers=4, device="cuda", shuffle=True).sync() as loader:
        batches = endless(loader)
        for _ in range(2):
            train(next(batches), cycles)
        torch.cuda.synchronize()
        before = loader.stats()
        for _ in range(steps):
            train(next(batches), cycles)
        torch.cuda.synchronize()
        for _ in range(2):
            next(batches)  # what was measured is added up with the next copies
        stats = loader.stats()
        copied = stats.device_seconds - before.device_seconds
        stalled = stats.device_stall_seconds - before.device_stall_seconds
        yield "overlap: copies, ms", f"{copied / steps * 1000:.2f}"
        yield "overlap: hidden", f"{1 - stalled / copied:.1%}"
        yield "overlap: the stream stood still, ms a step", f"{stalled / steps * 1000:.3f}"
        yield "overlap: through staging buffers", f"{stats.device_staged} of {stats.device_batches}"
        batches.close()


def train(batch: Any, cycles: int) -> None:
    batch["x"].sum()
    torch.cuda._sleep(cycles)


def endless(loader: Any) -> Any:
    while True:
        yield from loader


def integrity(path: Path) -> Iterator[tuple[str, str]]:
    """Queue kernels on 500 batches far ahead of the device, on a stream of their own."""
    sums, numbers = [], []
    stream = torch.cuda.Stream()
    with (
        torch.cuda.stream(stream),
        aioload.Loader(path, batch_size=1, num_workers=4, device="cuda", shuffle=True).sync() as loader,
    ):
        batches = endless(loader)
        for _ in range(500):
            batch = next(batches)
            torch.cuda._sleep(1_000_000)
            sums.append(batch["x"].sum())
            numbers.append(batch["n"][0].clone())
            del batch
        batches.close()
    torch.cuda.synchronize()
    right = (torch.stack(sums) == torch.stack(numbers) * (ITEMS // 4)).sum()
    yield "integrity: batches that are right", f"{int(right)} of 500"


def loaders(path: Path, steps: int) -> Iterator[tuple[str, str]]:
    """Compare with torch's DataLoader over the same records."""
    cycles = spin_cycles()
    dataset = aioload.Dataset(path)

    class Records(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(dataset)

        def __getitem__(self, record: int) -> Any:
            return dataset[record]["x"]

    def torchs() -> Iterator[Any]:
        loader = torch.utils.data.DataLoader(
            Records(), BATCH, shuffle=True, num_workers=4, pin_memory=True, persistent_workers=True
        )
        while True:
            for batch in loader:
                yield {"x": batch.to("cuda", non_blocking=True)}

    yield "torch DataLoader, ms a step", f"{pace(torchs(), steps, cycles):.2f}"
    with aioload.Loader(path, batch_size=BATCH, num_workers=4, device="cuda", shuffle=True).sync() as loader:
        yield "aioload, ms a step", f"{pace(endless(loader), steps, cycles):.2f}"
    yield "the step alone, ms", f"{STEP_SECONDS * 1000:.2f}"


def pace(batches: Iterator[Any], steps: int, cycles: int) -> float:
    """Return the milliseconds of a step."""
    for _ in range(5):
        train(next(batches), cycles)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        train(next(batches), cycles)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps * 1000


# Simulated --------------------------------------------------------------------------------------------


def simulated(steps: int) -> Iterator[tuple[str, str]]:
    """Measure the hand-over on a device whose copies take 5 ms, with steps that wait for their kernels."""
    device = SimulatedDevice(seconds=lambda kind, size: 0.005 if kind == "copy" else 0.0)
    batches = [{"x": torch.full((64,), number)} for number in range(steps)]
    waits, before = [], time.process_time()
    with aioload.DevicePrefetcher(batches, device) as prefetcher:
        iterator = iter(prefetcher)
        for _ in range(steps):
            began = time.perf_counter()
            batch = next(iterator)
            waits.append(time.perf_counter() - began)
            device.launch(lambda x: None, batch["x"], seconds=STEP_SECONDS).synchronize()
    stats = prefetcher.stats()
    cpu = (time.process_time() - before) / steps
    device.close()
    device.check()
    later = [wait * 1000 for wait in waits[2:]]
    yield "copies, ms", f"{stats.device_seconds / stats.device_batches * 1000:.2f}"
    yield "hidden behind steps of 20 ms", f"{stats.device_overlap:.1%}"
    yield "the stream stood still, ms in all", f"{stats.device_stall_seconds * 1000:.2f}"
    yield "`next` after the first two, ms: median", f"{statistics.median(later):.3f}"
    yield "    most", f"{max(later):.3f}"
    yield "CPU a batch, device included, ms", f"{cpu * 1000:.2f}"


def print_rows(rows: Any) -> None:
    for name, value in rows:
        print(f"{name:<48}{value:>14}", flush=True)


if __name__ == "__main__":
    main()
