"""Pool: jobs in, answers out, the most urgent job first.

Each worker is a `ProcessPoolExecutor` of one process, a *seat*. The executor brings start, queue, results and
the noticing of death; one seat a process makes plain which job a process had when it died, and lets a seat be
replaced without touching the others. A seat is given one job, or two where jobs are so short that the way
there and back would show; everything else waits here, where it can still be dropped or overtaken.

All of it runs in the engine's loop, but for starting and ending processes, which block and go to threads.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from ..errors import AioloadError, ClosedError, WorkerError
from .arena import ArenaHandle
from .context import WorkerContext
from .task import Answer, Job, Startup, ping, run_job, start_worker

__all__ = ["Order", "Runner", "WorkerPool"]

_log = logging.getLogger("aioload.workers")

_SHORT_JOB = 0.02  # seconds; below it a seat is given its next job before it asks: the way takes some 300 µs
_START_TIMEOUT = 60.0  # seconds for a process to start and import what it needs on a loaded machine
_GRACE = 1.0  # seconds for processes to end by themselves when the pool closes

Order = tuple[int, int]
"""Urgency: (pass, run); the lower is needed first."""


class Runner(Protocol):
    """Whoever runs jobs: the pool, or the user's own thread."""

    async def run(self, job: Job, order: Order, done: Callable[[], None]) -> Answer:
        """Run a job; `done` is called once it no longer touches the arena, also if the wait was cancelled."""


@dataclass(order=True)
class _Ticket:
    """A job that waits or runs."""

    order: Order
    number: int
    job: Job = field(compare=False)
    answer: asyncio.Future[Answer] = field(compare=False)
    done: Callable[[], None] = field(compare=False)

    def refuse(self, error: AioloadError) -> None:
        """Let the job fail."""
        self.done()
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # looked at: whoever waits may be cancelled at this very moment


class _Seat:
    """One worker process and the jobs it was given."""

    def __init__(self, handle: ArenaHandle, recipe: bytes, threads: Executor) -> None:
        self._threads = threads
        self.context = WorkerContext()
        self.jobs = 0
        self.ready = False
        self._executor = ProcessPoolExecutor(1, self.context, start_worker, (handle, recipe))

    def start(self) -> Startup:
        """Start the process and wait until it has answered. Blocks: for a thread."""
        return self._executor.submit(ping).result(timeout=_START_TIMEOUT)

    def submit(self, job: Job) -> Future[Answer]:
        """Give the worker a job."""
        self.jobs += 1
        return self._executor.submit(run_job, job)

    def close(self, grace: float) -> None:
        """End the process, by force after `grace` seconds. Blocks: for a thread."""
        ending = self._threads.submit(self._executor.shutdown, wait=True, cancel_futures=True)
        while not wait([ending], grace).done:  # again, since a start may have been under way
            self.context.kill()


class WorkerPool:
    """`num_workers` processes over one arena.

    Args:
        num_workers: processes to start.
        handle: the arena they map.
        recipe: pickled `Recipe`.
        threads: where starting and ending processes may block.
    """

    def __init__(self, num_workers: int, handle: ArenaHandle, recipe: bytes, threads: Executor) -> None:
        self._seats = [_Seat(handle, recipe, threads) for _ in range(num_workers)]
        self._threads = threads
        self._queue: list[_Ticket] = []
        self._numbers = itertools.count()
        self._job_seconds = 1.0  # moving average; the first jobs count as long
        self._broken: AioloadError | None = None

    async def start(self) -> None:
        """Start all processes at once; jobs go to the first that is ready."""
        async with anyio.create_task_group() as group:
            for seat in self._seats:
                group.start_soon(self._start, seat)

    async def run(self, job: Job, order: Order, done: Callable[[], None]) -> Answer:
        """Run a job on a worker, as `Runner` says.

        Raises:
            WorkerError: a worker died or could not start.
            ClosedError: the pool was closed.
        """
        if self._broken is not None:
            done()
            raise self._broken.with_traceback(None)  # one error for many jobs
        loop = asyncio.get_running_loop()
        ticket = _Ticket(order, next(self._numbers), job, loop.create_future(), done)
        heapq.heappush(self._queue, ticket)
        self._dispatch()
        try:
            return await ticket.answer
        except asyncio.CancelledError:
            self._drop(ticket)
            raise

    async def aclose(self) -> None:
        """End all processes, side by side."""
        self._break(ClosedError("the workers were ended; make a new loader to go on"))
        loop = asyncio.get_running_loop()
        closings = [loop.run_in_executor(self._threads, seat.close, _GRACE) for seat in self._seats]
        await asyncio.gather(*closings)

    async def _start(self, seat: _Seat) -> None:
        loop = asyncio.get_running_loop()
        try:
            startup = await loop.run_in_executor(self._threads, seat.start)
        except (BrokenProcessPool, TimeoutError, OSError, EOFError) as error:
            self._break(WorkerError(f"a worker process could not start: {error!r}", cause=repr(error)))
            return
        if startup.trace is not None:
            message = f"a worker process could not load the decoders, transform or collate: {startup.message}"
            self._break(WorkerError(message, cause=startup.trace))
            return
        seat.ready = True
        self._dispatch()

    def _dispatch(self) -> None:
        """Hand waiting jobs to seats that have room."""
        depth = 2 if self._job_seconds < _SHORT_JOB else 1
        while self._queue:
            free = [seat for seat in self._seats if seat.ready and seat.jobs < depth]
            if not free:
                return
            self._submit(heapq.heappop(self._queue), min(free, key=lambda seat: seat.jobs))

    def _submit(self, ticket: _Ticket, seat: _Seat) -> None:
        loop = asyncio.get_running_loop()
        try:
            future = seat.submit(ticket.job)
        except BrokenProcessPool as error:
            seat.ready = False
            self._fail(ticket, error)
            return
        began = loop.time()

        def finished(future: Future[Answer]) -> None:  # in the executor's thread
            try:
                loop.call_soon_threadsafe(self._finished, ticket, seat, future, began)
            except RuntimeError:
                _log.debug("a job ended after its loop")

        future.add_done_callback(finished)

    def _finished(self, ticket: _Ticket, seat: _Seat, future: Future[Answer], began: float) -> None:
        seat.jobs -= 1
        seconds = asyncio.get_running_loop().time() - began
        self._job_seconds += (seconds - self._job_seconds) / 8
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            seat.ready = False
            self._fail(ticket, error)
        else:
            ticket.done()
            if not ticket.answer.done():
                ticket.answer.set_result(future.result())
        self._dispatch()

    def _fail(self, ticket: _Ticket, error: BaseException | None) -> None:
        """End a job whose worker is gone."""
        failure = WorkerError(
            f"a worker process died while it worked on a batch: {error!r}", cause=repr(error)
        )
        ticket.refuse(failure)
        self._break(failure)

    def _break(self, error: AioloadError) -> None:
        """Let every job fail from now on; the first reason is kept."""
        if self._broken is None:
            self._broken = error
        waiting, self._queue = self._queue, []
        for ticket in waiting:
            ticket.refuse(self._broken)

    def _drop(self, ticket: _Ticket) -> None:
        """Forget a job that nobody waits for any more, if no worker has it."""
        if ticket in self._queue:
            self._queue.remove(ticket)
            heapq.heapify(self._queue)
            ticket.done()
