"""Wake: what is different in asyncio's and trio's event loops: waking from any thread, tasks of nobody."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

import anyio

__all__ = ["running_loop", "spawn", "waker"]


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
