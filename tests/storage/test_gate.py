"""Room for reads in flight: in the order of coming, never lost, from any number of loops."""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import trio
from anyio import to_thread
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import run

from aioload.storage.gate import SMALLEST_COST, Gate
from aioload.storage.growth import Growth

MIB = 1 << 20

# (bytes, when it comes, how long it takes, when it is cancelled)
READS = st.lists(
    st.tuples(
        st.integers(0, 12 * MIB),
        st.integers(0, 20),
        st.integers(0, 5),
        st.one_of(st.none(), st.integers(0, 9)),
    ),
    max_size=30,
)


class Watched:
    """A gate with a fixed limit, and who went through it."""

    def __init__(self, limit: int = 8 * MIB) -> None:
        self.growth = Growth(limit, 1, limit)
        self.gate = Gate(self.growth, lambda: 0.0)
        self.entered: list[int] = []
        self.most_used = 0

    async def read(
        self, number: int, size: int, at: float = 0, seconds: float = 0, patience: float | None = None
    ):
        await anyio.sleep(at)
        with anyio.move_on_after(patience if patience is not None else 1e6):
            async with self.gate.room(size):
                self.entered.append(number)
                if size <= self.gate.limit:
                    self.most_used = max(self.most_used, self.gate.used)
                await anyio.sleep(seconds)


@settings(max_examples=150)
@given(READS, st.integers(1, 8 * MIB))
def test_room_is_neither_lost_nor_given_twice(
    reads: list[tuple[int, int, int, int | None]], limit: int
) -> None:
    """However reads come, end and are cancelled: none waits for ever, and all room comes back."""
    watched = Watched(limit)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number, (size, at, seconds, patience) in enumerate(reads):
                group.start_soon(watched.read, number, size, at, seconds, patience)

    run(main())  # a wake-up that is lost would be a StuckError

    assert (watched.gate.used, watched.gate.waiting) == (0, 0)
    assert watched.most_used <= max(limit, max((max(size, SMALLEST_COST) for size, *_ in reads), default=0))


@given(st.lists(st.integers(0, 12 * MIB), max_size=30))
def test_first_come_first_served(sizes: list[int]) -> None:
    """A large read is never overtaken, so it is never starved."""
    watched = Watched()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number, size in enumerate(sizes):
                group.start_soon(watched.read, number, size, 0, 1)

    run(main())

    assert watched.entered == list(range(len(sizes)))


def test_limit_is_used_and_kept() -> None:
    """Eight reads of 1 MiB fit into 8 MiB, a ninth does not; small ones count as half a MiB."""
    watched, small = Watched(), Watched()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(watched.read, number, MIB, 0, 1)
                group.start_soon(small.read, number, 1, 0, 1)
            await anyio.sleep(0.5)
            assert len(watched.entered) == 8
            assert len(small.entered) == 16

    run(main())

    assert watched.most_used == 8 * MIB


def test_read_larger_than_everything_goes_alone() -> None:
    """It waits until nothing is in flight, and nothing is let in beside it."""
    watched, alone = Watched(), list[int]()

    async def large() -> None:
        async with watched.gate.room(100 * MIB):
            alone.append(watched.gate.used)
            await anyio.sleep(1)
            alone.append(len(watched.entered))

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(watched.read, 0, MIB, 0, 1)
            await anyio.sleep(0.5)
            group.start_soon(large)
            group.start_soon(watched.read, 1, MIB, 0.1, 1)

    run(main())

    assert alone == [100 * MIB, 1]
    assert watched.entered == [0, 1]


def test_who_waited_behind_a_cancelled_read_goes_on() -> None:
    """A large read that gives up lets the small ones behind it in at once."""
    watched = Watched()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(watched.read, 0, 4 * MIB, 0, 100)
            group.start_soon(watched.read, 1, 8 * MIB, 1, 0, 1)
            group.start_soon(watched.read, 2, MIB, 1.5, 0)
            await anyio.sleep(2.5)
            assert watched.entered == [0, 2]

    run(main())


def test_room_beside_the_queue_is_little_and_paid_back() -> None:
    """What is taken beyond the limit is bounded, and others wait until it is inside again."""
    watched = Watched()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(9):
                group.start_soon(watched.read, number, MIB, 0, 1 + number)
            await anyio.sleep(0.5)
            assert [watched.gate.squeeze(MIB) for _ in range(4)] == [True, True, False, False]
            await anyio.sleep(2)  # reads 0 and 1 have ended
            assert len(watched.entered) == 8
            watched.gate.unsqueeze(MIB)
            await anyio.sleep(0.1)
            assert len(watched.entered) == 9
            watched.gate.unsqueeze(MIB)

    run(main())

    assert watched.gate.used == 0


def test_narrower_gate_lets_in_fewer() -> None:
    """After throttling, reads wait until less than the new limit is in flight."""
    watched = Watched()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(watched.read, number, MIB, 0, 1)
            await anyio.sleep(0.5)
            watched.gate.narrow(0.0)
            await anyio.sleep(1)
            assert watched.gate.used == 4 * MIB

    run(main())


def test_several_loops_share_one_gate() -> None:
    """Reads in four threads, asyncio's and trio's, wake one another, and no room is lost."""
    watched, done = Watched(2 * MIB), list[int]()

    async def read_many(first: int) -> None:
        async with anyio.create_task_group() as group:
            for number in range(first, first + 100):
                group.start_soon(read, number)

    async def read(number: int) -> None:
        with anyio.move_on_after(0 if number % 7 == 0 else 1e6):
            async with watched.gate.room(MIB):
                await anyio.lowlevel.checkpoint()
                done.append(number)

    threads = [
        threading.Thread(target=target, args=(read_many, 100 * number))
        for number, target in enumerate([anyio.run, trio.run, anyio.run, trio.run])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {number for number in range(400) if number % 7} <= set(done)
    assert len(done) == len(set(done))
    assert (watched.gate.used, watched.gate.waiting) == (0, 0)


def test_loop_that_ended_does_not_keep_room() -> None:
    """A waiter whose loop was closed under it is passed over."""
    watched = Watched(MIB)

    async def begin_to_wait() -> Coroutine[Any, Any, None]:
        waiting = watched.gate._take(MIB)
        waiting.send(None)  # it waits now, in a loop that ends without ever going on with it
        return waiting

    async def main() -> int:
        async with watched.gate.room(MIB):
            abandoned.append(await to_thread.run_sync(anyio.run, begin_to_wait))
            waiting = watched.gate.waiting
        await watched.read(1, MIB)
        return waiting

    abandoned = list[Coroutine[Any, Any, None]]()
    waited = anyio.run(main)
    abandoned.pop().close()

    assert (waited, watched.entered) == (1, [1])
    assert (watched.gate.used, watched.gate.waiting) == (0, 0)
