"""Borrowed executors: tasks get lost, come late or come twice, and jobs are done once all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import cloudpickle
import numpy as np
import pytest
from fakes import Gate
from worker_jobs import Bench, make_recipe

from aioload._workers.borrowed import Borrowed
from aioload._workers.executors import capacity, shares_memory, warm_up
from aioload._workers.jobs import Answer
from aioload._workers.parcel import make_kit
from aioload._workers.pool import WorkerDied
from aioload._workers.transport import Far, Near
from aioload.errors import ClosedError, WorkerError
from aioload.storage.threads import DaemonExecutor

SAMPLES = [{"x": np.full(3, row, "f4"), "label": row} for row in range(4)]


class KilledWorker(Exception):
    """Stands for Dask's error of this name."""


class ByHand(Executor):
    """An executor whose tasks are done, or lost, when the test says so."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.sizes: list[bool] = []  # of each task, whether it came with the kit
        self.refuses: Exception | None = None

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.refuses is not None:
            raise self.refuses
        future: Future[Any] = Future()
        self.tasks.append((future, lambda: fn(*args, **kwargs)))
        self.sizes.append(bool(args) and getattr(args[0], "kit", None) is not None)
        return future

    def do(self, number: int) -> None:
        """Do a task."""
        future, call = self.tasks[number]
        if future.set_running_or_notify_cancel():
            future.set_result(call())

    def lose(self, number: int, error: Exception) -> None:
        """Let a task fail for a reason that is the executor's."""
        self.tasks[number][0].set_exception(error)


class Desk:
    """A runner over an executor by hand, with records to do jobs on."""

    def __init__(self, workers: int = 1, seed: int = 0) -> None:
        self.laid = Bench(make_recipe({"x": "ndarray", "label": "int"}, seed=seed), SAMPLES, size=1 << 16)
        self.executor = ByHand()
        self.threads = DaemonExecutor(1, name="aioload-executor")
        assert self.laid.array is not None
        kit = make_kit(cloudpickle.dumps(self.laid.recipe), b"")
        far = Far(self.executor, self.laid.array, kit, workers)
        self.restarts = self.done = 0
        self.runner = Borrowed(far, workers, self.threads, self._restarted)

    def start(self, urgency: int = 0) -> asyncio.Task[Answer]:
        """Give a job, as the engine does."""
        return asyncio.create_task(self.runner.run(self.laid.whole(), (0, urgency), self._count))

    async def settle(self) -> None:
        """Let the loop do all that it can."""
        for _ in range(10):
            await asyncio.sleep(0)

    def labels(self, answer: Answer) -> list[int]:
        """Return a column of the batch that an answer is about."""
        labels: list[int] = self.laid.read(answer.outcomes[0])["label"].tolist()
        return labels

    def _count(self) -> None:
        self.done += 1

    def _restarted(self) -> None:
        self.restarts += 1


@asynccontextmanager
async def desk(**options: Any) -> AsyncIterator[Desk]:
    """Open a desk, and let nothing of it remain."""
    opened = Desk(**options)
    try:
        yield opened
    finally:
        for future, _ in opened.executor.tasks:
            future.cancel()
        await opened.runner.aclose()
        opened.threads.shutdown(wait=True)


async def test_an_answer_places_what_came_back() -> None:
    """A job comes back with its bytes in the arena, and lets go of them once."""
    async with desk() as here:
        job = here.start()
        await here.settle()

        here.executor.do(0)

        assert here.labels(await job) == [0, 1, 2, 3]
        assert here.done == 1


@pytest.mark.parametrize("error", [OSError("the connection broke"), RuntimeError("lost")])
async def test_a_lost_task_runs_again(error: Exception) -> None:
    """Whoever waits for the job does not notice."""
    async with desk() as here:
        job = here.start()
        await here.settle()

        here.executor.lose(0, error)
        await here.settle()
        here.executor.do(1)

        assert here.labels(await job) == [0, 1, 2, 3]
        assert here.done == 1


async def test_a_cancelled_task_runs_again() -> None:
    """As the tasks of a Dask client do whose workers are all started anew."""
    async with desk() as here:
        job = here.start()
        await here.settle()

        here.executor.tasks[0][0].cancel()
        await here.settle()
        here.executor.do(1)

        assert here.labels(await job) == [0, 1, 2, 3]


