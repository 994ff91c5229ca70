"""Sources: an iterable as where the copy thread gets batches from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import anyio

from .landing import Cargo

__all__ = ["FromIterable"]


class FromIterable:
    """Batches of an iterable, which is gone through in the copy thread.

    Args:
        iterable: gives batches.
    """

    waits = True
    calls = False

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterator: Iterator[Any] | None = iter(iterable)

    @property
    def over(self) -> bool:
        """Whether the iterable has come to its end."""
        return self._iterator is None

    def take(self) -> Cargo:
        """Return the next batch."""
        iterator = self._iterator
        if iterator is None:
            raise anyio.EndOfStream
        try:
            return Cargo(next(iterator))
        except StopIteration:
            self._iterator = None
            raise anyio.EndOfStream from None

    def wait(self, timeout: float) -> None:
        """There is no waiting but in `take`."""

    def errand(self) -> Callable[[], None] | None:
        """There is none."""
        return None

    def close(self) -> None:
        """Let go of the iterable; where it is just at work, it ends when that returns."""
        self._iterator = None
