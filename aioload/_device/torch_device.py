"""TorchDevice: accelerators that torch knows, and what becomes of a user's word for one.

CUDA, and what else has streams and events in torch's manner (xpu, builds for ROCm, plug-ins), is one class.
What has none (mps) is copied to in plain calls, each complete when it returns. torch is imported here and not
before.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError
from .interface import Event, Fill, RegisterError, Stream

__all__ = ["PlainDevice", "TorchDevice", "find_device"]

_NEEDED = ("Event", "Stream", "current_stream", "device_count", "is_available", "set_device", "stream")


def find_device(wanted: Any) -> TorchDevice | PlainDevice | None:
    """Return the device a user means; None for the CPU.

    Args:
        wanted: as `torch.device` takes it; without a number it is the current one of its kind.

    Raises:
        ConfigError: there is no such device, or nothing here can drive it.
    """
    try:
        device: Any = torch.device(wanted)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device must be what torch.device takes, or None, got {wanted!r}") from error
    if device.type == "cpu":
        return None
    module: Any = getattr(torch, device.type, None)
    backends: Any = torch.backends
    if device.type == "mps" and backends.mps.is_available():
        return PlainDevice(device)
    if module is None or not all(hasattr(module, name) for name in _NEEDED):
        raise ConfigError(f"device={wanted!r}: this torch ({torch.__version__}) cannot copy to {device.type}")
    if not module.is_available():
        raise ConfigError(
            f"device={wanted!r} cannot be used: {_why_not(device.type)}; use device=None, or 'cpu'"
        )
    index = module.current_device() if device.index is None else device.index
    if index >= module.device_count():
        raise ConfigError(f"device={wanted!r}: there are {module.device_count()} of {device.type}, from 0 on")
    return TorchDevice(torch.device(device.type, index))


class TorchDevice:
    """A device with streams.

    Args:
        device: with its number.
    """

    overlaps = True

    def __init__(self, device: torch.device) -> None:
        self.target = device
        self._module: Any = getattr(torch, device.type)

    @property
    def name(self) -> str:
        """As torch calls it."""
        return str(self.target)

    def enter(self) -> None:
        """Make it the calling thread's device."""
        self._module.set_device(self.target)

    def open_stream(self) -> Stream:
        """Make a stream."""
        return self._module.Stream(self.target)

    def current_stream(self) -> Stream:
        """Return the calling thread's stream on this device."""
        return self._module.current_stream(self.target)

    def is_capturing(self) -> bool:
        """Tell whether the calling thread's stream is being captured."""
        tell = getattr(self._module, "is_current_stream_capturing", None)
        return False if tell is None else bool(tell())

    def record(self, stream: Stream, *, timed: bool = False) -> Event:
        """Mark a place in a stream."""
        # blocking: a thread that waits for a copy must not keep a CPU busy
        options = {"blocking": True} if self.target.type == "cuda" else {}
        event: Event = self._module.Event(enable_timing=timed, **options)
        stream.record_event(event)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        """Have a stream wait."""
        stream.wait_event(event)

    def seconds(self, first: Event, last: Event) -> float:
        """Return the time between two events."""
        return float(first.elapsed_time(last)) / 1000  # type: ignore[attr-defined]  # torch's have it

    def allocate(self, size: int, stream: Stream) -> Any:
        """Return memory of torch's own allocator, in a stream's pool."""
        with self._module.stream(stream):
            return torch.empty(size, dtype=torch.uint8, device=self.target)

    def keep(self, block: Any, stream: Stream) -> None:
        """Have memory wait for a stream when it is given back."""
        block.record_stream(stream)

    def copy(self, block: Any, host: Any, stream: Stream) -> None:
        """Copy without waiting."""
        with self._module.stream(stream):
            block.copy_(host, non_blocking=True)

    def fill(self, function: Fill, outs: Sequence[Any], ins: Sequence[Any], stream: Stream) -> None:
        """Compute on a stream."""
        with self._module.stream(stream), torch.no_grad():
            function(outs, ins)

    def send(self, thing: Any, stream: Stream) -> Any:
        """Call a thing's own method on a stream."""
        with self._module.stream(stream):
            return thing.to(self.target, non_blocking=True)

    def holds(self, tensor: Any) -> bool:
        """Tell whether a tensor is there."""
        return bool(tensor.device == self.target)

    def is_pinned(self, tensor: Any) -> bool:
        """Tell whether memory is page-locked."""
        return bool(tensor.is_pinned())

    def pin(self, size: int) -> Any:
        """Return page-locked memory of torch's own."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def register(self, memory: NDArray[np.uint8]) -> None:
        """Page-lock memory for CUDA."""
        if self.target.type != "cuda" or _is_rocm():  # ROCm fails in places, and late
            raise RegisterError(f"only CUDA can lock memory where it lies, and this is {self._kind()}")
        runtime = _runtime()
        status = int(runtime.cudaHostRegister(memory.ctypes.data, len(memory), 0))
        if status:
            _clear_errors(runtime)
            raise RegisterError(f"cudaHostRegister of {len(memory)} bytes: error {status}")

    def unregister(self, memory: NDArray[np.uint8]) -> None:
        """Unlock it."""
        runtime = _runtime()
        if int(runtime.cudaHostUnregister(memory.ctypes.data)):
            _clear_errors(runtime)

    def _kind(self) -> str:
        return "ROCm" if self.target.type == "cuda" else self.target.type


class PlainDevice:
    """A device without streams, to which each copy is complete when the call returns.

    Args:
        device: as torch knows it.
    """

    overlaps = False

    def __init__(self, device: torch.device) -> None:
        self.target = device

    @property
    def name(self) -> str:
        """As torch calls it."""
        return str(self.target)

    def enter(self) -> None:
        """There is but one."""

    def open_stream(self) -> Stream:
        """Return what stands for a stream."""
        return None

    def current_stream(self) -> Stream:
        """Return what stands for a stream."""
        return None

    def is_capturing(self) -> bool:
        """There are no graphs."""
        return False

    def record(self, stream: Stream, *, timed: bool = False) -> Event:
        """Note the time."""
        return _Now()

    def wait(self, stream: Stream, event: Event) -> None:
        """All lies behind."""

    def seconds(self, first: Event, last: Event) -> float:
        """Return the host's time between two."""
        assert isinstance(first, _Now)
        assert isinstance(last, _Now)
        return last.time - first.time

    def allocate(self, size: int, stream: Stream) -> Any:
        """Return memory."""
        return torch.empty(size, dtype=torch.uint8, device=self.target)

    def keep(self, block: Any, stream: Stream) -> None:
        """There is but one order."""

    def copy(self, block: Any, host: Any, stream: Stream) -> None:
        """Copy."""
        block.copy_(host)

    def fill(self, function: Fill, outs: Sequence[Any], ins: Sequence[Any], stream: Stream) -> None:
        """Compute."""
        with torch.no_grad():
            function(outs, ins)

    def send(self, thing: Any, stream: Stream) -> Any:
        """Call a thing's own method."""
        return thing.to(self.target, non_blocking=False)

    def holds(self, tensor: Any) -> bool:
        """Tell whether a tensor is there."""
        return bool(tensor.device.type == self.target.type)

    def is_pinned(self, tensor: Any) -> bool:
        """Nothing needs to be."""
        return True

    def pin(self, size: int) -> Any:
        """Return ordinary memory."""
        return torch.empty(size, dtype=torch.uint8)

    def register(self, memory: NDArray[np.uint8]) -> None:
        """Refuse."""
        raise RegisterError(f"{self.name} has no page-locked memory")

    def unregister(self, memory: NDArray[np.uint8]) -> None:
        """There is none."""


