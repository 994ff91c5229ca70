"""Copying: batches to a device and nothing else, where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .._device.choose import choose
from ..errors import ConfigError
from ..prefetch import DevicePrefetcher
from .runs import Rate, timed

__all__ = ["copy_rate", "find_device"]

_AT_A_TIME = 64  # batches of an epoch: the way in and out of it does not count


def find_device() -> str | None:
    """Return the device that batches would be copied to; None where there is none."""
    try:
        return None if choose("cuda") is None else "cuda"
    except ConfigError:
        return None


def copy_rate(batch: Any, samples: int, seconds: float, device: Any) -> Rate:
    """Copy one batch again and again, from page-locked memory, as a loader with a device does.

    Args:
        batch: what is copied.
        samples: that it is made of.
        seconds: for how long.
        device: as `DevicePrefetcher` takes it.
    """
    copies = _Copies(_pinned(batch) if device == "cuda" else batch, device)
    return timed(copies, seconds, lambda taken: taken * samples)


class _Copies:
    """Epochs of copies of one batch."""

    def __init__(self, batch: Any, device: Any) -> None:
        self._batch = batch
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        with DevicePrefetcher([self._batch] * _AT_A_TIME, self._device) as copies:
            yield from copies


def _pinned(batch: Any) -> Any:
    """Return a batch whose tensors lie in page-locked memory; what is no tensor stays where it is."""
    if isinstance(batch, Mapping):
        return {name: _pinned(value) for name, value in batch.items()}
    return batch.pin_memory() if hasattr(batch, "pin_memory") else batch
