"""Large reads in parts, all reads within what should be in flight."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import CONTENT, Scripted, Step, cut, fault, missing
from virtual import run

from aioload import errors
from aioload.storage import MemoryStorage
from aioload.storage.flow import Flowing, Splitting, parts
from aioload.storage.link import Link

KIB = 1 << 10


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_parts_are_all_of_it(size: int, most: int) -> None:
    """They follow each other, are as few as do, and all of about one length."""
    cut_up = list(parts(size, most))

    lengths = [stop - start for start, stop in cut_up]
    assert [start for start, _ in cut_up[1:]] == [stop for _, stop in cut_up[:-1]]
    assert (cut_up[0][0], cut_up[-1][1]) == (0, size)
    assert max(lengths) <= most
    assert max(lengths) - min(lengths) <= 1
    assert len(cut_up) == -(-size // most)


class TestSplitting:
    @given(st.integers(0, len(CONTENT)), st.integers(0, len(CONTENT)), st.integers(20_000, 1 << 20))
    def test_parts_come_together_again(self, start: int, size: int, most: int) -> None:
        """Whatever is read, and however it is cut, the bytes are the file's."""
        stop = min(start + size, len(CONTENT))
        memory = bytearray(stop - start)
        storage = Splitting(MemoryStorage({"x": CONTENT}), most)

        run(storage.read_into("x", start, memoryview(memory)))

        assert memory == CONTENT[start:stop]

    def test_parts_are_read_side_by_side(self) -> None:
        """Four parts take as long as one."""
        storage, memory = Scripted([Step(seconds=1)]), bytearray(len(CONTENT))

        seconds = run(_timed(Splitting(storage, 256 * KIB).read_into("x", 0, memoryview(memory))))

        assert memory == CONTENT
        assert [asked.stop - asked.start for asked in storage.asked] == [256 * KIB] * 4
        assert seconds == pytest.approx(1)

    def test_few_parts_of_one_read_are_under_way(self) -> None:
        """A huge read leaves room for its neighbours."""
        storage, memory = Scripted([Step(seconds=1)]), bytearray(len(CONTENT))

        seconds = run(_timed(Splitting(storage, 16 * KIB).read_into("x", 0, memoryview(memory))))

        assert memory == CONTENT
        assert seconds == pytest.approx(4)

    def test_failed_part_ends_the_read_with_its_own_error(self) -> None:
        """It comes bare, the other parts are cancelled, and `filled` is what came from the start on."""
        late = Step(seconds=9)
        failing = Step(seconds=1, filled=1000, error=fault("cut short", filled=1000))
        storage = Scripted([Step(seconds=0.5), failing, late, Step(seconds=0.1)])
        memory = bytearray(len(CONTENT))

        with pytest.raises(errors.StorageError, match="cut short") as caught:
            run(Splitting(storage, 256 * KIB).read_into("x", 0, memoryview(memory)))

        assert caught.value.filled == 256 * KIB + 1000
        assert memory[: caught.value.filled] == CONTENT[: caught.value.filled]
        assert storage.asked[2].ended == pytest.approx(storage.asked[2].at + 1)

    def test_cancelled_read_cancels_its_parts(self) -> None:
        """When it has returned, no part writes any more."""
        storage, memory = Scripted([Step(seconds=9, lingers=2)]), bytearray(len(CONTENT))

        async def main() -> None:
            with anyio.move_on_after(1):
                await Splitting(storage, 256 * KIB).read_into("x", 0, memoryview(memory))
            assert [asked.ended for asked in storage.asked] == [anyio.current_time()] * 4

        run(main())

    def test_error_keeps_nothing_of_the_callers_memory(self) -> None:
        """Once the error is gone, so is every view, without a garbage collection."""
        memory = bytearray(len(CONTENT))
        storage = Splitting(Scripted([cut(0)]), 256 * KIB)

        async def main() -> None:
            with suppress(errors.StorageError):
                await storage.read_into("x", 0, memoryview(memory))
            memory.append(0)  # would be a BufferError while a view exists

        run(main())

        assert len(memory) == len(CONTENT) + 1


class TestFlowing:
    def test_reads_wait_for_room(self) -> None:
        """With room for one, two reads take turns."""
        storage = Scripted([Step(seconds=1)])

        async def main() -> None:
            flowing = Flowing(storage, Link(max_in_flight=512 * KIB))
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(flowing.read_into, "x", 0, memoryview(bytearray(400 * KIB)))

        seconds = run(_timed(main()))

        assert seconds == pytest.approx(3)

    def test_small_things_do_not_wait(self) -> None:
        """Opening a set is not held up by reads."""
        storage, answers = Scripted([Step(seconds=1)]), list[object]()

        async def main() -> None:
            flowing = Flowing(storage, Link(max_in_flight=1))
            async with anyio.create_task_group() as group:
                group.start_soon(flowing.read_into, "x", 0, memoryview(bytearray(KIB)))
                answers.append(await flowing.size("x"))
                answers.append(len(await flowing.get("x")))

        run(main())

        assert answers == [len(CONTENT)] * 2

    @pytest.mark.parametrize("steps", [[cut(5)], [missing()], [Step(seconds=99)]])
    def test_failed_and_cancelled_reads_give_their_room_back(self, steps: list[Step]) -> None:
        """Nothing stays in flight, and each request was counted."""

        async def main() -> Link:
            link = Link(max_in_flight=1, clock=asyncio.get_running_loop().time)
            flowing = Flowing(Scripted(steps), link)
            for _ in range(3):
                with anyio.move_on_after(1):
                    try:
                        await flowing.read_into("x", 0, memoryview(bytearray(10)))
                    except errors.StorageError:
                        continue
            return link

        link = run(main())

        assert link.gate.used == 0
        assert link.counts().requests == 3

    def test_says_how_many_reads_make_sense(self) -> None:
        """A loader does not begin more than can ever be in flight."""
        assert Flowing(MemoryStorage({}), Link()).max_reads == 256
        assert Flowing(MemoryStorage({}), Link(max_in_flight=1 << 20)).max_reads == 2


async def _timed(awaitable: object) -> float:
    began = anyio.current_time()
    await awaitable  # type: ignore[misc]  # any awaitable
    return anyio.current_time() - began
