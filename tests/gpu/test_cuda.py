"""The promises of the copy thread on real CUDA; what the simulated device stands for elsewhere."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import leaks
import numpy as np
import pytest
import torch
from batches import pack
from traces import lanes, problems, read, slices

import aioload
from aioload import ConfigError, DevicePrefetcher, Loader
from aioload._device.interface import RegisterError
from aioload._device.torch_device import TorchDevice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.timeout(120),
]

RECORDS, BATCH, ITEMS = 1000, 2, 65_536
SPIN = 2_000_000  # cycles: a millisecond or so


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of 256 KiB that are full of their number."""
    samples = ({"n": n, "x": np.full(ITEMS, n, np.int32)} for n in range(RECORDS))
    return pack(tmp_path_factory.mktemp("numbered") / "set", {"n": "int", "x": "ndarray"}, samples)


def loader_of(path: Path, **options: Any) -> Loader:
    """A loader of these records onto the current device."""
    return Loader(path, batch_size=BATCH, num_workers=2, device="cuda", memory_limit="256MiB", **options)


def uses_the_driver(process: int) -> bool:
    """Whether a process has opened a device: without that there is no context."""
    files = Path(f"/proc/{process}/fd").iterdir()
    return any(file.is_symlink() and str(file.readlink()).startswith("/dev/nvidia") for file in files)


@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.parametrize("keeps", [0, 20])
def test_slow_kernels_read_their_own_batch(numbered: Path, own_stream: bool, keeps: int) -> None:
    """500 batches, kernels queued without a synchronize: the sum of each, made on the device, is right."""
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    sums, kept = [], []

    with torch.cuda.stream(stream), loader_of(numbered).sync() as loader:
        for batch in loader:
            torch.cuda._sleep(SPIN)
            sums.append(batch["x"].sum(1))
            kept = [*kept, batch][-keeps:] if keeps else []
            del batch
        staged = loader.stats().device_staged - loader.stats().copies
    torch.cuda.synchronize()

    expected = [[ITEMS * n for n in range(first, first + BATCH)] for first in range(0, RECORDS, BATCH)]
    assert torch.stack(sums).tolist() == expected
    assert [batch["x"].amin(1).tolist() for batch in kept] == [batch["n"].tolist() for batch in kept]
    assert [batch["x"].amax(1).tolist() for batch in kept] == [batch["n"].tolist() for batch in kept]
    assert staged == 0


