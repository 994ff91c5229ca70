"""Borrowed: jobs done by an executor of the user's, in threads of this process or wherever else.

Threads share the arena, so a job is all that they need. Others are sent parcels (see `parcel`), and what they
need besides goes with the first ones, until as many workers have told that they have it as there should be;
one that lacks it says so, and is asked again.

What an executor does with a task it alone knows. So a task that was lost is simply submitted again, and so is
one that takes much longer than most: whichever copy answers first is taken. That is only done where nothing
is written to the arena but by this process. The executor is never shut down, and nothing in it is waited for
when the loader closes, but for jobs in threads, for a second: they write to the arena.

All of it runs in the engine's loop, but for cancelling tasks of others, which may go over a network.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Protocol

import anyio
from numpy.typing import NDArray

from .._version import __version__
from ..errors import AioloadError, ClosedError, WorkerError
from ..machine import usable_cpus
from .jobs import Answer, Job, Recipe
from .parcel import Kit, Parcel, Reply, place, wrap
from .pool import WorkerDied
from .task import Worker
from .ticket import Order, Ticket
from .visitor import greet, visit

__all__ = [
    "FAR_JOB_SECONDS",
    "Borrowed",
    "Far",
    "Near",
    "capacity",
    "is_near",
    "make_kit",
    "shares_memory",
    "warm_up",
]

_log = logging.getLogger("aioload.workers")

FAR_JOB_SECONDS = 0.2  # of work in a job for who knows where: Dask takes 5 to 10 ms of CPU for a task
_MOST_TRIES = 4  # of a job whose tasks get lost
_MOST_COPIES = 3  # of a job under way at a time
_SHORT_JOB = 0.15  # seconds; below it an executor has one more job for each worker, as in `pool`
_LOOK_SECONDS = 0.5  # between two looks for tasks that take long
_LATE = 10  # times the median of late, from which a task is submitted once more
_LEAST_LATE = 5.0  # seconds; in any case no sooner
_FIRST_LATE = 60.0  # seconds, as long as little is known: workers may still import, or be on their way
_KNOWN = 8  # answers, from which on something is known
_SILENCE = 60.0  # seconds without an answer, of which is told
_GRACE = 1.0  # seconds for jobs in threads to end when the loader closes


def shares_memory(executor: Executor) -> bool:
    """Tell whether an executor's workers are threads of this process that see its objects."""
    # interpreters have their own, though their pool calls itself one of threads
    interpreters = any(cls.__name__ == "InterpreterPoolExecutor" for cls in type(executor).__mro__)
    return isinstance(executor, ThreadPoolExecutor) and not interpreters


def is_near(executor: Executor) -> bool:
    """Tell whether an executor's workers are on this machine, where a task costs little."""
    return isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor)


def capacity(executor: Executor) -> int:
    """Return how many tasks an executor works on at once, as far as it tells."""
    workers = getattr(executor, "_max_workers", None)
    if isinstance(workers, int):
        return max(workers, 1)
    client = getattr(executor, "_client", None)  # Dask's
    if client is not None and not getattr(client, "asynchronous", False):
        with contextlib.suppress(Exception):  # whatever is wrong with it, a task will meet
            return max(int(sum(client.ncores().values())), 1)
    return usable_cpus()


def warm_up(executor: Executor) -> None:
    """Have the processes of an executor start before there are threads of ours, which a fork would copy.

    Raises:
        WorkerError: it takes no tasks.
    """
    try:
        executor.submit(greet)
    except Exception as error:
        raise _refused(error) from error


def make_kit(recipe: bytes, reach: bytes) -> Kit:
    """Return what workers elsewhere must have.

    Args:
        recipe: pickled `Recipe`.
        reach: pickled `Reach`, or nothing if they are not to read.
    """
    key = blake2b(recipe + b"\0" + reach + __version__.encode(), digest_size=16).digest()
    return Kit(key, __version__, recipe, reach)


class Lacking(Exception):
    """The job was not done, as the worker lacks the kit."""


class Transport(Protocol):
    """How jobs get to an executor's workers, and answers back."""

    shares_memory: bool
    cancels: bool
    """Whether tasks that nobody waits for are cancelled, rather than left to end."""

    def send(self, job: Job, *, with_kit: bool) -> Future[Any]:
        """Submit a job."""

    def receive(self, job: Job, result: Any) -> Answer:
        """Return the answer that a task's result is.

        Raises:
            Lacking: it is none yet.
            WorkerError: it will never be one.
        """

    def check(self) -> None:
        """Raise a `WorkerError` if it is known that no answer will ever come."""


