"""Trial: whether a server answers ranges, found out by one read before others follow.

A server that ignores them sends whole files. Were many reads of a file under way by then, each would bring
all of it, or what of it fits into buffers until the answer is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from weakref import WeakKeyDictionary

__all__ = ["IGNORED", "Trial"]

IGNORED = "the server ignored the range that was asked for"
"""The cause where ranges are not answered."""


class Trial:
    """What is known of a server; used from any number of event loops."""

    def __init__(self) -> None:
        self.passed = False
        """Whether a range was answered."""
        self.ignoring: set[str] = set()
        """Files of which a range was asked for in vain."""
        self._locks = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Wait, until a range was answered, for the other reads of this loop; then all go on side by side."""
        return nullcontext() if self.passed else self._turn()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as alone:
            await alone.enter_async_context(
                self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
            )
            if self.passed:  # as another found out meanwhile
                await alone.aclose()
            yield
