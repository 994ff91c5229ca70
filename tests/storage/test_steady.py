"""A storage of one attempt, made to last: the contract, and a bad day on the network."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
import trio
from contract import FILES, StorageContract
from hypothesis import given, settings
from hypothesis import strategies as st
from remote import BAD_DAY, Faults, Remote
from scripted import CONTENT, Scripted, Step, cut, fault
from virtual import run

from aioload import errors
from aioload.storage import MemoryStorage
from aioload.storage.link import Link, NetworkCounts
from aioload.storage.steady import steady

KIB = 1 << 10
SEEDS = st.integers(0, 1 << 32)


class TestSteadyStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> Any:
        return steady(MemoryStorage(FILES), Link())


class TestSteadyStorageWithLittleRoom(StorageContract):
    @pytest.fixture
    def storage(self) -> Any:
        return steady(MemoryStorage(FILES), Link(max_in_flight=100 * KIB), attempts=1)


@dataclass(frozen=True, slots=True)
class Epoch:
    """What reading everything once came to."""

    is_right: bool
    seconds: float
    """Until all but one in a hundred reads had come: the rate, without the wait for the very last."""
    slow: float
    """What one read in a thousand takes longer than."""
    requests: float
    """For each read."""
    most_at_once: int
    counts: NetworkCounts


def epoch(
    faults: Faults = BAD_DAY,
    *,
    seed: int = 0,
    reads: int = 2000,
    hedge: bool = True,
    most_at_once: int | None = None,
) -> Epoch:
    """Read pieces of 16 KiB, 64 at a time, from a server with 50 ms to the first byte."""

    async def main() -> Epoch:
        remote = Remote({"x": CONTENT}, seed=seed, faults=faults, most_at_once=most_at_once)
        link = Link(clock=asyncio.get_running_loop().time)
        storage = steady(remote, link, hedge=hedge)
        todo, right = iter(range(reads)), list[bool]()
        times, ends = list[float](), list[float]()

        async def read_some() -> None:
            for number in todo:
                memory, start = bytearray(16 * KIB), number % 60 * 17_001
                began = anyio.current_time()
                await storage.read_into("x", start, memoryview(memory))
                ends.append(anyio.current_time())
                times.append(ends[-1] - began)
                right.append(memory == CONTENT[start : start + 16 * KIB])

        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            for _ in range(64):
                group.start_soon(read_some)
        return Epoch(
            is_right=all(right) and len(right) == reads,
            seconds=ends[reads * 99 // 100] - began,
            slow=sorted(times)[reads * 999 // 1000],
            requests=len(remote.requests) / reads,
            most_at_once=remote.most_at_once,
            counts=link.counts(),
        )

    return run(main())


class TestBadDay:
    @settings(max_examples=5)
    @given(SEEDS)
    def test_no_retry_storm(self, seed: int) -> None:
        """The bytes are right, and at most 1.15 requests are sent for each read."""
        bad = epoch(seed=seed)

        assert bad.is_right
        assert bad.requests <= 1.15
        assert bad.counts.requests == pytest.approx(2000 * bad.requests)
        assert bad.counts.hedges <= 0.05 * 2000 * 1.1
        assert bad.counts.bytes == 2000 * 16 * KIB

    def test_throughput_stays_and_hedging_is_why(self) -> None:
        """A bad day costs less than a fifth; without hedges the tail is several times as long."""
        clean, bad = epoch(Faults(), reads=8000), epoch(reads=8000)
        unhedged = epoch(reads=8000, hedge=False)

        assert clean.seconds >= 0.8 * bad.seconds
        assert bad.slow < 1
        assert unhedged.slow > 5
        assert unhedged.counts.hedges == 0

    def test_clean_day_costs_nothing(self) -> None:
        """Without faults there is one request for each read."""
        clean = epoch(Faults())

        assert clean.requests == 1.0
        assert clean.counts == NetworkCounts(requests=2000, bytes=2000 * 16 * KIB)

    @pytest.mark.parametrize("allowed", [6, 20])
    def test_server_that_refuses_many_at_once_gets_fewer(self, allowed: int) -> None:
        """Where more than some requests at once are refused, no read fails, and the refusals end."""
        throttled = epoch(Faults(), most_at_once=allowed, reads=2000)

        assert throttled.is_right
        assert throttled.requests < 1.2

    def test_outage_is_waited_for(self) -> None:
        """A server that is gone for ten seconds costs ten seconds and a little."""

        async def main() -> float:
            remote, memory = Remote({"x": CONTENT}), bytearray(KIB)
            storage = steady(remote, Link(clock=asyncio.get_running_loop().time))
            await storage.read_into("x", 0, memoryview(memory))
            began, remote.is_down = anyio.current_time(), True
            async with anyio.create_task_group() as group:
                for _ in range(64):
                    group.start_soon(storage.read_into, "x", 0, memoryview(bytearray(KIB)))
                await anyio.sleep(10)
                remote.is_down = False
            return anyio.current_time() - began

        assert 10 <= run(main()) <= 12.5

    def test_end_of_a_server_is_an_error_at_the_deadline(self) -> None:
        """A server that is gone for good fails all reads in time, and nothing stays in flight."""
        link = Link()

        async def main() -> float:
            remote = Remote({"x": CONTENT})
            storage = steady(remote, link, deadline=30.0, where="http://host/set")
            await storage.read_into("x", 0, memoryview(bytearray(KIB)))
            began, remote.is_down = anyio.current_time(), True
            async with anyio.create_task_group() as group:
                for _ in range(64):
                    group.start_soon(fails, storage.read_into("x", 0, memoryview(bytearray(KIB))))
            return anyio.current_time() - began

        async def fails(reading: Any) -> None:
            with pytest.raises(errors.StorageError, match="gave up on http://host/set/x"):
                await reading

        assert run(main()) <= 30
        assert link.gate.used == 0


class TestCancelling:
    @settings(max_examples=30)
    @given(SEEDS, st.floats(0.0, 3.0), st.integers(1, 3 << 20))
    def test_cancelled_reads_leave_nothing(self, seed: int, patience: float, max_in_flight: int) -> None:
        """Whenever it comes: nobody reads or writes afterwards, and all room is given back."""
        faults = Faults(status503=0.1, reset=0.1, cut=0.1, stall=0.1, slow=0.1)
        memory = bytearray(len(CONTENT))

        async def main() -> tuple[Link, Remote]:
            remote = Remote({"x": CONTENT}, seed=seed, faults=faults, bandwidth=1e6)
            link = Link(max_in_flight=max_in_flight, clock=asyncio.get_running_loop().time)
            storage = steady(remote, link)
            with anyio.move_on_after(patience):
                async with anyio.create_task_group() as group:
                    for start in range(0, len(memory), 32 * KIB):
                        group.start_soon(
                            storage.read_into, "x", start, memoryview(memory)[start : start + 32 * KIB]
                        )
            left = remote.at_once
            memory[:] = bytes(len(memory))
            await anyio.sleep(100)
            assert left == 0
            return link, remote

        link, remote = run(main())

        assert (link.gate.used, link.gate.waiting, remote.at_once) == (0, 0, 0)
        assert not any(memory)


def test_read_that_ended_lets_the_memory_go() -> None:
    """Whether it worked, failed or ran into its deadline: no view is left, without a collection."""
    memory, results = bytearray(64 * KIB), list[str]()

    async def main() -> None:
        steps = [Step(), cut(9), Step(), Step(error=fault(final=True)), Step(seconds=1e5)]
        storage = steady(Scripted(steps), Link(max_in_flight=1 << 20), deadline=30.0)
        for _ in range(4):
            try:
                await storage.read_into("x", 0, memoryview(memory))
            except errors.StorageError as error:
                results.append(str(error))
            memory.append(0)  # would be a BufferError while a view exists

    run(main())

    assert len(memory) == 64 * KIB + 4
    assert ["deadline" in result for result in results] == [False, True]


def test_several_loops_share_one_link() -> None:
    """Reads from asyncio's and trio's loops in several threads, through one window, are all right."""
    link = Link(max_in_flight=1 << 20)
    storage, wrong, count = steady(MemoryStorage({"x": CONTENT}), link), list[int](), 100

    async def read(number: int) -> None:
        memory, start = bytearray(20_000), number * 5_003
        await storage.read_into("x", start, memoryview(memory))
        if memory != CONTENT[start : start + 20_000]:
            wrong.append(number)

    async def read_all() -> None:
        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(read, number)

    threads = [
        threading.Thread(target=loop_run, args=(read_all,))
        for loop_run in (anyio.run, trio.run, anyio.run, trio.run)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert link.gate.used == 0
    assert link.counts() == NetworkCounts(requests=4 * count, bytes=4 * count * 20_000)


@pytest.mark.parametrize("use_uvloop", [False, True])
def test_runs_on_asyncio_and_uvloop(use_uvloop: bool) -> None:
    """A split read with a limit, on either loop."""
    if use_uvloop:
        pytest.importorskip("uvloop")
    content = CONTENT * (1 + (2 << 20) // len(CONTENT))
    memory = bytearray(len(content))
    storage = steady(MemoryStorage({"x": content}), Link(max_in_flight=1 << 20))

    anyio.run(storage.read_into, "x", 0, memoryview(memory), backend_options={"use_uvloop": use_uvloop})

    assert memory == content


def test_no_room_at_all_makes_no_tiny_requests() -> None:
    """A read goes alone where even one is too much; cutting it up would only cost more."""
    memory = bytearray(len(CONTENT))
    link = Link(max_in_flight=1)

    anyio.run(steady(MemoryStorage({"x": CONTENT}), link).read_into, "x", 0, memoryview(memory))

    assert memory == CONTENT
    assert link.counts().requests <= 1 + len(CONTENT) // (512 * KIB)


def test_repr_shows_the_order() -> None:
    """From the outside in, and the state of the link."""
    link = Link(max_in_flight=1 << 20)

    assert (
        repr(steady(MemoryStorage({}), link))
        == "<Splitting around <Retrying around <Flowing around <Hedged around <MemoryStorage files=0>>>>>"
    )
    assert repr(link) == "<Link requests=0 in_flight=0 of 1048576 waiting=0>"
