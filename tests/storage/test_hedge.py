"""A late read is asked again: the first answer wins, the other is over before the read is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
import pytest
import trio
from scripted import CONTENT, Scripted, Step, busy, cut, fault, missing
from virtual import run

from aioload import errors
from aioload.storage.hedge import Hedged
from aioload.storage.link import Link, NetworkCounts

SIZE = 10_000
PRACTICE = 200  # reads of 0.1 s: then 0.2 s are late, and some may be asked again
USUAL = [Step(seconds=0.1)] * PRACTICE


class Scene:
    """A read after many usual ones, and what became of it."""

    def __init__(self, steps: Sequence[Step], practice: int = PRACTICE) -> None:
        self.storage = Scripted([*USUAL[:practice], *steps])
        self.memory = bytearray(SIZE)
        self.seconds = -1.0
        self.link = Link()
        self._practice = practice

    def play(self, before: Callable[[Link], object] = repr, patience: float = 1e6) -> None:
        run(self._play(before, patience))

    async def _play(self, before: Callable[[Link], object], patience: float) -> None:
        self.link = Link(clock=asyncio.get_running_loop().time)
        hedged = Hedged(self.storage, self.link)
        for _ in range(self._practice):
            await hedged.read_into("x", 0, memoryview(self.memory))
        self.memory[:] = bytes(SIZE)
        before(self.link)
        began = anyio.current_time()
        with anyio.move_on_after(patience):
            await hedged.read_into("x", 5, memoryview(self.memory))
        self.seconds = anyio.current_time() - began

    @property
    def asked(self) -> int:
        return len(self.storage.asked) - self._practice

    @property
    def counts(self) -> NetworkCounts:
        return self.link.counts()


def test_read_in_time_is_asked_once() -> None:
    """What comes before it is late costs nothing more."""
    scene = Scene([Step(seconds=0.19)])

    scene.play()

    assert scene.memory == CONTENT[5 : 5 + SIZE]
    assert (scene.asked, scene.counts.hedges) == (1, 0)


def test_second_answer_wins() -> None:
    """It is asked for when the first is late, its bytes arrive, and the first is cancelled then."""
    scene = Scene([Step(seconds=60), Step(seconds=0.1)])

    scene.play()

    assert scene.memory == CONTENT[5 : 5 + SIZE]
    assert scene.seconds == pytest.approx(0.3)
    assert (scene.counts.hedges, scene.counts.hedges_won) == (1, 1)
    assert scene.storage.asked[-2].ended == pytest.approx(scene.storage.asked[-2].at + 0.3)


def test_first_answer_wins_where_it_comes_first() -> None:
    """The second request is cancelled, and is over before the read is."""
    scene = Scene([Step(seconds=0.25), Step(seconds=60, lingers=1)])

    scene.play()

    assert scene.memory == CONTENT[5 : 5 + SIZE]
    assert (scene.counts.hedges, scene.counts.hedges_won) == (1, 0)
    assert scene.storage.asked[-1].ended == pytest.approx(scene.storage.asked[-2].at + 1.25)


def test_loser_has_stopped_writing() -> None:
    """However long the first request goes on writing after its cancellation, the read ends after that."""
    scene = Scene([Step(seconds=60, filled=3, lingers=2), Step(seconds=0.1)])

    scene.play()

    assert scene.memory == CONTENT[5 : 5 + SIZE]
    assert scene.seconds == pytest.approx(2.3)


def test_first_answer_counts_when_both_come_at_once() -> None:
    """A tie is no reason to wait or to copy, nor an error."""
    scene = Scene([Step(seconds=0.3), Step(seconds=0.1)])

    scene.play()

    assert scene.memory == CONTENT[5 : 5 + SIZE]
    assert scene.seconds == pytest.approx(0.3)


def test_second_request_saves_a_first_that_fails() -> None:
    """The first one's error is swallowed, but counted."""
    scene = Scene([Step(seconds=0.25, error=busy().error), Step(seconds=0.1)])

    scene.play()

    assert scene.memory == CONTENT[5 : 5 + SIZE]
    assert (scene.counts.hedges_won, scene.counts.throttles) == (1, 1)


def test_second_request_that_fails_or_is_late_is_followed_by_another() -> None:
    """A read is not lost because two replicas in a row are bad."""
    scene = Scene([Step(seconds=60), busy(), Step(seconds=60), Step(seconds=0.1)])

    scene.play()

    assert scene.memory == CONTENT[5 : 5 + SIZE]
    assert (scene.counts.hedges, scene.counts.hedges_won, scene.counts.throttles) == (3, 1, 1)
    assert scene.seconds < 1.5


def test_where_both_fail_the_first_error_is_raised() -> None:
    """What whoever tries again must know, the bytes that are right, is the first one's."""
    scene = Scene(
        [
            Step(seconds=0.25, filled=7, error=fault("first", filled=7)),
            Step(seconds=0.1, error=fault("second")),
        ]
    )

    with pytest.raises(errors.StorageError, match="first") as caught:
        scene.play()

    assert caught.value.filled == 7
    assert scene.memory[:7] == CONTENT[5:12]


def test_first_error_before_it_is_late_is_raised_at_once() -> None:
    """Trying again is somebody else's, and not put off."""
    scene = Scene([cut(100)])

    with pytest.raises(errors.StorageError, match="cut short"):
        scene.play()

    assert scene.asked == 1


