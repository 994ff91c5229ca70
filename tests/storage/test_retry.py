"""What fails is tried again, from its first missing byte, as long as that can help."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import CONTENT, Scripted, Step, busy, cut, fault, missing, refused
from virtual import run

from aioload import errors
from aioload.storage import Storage
from aioload.storage.link import Link
from aioload.storage.retry import Retrying

SIZE = 10_000
GOOD = Step()


class Scene:
    """A few reads through retries, and what they came to."""

    def __init__(self, steps: Sequence[Step], **options: Any) -> None:
        self.storage = Scripted(steps)
        self.memory = bytearray(SIZE)
        self.link = Link()
        self.seconds = -1.0
        self._options = {"rng": Random(1), **options}

    def read(self, *, after: Callable[[Link], object] = repr, patience: float = 1e6) -> bytes:
        run(self._do(lambda storage: storage.read_into("x", 5, memoryview(self.memory)), after, patience))
        return bytes(self.memory)

    def do(self, action: Callable[[Retrying], Awaitable[object]]) -> object:
        return run(self._do(action, repr, 1e6))

    async def _do(
        self,
        action: Callable[[Retrying], Awaitable[object]],
        after: Callable[[Link], object],
        patience: float,
    ) -> object:
        self.link = Link(clock=asyncio.get_running_loop().time)
        after(self.link)
        began = anyio.current_time()
        answer: object = None
        try:
            with anyio.move_on_after(patience):
                answer = await action(Retrying(self.storage, self.link, **self._options))
        finally:
            self.seconds = anyio.current_time() - began
        return answer

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [(asked.start, asked.stop) for asked in self.storage.asked]


class TestGoingOn:
    def test_body_that_was_cut_goes_on_at_its_first_missing_byte(self) -> None:
        """No byte is asked for twice, and all are right."""
        scene = Scene([cut(3000), cut(500), GOOD])

        assert scene.read() == CONTENT[5 : 5 + SIZE]
        assert scene.ranges == [(5, 10_005), (3005, 10_005), (3505, 10_005)]
        assert (scene.link.counts().retries, scene.link.counts().bytes) == (2, SIZE)

    @given(st.lists(st.integers(0, 4000), max_size=5))
    def test_any_cuts_come_together(self, cuts: list[int]) -> None:
        """However often and wherever a body is cut, the next request begins where it ended."""
        scene = Scene([*map(cut, cuts), GOOD], attempts=6)

        assert scene.read() == CONTENT[5 : 5 + SIZE]

        starts = [5 + min(sum(cuts[:number]), SIZE) for number in range(len(cuts) + 1)]
        assert [start for start, _ in scene.ranges] == [start for start in starts if start < 5 + SIZE]

    @pytest.mark.parametrize("filled", [-5, SIZE + 7])
    def test_nonsense_of_what_came_is_not_believed(self, filled: int) -> None:
        """A storage that claims more than was asked for, or less than nothing, cannot shift the bytes."""
        scene = Scene([Step(filled=SIZE, error=fault("odd", filled=filled)), GOOD])

        assert scene.read() == CONTENT[5 : 5 + SIZE]

    def test_progress_makes_the_next_wait_short(self) -> None:
        """A server that cuts long answers is asked on without much delay."""
        scene = Scene([cut(10)] * 9 + [GOOD], attempts=10)

        scene.read()

        assert max(scene.storage.gaps) <= 0.1

    def test_memory_is_let_go(self) -> None:
        """Neither a read that worked the second time nor an error that is gone keeps the caller's memory."""
        memory = bytearray(SIZE)

        async def main() -> None:
            storage = Retrying(Scripted([cut(9), GOOD, cut(9)]), Link(), attempts=2)
            for _ in range(2):
                with suppress(errors.StorageError):
                    await storage.read_into("x", 0, memoryview(memory))
                memory.append(0)  # would be a BufferError while a view exists

        run(main())

        assert len(memory) == SIZE + 2


