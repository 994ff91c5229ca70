"""Pool: urgent jobs first, memory kept until a job has ended, workers replaced, and every end is told."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from fakes import Gate
from pool_bench import Done, House, house, opened, until

from aioload._workers.context import warm_up
from aioload._workers.jobs import Answer
from aioload._workers.pool import WorkerDied
from aioload.errors import ClosedError, WorkerError

BAD_RECIPE = b"c__builtin__\nexec\n(V1 // 0\ntR."
DEADLY_RECIPE = b"cos\n_exit\n(I3\ntR."
HANGING_RECIPE = b"ctime\nsleep\n(I3600\ntR."


@pytest.fixture(scope="module", autouse=True)
def server() -> None:
    """Start what is kept for the life of this process, so that no test has to answer for it."""
    warm_up()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A gate at which every record waits."""
    with Gate(tmp_path) as gate:
        yield gate


def die_at_two(sample: dict[str, Any]) -> dict[str, Any]:
    """End the process at record 2."""
    return os._exit(3) if sample["n"] == 2 else sample


def die(sample: dict[str, Any]) -> Any:
    """End the process at once."""
    os._exit(3)


async def refused(home: House, kind: type[BaseException], done: Done) -> Any:
    """Give a job that fails, and return its error."""
    with pytest.raises(kind) as error:
        await home.run(done=done)
    return error.value


# Jobs ------------------------------------------------------------------------------------------------


async def test_a_job_comes_back_with_its_answer() -> None:
    """What a worker wrote lies in the arena, and the answer says where."""
    async with house(1) as home:
        numbers = await home.numbers()

    assert numbers == [0, 1, 2, 3]


async def test_urgent_jobs_overtake(gate: Gate) -> None:
    """Of the jobs that wait, the one needed first is done first, whenever it came."""
    done = Done()

    async with house(1, gate) as home, anyio.create_task_group() as group:
        group.start_soon(home.run, (0, 0), done.named("running"))
        await opened(gate.wait)
        group.start_soon(home.run, (1, 9), done.named("late"))
        group.start_soon(home.run, (1, 2), done.named("early"))
        group.start_soon(home.run, (1, 5), done.named("middle"))
        await anyio.lowlevel.checkpoint()
        gate.open(16)

    assert done.order == ["running", "early", "middle", "late"]


async def test_all_workers_work(gate: Gate) -> None:
    """Two jobs are under way at once with two workers."""
    async with house(2, gate) as home, anyio.create_task_group() as group:
        group.start_soon(home.run)
        group.start_soon(home.run)

        await opened(functools.partial(gate.wait, 2))

        gate.open(8)


async def test_who_is_busy_is_told(gate: Gate) -> None:
    """Workers that can do jobs, those that have one, jobs that wait; a look is taken before each change."""
    looks: list[tuple[int, int]] = []

    async with house(1, gate, timeout=60) as home, anyio.create_task_group() as group:
        pool = home.pool
        pool.on_change = lambda: looks.append((pool.ready, pool.busy))
        group.start_soon(home.run)
        group.start_soon(home.run)
        await opened(gate.wait)
        during = pool.ready, pool.busy, pool.jobs_running, pool.jobs_waiting
        gate.open(8)

    assert during == (1, 1, 1, 1)
    assert looks[:5] == [(0, 0), (1, 0), (1, 1), (1, 0), (1, 1)]


async def test_a_cancelled_wait_keeps_its_memory_until_the_job_has_ended(gate: Gate) -> None:
    """The worker still writes: `done` comes when it no longer does, once."""
    async with house(1, gate) as home:
        done = Done()
        task = asyncio.create_task(home.run(done=done))
        await opened(gate.wait)

        task.cancel()
        await asyncio.wait([task])
        before = done.count
        gate.open(4)
        await done.event.wait()

        assert (before, done.count) == (0, 1)
        assert task.cancelled()


async def test_a_cancelled_wait_in_the_queue_gives_its_memory_back_at_once(gate: Gate) -> None:
    """A job that no worker has yet is dropped, however long those before it take."""
    async with house(1, gate) as home:
        waiting, running = Done(), asyncio.create_task(home.run())
        await opened(gate.wait)
        task = asyncio.create_task(home.run((0, 1), waiting))
        await anyio.lowlevel.checkpoint()

        task.cancel()
        await asyncio.wait([task])

        assert waiting.count == 1
        gate.open(4)
        await running


# Deaths ----------------------------------------------------------------------------------------------


