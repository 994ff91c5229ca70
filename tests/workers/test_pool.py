"""Pool: urgent jobs first, memory kept until a job has ended, and every end is an error or a clean one."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
import cloudpickle
import numpy as np
import pytest
from conftest import png
from fakes import Gate
from worker_jobs import Bench, make_recipe

import aioload
from aioload._workers.arena import Arena, ArenaHandle
from aioload._workers.pool import WorkerPool
from aioload._workers.task import Answer, Recipe
from aioload.errors import ClosedError, WorkerError
from aioload.storage.threads import DaemonExecutor

FIELDS = {"label": "int"}
SAMPLES = [{"label": row} for row in range(4)]


class Done:
    """Counts how often a job was told to have ended, and lets a test wait for it."""

    def __init__(self) -> None:
        self.count = 0
        self.event = asyncio.Event()
        self.order: list[str] = []

    def __call__(self) -> None:
        self.count += 1
        self.event.set()

    def named(self, name: str) -> Callable[[], None]:
        """Return what notes a name when its job has ended."""
        return functools.partial(self.order.append, name)


class House:
    """A pool over a bench in an arena."""

    def __init__(self, pool: WorkerPool, bench: Bench) -> None:
        self.pool = pool
        self.bench = bench

    async def run(self, order: tuple[int, int] = (0, 0), done: Callable[[], None] = int) -> Answer:
        """Have the batch of all rows made."""
        return await self.pool.run(self.bench.whole(), order, done)


@asynccontextmanager
async def house(
    workers: int, recipe: Recipe | None = None, pickled: bytes | None = None, *, start: bool = True
) -> AsyncIterator[House]:
    """Open a pool, and close it whatever happens."""
    recipe = recipe or make_recipe(FIELDS)
    threads = DaemonExecutor(3 * workers, name="test-start")
    with Arena(1 << 20) as arena:
        bench = Bench(recipe, SAMPLES, size=1 << 20, array=arena.array)
        pool = WorkerPool(workers, ArenaHandle(arena), pickled or cloudpickle.dumps(recipe), threads)
        try:
            if start:
                await pool.start()
            yield House(pool, bench)
        finally:
            await pool.aclose()
            threads.shutdown()


async def opened(wait: Callable[[], None]) -> None:
    """Wait for a gate in a thread that ends with the wait."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: (wait(), loop.call_soon_threadsafe(event.set)))
    thread.start()
    await event.wait()
    thread.join()


@pytest.fixture
def gate(tmp_path: Path) -> Any:
    """A gate at which every record waits."""
    with Gate(tmp_path) as gate:
        yield gate


def first(sample: dict[str, Any]) -> Any:
    """Return the label alone."""
    return sample["label"]


async def test_a_job_comes_back_with_its_answer() -> None:
    """What a worker wrote lies in the arena, and the answer says where."""
    async with house(1) as home:
        done = Done()

        answer = await home.run(done=done)

        assert home.bench.read(answer.outcomes[0])["label"].tolist() == [0, 1, 2, 3]
        assert answer.pid not in (0, os.getpid())
        assert done.count == 1


async def test_jobs_given_before_the_start_are_done_after_it() -> None:
    """Nobody has to wait for processes to start before giving work."""
    async with house(1, start=False) as home, anyio.create_task_group() as group:
        group.start_soon(home.run)

        group.start_soon(home.pool.start)


async def test_urgent_jobs_overtake(gate: Gate) -> None:
    """Of the jobs that wait, the one needed first is done first, whenever it came."""
    async with house(1, make_recipe(FIELDS, transform=gate)) as home:
        done = Done()
        async with anyio.create_task_group() as group:
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
    async with house(2, make_recipe(FIELDS, transform=gate)) as home, anyio.create_task_group() as group:
        group.start_soon(home.run)
        group.start_soon(home.run)

        await opened(functools.partial(gate.wait, 2))

        gate.open(8)


async def test_a_cancelled_wait_keeps_its_memory_until_the_job_has_ended(gate: Gate) -> None:
    """The worker still writes: `done` comes when it no longer does, once."""
    async with house(1, make_recipe(FIELDS, transform=gate)) as home:
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
    async with house(1, make_recipe(FIELDS, transform=gate)) as home:
        waiting, running = Done(), asyncio.create_task(home.run())
        await opened(gate.wait)
        task = asyncio.create_task(home.run((0, 1), waiting))
        await anyio.lowlevel.checkpoint()

        task.cancel()
        await asyncio.wait([task])

        assert waiting.count == 1
        gate.open(4)
        await running