class TestGivingUp:
    def test_error_after_the_attempts_tells_all(self) -> None:
        """It says where, how often and why, as text and as facts, also in another process."""
        scene = Scene([Step(filled=100, error=fault("reset", filled=100, status=206))], attempts=3)

        with pytest.raises(errors.StorageError) as caught:
            scene.read()

        error = pickle.loads(pickle.dumps(caught.value))
        assert len(scene.ranges) == 3
        assert str(error) == "gave up on x after 3 attempts: http://host/set/x: reset"
        assert (error.attempts, error.cause, error.shard) == (3, "http://host/set/x: reset", "x")
        assert (error.filled, error.status) == (300, 206)
        assert scene.memory[:300] == CONTENT[5:305]
        assert isinstance(caught.value.__cause__, errors.StorageError)

    def test_address_is_part_of_the_message(self) -> None:
        """The name alone does not say which server."""
        scene = Scene([Step(error=TimeoutError())], attempts=1, where="http://host/set/")

        with pytest.raises(errors.StorageError, match=r"on http://host/set/x after 1 attempt: TimeoutError"):
            scene.read()

    @pytest.mark.parametrize(
        "error",
        [
            errors.NotFoundError("no such file", shard="x"),
            fault("403", status=403, final=True),
            errors.ShardError("ends at byte 5", shard="x", offset=5),
            errors.ConfigError("no"),
            errors.ClosedError("closed"),
            FileNotFoundError(2, "no such file"),
            PermissionError(13, "denied"),
            ValueError("a bug"),
        ],
    )
    def test_what_would_fail_again_is_asked_once(self, error: Exception) -> None:
        """It comes out as it is, at once."""
        scene = Scene([Step(error=error)])

        with pytest.raises(type(error)) as caught:
            scene.read()

        assert str(caught.value) == str(error)
        assert len(scene.ranges) == 1
        assert scene.seconds == pytest.approx(0.01)

    def test_final_error_after_others_tells_what_came_before(self) -> None:
        """Attempts and bytes are those of the whole read."""
        scene = Scene([cut(100), Step(error=fault("changed", final=True))])

        with pytest.raises(errors.StorageError, match="changed") as caught:
            scene.read()

        assert (caught.value.attempts, caught.value.filled) == (2, 100)

    @pytest.mark.parametrize(
        "error", [OSError(5, "I/O"), TimeoutError("slow"), ConnectionResetError(104, "reset")]
    )
    def test_errors_of_other_peoples_storages_are_tried_again(self, error: OSError) -> None:
        """A user's own storage may raise what Python raises."""
        scene = Scene([Step(error=error), GOOD])

        assert scene.read() == CONTENT[5 : 5 + SIZE]

    @pytest.mark.parametrize(("attempts", "deadline"), [(0, 1.0), (1, 0.0), (1, -1.0), (1, float("nan"))])
    def test_impossible_limits_are_refused(self, attempts: int, deadline: float) -> None:
        """Before anything is read."""
        with pytest.raises(errors.ConfigError, match="attempts"):
            Retrying(Scripted([GOOD]), Link(), attempts=attempts, deadline=deadline)


class TestDeadline:
    def test_it_ends_an_attempt_that_hangs(self) -> None:
        """The error says that there was no answer, and nothing is written afterwards."""
        scene = Scene([cut(10), Step(seconds=1e5, filled=5, lingers=1)], deadline=20.0)

        with pytest.raises(
            errors.StorageError, match=r"at the deadline of 20 s, in attempt 2.*cut short"
        ) as caught:
            scene.read()

        assert (caught.value.attempts, caught.value.filled) == (2, 10)
        assert scene.seconds == pytest.approx(21)
        assert scene.storage.asked[-1].ended == pytest.approx(scene.storage.asked[0].at + 21)

    def test_it_ends_a_wait_for_room(self) -> None:
        """Whatever a read waits for counts."""

        class Full(Scripted):
            async def read_into(self, name: str, start: int, out: memoryview) -> None:
                await anyio.sleep_forever()

        storage = Full([GOOD])

        async def main() -> None:
            await Retrying(storage, Link(), deadline=3.0).read_into("x", 0, memoryview(bytearray(5)))

        with pytest.raises(errors.StorageError, match="deadline of 3 s, in attempt 1;"):
            run(main())

    def test_it_ends_a_rest_that_the_server_wants(self) -> None:
        """A server that wants all to rest for longer fails the read in time."""
        scene = Scene([GOOD], deadline=3.0)

        with pytest.raises(errors.StorageError, match="deadline of 3 s"):
            scene.read(after=lambda link: [link.failed(throttled=True, retry_after=50) for _ in range(20)])

        assert scene.seconds == pytest.approx(3)
        assert scene.ranges == []

    def test_wait_beyond_it_is_not_waited(self) -> None:
        """A server that says to come back in an hour fails the read now."""
        scene = Scene([busy(retry_after=3600)])

        with pytest.raises(errors.StorageError, match="503"):
            scene.read()

        assert scene.seconds == pytest.approx(0.01)

    def test_progress_does_not_move_it(self) -> None:
        """A server that trickles is not waited for without end."""
        scene = Scene([Step(seconds=1, filled=1, error=fault("cut", filled=1))], attempts=1000, deadline=10.0)

        with pytest.raises(errors.StorageError):
            scene.read()

        assert 9 < scene.seconds <= 10