def test_final_error_does_not_wait_for_the_second_request() -> None:
    """A file that is not there is not there."""
    scene = Scene([Step(seconds=0.25, error=missing().error), Step(seconds=60)])

    with pytest.raises(errors.NotFoundError):
        scene.play()

    assert scene.storage.asked[-1].ended == pytest.approx(scene.storage.asked[-2].at + 0.25)


def test_cancelled_read_ends_both_requests() -> None:
    """When it has returned, nobody writes any more."""
    scene = Scene([Step(seconds=60, lingers=1), Step(seconds=60, lingers=2)])

    scene.play(patience=0.5)

    assert scene.seconds == pytest.approx(2.6)
    assert [asked.ended is not None for asked in scene.storage.asked[-2:]] == [True, True]
    assert scene.link.gate.used == 0


def test_reads_of_all_sizes_are_late_in_their_own_time() -> None:
    """A small read that is late is not looked at only when a large one, begun before, would be."""
    large, small = bytearray(4 << 20), bytearray(SIZE)
    usual = [Step(seconds=5)] * 20 + USUAL
    storage = Scripted([*usual, Step(seconds=100), Step(seconds=60), Step(seconds=0.1)], bytes(len(large)))
    ends: list[float] = []

    async def main() -> None:
        hedged = Hedged(storage, Link(clock=asyncio.get_running_loop().time))
        for memory in [large] * 20 + [small] * PRACTICE:
            await hedged.read_into("x", 0, memoryview(memory))
        async with anyio.create_task_group() as group:
            group.start_soon(hedged.read_into, "x", 0, memoryview(large))
            await anyio.sleep(1)
            began = anyio.current_time()
            await hedged.read_into("x", 0, memoryview(small))
            ends.append(anyio.current_time() - began)
            group.cancel_scope.cancel()

    run(main())

    assert ends == [pytest.approx(0.3)]


def test_nothing_of_a_read_stays_behind_it() -> None:
    """Loops of both kinds may end right after a read, late reads included, and say nothing of it."""
    for loop_run in (anyio.run, trio.run):
        link = Link()
        for _ in range(30):
            link.took(SIZE, 0.01)
            link.sent()
        storage = Scripted([Step(seconds=0.2), Step(seconds=30), Step(seconds=30)])

        async def main(hedged: Hedged) -> None:
            await hedged.read_into("x", 0, memoryview(bytearray(SIZE)))

        loop_run(main, Hedged(storage, link))

        assert link.gate.used == 0
        assert all(asked.ended is not None for asked in storage.asked)


def test_nothing_is_asked_again_while_the_server_throttles() -> None:
    """A server with too much to do is not given more."""
    scene = Scene([Step(seconds=0.9)])

    scene.play(before=lambda link: [link.failed(throttled=True) for _ in range(20)])

    assert (scene.asked, scene.counts.hedges) == (1, 0)


def test_nothing_is_asked_again_before_late_is_known() -> None:
    """The first reads of a run take what they take."""
    scene = Scene([Step(seconds=3)], practice=10)

    scene.play()

    assert scene.asked == 1


def test_read_that_began_before_late_was_known_can_be_late() -> None:
    """A read that stalls right at the start is asked again as soon as others have shown what is usual."""
    storage, memory = Scripted([Step(seconds=60), Step(seconds=0.1)]), bytearray(SIZE)

    async def main() -> float:
        hedged = Hedged(storage, Link(clock=asyncio.get_running_loop().time))
        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(hedged.read_into, "x", 5, memoryview(memory))
            for _ in range(30):
                await anyio.sleep(0.01)
                group.start_soon(hedged.read_into, "x", 0, memoryview(bytearray(SIZE)))
        return anyio.current_time() - began

    assert run(main()) < 2
    assert memory == CONTENT[5 : 5 + SIZE]


def test_second_requests_are_few_and_so_is_their_memory() -> None:
    """Where all of many reads are late at once, few are asked again, within little more than the window."""
    storage = Scripted([*USUAL, Step(seconds=5)])

    async def main() -> Link:
        link = Link(max_in_flight=4 << 20, clock=asyncio.get_running_loop().time)
        hedged = Hedged(storage, link)
        for _ in range(PRACTICE):
            await hedged.read_into("x", 0, memoryview(bytearray(SIZE)))
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(hedged.read_into, "x", 0, memoryview(bytearray(SIZE)))
            await anyio.sleep(0.3)
            assert link.gate.used <= 1 << 20
            assert link.counts().hedges == 2
        return link

    link = run(main())

    assert link.counts().hedges <= (PRACTICE + 50) / 20
    assert link.gate.used == 0


def test_requests_share_no_memory_with_an_error() -> None:
    """Once the error is gone, so is every view, without a garbage collection."""
    storage, memory = Scripted([*USUAL[:20], Step(seconds=0.3, error=fault())]), bytearray(SIZE)

    async def main() -> None:
        hedged = Hedged(storage, Link(clock=asyncio.get_running_loop().time))
        for _ in range(20):
            await hedged.read_into("x", 0, memoryview(memory))
        with suppress(errors.StorageError):
            await hedged.read_into("x", 0, memoryview(memory))
        memory.append(0)  # would be a BufferError while a view exists

    run(main())

    assert len(memory) == SIZE + 1
