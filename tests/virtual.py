"""A loop whose time jumps: whoever waits is waited for at once, and what waits for ever is found."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["StuckError", "VirtualLoop", "run"]

T = TypeVar("T")


class StuckError(RuntimeError):
    """Everything waits, and nothing can ever wake it: a wake-up was lost."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which only waiting takes time, and all of it passes at once."""

    def __init__(self) -> None:
        self._now = 1000.0  # no test should rely on a clock that begins with 0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        self._now += seconds


class _Jumping(selectors.DefaultSelector):
    """A selector that never waits."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise StuckError("all tasks wait, and nothing is due")
        if not ready and timeout is not None:
            self._loop.jump(max(timeout, 0.0))
        return ready


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
