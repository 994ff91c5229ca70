"""Slots: what is needed first comes first, and no place is lost, however waits end."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from aioload._pipeline.slots import Slots
from aioload._workers.ticket import Order


class Uses:
    """Uses of slots that last until the test ends them."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.begun: list[Order] = []
        self.ends: dict[Order, anyio.Event] = {}

    def use(self, order: Order) -> asyncio.Task[None]:
        """Ask for a place."""
        self.ends[order] = anyio.Event()
        return asyncio.create_task(self._use(order))

    async def _use(self, order: Order) -> None:
        async with self.slots.take(order):
            self.begun.append(order)
            await self.ends[order].wait()

    async def settle(self) -> list[Order]:
        """Let everybody run; return who has begun."""
        await anyio.wait_all_tasks_blocked()
        return self.begun


async def test_the_run_needed_first_comes_first() -> None:
    """Whoever waits is served by urgency, and by arrival among equals."""
    uses = Uses(Slots(1))
    tasks = [uses.use((1, number)) for number in (0, 7, 2, 5)]
    await uses.settle()

    for order in ((1, 0), (1, 2), (1, 5), (1, 7)):
        uses.ends[order].set()
        await uses.settle()

    assert uses.begun == [(1, 0), (1, 2), (1, 5), (1, 7)]
    await asyncio.gather(*tasks)


async def test_more_places_let_those_in_who_wait() -> None:
    """A larger number counts at once, a smaller one as places become free."""
    slots = Slots(1)
    uses = Uses(slots)
    tasks = [uses.use((1, number)) for number in range(5)]

    before = list(await uses.settle())
    slots.resize(3)
    more = list(await uses.settle())
    slots.resize(1)
    uses.ends[1, 0].set()
    uses.ends[1, 1].set()
    fewer = list(await uses.settle())
    [end.set() for end in uses.ends.values()]
    await asyncio.gather(*tasks)

    assert (len(before), len(more), len(fewer)) == (1, 3, 3)
    assert len(uses.begun) == 5
    assert slots.total == 1


async def test_a_cancelled_wait_takes_no_place() -> None:
    """Cancelled while it waits, and at the very moment at which it is given a place: the next one gets it."""
    uses = Uses(Slots(1))
    first, waiting, given, last = (uses.use((1, number)) for number in range(4))
    await uses.settle()

    waiting.cancel()
    await uses.settle()
    uses.ends[1, 0].set()
    await anyio.lowlevel.checkpoint()  # the first lets go of its place, which goes to the third
    given.cancel()
    await uses.settle()

    assert uses.begun[0] == (1, 0)
    assert uses.begun[-1] == (1, 3)
    uses.ends[1, 3].set()
    await asyncio.gather(first, last)
    async with uses.slots.take((9, 9)):
        pass


async def test_an_error_gives_the_place_back() -> None:
    """A read that fails is under way no more."""
    slots = Slots(1)

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            async with slots.take((0, 0)):
                _ = 1 / 0

    async with slots.take((0, 0)):
        pass