async def test_a_recipe_that_fails_to_load_is_told_with_its_cause() -> None:
    """What the user's modules raise in a worker comes out as a WorkerError."""
    bad = b"c__builtin__\nexec\n(V1 // 0\ntR."
    async with house(2, pickled=bad) as home:
        done = Done()

        with pytest.raises(WorkerError, match=r"could not load.*ZeroDivisionError") as caught:
            await home.run(done=done)

        assert "Traceback" in str(caught.value.cause)
        assert done.count == 1


async def test_jobs_that_wait_learn_that_the_recipe_fails() -> None:
    """A job given before the start fails like one given after it."""
    async with house(1, pickled=b"not a pickle", start=False) as home, anyio.create_task_group() as group:
        group.start_soon(home.pool.start)

        with pytest.raises(WorkerError, match="could not load"):
            await home.run()


async def test_a_killed_worker_is_an_error_for_its_job_and_those_that_wait() -> None:
    """A worker that dies takes no job with it in silence; memory comes back."""
    killing = make_recipe(FIELDS, transform=lambda sample: os.kill(os.getpid(), signal.SIGKILL))
    async with house(1, killing) as home:
        dones = [Done(), Done()]
        tasks = [asyncio.create_task(home.run((0, number), done)) for number, done in enumerate(dones)]

        outcomes = await asyncio.gather(*tasks, return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == [WorkerError, WorkerError]
        assert [done.count for done in dones] == [1, 1]


async def test_a_worker_killed_while_idle_is_an_error_for_the_next_job() -> None:
    """Death is noticed also where nobody waited for the worker."""
    async with house(1) as home:
        answer = await home.run()
        os.kill(answer.pid, signal.SIGKILL)

        with pytest.raises(WorkerError, match="died"):
            await home.run()


async def test_closing_ends_a_worker_in_the_middle_of_a_job(gate: Gate) -> None:
    """A job that would take for ever holds nobody up: closing takes well under five seconds."""
    async with house(2, make_recipe(FIELDS, transform=gate)) as home:
        dones = [Done(), Done()]
        tasks = [asyncio.create_task(home.run(done=done)) for done in dones]
        await opened(functools.partial(gate.wait, 2))
        [task.cancel() for task in tasks]
        await asyncio.wait(tasks)

        began = time.monotonic()
        await home.pool.aclose()

        assert time.monotonic() - began < 4
        await asyncio.wait_for(asyncio.gather(*(done.event.wait() for done in dones)), 5)
        assert [done.count for done in dones] == [1, 1]


async def test_closing_while_workers_start_leaves_nothing() -> None:
    """A pool can be closed at any moment of its start."""
    async with house(2, start=False) as home, anyio.create_task_group() as group:
        group.start_soon(home.pool.start)
        await anyio.lowlevel.checkpoint()

        group.cancel_scope.cancel()


async def test_a_closed_pool_refuses_jobs() -> None:
    """A job after the end fails at once, and its memory comes back."""
    async with house(1) as home:
        done = Done()
        await home.pool.aclose()

        with pytest.raises(ClosedError):
            await home.run(done=done)

        assert done.count == 1


async def test_closing_twice_is_free() -> None:
    """The second close finds nothing to do."""
    async with house(1) as home:
        await home.pool.aclose()

        await home.pool.aclose()


def test_payload_never_crosses_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 64 images costs less than 4 KB in the pipes, there and back together."""
    random = np.random.default_rng(3)
    with aioload.Writer(tmp_path / "set", fields={"image": "image", "label": "int"}) as writer:
        for record in range(64 * 12):
            writer.write({"image": png(random.integers(0, 256, (16, 16, 3), np.uint8)), "label": record})
    sizes: list[int] = []
    send, receive = Connection._send_bytes, Connection._recv_bytes  # type: ignore[attr-defined]  # the lowest place

    def sending(self: Any, data: Any) -> None:
        sizes.append(len(data))
        send(self, data)

    def receiving(self: Any, *args: Any) -> Any:
        received = receive(self, *args)
        sizes.append(len(received.getbuffer()))
        return received

    monkeypatch.setattr(Connection, "_send_bytes", sending)
    monkeypatch.setattr(Connection, "_recv_bytes", receiving)
    loader = aioload.Loader(tmp_path / "set", batch_size=64, num_workers=2, prefetch=2)
    with loader.sync() as batches:
        list(batches)
        steady = len(sizes)

        payload = sum(batch["image"].nbytes for batch in batches)

    assert payload == 12 * 64 * 16 * 16 * 3
    assert 0 < sum(sizes[steady:]) / 12 < 4096