async def test_a_task_that_is_lost_each_time_is_an_error() -> None:
    """After four times the job fails, and says why."""
    async with desk() as here:
        job = here.start()

        for number in range(4):
            await here.settle()
            here.executor.lose(number, ImportError("no module named aioload"))

        with pytest.raises(WorkerError, match=r"4 times.*no module named aioload"):
            await job
        assert here.done == 1


async def test_a_task_that_killed_workers_counts_as_a_death() -> None:
    """So that whoever knows the records finds the one that does it."""
    async with desk() as here:
        job = here.start()
        await here.settle()

        here.executor.lose(0, KilledWorker("visit-1"))

        with pytest.raises(WorkerDied):
            await job
        assert (here.done, here.restarts) == (1, 1)


async def test_a_broken_executor_fails_all_jobs_at_once() -> None:
    """Those under way, those that wait, and those to come: nobody waits for what nobody will do."""
    async with desk() as here:
        jobs = [here.start(number) for number in range(4)]
        await here.settle()

        here.executor.lose(0, BrokenExecutor("a child process terminated abruptly"))

        for job in (*jobs, here.start()):
            with pytest.raises(WorkerError, match="the executor is broken"):
                await job
        assert here.done == 5


async def test_an_executor_that_was_shut_down_is_an_error() -> None:
    """The job that it refuses says that it must stay open."""
    async with desk() as here:
        here.executor.refuses = RuntimeError("cannot schedule new futures after shutdown")

        with pytest.raises(WorkerError, match="keep it open"):
            await here.start()


async def test_a_late_task_is_submitted_once_more_and_the_first_answer_wins() -> None:
    """The other one is cancelled, and what it might still bring is nobody's."""
    async with desk() as here:
        here.runner.late = 0.0
        job = here.start()
        await here.settle()

        here.runner._look(asyncio.get_running_loop().time() + 1)
        here.executor.do(1)

        assert here.labels(await job) == [0, 1, 2, 3]
        here.threads.shutdown(wait=True)
        assert here.executor.tasks[0][0].cancelled()
        assert here.done == 1


async def test_no_more_than_three_copies_are_under_way() -> None:
    """However long it takes."""
    async with desk() as here:
        here.runner.late = 0.0
        here.start().add_done_callback(lambda job: job.exception())
        await here.settle()

        for second in range(1, 9):
            here.runner._look(asyncio.get_running_loop().time() + second)

        assert len(here.executor.tasks) == 3


async def test_what_is_late_is_told_by_what_is_usual() -> None:
    """A minute while nothing is known, then ten times the median, and never less than five seconds."""
    async with desk() as here:
        unknown = here.runner._late()
        here.runner._seconds.extend([0.01] * 8)
        quick = here.runner._late()
        here.runner._seconds.extend([2.0] * 60)

        assert (unknown, quick, here.runner._late()) == (60.0, 5.0, 20.0)


async def test_the_most_urgent_job_goes_first() -> None:
    """What cannot be submitted yet is ordered by need."""
    async with desk() as here:
        jobs = {number: here.start(number) for number in (5, 6, 9, 7)}
        await here.settle()
        assert len(here.executor.tasks) == 2

        for number in range(3):
            here.executor.do(number)
            await here.settle()

        finished = [number for number, job in jobs.items() if job.done()]
        here.executor.do(3)
        await jobs[9]
        assert finished == [5, 6, 7]


async def test_what_follows_a_part_of_a_batch_goes_before_later_parts() -> None:
    """A thread that has done a part is kept for what is asked for next: mostly, the batch's collate."""
    async with desk() as here:
        assert here.laid.array is not None
        near = Near(here.executor, here.laid.array, here.laid.recipe)
        here.runner = Borrowed(near, 1, here.threads, here._restarted)
        part = here.laid.job(0, 2, here.laid.room)

        async def walk() -> Answer:
            await here.runner.run(part, (0, 0), int)
            return await here.runner.run(here.laid.whole(), (0, 0), int)

        first, later = asyncio.create_task(walk()), asyncio.create_task(here.runner.run(part, (0, 1), int))
        for number in range(2):
            await here.settle()
            here.executor.do(number)
        await here.settle()

        assert (first.done(), later.done()) == (True, False)
        assert here.labels(first.result()) == [0, 1, 2, 3]
        later.cancel()