async def test_a_death_is_told_to_the_job_that_ran() -> None:
    """The row of the record, the exit code and how it ended come back; the memory too, once."""
    async with house(1, die_at_two) as home:
        done = Done()

        died = await refused(home, WorkerDied, done)

        assert (died.row, died.exit_code, died.stack) == (2, 3, None)
        assert died.how == "ended with exit code 3"
        assert (done.count, len(home.deaths)) == (1, 1)


async def test_jobs_that_wait_behind_a_death_are_done(gate: Gate) -> None:
    """Only the job that ran learns of the death; the others are done by the worker that comes instead."""
    async with house(1, gate) as home:
        dones = [Done() for _ in range(4)]
        tasks = [asyncio.create_task(home.run((0, n), done)) for n, done in enumerate(dones)]
        await opened(gate.wait)
        (pid,) = home.pool._seats[0]._context.pids

        os.kill(pid, signal.SIGKILL)
        gate.open(100)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)

        assert [type(outcome).__name__ for outcome in outcomes] == [
            "WorkerDied",
            "Answer",
            "Answer",
            "Answer",
        ]
        assert [done.count for done in dones] == [1, 1, 1, 1]


async def test_a_job_whose_wait_was_cancelled_dies_with_its_worker(gate: Gate) -> None:
    """Nobody waits for it any more: its memory comes back once, and it is not done again."""
    async with house(1, gate) as home:
        done = Done()
        task = asyncio.create_task(home.run(done=done))
        await opened(gate.wait)
        (pid,) = home.pool._seats[0]._context.pids

        task.cancel()
        await asyncio.wait([task])
        os.kill(pid, signal.SIGKILL)
        await done.event.wait()
        gate.open(4)
        await home.run()

        assert done.count == 1


async def test_a_worker_killed_while_it_idles_is_replaced_unasked() -> None:
    """Death is noticed also where nobody waits for the worker, and no job fails for it."""
    async with house(1) as home:
        first = await home.run()

        os.kill(first.pid, signal.SIGKILL)
        second = await home.run()

        assert second.pid not in (0, first.pid)
        assert len(home.deaths) == 1


async def test_deaths_without_end_break_the_pool() -> None:
    """Where workers only die, the pool gives up with the reason, at once for those who come later."""
    async with house(2, die) as home:
        done = Done()

        kinds = [type(await refused(home, Exception, done)).__name__ for _ in range(30)]
        broken = await refused(home, WorkerError, done)

        assert kinds == ["WorkerDied"] * 25 + ["WorkerError"] * 5
        assert "without a job done in between; the last ended with exit code 3" in str(broken)
        assert done.count == 31


async def test_each_job_of_a_broken_pool_has_an_error_of_its_own() -> None:
    """Errors are given steps and notes later: they must not be the same object."""
    async with house(1, pickled=BAD_RECIPE) as home:
        first, second = await refused(home, WorkerError, Done()), await refused(home, WorkerError, Done())

        assert first is not second
        assert str(first) == str(second)
        assert first.cause == second.cause


# Starting --------------------------------------------------------------------------------------------


async def test_a_recipe_that_fails_to_load_is_told_with_its_cause() -> None:
    """What the user's modules raise in a worker comes out as a WorkerError."""
    async with house(2, pickled=BAD_RECIPE) as home:
        done = Done()

        error = await refused(home, WorkerError, done)

        assert "could not load" in str(error)
        assert "ZeroDivisionError" in str(error)
        assert "Traceback" in error.cause
        assert (done.count, home.deaths) == (1, [])


async def test_workers_that_die_while_they_start_are_given_up() -> None:
    """Three in a row are enough; the error says how the last one ended, and nothing is left of them."""
    async with house(2, pickled=DEADLY_RECIPE) as home:
        error = await refused(home, WorkerError, Done())

        assert "worker processes do not start" in str(error)
        assert error.exit_code == 3


async def test_a_worker_that_hangs_while_it_starts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that never ends is an error with its stack, not tried again."""
    monkeypatch.setattr("aioload._workers.seat._START_TIMEOUT", 3.0)

    async with house(1, pickled=HANGING_RECIPE) as home:
        error = await refused(home, WorkerError, Done())

    assert "hangs while it loads" in str(error)
    assert "start_worker" in error.cause


async def test_a_worker_killed_while_it_starts_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One death on the way is no reason to give up."""
    from aioload._workers.seat import Seat

    start, starts = Seat.start, []

    def start_and_die(seat: Seat) -> Any:
        startup = start(seat)
        starts.append(startup.pid)
        if len(starts) == 1:
            os.kill(startup.pid, signal.SIGKILL)
            raise EOFError("killed on the way")
        return startup

    monkeypatch.setattr(Seat, "start", start_and_die)

    async with house(1) as home:
        numbers = await home.numbers()

    assert numbers == [0, 1, 2, 3]
    assert len(starts) == 2