def test_copies_have_their_time_in_a_trace(numbered: Path, tmp_path: Path) -> None:
    """Each copy is on the one lane of the stream, in order, and after it was asked for."""
    path = tmp_path / "run.json"

    with aioload.trace(path), loader_of(numbered).sync() as loader:
        for batch in loader:
            torch.cuda._sleep(SPIN // 4)
            batch["x"].sum()
            del batch

    found = read(path)
    assert problems(found) == []
    asked, copied = slices(found, "copy thread"), slices(found, "copy stream")
    assert [one["name"] for one in copied] == [one["name"] for one in asked]
    assert all(one["ts"] >= other["ts"] for one, other in zip(copied, asked, strict=True))
    assert {name for name in lanes(found).values() if name.startswith("copy stream")} == {"copy stream"}


def test_a_stream_that_is_changed_between_batches(numbered: Path) -> None:
    """The stream counts that is current when a batch is taken."""
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    sums = []

    with loader_of(numbered).sync() as loader:
        iterator = iter(loader)
        for number in range(200):
            with torch.cuda.stream(streams[number % 3]):
                batch = next(iterator)
                torch.cuda._sleep(SPIN // 4)
                sums.append(batch["x"].sum())
                del batch
    torch.cuda.synchronize()

    assert [int(one) for one in sums] == [ITEMS * (4 * number + 1) for number in range(200)]


def test_memory_is_flat_over_epochs(numbered: Path) -> None:
    """Reserved memory after three epochs is that after one."""
    reserved = []

    with loader_of(numbered).sync() as loader:
        for _ in range(3):
            for batch in loader:
                batch["x"].sum()
                del batch
            torch.cuda.synchronize()
            reserved.append(torch.cuda.memory_reserved())

    assert reserved[2] <= reserved[0] + (2 << 20)


def test_a_graph_is_captured_while_paused(numbered: Path) -> None:
    """In the global mode, which any call of another thread would break."""
    with loader_of(numbered).sync() as loader:
        iterator = iter(loader)
        static = next(iterator)["x"].clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with loader.pause(), torch.cuda.graph(graph):
            total = static.sum(1)
        found = []
        for batch in itertools.islice(iterator, 50):
            static.copy_(batch["x"])
            graph.replay()
            found.append(total.clone())
    torch.cuda.synchronize()

    assert torch.stack(found).tolist() == [[ITEMS * n, ITEMS * (n + 1)] for n in range(2, 102, 2)]


def test_conversion_is_that_of_the_host() -> None:
    """The same values to the bit where no rounding differs, else within one unit of the last place."""
    images = [torch.randint(0, 256, (4, 32, 24, 3), dtype=torch.uint8) for _ in range(4)]
    options = {"channels_last": True, "dtype": torch.float16, "mean": (124, 116, 104), "std": (58, 57, 57)}

    with DevicePrefetcher(images, "cuda", **options) as prefetcher:
        found = [image.cpu() for image in prefetcher]
    here = list(DevicePrefetcher(images, None, **options))

    for one, other in zip(found, here, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
        assert one.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("pin_memory", [False, True])
def test_a_data_loader_through_the_prefetcher(pin_memory: bool) -> None:
    """Pinned or not, the values are right."""
    data = torch.utils.data.TensorDataset(torch.arange(4000).repeat_interleave(64).reshape(4000, 64))
    loader = torch.utils.data.DataLoader(data, 16, num_workers=2, pin_memory=pin_memory)

    with DevicePrefetcher(loader, "cuda") as prefetcher:
        found = [batch[0].sum(1) for batch in prefetcher]
    torch.cuda.synchronize()

    assert torch.cat(found).tolist() == [64 * n for n in range(4000)]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of what torch calls a prototype
def test_odd_batches_arrive() -> None:
    """Those that leave a part on the host, sparse and nested ones, and tensors made on the device."""
    rows = [torch.ones(3), torch.ones(2)]

    def batches() -> Iterator[Any]:
        for number in range(20):
            yield {
                "packed": torch.nn.utils.rnn.pack_sequence([row * number for row in rows]),
                "sparse": (torch.eye(64) * number).to_sparse(),
                "nested": torch.nested.nested_tensor([row * number for row in rows], layout=torch.jagged),
                "made": torch.full((1 << 20,), float(number), device="cuda")[7:],
            }

    found = []
    with DevicePrefetcher(batches(), "cuda") as prefetcher, torch.cuda.stream(torch.cuda.Stream()):
        for batch in prefetcher:
            parts = (
                batch["packed"].data.sum(),
                torch.sparse.sum(batch["sparse"]),
                batch["nested"].values().sum(),
                batch["made"].max(),
            )
            found.append(torch.stack([part.reshape(()) for part in parts]))
            del batch, parts
        result = torch.stack(found).tolist()

    assert result == [[5 * number, 64 * number, 5 * number, number] for number in range(20)]


def test_no_batch_is_taken_into_a_graph() -> None:
    """The capture goes on all the same, and the batch is there afterwards."""
    graph, values = torch.cuda.CUDAGraph(), torch.ones(4, device="cuda")

    with DevicePrefetcher([torch.arange(4)] * 3, "cuda") as prefetcher:
        iterator = iter(prefetcher)
        found = [next(iterator)]
        with prefetcher.pause(), torch.cuda.graph(graph):
            total = values.sum()
            with pytest.raises(ConfigError):
                next(iterator)
        graph.replay()
        found += list(iterator)

    assert float(total) == 4
    assert [batch.tolist() for batch in found] == [[0, 1, 2, 3]] * 3


def test_a_failed_register_leaves_no_error() -> None:
    """Memory that is registered already: the call fails, and the next kernel knows nothing of it."""
    device, memory = (
        TorchDevice(torch.device("cuda", torch.cuda.current_device())),
        np.zeros(1 << 20, np.uint8),
    )
    start = -memory.ctypes.data % 4096
    piece = memory[start : start + (1 << 16)]
    device.register(piece)

    with pytest.raises(RegisterError):
        device.register(piece)
    found = torch.ones(8, device="cuda").sum().item()
    pinned = torch.from_numpy(piece).is_pinned()
    device.unregister(piece)

    assert (found, pinned) == (8, True)


def test_more_than_there_is_is_an_error_at_its_batch() -> None:
    """The allocator's own error, in the user's thread, and the device works on."""
    _, total = torch.cuda.mem_get_info()
    allowed = torch.cuda.memory_reserved() + (64 << 20)

    def batches() -> Iterator[Any]:
        yield torch.ones(4)
        yield {"x": torch.zeros(256 << 20, dtype=torch.uint8)}

    torch.cuda.set_per_process_memory_fraction(allowed / total)
    try:
        with DevicePrefetcher(batches(), "cuda") as prefetcher:
            iterator = iter(prefetcher)
            first = next(iterator)
            with pytest.raises(torch.OutOfMemoryError):
                next(iterator)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

    assert first.sum().item() == 4


def test_workers_hold_no_context(numbered: Path) -> None:
    """They have no file of the driver open; a list of `nvidia-smi` would be empty in a container."""
    before = leaks.observe().processes
    with loader_of(numbered).sync() as source:
        next(iter(source))
        torch.cuda.synchronize()
        found = [uses_the_driver(process) for process in leaks.observe().processes - before]

    if not uses_the_driver(os.getpid()):
        pytest.skip("the driver's files have other names here")
    assert len(found) >= 2
    assert not any(found)


def test_the_thread_stays_on_its_device(numbered: Path) -> None:
    """On a second device, no context is made on the first."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there is but one device")
    before = torch.cuda.memory_reserved(0)

    with Loader(numbered, batch_size=BATCH, num_workers=1, device="cuda:1").sync() as loader:
        batch = next(iter(loader))

    assert batch["x"].device == torch.device("cuda:1")
    assert torch.cuda.memory_reserved(0) == before


def test_a_device_beyond_the_last_is_refused(numbered: Path) -> None:
    """At construction."""
    with pytest.raises(ConfigError, match="there are"):
        aioload.Loader(numbered, batch_size=BATCH, device=f"cuda:{torch.cuda.device_count()}")
