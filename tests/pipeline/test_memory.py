"""Memory: never over the limit, the head always served, no lease lost, and errors by size alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aioload._pipeline.memory import Lease, Memory, TooSmall
from aioload._pipeline.needs import UNKNOWN, Need
from aioload._pipeline.zones import divide, least
from aioload._workers.arena import Arena
from aioload.errors import ConfigError

LIMIT = 64 << 10
BORDER = LIMIT // 2
MOST = BORDER  # what one run may need


@contextmanager
def memory(limit: int = LIMIT, on_short: Callable[[], None] = int, spare: int = 0) -> Iterator[Memory]:
    """Open a memory in the running loop."""
    with Arena(limit, spare=spare) as arena:
        yield Memory(arena, on_short)


async def blocked() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


class MemoryMachine(RuleBasedStateMachine):
    """Runs that lease, cancel, trim, hand over and release in any order, beside a plain account."""

    window = 0  # bytes for pieces
    border = BORDER  # where the head's zone ends, and the window's begins

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.arena = Arena(LIMIT)
        self.memory: Memory = self.loop.run_until_complete(self._open())
        self.head = 0
        self.leases: list[Lease] = []  # those of runs
        self.kept: list[Lease] = []  # those the user has
        self.pieces: list[Lease] = []  # those of the window
        self.asked: list[tuple[int, int, asyncio.Task[Lease]]] = []

    async def _open(self) -> Memory:
        memory = Memory(self.arena, int, divide(LIMIT, UNKNOWN, window=self.window))
        memory.move_head((1, 0))
        return memory

    @rule(run=st.integers(0, 3), size=st.integers(1, MOST))
    def ask(self, run: int, size: int) -> None:
        order = self.head + run
        self.asked.append((order, size, self.loop.create_task(self.memory.lease(size, (1, order)))))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.asked))[2].cancel()

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.loop.call_soon(self._taken(data).release)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release_later(self, data: st.DataObject) -> None:
        lease = self._taken(data)
        self.loop.call_soon(lease.keep)
        self.loop.call_soon(lease.release_soon)
        self.loop.call_soon(lease.release_soon)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), size=st.integers(0, MOST))
    def trim(self, data: st.DataObject, size: int) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        self.loop.call_soon(self.memory.trim, lease, size)

    @precondition(lambda self: any(not lease.private for lease in self.leases))
    @rule(data=st.data())
    def hand_over(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from([lease for lease in self.leases if not lease.private]))
        self.leases.remove(lease)
        self.kept.append(lease)
        self.loop.call_soon(self.memory.finish, lease)
        self.loop.call_soon(self.memory.hold_later, lease)

    @precondition(lambda self: self.kept)
    @rule()
    def let_go(self) -> None:
        self.kept.pop().release_soon()

    @rule(size=st.integers(1, 8 << 10))
    def take_up(self, size: int) -> None:
        """A piece never waits, and it is there or not by what the window holds alone."""
        lease = self.memory.window_nowait(size)
        if lease is None:
            assert size > self.window or self.pieces
        else:
            self.pieces.append(lease)

    @precondition(lambda self: self.pieces)
    @rule(data=st.data())
    def let_go_of_piece(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.pieces))
        self.pieces.remove(lease)
        self.loop.call_soon(lease.release)

    @rule()
    def next_run(self) -> None:
        """The head is done: it asks no more and keeps nothing."""
        mine = (1, self.head)
        for order, _, task in self.asked:
            if order == self.head:
                task.cancel()
        self._settle()
        for lease in [lease for lease in self.leases if lease.order == mine]:
            self.leases.remove(lease)
            self.loop.call_soon(lease.release)
        self.head += 1
        self.loop.call_soon(self.memory.move_head, (1, self.head))

    @invariant()
    def the_account_is_right(self) -> None:
        self._settle()
        mine = [*self.leases, *self.kept, *self.pieces]
        assert self.memory.used == sum(map(len, mine)) <= LIMIT
        edges = sorted((lease.span.start, lease.span.stop) for lease in mine)
        assert all(left[1] <= right[0] for left, right in pairwise(edges))

    @invariant()
    def the_head_never_waits(self) -> None:
        assert [order for order, _, _ in self.asked if order == self.head] == []

    @invariant()
    def only_the_head_is_in_its_zone(self) -> None:
        assert all(lease.order <= (1, self.head) for lease in self.leases if lease.span.start < self.border)
        assert not any(lease.private for lease in self.kept)

    @invariant()
    def only_pieces_are_in_the_window(self) -> None:
        start, stop = self.border, self.border + self.window
        assert all(start <= lease.span.start and lease.span.stop <= stop for lease in self.pieces)
        others = [*self.leases, *self.kept]
        assert all(lease.span.stop <= start or lease.span.start >= stop for lease in others)

    def teardown(self) -> None:
        for _, _, task in self.asked:
            task.cancel()
        self._settle()
        for lease in [*self.leases, *self.kept, *self.pieces]:
            self.loop.call_soon(lease.release)
        self._settle()
        assert self.memory.used == 0
        self.loop.close()
        self.arena.close()

    def _taken(self, data: st.DataObject) -> Lease:
        lease = data.draw(st.sampled_from(self.leases))
        self.leases.remove(lease)
        return lease

    def _settle(self) -> None:
        """Let all tasks run until they wait, and note what they got."""
        self.loop.call_soon(self.memory._serve)
        self.loop.run_until_complete(blocked())
        for entry in [entry for entry in self.asked if entry[2].done()]:
            self.asked.remove(entry)
            task = entry[2]
            if not task.cancelled() and task.exception() is None:
                self.leases.append(task.result())


class WindowMachine(MemoryMachine):
    """The same with a zone for pieces between the head's and the shared one."""

    window = 16 << 10


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(stateful_step_count=30)
TestMemoryWithWindow = WindowMachine.TestCase
TestMemoryWithWindow.settings = settings(stateful_step_count=30)