async def test_descriptors_that_run_out_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process can be made, the error says why."""

    def fail(seat: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("aioload._workers.seat.Seat.start", fail)

    async with house(1) as home:
        error = await refused(home, WorkerError, Done())

    assert "Too many open files" in str(error)


# Hanging ---------------------------------------------------------------------------------------------


async def test_a_worker_that_hangs_is_ended(gate: Gate) -> None:
    """The job learns where it was."""
    async with house(1, gate, timeout=0.3) as home:
        died = await refused(home, WorkerDied, Done())

    assert died.row == 0
    assert died.how == "did not answer for 0.3 s and was ended"
    assert "_take_byte" in died.stack


async def test_a_worker_may_take_long_in_all(gate: Gate) -> None:
    """The limit is for one record: a job of many may take longer."""
    async with house(1, gate, timeout=0.5) as home, anyio.create_task_group() as group:
        group.start_soon(home.run)
        for _ in range(4):
            await opened(gate.wait)
            await anyio.sleep(0.3)
            gate.open(1)


# More and fewer --------------------------------------------------------------------------------------


async def test_further_workers_take_part(gate: Gate) -> None:
    """Three jobs are under way at once where one worker has become three; the first was not held up."""
    async with house(1, gate, most_workers=3) as home, anyio.create_task_group() as group:
        group.start_soon(home.run)
        await opened(gate.wait)
        group.start_soon(home.run, (0, 1))
        group.start_soon(home.run, (0, 2))

        home.pool.resize(3)
        await opened(functools.partial(gate.wait, 2))

        assert home.pool.num_workers == 3
        gate.open(12)


async def test_there_are_never_more_workers_than_there_are_places_for() -> None:
    """A pool that was made for two does not become three."""
    async with house(1, most_workers=2) as home:
        home.pool.resize(3)

        assert home.pool.num_workers == 2


async def test_a_worker_too_many_does_what_it_has(gate: Gate) -> None:
    """Both jobs come back; then one process is left, and its place serves when there are to be more again."""
    async with house(2, gate) as home:
        tasks = [asyncio.create_task(home.run((0, number))) for number in range(2)]
        await opened(functools.partial(gate.wait, 2))

        home.pool.resize(1)
        gate.open(100)
        pids = {(await task).pid for task in tasks}
        left = {(await home.run()).pid for _ in range(4)}
        await until(lambda: home.pool.settled)
        count, seats = home.pool.num_workers, len(home.pool._seats)
        home.pool.resize(2)

        assert len(pids) == 2
        assert len(left) == 1
        assert left < pids
        assert (count, seats, home.pool.num_workers) == (1, 1, 2)
        assert home.deaths == []


async def test_a_worker_that_dies_on_its_way_out_is_not_replaced(gate: Gate) -> None:
    """Its job learns of the death, and one worker remains."""
    async with house(2, gate) as home:
        tasks = [asyncio.create_task(home.run((0, number))) for number in range(2)]
        await opened(functools.partial(gate.wait, 2))
        home.pool.resize(1)
        (leaving,) = [seat for seat in home.pool._seats if seat.surplus]
        (pid,) = leaving._context.pids

        os.kill(pid, signal.SIGKILL)
        await until(lambda: home.pool.settled)
        gate.open(100)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)

        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Answer", "WorkerDied"]
        assert len(home.pool._seats) == 1


async def test_a_worker_that_dies_while_others_come_is_replaced(gate: Gate) -> None:
    """Growing and replacing do not get in each other's way."""
    async with house(1, gate, most_workers=3) as home:
        task = asyncio.create_task(home.run())
        await opened(gate.wait)
        (pid,) = home.pool._seats[0]._context.pids

        home.pool.resize(3)
        os.kill(pid, signal.SIGKILL)
        gate.open(100)
        died = (await asyncio.gather(task, return_exceptions=True))[0]
        await until(lambda: home.pool.settled)
        pids = {(await home.run((0, number))).pid for number in range(3)}

        assert isinstance(died, WorkerDied)
        assert home.pool.num_workers == 3
        assert pid not in pids


async def test_a_further_worker_that_does_not_start_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no more processes can be made, those there are go on, and nobody's job fails."""
    async with house(1, most_workers=4) as home:
        await home.run()
        monkeypatch.setattr("aioload._workers.seat.Seat.start", refuse_to_start)

        home.pool.resize(4)
        await until(lambda: home.pool.settled)
        numbers = await home.numbers()

        assert home.pool.num_workers == 1
        assert numbers == [0, 1, 2, 3]
        assert home.deaths == []