class Near:
    """Jobs for threads of this process.

    Args:
        executor: has them.
        array: the arena's bytes.
        recipe: what to do with records; its functions are called by several threads at a time.
    """

    shares_memory = True
    cancels = True

    def __init__(self, executor: Executor, array: NDArray[Any], recipe: Recipe) -> None:
        self._executor = executor
        self._array = array
        self._recipe = recipe
        self._idle: list[Worker] = []  # as many as jobs were ever done at once

    def send(self, job: Job, *, with_kit: bool) -> Future[Any]:
        """Submit a job, as `Transport` says."""
        return self._executor.submit(self._do, job)

    def receive(self, job: Job, result: Any) -> Answer:
        """Return the answer."""
        answer: Answer = result
        return answer

    def check(self) -> None:
        """Threads answer in any case: those that were to begin when they were shut down are cancelled."""

    def _do(self, job: Job) -> Answer:
        began = time.perf_counter()
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = Worker(self._array, self._recipe)
        try:
            answer = worker.run(job)
        finally:
            self._idle.append(worker)
        return replace(answer, work_seconds=time.perf_counter() - began)


class Far:
    """Jobs for whoever does not share the arena.

    Args:
        executor: has workers.
        array: the arena's bytes.
        kit: what they need besides.
        workers: how many there should be.
    """

    shares_memory = False

    def __init__(self, executor: Executor, array: NDArray[Any], kit: Kit, workers: int) -> None:
        self._executor = executor
        self._array = array
        self._kit = kit
        self._workers = workers
        self._known: set[str] = set()  # workers that have the kit
        self._left = 2 * workers  # parcels that it still goes with, should fewer workers show up
        is_dask = type(executor).__module__.partition(".")[0] == "distributed"
        self.cancels = not is_dask  # its executor logs an error, with a traceback, for each that is cancelled
        self._options: dict[str, Any] = {}
        if is_dask:
            # else it hashes each parcel for a name, and takes a second copy of a late one for the first
            self._options = {"pure": False}
            # it says of each that data should be loaded by Dask, which has no batches in an order
            warnings.filterwarnings("ignore", "Sending large graph of size", UserWarning)

    def send(self, job: Job, *, with_kit: bool) -> Future[Any]:
        """Submit a job, as `Transport` says."""
        if not with_kit and self._left and len(self._known) < self._workers:
            with_kit = True
            self._left -= 1
        parcel: Parcel = wrap(job, self._array, self._kit, with_kit=with_kit)
        return self._executor.submit(visit, parcel, **self._options)

    def receive(self, job: Job, result: Any) -> Answer:
        """Return the answer, having placed what it is about, as `Transport` says."""
        reply: Reply = result
        if reply.trouble:
            raise WorkerError(
                f"a worker of the executor ({reply.worker}) cannot work for this loader: {reply.trouble}",
                cause=reply.trace,
            )
        if reply.answer is None:
            self._known.discard(reply.worker)
            raise Lacking
        self._known.add(reply.worker)
        answer, now = place(job, reply, self._array), time.perf_counter()
        # its clock is maybe another machine's
        return replace(answer, began=now - answer.work_seconds, stopped=now)

    def check(self) -> None:
        """Raise if Dask's client was closed: futures of its executor are then left as they are."""
        client = getattr(self._executor, "_client", None)
        if getattr(client, "status", None) == "closed":
            raise _refused(ClosedError("its client was closed"))


@dataclass(eq=False)
class _Flight:
    """A job that was submitted."""

    ticket: Ticket
    began: float
    futures: set[Future[Any]] = field(default_factory=set)
    since: float = 0.0  # the last copy was submitted
    copies: int = 1
    tries: int = 1
    settled: bool = False