@given(
    needs=st.lists(st.integers(1, MOST), min_size=1, max_size=6),
    others=st.lists(st.tuples(st.integers(1, 5), st.integers(1, BORDER // 4)), max_size=12),
)
def test_whether_a_run_may_have_its_memory_depends_on_sizes_alone(
    needs: list[int], others: list[tuple[int, int]]
) -> None:
    """Leases of the head fail exactly where their sum is too large, whatever lies elsewhere."""

    async def run() -> list[bool]:
        with memory() as some:
            some.move_head((1, 0))
            held = [some.lease_nowait(size, (1, run)) for run, size in others]
            got: list[Any] = []
            for need in needs:
                try:
                    got.append(await asyncio.wait_for(some.lease(need, (1, 0)), 5))
                except ConfigError:
                    got.append(None)
            for lease in [*held, *got]:
                if lease is not None:
                    lease.release()
            return [lease is not None for lease in got]

    expected, taken = [], 0
    for need in needs:
        size = -(-need // 64) * 64
        expected.append(taken + size <= MOST)
        taken += size if expected[-1] else 0

    assert asyncio.run(run()) == expected


@given(st.lists(st.integers(1, BORDER), min_size=1, max_size=4))
def test_the_limit_that_an_error_names_is_enough(needs: list[int]) -> None:
    """Whoever takes the least limit for what a run was found to need does not meet the error again."""

    async def leased(limit: int) -> int:
        with memory(limit) as some:
            some.move_head((1, 0))
            try:
                for need in needs:
                    await some.lease(need, (1, 0))
            except TooSmall as error:
                return least(Need(error.facts["needs"]), told=True)
            return 0

    limit, named = LIMIT, asyncio.run(leased(LIMIT))
    while named:
        assert named > limit
        limit, named = named, asyncio.run(leased(named))

    assert limit <= max(LIMIT, 2 * (sum(needs) + 64 * len(needs) + 8192))


async def test_the_most_urgent_waits_shortest() -> None:
    """Room goes to the run that is needed first, not to the one that asked first."""
    with memory() as some:
        blocker = await some.lease(MOST, (1, 1))
        late = asyncio.create_task(some.lease(MOST, (1, 3)))
        early = asyncio.create_task(some.lease(MOST, (1, 2)))
        await blocked()

        blocker.release()
        await blocked()

        assert (early.done(), late.done()) == (True, False)
        early.result().release()
        (await late).release()


async def test_a_later_run_never_overtakes_one_that_waits() -> None:
    """Small leases of later runs do not starve a large one of an earlier run."""
    with memory() as some:
        blocker = await some.lease(MOST, (1, 1))
        large = asyncio.create_task(some.lease(MOST, (1, 2)))
        await blocked()
        small = asyncio.create_task(some.lease(64, (1, 3)))
        await blocked()

        assert not small.done()
        blocker.release()
        (await large).release()
        (await small).release()


async def test_the_head_has_a_zone_of_its_own() -> None:
    """However full the shared zone is, the run needed next gets room, and is told that it is private."""
    with memory() as some:
        shared = [await some.lease(BORDER // 4, (1, run)) for run in range(1, 5)]

        some.move_head((1, 0))
        lease = await some.lease(MOST, (1, 0))

        assert lease.private
        [each.release() for each in (*shared, lease)]


async def test_a_run_that_is_not_the_head_waits_until_it_is() -> None:
    """Moving the head serves who becomes it."""
    with memory() as some:
        shared = [await some.lease(BORDER // 2, (1, run)) for run in range(2)]
        waiting = asyncio.create_task(some.lease(64, (1, 5)))
        await blocked()
        before = waiting.done()

        some.move_head((1, 5))
        await blocked()

        assert (before, waiting.result().private) == (False, True)
        [each.release() for each in (*shared, waiting.result())]


async def test_a_cancelled_wait_gives_back_what_it_was_given() -> None:
    """A lease granted in the very moment of the cancellation is not lost."""
    with memory() as some:
        shared = [await some.lease(BORDER // 2, (1, run)) for run in range(1, 3)]
        waiting = asyncio.create_task(some.lease(BORDER // 2, (1, 3)))
        await blocked()

        shared[0].release()
        waiting.cancel()
        await blocked()

        assert waiting.cancelled()
        assert some.used == BORDER // 2
        shared[1].release()


async def test_memory_that_is_kept_twice_comes_back_once() -> None:
    """A lease goes back with its last keeper."""
    with memory() as some:
        lease = await some.lease(64, (1, 0))
        lease.keep()

        lease.release()
        between = some.used
        lease.release()

        assert (between, some.used) == (64, 0)


async def test_what_a_finaliser_gives_back_serves_who_waits() -> None:
    """Memory that the user lets go, in any thread, wakes the run that waits for it."""
    with memory() as some:
        shared = [await some.lease(BORDER // 2, (1, run)) for run in range(1, 3)]
        waiting = asyncio.create_task(some.lease(BORDER // 2, (1, 3)))
        await blocked()

        thread = threading.Thread(target=shared[0].release_soon)
        thread.start()
        lease = await asyncio.wait_for(waiting, 5)
        thread.join()

        assert not lease.private
        [each.release() for each in (shared[1], lease)]


async def test_a_batch_that_waits_for_the_user_is_no_need_of_its_run() -> None:
    """A run of many batches may make more than one run may need, one batch after the other."""
    with memory() as some:
        some.move_head((1, 0))
        batches = []
        for _ in range(2):
            batches.append(await some.lease(BORDER // 2, (1, 0)))
            some.finish(batches[-1])

        lease = await some.lease(MOST, (1, 0))

        assert lease.private
        [each.release() for each in (*batches, lease)]


async def test_who_is_patient_waits_to_be_the_head_before_anything_is_refused() -> None:
    """A run that needs too much is told so at once, unless it has no other way; then only as the head."""
    with memory() as some:
        with pytest.raises(TooSmall):
            await some.lease(MOST + 64, (1, 1))
        waiting = asyncio.create_task(some.lease(MOST + 64, (1, 1), patient=True))
        await blocked()
        before = waiting.done()

        some.move_head((1, 1))

        with pytest.raises(TooSmall):
            await waiting
        assert not before


async def test_once_a_batch_was_there_nothing_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """What the head lacks it gets beyond the limit, with one warning; those pages are given back."""
    with memory(spare=LIMIT) as some:
        some.move_head((1, 0))
        some.settle()
        first = await some.lease(MOST, (1, 0), patient=True)
        beyond = [await some.lease(size, (1, 0), patient=True) for size in (4096, MOST)]
        some.arena.array[beyond[1].span.start : beyond[1].span.stop] = 7

        assert [lease.span.start >= LIMIT for lease in beyond] == [False, True]
        assert beyond[1].private
        assert len(caplog.records) == 1
        [lease.release() for lease in (first, *beyond)]
        assert not some.arena.array[LIMIT + 64 : LIMIT + MOST - 4096].any()
        assert some.used == 0


async def test_what_waits_outside_of_the_arena_counts() -> None:
    """Texts and copies that the user has yet to take leave later runs less room, and the head none less."""
    with memory() as some:
        charges = [some.charge(MOST // 2) for _ in range(2)]
        waiting = asyncio.create_task(some.lease(MOST // 2, (1, 1)))
        await blocked()
        head = await some.lease(MOST, (0, 0))
        before = waiting.done()

        charges[0].end()
        charges[0].end()
        lease = await asyncio.wait_for(waiting, 5)
        late = asyncio.create_task(some.lease(64, (1, 1)))
        await blocked()
        dropped = late.done()
        charges.clear()

        assert (before, dropped, lease.private) == (False, False, False)
        [each.release() for each in (head, lease, await asyncio.wait_for(late, 5))]


async def test_a_run_may_wait_until_it_needs_nothing() -> None:
    """Jobs that nobody waits for any more may still keep memory for a while."""
    with memory() as some:
        leases = [await some.lease(64, (1, 0)) for _ in range(2)]
        gone = asyncio.create_task(some.until_gone((1, 0)))
        await blocked()
        leases[0].release()
        await blocked()
        before = gone.done()

        leases[1].release()

        await asyncio.wait_for(gone, 5)
        assert not before


async def test_kept_batches_make_it_crowded() -> None:
    """Beyond half the shared zone in the user's hands, copies are made, and somebody is told."""
    told: list[bool] = []
    with memory(on_short=lambda: told.append(True)) as some:
        batches = [await some.lease(BORDER // 4, (1, run)) for run in range(3)]
        crowded = []
        for batch in batches:
            some.hold_later(batch)
            crowded.append(some.crowded)
        batches.pop().release_soon()
        some.move_head((1, 9))

        assert crowded == [False, False, True]
        assert not some.crowded
        assert told == [True]
        [batch.release() for batch in batches]


async def test_a_batch_given_back_before_it_was_noted_is_not_held() -> None:
    """The user may be faster than the engine's note that a batch was taken."""
    with memory() as some:
        lease = await some.lease(BORDER // 2 + 64, (1, 0))
        lease.release_soon()

        some.hold_later(lease)

        assert not some.crowded
        assert some.used == 0


@pytest.mark.parametrize("limit", [1, 64, 4096, 8191])
async def test_a_limit_that_holds_nothing_is_refused(limit: int) -> None:
    """A tiny limit is a ConfigError at once, not a failure somewhere inside."""
    with Arena(limit) as arena, pytest.raises(ConfigError, match="memory_limit") as caught:
        Memory(arena, int)

    assert caught.value.needed >= 8192  # type: ignore[attr-defined]  # a fact


async def test_memory_that_an_error_keeps_is_found() -> None:
    """An error and its frames may be a cycle, which keeps an array over the memory until somebody looks."""
    with memory() as some:
        lease = await some.lease(64, (1, 0))
        array = some.arena.borrow(lease.span.start, lease.span.stop, lease.release_soon)
        cycle: list[Any] = [array]
        cycle.append(cycle)
        del array, cycle, lease

        gone = asyncio.create_task(some.until_gone((1, 0)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(gone), 0.01)

        await asyncio.wait_for(gone, 20)


async def test_leases_and_waits_are_told() -> None:
    """How many leases there are, how often somebody waited; a look is taken before a wait and after it."""
    looks: list[bool] = []
    with memory() as some:
        some.on_wait = lambda: looks.append(some.short)
        lease = await some.lease(BORDER, (1, 1))
        waiting = asyncio.create_task(some.lease(BORDER, (1, 2)))
        await blocked()
        during = some.leases, some.waits

        lease.release()
        await blocked()

        assert during == (1, 1)
        assert looks == [False, True]
        assert (some.leases, some.waits) == (1, 1)
        waiting.result().release()
        assert some.leases == 0
