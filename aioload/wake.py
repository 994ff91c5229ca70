"""Wake: set an event of one event loop, asyncio's or trio's, from any thread."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import anyio

__all__ = ["waker"]


def waker(event: anyio.Event) -> Callable[[], bool]:
    """Return what sets an event of the running loop, from any thread; False where that loop has ended."""
    post: Callable[[Callable[[], None]], object]
    try:
        post = asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        trio = sys.modules["trio"]  # the only other loop that anyio runs on
        post = trio.lowlevel.current_trio_token().run_sync_soon

    def wake() -> bool:
        try:
            post(event.set)
        except RuntimeError:
            return False
        return True

    return wake