class Borrowed:
    """Jobs done by somebody else's executor.

    Args:
        transport: to its workers.
        num_workers: jobs that they do at once.
        threads: where cancelling may block.
        on_restart: told of each job that was lost with workers.
    """

    worker_bytes = 0
    settled = True

    def __init__(
        self, transport: Transport, num_workers: int, threads: Executor, on_restart: Callable[[], None]
    ) -> None:
        self.num_workers = num_workers
        self._transport = transport
        self._threads = threads
        self._on_restart = on_restart
        self._loop = asyncio.get_running_loop()
        self._queue: list[Ticket] = []
        self._numbers = itertools.count()
        self._flights: set[_Flight] = set()
        self._under_way: set[Future[Any]] = set()
        self._seconds: deque[float] = deque(maxlen=64)  # of the jobs of late
        self._job_seconds = 1.0  # moving average
        self._broken: AioloadError | None = None
        self._told = 0.0  # when silence was last told of
        self.late: float | None = None  # seconds, in place of what is measured
        self.on_change: Callable[[], object] = int  # before it is given a job, or has done one

    async def serve(self) -> None:
        """Look after tasks that take long, until cancelled."""
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            self._look(self._loop.time())

    async def run(self, job: Job, order: Order, done: Callable[[], None]) -> Answer:
        """Run a job, as `Runner` says.

        Raises:
            WorkerDied: workers died while they ran this job.
            WorkerError: the executor does not run jobs.
            ClosedError: the loader was closed.
        """
        if self._broken is not None:
            done()
            raise copy(self._broken)  # one reason for many jobs
        ticket = Ticket(order, next(self._numbers), job, self._loop.create_future(), done)
        heapq.heappush(self._queue, ticket)
        self._dispatch()
        try:
            return await ticket.answer
        except asyncio.CancelledError:
            self._drop(ticket)
            raise

    @property
    def ready(self) -> int:
        """Workers that there are, as far as is known."""
        return self.num_workers

    @property
    def busy(self) -> int:
        """Of these, those that have a job."""
        return min(len(self._under_way), self.num_workers)

    @property
    def jobs_waiting(self) -> int:
        """Jobs that have not been submitted yet."""
        return len(self._queue)

    @property
    def jobs_running(self) -> int:
        """Tasks that the executor has."""
        return len(self._under_way)

    def resize(self, num_workers: int) -> None:
        """Leave it as it is: how many there are is the executor's."""

    async def aclose(self) -> None:
        """Let go of all tasks; those in threads are waited for, within reason. Twice is free."""
        self._break(ClosedError("the loader was closed; make a new one to go on"))
        left = list(self._under_way)
        if not left:
            return
        self._cancel(left)
        waits = [asyncio.wrap_future(future) for future in left]
        done, _ = await asyncio.wait(waits, timeout=_GRACE)
        for one in done:
            if not one.cancelled():
                one.exception()  # looked at

    def _dispatch(self) -> None:
        """Submit what waits, as long as the executor should have more."""
        more = 2 if self._job_seconds < _SHORT_JOB or not self._transport.shares_memory else 1
        while self._queue and len(self._under_way) < more * self.num_workers:
            now = self._loop.time()
            flight = _Flight(heapq.heappop(self._queue), now, since=now)
            self._flights.add(flight)
            self._send(flight)

    def _send(self, flight: _Flight, *, with_kit: bool = False) -> None:
        """Submit a job, or once more."""
        try:
            future = self._transport.send(flight.ticket.job, with_kit=with_kit)
        except Exception as error:  # it was shut down, mostly; each kind of executor has errors of its own
            self._break(_refused(error))
            return
        self.on_change()
        flight.futures.add(future)
        self._under_way.add(future)

        def finished(future: Future[Any]) -> None:  # in whichever thread
            try:
                self._loop.call_soon_threadsafe(self._finished, flight, future)
            except RuntimeError:
                _log.debug("a task ended after its loop")

        future.add_done_callback(finished)

    def _finished(self, flight: _Flight, future: Future[Any]) -> None:
        self.on_change()
        self._under_way.discard(future)
        flight.futures.discard(future)
        if not flight.settled:
            if flight.ticket.wanted:
                self._take(flight, future)
            elif not flight.futures:
                self._settle(flight)
                flight.ticket.done()
        self._dispatch()

    def _take(self, flight: _Flight, future: Future[Any]) -> None:
        """Take what a task has come to."""
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            self._take_result(flight, future.result())
        elif isinstance(error, BrokenExecutor):
            self._break(_broken(error))
        elif not flight.futures:  # else another copy may still answer
            self._again(flight, error)

    def _take_result(self, flight: _Flight, result: Any) -> None:
        try:
            answer = self._transport.receive(flight.ticket.job, result)
        except Lacking:
            self._send(flight, with_kit=True)
        except AioloadError as error:
            self._break(error)
        except Exception as error:  # it is none of our answers: the job would be waited for for ever
            self._break(_strange(error))
        else:
            seconds = self._loop.time() - flight.since
            self._seconds.append(seconds)
            self._job_seconds += (seconds - self._job_seconds) / 8
            self._settle(flight)
            flight.ticket.accept(answer)

    def _again(self, flight: _Flight, error: BaseException) -> None:
        """Submit a job again whose task was lost, unless it has been lost too often."""
        if _killed(error):  # after several workers: whoever knows its records finds out which did it
            self._on_restart()
            self._settle(flight)
            flight.ticket.refuse(WorkerDied(f"died, as the executor tells ({error})", None, None, None))
        elif flight.tries < _MOST_TRIES:
            _log.info("a task of the executor was lost (%r) and is submitted again", error)
            flight.tries += 1
            flight.since = self._loop.time()
            self._send(flight)
        else:
            self._settle(flight)
            message = f"a task did not get to the executor's workers and back, {_MOST_TRIES} times: {error!r}"
            flight.ticket.refuse(WorkerError(message, cause=repr(error)))

    def _settle(self, flight: _Flight) -> None:
        """Be done with a job; copies that are still under way are for nothing."""
        flight.settled = True
        self._flights.discard(flight)
        self._cancel(list(flight.futures))

    def _look(self, now: float) -> None:
        """Submit once more what takes much longer than most, and tell where nothing comes back at all."""
        if not self._flights:
            return
        try:
            self._transport.check()
        except WorkerError as error:
            self._break(error)
            return
        longest = now - min(flight.began for flight in self._flights)
        if longest > _SILENCE and now - self._told > _SILENCE:
            self._told = now
            _log.warning(
                "the executor has not answered a task for %.0f s; has it workers, and are they busy with "
                "something else?",
                longest,
            )
        if self._transport.shares_memory:
            return
        late = self._late()
        for flight in list(self._flights):
            if now - flight.since > late and flight.futures and flight.copies < _MOST_COPIES:
                _log.info("a task takes longer than %.1f s and is submitted once more", late)
                flight.copies += 1
                flight.since = now
                self._send(flight)

    def _late(self) -> float:
        """Return the seconds from which on a task is late."""
        if self.late is not None:
            return self.late
        if len(self._seconds) < _KNOWN:
            return _FIRST_LATE
        return max(_LATE * statistics.median(self._seconds), _LEAST_LATE)

    def _break(self, error: AioloadError) -> None:
        """Let every job fail from now on; the first reason is kept."""
        if self._broken is None:
            self._broken = error
        waiting, self._queue = self._queue, []
        for ticket in waiting:
            ticket.refuse(copy(self._broken))
        for flight in list(self._flights):
            self._give_up(flight, copy(self._broken))

    def _give_up(self, flight: _Flight, error: AioloadError) -> None:
        """Let a job fail; one that a thread works on still holds its memory."""
        ticket = flight.ticket
        if flight.futures and self._transport.shares_memory:
            if ticket.wanted:
                ticket.answer.set_exception(error)
                ticket.answer.exception()  # looked at: whoever waits may be cancelled at this very moment
        else:
            self._settle(flight)
            ticket.refuse(error)

    def _drop(self, ticket: Ticket) -> None:
        """Forget a job that nobody waits for any more; one that a thread works on still holds its memory."""
        if ticket in self._queue:
            self._queue.remove(ticket)
            heapq.heapify(self._queue)
            ticket.done()
            return
        for flight in list(self._flights):
            if flight.ticket is ticket and self._transport.shares_memory:
                self._cancel(list(flight.futures))
            elif flight.ticket is ticket:
                self._settle(flight)
                ticket.done()

    def _cancel(self, futures: list[Future[Any]]) -> None:
        """Cancel tasks: at once in this process, else in a thread, as it may go over a network."""
        if not futures or not self._transport.cancels:
            return
        if self._transport.shares_memory:
            for future in futures:
                future.cancel()
            return
        with contextlib.suppress(ClosedError):  # the threads have ended with the engine
            self._threads.submit(_cancel_all, futures)


def _cancel_all(futures: list[Future[Any]]) -> None:
    for future in futures:
        with contextlib.suppress(Exception):  # whatever is wrong with the executor, these are given up
            future.cancel()


def _killed(error: BaseException) -> bool:
    """Tell Dask's error of a task at which several workers died; its package need not be there."""
    return any(cls.__name__ == "KilledWorker" for cls in type(error).__mro__)


def _refused(error: BaseException) -> WorkerError:
    return WorkerError(
        f"the executor takes no tasks ({error}); keep it open for as long as the loader is used",
        cause=repr(error),
    )


def _strange(error: BaseException) -> WorkerError:
    return WorkerError(
        f"the executor gave back what no worker of aioload {__version__} answers ({error!r}); it must return "
        "what the submitted function returns, and its workers must have this version",
        cause=repr(error),
    )


def _broken(error: BaseException) -> WorkerError:
    return WorkerError(
        f"the executor is broken ({error}); only who made it can replace it: make another, and a loader with "
        "it, and go on from the last state. Without an executor, workers that die are replaced",
        cause=repr(error),
    )