async def test_a_cancelled_job_lets_go_at_once() -> None:
    """A task elsewhere writes nothing here, so its memory need not wait for it."""
    async with desk() as here:
        job = here.start()
        await here.settle()

        job.cancel()
        await here.settle()

        assert here.done == 1
        here.threads.shutdown(wait=True)
        assert here.executor.tasks[0][0].cancelled()


async def test_the_recipe_travels_until_all_workers_have_it() -> None:
    """Here there is one: once it has answered, what follows goes without."""
    async with desk(seed=123) as here:
        first = here.start()
        await here.settle()
        here.executor.do(0)
        await first

        second = here.start()
        await here.settle()
        here.executor.do(1)

        assert here.labels(await second) == [0, 1, 2, 3]
        assert here.executor.sizes == [True, False]


async def test_a_worker_that_lacks_the_recipe_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has come in another's place is asked once more."""
    async with desk(seed=124) as here:
        monkeypatch.setattr(here.runner._transport, "_left", 0)
        job = here.start()
        await here.settle()

        here.executor.do(0)
        await here.settle()
        here.executor.do(1)

        assert here.labels(await job) == [0, 1, 2, 3]
        assert here.executor.sizes == [False, True]


async def test_closing_fails_what_is_under_way() -> None:
    """And cancels the tasks."""
    async with desk() as here:
        job = here.start()
        await here.settle()

        await here.runner.aclose()

        with pytest.raises(ClosedError):
            await job
        assert here.executor.tasks[0][0].cancelled()


async def test_a_client_that_was_closed_fails_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask leaves the futures of its executor as they are then."""

    class Client:
        status = "closed"

    async with desk() as here:
        job = here.start()
        await here.settle()
        monkeypatch.setattr(here.executor, "_client", Client(), raising=False)

        here.runner._look(asyncio.get_running_loop().time())

        with pytest.raises(WorkerError, match="client was closed"):
            await job


async def test_memory_of_a_thread_is_kept_until_it_has_ended(tmp_path: Any) -> None:
    """A cancelled job lets go only then, as it still writes to the arena; whoever closes waits for that."""
    done: list[str] = []
    with Gate(tmp_path) as gate, ThreadPoolExecutor(1) as executor:
        recipe = make_recipe({"x": "ndarray", "label": "int"}, transform=gate, seed_globals=False)
        laid = Bench(recipe, SAMPLES, size=1 << 16)
        assert laid.array is not None
        runner = Borrowed(Near(executor, laid.array, recipe), 1, executor, int)
        job = asyncio.create_task(runner.run(laid.whole(), (0, 0), lambda: done.append("done")))
        await asyncio.sleep(0)
        gate.wait()

        job.cancel()
        await asyncio.wait([job])
        closing = asyncio.create_task(runner.aclose())
        await asyncio.sleep(0)
        before = list(done)
        gate.open(4)
        await closing

        await asyncio.sleep(0)
        assert (before, done) == ([], ["done"])


def test_only_threads_share_memory() -> None:
    """Whatever else calls itself an executor is sent what it needs."""

    class InterpreterPoolExecutor(ThreadPoolExecutor):
        """Stands for the standard library's, whose threads see no objects of this interpreter."""

    with ThreadPoolExecutor(1) as threads, InterpreterPoolExecutor(1) as interpreters:
        shared = [shares_memory(one) for one in (threads, interpreters, ByHand())]

    assert shared == [True, False, False]


def test_an_executor_tells_how_many_workers_it_has() -> None:
    """By its own number, or by the cores that Dask's client knows."""

    class Client:
        def ncores(self) -> dict[str, int]:
            return {"a": 2, "b": 3}

    dask: Any = ByHand()
    dask._client = Client()
    with ThreadPoolExecutor(7) as threads, ProcessPoolExecutor(3) as processes:
        found = [capacity(one) for one in (threads, processes, dask)]

    assert found == [7, 3, 5]
    assert capacity(ByHand()) >= 1


def test_an_executor_that_refuses_is_told_before_anything_starts() -> None:
    """The first task is submitted before the loader has any thread."""
    executor = ThreadPoolExecutor(1)
    executor.shutdown()

    with pytest.raises(WorkerError, match="takes no tasks"):
        warm_up(executor)
