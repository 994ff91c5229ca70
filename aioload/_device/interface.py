"""Device: the little that the copy thread needs of an accelerator.

The hand-over is written against this alone. Two implementations stand beside it: torch's devices, and a
simulated one, whose copies happen late and which finds out who touches memory too early.

Sizes are bytes; blocks and host memory are flat uint8 tensors. A stream does what it is given in order, and
streams know nothing of each other but by events. `current_stream`, `is_capturing`, `record`, `wait` and
`keep` are for any thread, all else is the copy thread's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Device", "Event", "Fill", "RegisterError", "Stream"]

Stream = Any
"""A row of work on a device; compared with `==`."""

Fill = Callable[[Sequence[Any], Sequence[Any]], None]
"""Fills the tensors of its first argument, which are there, from those of its second."""


class Event(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """Tell whether the stream has come past it; the host may then reuse what was read before it."""

    def synchronize(self) -> None:
        """Block this thread until the stream has come past it."""


class RegisterError(Exception):
    """Memory cannot be page-locked; the text says why. No trace of the attempt is left on the device."""


class Device(Protocol):
    """An accelerator, seen from the thread that copies to it."""

    @property
    def name(self) -> str:
        """As users call it: "cuda:0"."""

    @property
    def overlaps(self) -> bool:
        """Whether it has streams: without, each copy is complete when the call returns."""

    def enter(self) -> None:
        """Make it the device of the calling thread, which begins on the first one otherwise."""

    def open_stream(self) -> Stream:
        """Make a stream."""

    def current_stream(self) -> Stream:
        """Return the stream on which the calling thread computes on this device as of now."""

    def is_capturing(self) -> bool:
        """Tell whether what the calling thread asks for now becomes part of a graph, and does not happen."""

    def record(self, stream: Stream, *, timed: bool = False) -> Event:
        """Mark what a stream has been given so far."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Have a stream wait for an event, and not the host."""

    def seconds(self, first: Event, last: Event) -> float:
        """Return the device's time between two timed events that both lie behind."""

    def allocate(self, size: int, stream: Stream) -> Any:
        """Return memory that is a stream's: whoever lets go of it gives it back in that stream's order."""

    def keep(self, block: Any, stream: Stream) -> None:
        """Give a block back, once nobody has it, only after what this stream will have been given by then."""

    def copy(self, block: Any, host: Any, stream: Stream) -> None:
        """Copy page-locked host memory into a block, later, in the stream's order."""

    def fill(self, function: Fill, outs: Sequence[Any], ins: Sequence[Any], stream: Stream) -> None:
        """Compute some tensors from others in the stream's order."""

    def send(self, thing: Any, stream: Stream) -> Any:
        """Call a foreign thing's own `to(device, non_blocking=True)` on a stream."""

    def holds(self, tensor: Any) -> bool:
        """Tell whether a tensor is on the device already."""

    def is_pinned(self, tensor: Any) -> bool:
        """Tell whether a host tensor's memory is page-locked."""

    def pin(self, size: int) -> Any:
        """Return page-locked host memory of its own."""

    def register(self, memory: NDArray[np.uint8]) -> None:
        """Page-lock memory where it lies.

        Raises:
            RegisterError: it cannot be.
        """

    def unregister(self, memory: NDArray[np.uint8]) -> None:
        """Undo `register`, before the memory is unmapped."""
