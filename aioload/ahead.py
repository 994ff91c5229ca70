"""Ahead: reads that are begun before their turn, and whose results come in order.

Over a network, one read after the other waits for an answer each time. Some are therefore under way at once:
as many as hold `most_bytes` together, which is also what they take of memory; one is always.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from types import TracebackType
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

__all__ = ["Ahead", "Read"]

T = TypeVar("T")

Read = tuple[int, Callable[[], Awaitable[T]]]
"""What a read brings, in bytes, and what begins it."""


class Ahead(Generic[T]):
    """Yields the results of reads in their order; a read that fails raises its error in its turn.

    Entered and left in one task; leaving it ends what is under way.

    Args:
        reads: to be begun one after the other.
        most_bytes: that may be under way, or waiting for their turn, at once.
        most: reads at once.
    """

    def __init__(self, reads: Iterable[Read[T]], most_bytes: int = 64 << 20, most: int = 16) -> None:
        self._reads: Iterator[Read[T]] = iter(reads)
        self._most_bytes, self._most = most_bytes, most
        self._begun: deque[_Result[T]] = deque()
        self._bytes = 0
        self._following: Read[T] | None = next(self._reads, None)
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Ahead[T]:
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._group is not None, "it was entered"
        self._group.cancel_scope.cancel()
        # without the error, which a task group would wrap: none of it comes from here
        await self._group.__aexit__(None, None, None)

    def __aiter__(self) -> Ahead[T]:
        return self

    async def __anext__(self) -> T:
        self._begin_more()
        if not self._begun:
            raise StopAsyncIteration
        result = self._begun[0]
        await result.done.wait()
        self._begun.popleft()
        self._bytes -= result.cost
        if result.error is not None:
            raise result.error
        return result.values[0]

    async def take(self) -> T | None:
        """Return the next result; None where there are no more: for callers in other threads."""
        return await anext(self, None)

    def _begin_more(self) -> None:
        assert self._group is not None, "it was entered"
        while self._following is not None and len(self._begun) < self._most:
            cost, read = self._following
            if self._begun and self._bytes + cost > self._most_bytes:
                return
            result = _Result[T](cost)
            self._begun.append(result)
            self._bytes += cost
            self._group.start_soon(result.fill, read)
            self._following = next(self._reads, None)


class _Result(Generic[T]):
    """What a read has brought, or why it has not."""

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.done = anyio.Event()
        self.values: list[T] = []
        self.error: Exception | None = None

    async def fill(self, read: Callable[[], Awaitable[T]]) -> None:
        try:
            self.values.append(await read())
        except Exception as error:  # raised again where it is due
            self.error = error
        self.done.set()
