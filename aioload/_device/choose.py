"""Choose: the device that a user's word stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .interface import Device

__all__ = ["choose"]


def choose(wanted: Any) -> Device | None:
    """Return a device; None for the CPU, whose batches stay where they are.

    Args:
        wanted: None, what `torch.device` takes, or something that is a `Device` already.

    Raises:
        ConfigError: there is no such device here.
    """
    if wanted is None or wanted == "cpu":
        return None
    if hasattr(wanted, "open_stream"):
        found: Device = wanted
        return found
    from .torch_device import find_device  # when it is needed: it brings torch, which takes a second

    return find_device(wanted)
