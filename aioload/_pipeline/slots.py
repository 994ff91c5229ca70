"""Slots: so many reads at once, and of those that wait the one whose run is needed first.

Served as they come, the reads of all runs under way would end together, and the first run would wait for the
last. All of it belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._workers.pool import Order

__all__ = ["Slots"]


class Slots:
    """Places for things that are under way.

    Args:
        total: how many there are.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._taken = 0
        self._waiting: list[tuple[Order, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    @property
    def total(self) -> int:
        """How many there are."""
        return self._total

    @property
    def taken(self) -> int:
        """How many are taken."""
        return self._taken

    def resize(self, total: int) -> None:
        """Have more places at once, or fewer as they become free."""
        self._total = total
        self._serve()

    @asynccontextmanager
    async def take(self, order: Order) -> AsyncIterator[None]:
        """Wait for a place and keep it; the lower order comes first."""
        if self._taken < self._total:
            self._taken += 1
        else:
            await self._wait(order)
        try:
            yield
        finally:
            self._taken -= 1
            self._serve()

    async def _wait(self, order: Order) -> None:
        """Wait until a place has been given."""
        got: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (order, next(self._numbers), got))
        try:
            await got
        except asyncio.CancelledError:
            if got.done() and not got.cancelled():  # it was given just now
                self._taken -= 1
                self._serve()
            raise

    def _serve(self) -> None:
        """Give what is free to those who wait."""
        while self._waiting and self._taken < self._total:
            *_, got = heapq.heappop(self._waiting)
            if not got.done():
                got.set_result(None)
                self._taken += 1