class TestThrottling:
    @given(st.integers(0, 1 << 32))
    def test_gaps_grow(self, seed: int) -> None:
        """Three times "slow down", each gap longer than the one before; then it works."""
        scene = Scene([busy()] * 3 + [GOOD], rng=Random(seed))

        assert scene.read() == CONTENT[5 : 5 + SIZE]
        assert scene.storage.gaps == sorted(scene.storage.gaps)
        assert scene.storage.gaps[2] > 2 * scene.storage.gaps[0] or scene.storage.gaps[0] > 0.08
        assert scene.link.counts().throttles == 3

    def test_gaps_differ_between_clients(self) -> None:
        """Clients that were refused together do not come back together, without anybody seeding them."""
        first, second = Scene([busy(), GOOD], rng=None), Scene([busy(), GOOD], rng=None)

        first.read()
        second.read()

        assert first.storage.gaps != second.storage.gaps

    def test_users_seed_does_not_make_clients_alike(self) -> None:
        """Ranks that seed Python's generator alike still differ."""
        import random

        state, gaps = random.getstate(), list[list[float]]()
        for _ in range(2):
            random.seed(0)
            scene = Scene([busy(), GOOD], rng=None)
            scene.read()
            gaps.append(scene.storage.gaps)
        random.setstate(state)

        assert gaps[0] != gaps[1]

    @pytest.mark.parametrize("retry_after", [1.0, 7.5])
    def test_retry_after_is_kept(self, retry_after: float) -> None:
        """The next request comes no sooner than the server said, and not much later."""
        scene = Scene([busy(retry_after), GOOD])

        assert scene.read() == CONTENT[5 : 5 + SIZE]
        assert retry_after <= scene.storage.gaps[0] <= retry_after + 0.2

    def test_all_readers_rest_when_the_server_throttles(self) -> None:
        """After many refusals not even a new read is sent at once; they come back one after the other."""
        storage = Scripted([busy(retry_after=2.0)] * 20 + [GOOD])

        async def main() -> None:
            link = Link(clock=asyncio.get_running_loop().time)
            retrying = Retrying(storage, link)
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(retrying.read_into, "x", 0, memoryview(bytearray(10)))
                await anyio.sleep(0.5)
                await retrying.read_into("x", 0, memoryview(bytearray(10)))

        run(main())

        later = [asked.at - storage.asked[0].at for asked in storage.asked[20:]]
        assert min(later) >= 2.0
        assert len(set(later)) == len(later) == 21