class _Now:
    """An event of a device that is never behind."""

    def __init__(self) -> None:
        self.time = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


def _is_rocm() -> bool:
    return getattr(torch.version, "hip", None) is not None


def _why_not(kind: str) -> str:
    """Say why a kind of device is not available."""
    if kind == "cuda" and torch.version.cuda is None and not _is_rocm():
        return f"this torch ({torch.__version__}) was built without CUDA"
    return f"torch finds no usable {kind} device (no driver, or all of them hidden)"


def _runtime() -> Any:
    """Return CUDA's own calls, as far as torch shows them."""
    cuda: Any = torch.cuda
    return cuda.cudart()


def _clear_errors(runtime: Any) -> None:
    """Take back the error that a failed call leaves in this thread, where an unrelated call would meet it."""
    take = getattr(runtime, "cudaGetLastError", None)  # of some versions of torch
    if take is not None:
        take()
        return
    for path in _mapped_libraries("libcudart"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(path).cudaGetLastError()  # the same library again, as it is loaded already
    with contextlib.suppress(RuntimeError):  # what is linked into torch itself: let a kernel meet the error
        torch.zeros(1, device="cuda").add_(1)


def _mapped_libraries(name: str) -> list[str]:
    """Return the files of libraries of this name that this process has loaded."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {
        line.split(maxsplit=5)[5] for line in lines if line.count("/") and len(line.split(maxsplit=5)) == 6
    }
    return sorted(path for path in paths if name in Path(path).name and Path(path).is_file())
