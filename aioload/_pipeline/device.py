"""Device: the batches of a pass on their way to a device, between the engine's hand-over and the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._device.landing import Cargo
from .deliver import Delivery

if TYPE_CHECKING:
    from .._device.copier import Copier
    from .._device.landing import Landing
    from .passes import Item
    from .reorder import Handover

__all__ = ["copied"]


def copied(handover: Handover[Item], copier: Copier) -> Landing:
    """Have the batches of a pass copied; return where they come out."""
    source = _FromHandover(handover)
    source.landing = copier.begin(source)
    return source.landing


class _FromHandover:
    """A hand-over as where the copy thread gets batches from.

    The copy thread takes in the user's place, so that the engine goes on. Work that the engine has for the
    user's thread stays the user's.

    Args:
        handover: the engine's.
    """

    waits = False

    def __init__(self, handover: Handover[Item]) -> None:
        self.landing: Landing | None = None
        self._handover = handover
        handover.on_errand = self._tell

    @property
    def calls(self) -> bool:
        """Whether there is an errand for the user's thread."""
        return self._handover.has_errands

    @property
    def over(self) -> bool:
        """Whether all steps were taken."""
        return self._handover.due >= self._handover.stop

    def take(self) -> Cargo:
        """Return the next batch, or the error in its place."""
        item = self._handover.take_nowait()
        if not isinstance(item, Delivery):
            return Cargo(item)

        def finish(batch: Any) -> Delivery:
            return replace(item, batch=batch, lease=None, outside=None, place=None)

        return Cargo(item.batch, item.place, finish, lambda: _let_go(item), item.batch_id)

    def wait(self, timeout: float) -> None:
        """Block until there is something to take."""
        self._handover.wait(timeout)

    def errand(self) -> Callable[[], None] | None:
        """Return something for the user's thread to do."""
        return self._handover.errand()

    def close(self) -> None:
        """Close the hand-over."""
        self._handover.close()

    def _tell(self) -> None:
        landing = self.landing
        if landing is not None:
            landing.wake()


def _let_go(item: Delivery) -> None:
    """Count what lay outside of the arena no longer; the lease goes back with the last array over it."""
    if item.outside is not None:
        item.outside.end()