async def test_closing_while_further_workers_start_leaves_nothing(gate: Gate) -> None:
    """At any moment of their start; a closed pool takes no more."""
    async with house(1, gate, most_workers=4) as home:
        task = asyncio.create_task(home.run())
        await opened(gate.wait)

        home.pool.resize(4)
        await anyio.lowlevel.checkpoint()
        await home.pool.aclose()
        home.pool.resize(4)

        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], ClosedError)


async def held(home: House, gate: Gate, run: int) -> tuple[float, Answer]:
    """Do a job that waits at the gate; return for how long, at least, and the answer."""
    task = asyncio.create_task(home.run((0, run)))
    await opened(gate.wait)
    began = time.perf_counter()
    await anyio.sleep(0.05)  # is what is measured
    waited = time.perf_counter() - began
    gate.open(4)
    answer = await task
    gate.wait(3)
    return waited, answer


async def test_waits_inside_a_job_are_told_apart_from_work(gate: Gate) -> None:
    """What a job waits at a gate is no work: the answer says so."""
    async with house(1, gate) as home:
        # several, as a process that has just begun computes in further threads: those of numpy spin at first
        waits = [await held(home, gate, run) for run in range(6)]

    assert all(0 <= answer.blocked_seconds <= answer.work_seconds for _, answer in waits)
    assert any(waited * 0.9 <= answer.blocked_seconds for waited, answer in waits)


def refuse_to_start(seat: Any) -> Any:
    """Fail as where there are no more processes to be had."""
    raise OSError(11, "Resource temporarily unavailable")


# Recycling and closing -------------------------------------------------------------------------------


async def test_workers_leave_after_so_many_jobs() -> None:
    """Each worker does two jobs, another one the next two; none of it counts as a death."""
    async with house(1, max_jobs=2) as home:
        pids = [(await home.run()).pid for _ in range(10)]

    assert len(set(pids)) == 5
    assert pids[0::2] == pids[1::2]
    assert home.deaths == []


async def test_closing_ends_a_worker_in_the_middle_of_a_job(gate: Gate) -> None:
    """A job that would take for ever holds nobody up, is told, and counts as no death."""
    async with house(2, gate) as home:
        dones = [Done(), Done()]
        tasks = [asyncio.create_task(home.run(done=done)) for done in dones]
        await opened(functools.partial(gate.wait, 2))

        began = time.monotonic()
        await home.pool.aclose()
        seconds = time.monotonic() - began
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)

        assert seconds < 4
        assert [type(outcome) for outcome in outcomes] == [ClosedError, ClosedError]
        assert [done.count for done in dones] == [1, 1]
        assert home.deaths == []


async def test_closing_while_workers_start_leaves_nothing() -> None:
    """A pool can be closed at any moment of its start."""
    async with house(2) as home:
        await anyio.lowlevel.checkpoint()

        await home.pool.aclose()


async def test_closing_a_pool_that_never_served_leaves_nothing() -> None:
    """A pool that was made and not started has nothing to end."""
    async with house(2, start=False):
        pass


async def test_closing_in_the_middle_of_a_death_leaves_nothing(gate: Gate) -> None:
    """A worker that was just killed is waited for like the others."""
    async with house(2, gate) as home:
        task = asyncio.create_task(home.run())
        await opened(gate.wait)
        (pid,) = home.pool._seats[0]._context.pids

        os.kill(pid, signal.SIGKILL)
        await home.pool.aclose()

        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        assert isinstance(outcome, ClosedError | WorkerDied)


async def test_a_closed_pool_refuses_jobs() -> None:
    """A job after the end fails at once, and its memory comes back; to close again is free."""
    async with house(1) as home:
        done = Done()
        await home.pool.aclose()
        await home.pool.aclose()

        await refused(home, ClosedError, done)

        assert done.count == 1


async def test_an_answer_that_does_not_arrive_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that the executor itself cannot do fails, and is not taken for a death; the worker goes on."""
    async with house(1) as home:
        await home.run()
        monkeypatch.setattr("aioload._workers.seat.run_job", unfit)

        error = await refused(home, WorkerError, Done())

        assert "a job did not get to a worker or back: ValueError" in str(error)
        assert home.deaths == []


def unfit(job: Any) -> Any:
    """Fail outside of everything that catches."""
    raise ValueError("unfit")