class TestOutage:
    def test_server_that_restarts_costs_a_pause(self) -> None:
        """Ten seconds without a server do not use up attempts, once it has answered before."""
        scene = Scene([Step(error=fault("reset", errno=104)), *[refused()] * 8, GOOD], attempts=3)

        assert scene.read(after=lambda link: link.answered(1)) == CONTENT[5 : 5 + SIZE]
        assert max(scene.storage.gaps) <= 2.0

    @pytest.mark.parametrize("facts", [{}, {"status": 502}])
    def test_whoever_says_that_nobody_is_there_is_believed(self, facts: dict[str, Any]) -> None:
        """A connection that timed out, or a gateway in front of a server that restarts, uses up none."""
        gone = Step(error=fault("nobody there", unreachable=True, **facts))
        scene = Scene([*[gone] * 8, GOOD], attempts=3)

        assert scene.read(after=lambda link: link.answered(1)) == CONTENT[5 : 5 + SIZE]

    def test_gateway_without_a_server_is_no_answer(self) -> None:
        """An address at which there never was one is said soon."""
        scene = Scene([Step(error=fault("bad gateway", unreachable=True, status=502))], attempts=3)

        with pytest.raises(errors.StorageError, match="gave up on x after 3 attempts"):
            scene.read()

    def test_server_that_stays_away_is_an_error_at_the_deadline(self) -> None:
        """Not before, and not much later."""
        scene = Scene([refused()], attempts=3, deadline=30.0)

        with pytest.raises(errors.StorageError, match="connection refused") as caught:
            scene.read(after=lambda link: link.answered(1))

        assert 27 < scene.seconds <= 30
        assert caught.value.attempts == len(scene.ranges)

    def test_wrong_address_is_said_soon(self) -> None:
        """Where nobody has ever answered, the attempts are those that were allowed."""
        scene = Scene([refused()], attempts=3)

        with pytest.raises(errors.StorageError, match="gave up on x after 3 attempts"):
            scene.read()

        assert scene.seconds < 1

    def test_silence_of_a_server_that_is_there_uses_up_attempts(self) -> None:
        """A body that stalls each time ends after the attempts, soon after their timeouts."""
        stall = Step(seconds=1, filled=500, error=fault("silent for 1 s", status=206, filled=500))
        scene = Scene([stall], attempts=3)

        with pytest.raises(errors.StorageError, match="silent"):
            scene.read(after=lambda link: link.answered(1))

        assert scene.seconds <= 3 * (1 + 0.1) + 2
        assert [start for start, _ in scene.ranges] == [5, 505, 1005]


class TestOtherCalls:
    @pytest.mark.parametrize("call", ["size", "get", "version"])
    def test_they_are_tried_again_too(self, call: str) -> None:
        """Opening a set survives what reading it does."""
        scene = Scene([busy(), Step(error=TimeoutError()), GOOD])

        answer = scene.do(lambda storage: getattr(storage, call)("x"))

        assert answer == {"size": len(CONTENT), "get": CONTENT, "version": "tag"}[call]
        assert len(scene.ranges) == 3

    @pytest.mark.parametrize("call", ["size", "get", "version"])
    def test_missing_file_is_asked_for_once(self, call: str) -> None:
        """No call tries again what is not there."""
        scene = Scene([missing()])

        with pytest.raises(errors.NotFoundError):
            scene.do(lambda storage: getattr(storage, call)("x"))

        assert len(scene.ranges) == 1

    def test_storage_of_two_methods_is_enough(self) -> None:
        """What it does not have is made of what it has, or not known."""

        class Small:
            async def size(self, name: str) -> int:
                return 5

            async def read_into(self, name: str, start: int, out: memoryview) -> None:
                out[:] = CONTENT[start : start + len(out)]

        async def main(storage: Storage) -> tuple[bytes, str | None]:
            retrying = Retrying(storage, Link())
            answers = await retrying.get("x"), await retrying.version("x")
            await retrying.aclose()
            return answers

        assert run(main(Small())) == (CONTENT[:5], None)

    def test_closing_closes_what_is_inside(self) -> None:
        """Wrappers hold nothing open themselves."""
        scene = Scene([GOOD])

        scene.do(lambda storage: storage.aclose())

        assert scene.storage.is_closed


class TestCancelling:
    @pytest.mark.parametrize(
        ("steps", "patience"),
        [
            ([Step(seconds=9, lingers=1)], 0.5),
            ([Step(error=fault()), GOOD], 0.0101),
            ([busy(5.0), GOOD], 3.0),
        ],
    )
    def test_every_wait_ends(self, steps: list[Step], patience: float) -> None:
        """In an attempt or between two, a cancelled read ends, and no further attempt begins."""
        scene = Scene(steps)

        scene.read(patience=patience)

        assert len(scene.ranges) == 1
        assert scene.seconds == pytest.approx(patience + steps[0].lingers)

    def test_cancellation_of_a_task_is_passed_on(self) -> None:
        """Plain asyncio's own is no failure either."""
        storage = Scripted([Step(seconds=9)])

        async def main() -> bool:
            reading = asyncio.create_task(
                Retrying(storage, Link()).read_into("x", 0, memoryview(bytearray(5)))
            )
            await anyio.sleep(0.5)
            reading.cancel()
            await asyncio.wait([reading])
            return reading.cancelled()

        assert run(main())
        assert len(storage.asked) == 1
