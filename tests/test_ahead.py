"""Reads that are begun ahead: results in order, no more under way than allowed, errors in their turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from aioload.ahead import Ahead


class Gates:
    """Reads that end when they are let."""

    def __init__(self, count: int, cost: int = 1) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self._gates = [anyio.Event() for _ in range(count)]
        self.reads = [(cost, self._read(number)) for number in range(count)]

    def open(self, *numbers: int) -> None:
        """Let reads end."""
        for number in numbers:
            self._gates[number].set()

    def _read(self, number: int) -> Callable[[], Awaitable[int]]:
        async def read() -> int:
            self.begun.append(number)
            try:
                await self._gates[number].wait()
            finally:
                self.ended.append(number)
            return number

        return read


async def test_results_come_in_order_whichever_ends_first() -> None:
    """Later reads are begun and end before the first, whose result still comes first."""
    gates = Gates(4)

    async with Ahead(gates.reads) as results:
        gates.open(3, 2, 1)
        async with anyio.create_task_group() as group:
            found: list[int] = []

            async def take() -> None:
                found.extend([await anext(results) for _ in range(4)])

            group.start_soon(take)
            while len(gates.ended) < 3:
                await checkpoint()
            assert found == []
            gates.open(0)

    assert found == [0, 1, 2, 3]
    assert gates.ended[-1] == 0


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 20), st.integers(1, 5))
def test_what_is_under_way_is_bounded(costs: list[int], most_bytes: int, most: int) -> None:
    """Bytes and number of reads that are begun and not taken stay within both bounds; all come in the end."""
    held: list[int] = []
    peaks: list[tuple[int, int]] = []

    def read(cost: int) -> Callable[[], Awaitable[int]]:
        async def begin() -> int:
            held.append(cost)
            peaks.append((len(held), sum(held)))
            return cost

        return begin

    async def main() -> list[int]:
        found = []
        async with Ahead([(cost, read(cost)) for cost in costs], most_bytes, most) as results:
            async for cost in results:
                found.append(cost)
                held.remove(cost)
        return found

    assert anyio.run(main) == costs
    assert all(count <= most and (total <= most_bytes or count == 1) for count, total in peaks)


async def test_an_error_comes_in_its_turn() -> None:
    """What was asked for before it comes first, and the error is the read's own, in no group."""

    async def fine() -> str:
        return "fine"

    async def broken() -> str:
        raise LookupError("here")

    async with Ahead([(1, fine), (1, broken), (1, fine)]) as results:
        assert await results.take() == "fine"
        with pytest.raises(LookupError, match="here"):
            await results.take()
        assert [await results.take(), await results.take()] == ["fine", None]


async def test_leaving_ends_what_is_under_way() -> None:
    """Whoever leaves early, also by an error of its own, waits for nothing and leaves nothing behind."""
    gates = Gates(5)
    gates.open(0)

    async def leave() -> None:
        async with Ahead(gates.reads) as results:
            assert await anext(results) == 0
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await leave()

    assert sorted(gates.ended) == gates.begun
