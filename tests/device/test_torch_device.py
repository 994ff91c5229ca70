"""torch's devices, as far as they can be known without one: which calls are made, and what is refused."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import numpy as np
import pytest
import torch

from aioload import ConfigError, DevicePrefetcher
from aioload._device import torch_device
from aioload._device.interface import RegisterError
from aioload._device.torch_device import PlainDevice, TorchDevice, find_device


class FakeEvent:
    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.enable_timing, self.blocking = enable_timing, blocking

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: FakeEvent) -> float:
        assert self.enable_timing
        assert other.enable_timing
        return 2.0


class FakeStream:
    def __init__(self, device: Any = None) -> None:
        self.device = device
        self.waits: list[Any] = []

    def record_event(self, event: Any) -> Any:
        return event

    def wait_event(self, event: Any) -> None:
        self.waits.append(event)


class FakeModule:
    """What torch.cuda is, for the host's memory."""

    Event, Stream = FakeEvent, FakeStream

    def __init__(self) -> None:
        self.entered: list[Any] = []
        self.default = FakeStream()
        self.current = [self.default]

    def set_device(self, device: Any) -> None:
        self.entered.append(device)

    def current_stream(self, device: Any = None) -> Any:
        return self.current[-1]

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Any:
        self.current.append(stream)
        yield
        self.current.pop()


class FakeRuntime:
    """What torch.cuda.cudart() is; each call answers with a status."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.calls: list[Any] = []

    def cudaHostRegister(self, *arguments: int) -> int:
        self.calls.append(arguments)
        return self.status

    def cudaHostUnregister(self, *arguments: int) -> int:
        self.calls.append(arguments)
        return self.status

    def cudaGetLastError(self) -> int:
        self.calls.append("cleared")
        return self.status


class OverHostMemory(TorchDevice):
    """A device in torch's manner, whose memory is the host's."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._module = FakeModule()
        self.there: list[int] = []

    def allocate(self, size: int, stream: Any) -> Any:
        block = super().allocate(size, stream)
        self.there.append(block.data_ptr())
        return block

    def keep(self, block: Any, stream: Any) -> None: ...

    def holds(self, tensor: Any) -> bool:
        return False

    def pin(self, size: int) -> Any:
        return torch.empty(size, dtype=torch.uint8)


def test_batches_go_the_whole_way() -> None:
    """Every call that torch gets is one it has: batches arrive, converted, on the stream that is current."""
    device = OverHostMemory()
    images = [torch.randint(0, 256, (2, 8, 6, 3), dtype=torch.uint8) for _ in range(6)]

    with DevicePrefetcher(images, device, dtype=torch.float32, std=255.0) as prefetcher:
        found = list(prefetcher)

    assert [one.equal(image.float() / 255) for one, image in zip(found, images, strict=True)] == [True] * 6
    assert device._module.entered == [torch.device("cpu")]
    assert prefetcher.stats().device_seconds == pytest.approx(6 * 0.002)


@pytest.mark.parametrize(
    "name", ["Stream", "Event", "current_stream", "stream", "set_device", "is_available"]
)
@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_torch_has_what_is_asked_of_it(kind: str, name: str) -> None:
    """Under these names, for CUDA and for what follows its manner."""
    assert hasattr(getattr(torch, kind), name)
    for method in ("record_event", "wait_event"):
        assert inspect.isfunction(getattr(getattr(torch, kind).Stream, method))


class Elsewhere(PlainDevice):
    """A device without streams, whose memory is the host's."""

    def holds(self, tensor: Any) -> bool:
        return False


def test_a_device_without_streams() -> None:
    """Copies are plain calls in the same thread, straight from where the tensors are."""
    image = torch.randint(0, 256, (2, 8, 6, 3), dtype=torch.uint8)
    batch = {"image": image, "label": torch.arange(2), "name": ["a", "b"]}

    with DevicePrefetcher([batch] * 3, Elsewhere(torch.device("cpu")), channels_last=True) as prefetcher:
        found = list(prefetcher)

    assert [one["image"].equal(image.permute(0, 3, 1, 2)) for one in found] == [True] * 3
    assert [one["label"].tolist() for one in found] == [[0, 1]] * 3
    assert found[0]["image"].data_ptr() != image.data_ptr()
    assert prefetcher.stats().device_stall_seconds == 0


@pytest.mark.parametrize("wanted", ["cpu", "cpu:0", torch.device("cpu")], ids=str)
def test_the_cpu_is_no_device(wanted: Any) -> None:
    """Batches are there already."""
    assert find_device(wanted) is None


def test_a_device_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one without a number is the current one."""
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "current_device", lambda: 1)

    found = [find_device("cuda"), find_device("cuda:0")]
    with pytest.raises(ConfigError, match="there are 2 of cuda"):
        find_device("cuda:2")

    assert [device and device.name for device in found] == ["cuda:1", "cuda:0"]


def cuda_like(monkeypatch: pytest.MonkeyPatch, runtime: FakeRuntime) -> TorchDevice:
    """A CUDA device whose runtime is a fake."""
    monkeypatch.setattr(torch_device, "_runtime", lambda: runtime)
    monkeypatch.setattr(torch_device, "_is_rocm", lambda: False)
    return TorchDevice(torch.device("cuda", 0))


def test_memory_is_registered_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """By address and size, and unregistered by its address."""
    runtime, memory = FakeRuntime(0), np.zeros(4096, np.uint8)
    device = cuda_like(monkeypatch, runtime)

    device.register(memory)
    device.unregister(memory)

    assert runtime.calls == [(memory.ctypes.data, 4096, 0), (memory.ctypes.data,)]


def test_a_failed_call_leaves_no_error_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA keeps it for the next call of this thread, whatever that is; it is taken back at once."""
    runtime = FakeRuntime(2)
    device = cuda_like(monkeypatch, runtime)

    with pytest.raises(RegisterError, match="4096 bytes: error 2"):
        device.register(np.zeros(4096, np.uint8))
    device.unregister(np.zeros(4096, np.uint8))

    assert [call for call in runtime.calls if call == "cleared"] == ["cleared"] * 2


@pytest.mark.parametrize("target", ["xpu:0", "cuda:0"])
def test_only_cuda_locks_memory_where_it_lies(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Others, ROCm among them, take the way through staging buffers."""
    monkeypatch.setattr(torch_device, "_is_rocm", lambda: True)

    with pytest.raises(RegisterError, match="only CUDA"):
        TorchDevice(torch.device(target)).register(np.zeros(4096, np.uint8))


def test_libraries_are_found_by_their_file() -> None:
    """However a distribution has named its copy; none that is not mapped."""
    assert [path for path in torch_device._mapped_libraries("libc.so") if "libc.so" not in path] == []
    assert torch_device._mapped_libraries("libc.so")
    assert torch_device._mapped_libraries("libnowhere") == []
