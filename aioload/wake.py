"""Wake: waiting in threads and event loops, asyncio's or trio's, woken from any thread; tasks of nobody."""

from __future__ import annotations

import asyncio
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

import anyio

__all__ = ["Awaited", "running_loop", "spawn", "waker"]


class Awaited(ABC):
    """What a user's thread or task waits at until there is news.

    Args:
        changed: its lock, which can be taken again by who has it; notified of all news.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._wakers: list[Callable[[], object]] = []

    def wait(self, timeout: float) -> None:
        """Block until there is something to take, or for `timeout` seconds."""
        with self._changed:
            if not self._has_news():
                self._changed.wait(timeout)

    def call_when_ready(self, waker: Callable[[], object]) -> None:
        """Have a callable called once, from any thread, when there is something to take."""
        with self._changed:
            if not self._has_news():
                self._wakers.append(waker)
                return
        waker()

    def forget(self, waker: Callable[[], object]) -> None:
        """Take a callable back."""
        with self._changed:
            if waker in self._wakers:
                self._wakers.remove(waker)

    def wake(self) -> None:
        """Let whoever waits look again."""
        with self._changed:
            self._changed.notify_all()
            wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()

    @abstractmethod
    def _has_news(self) -> bool:
        """Tell, with the lock held, whether nobody needs to wait."""


def waker(event: anyio.Event) -> Callable[[], bool]:
    """Return what sets an event of the running loop, from any thread; False where that loop has ended."""
    loop = running_loop()
    post: Callable[[Callable[[], None]], object]
    post = loop.call_soon_threadsafe if isinstance(loop, asyncio.AbstractEventLoop) else loop.run_sync_soon

    def wake() -> bool:
        try:
            post(event.set)
        except RuntimeError:
            return False
        return True

    return wake


def running_loop() -> Any:
    """Return what stands for the running event loop: asyncio's own, or trio's token."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return sys.modules["trio"].lowlevel.current_trio_token()  # the only other loop that anyio runs on


def spawn(work: Callable[[], Coroutine[Any, Any, None]]) -> object:
    """Start a task in the running loop that belongs to nobody, and is cancelled when the loop ends.

    It sees nothing of the caller's context, so that it keeps nothing of it.

    Args:
        work: must not raise, since nobody would hear of it.

    Returns:
        The task, to be kept for as long as it is wanted: asyncio itself does not.
    """
    loop = running_loop()
    if isinstance(loop, asyncio.AbstractEventLoop):
        return Context().run(loop.create_task, work())
    task: object = sys.modules["trio"].lowlevel.spawn_system_task(work)
    return task
