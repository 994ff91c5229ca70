"""Borrowed: jobs done by an executor of the user's, in threads of this process or wherever else.

What an executor does with a task it alone knows. So a task that was lost is simply submitted again, and so is
one that takes much longer than most: whichever copy answers first is taken. That is only done where nothing
is written to the arena but by this process. The executor is never shut down, and nothing in it is waited for
when the loader closes, but for jobs in threads, for a second: they write to the arena.

All of it runs in the engine's loop, but for cancelling tasks of others, which may go over a network.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import statistics
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from .._version import __version__
from ..errors import AioloadError, ClosedError, WorkerError
from .executors import killed_workers, refused
from .pool import WorkerDied
from .ticket import ANOTHER_SECONDS, Order, Ticket, Tickets
from .transport import Lacking

if TYPE_CHECKING:
    from .jobs import Answer, Job
    from .transport import Transport

__all__ = ["FAR_JOB_SECONDS", "Borrowed"]

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
        self._tickets = Tickets()
        self._flights: set[_Flight] = set()
        self._under_way: set[Future[Any]] = set()
        self._seconds: deque[float] = deque(maxlen=64)  # of the jobs of late
        self._job_seconds = 1.0  # moving average
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
        ticket = self._tickets.add(job, order, done)
        self._dispatch()
        try:
            return await ticket.answer
        except asyncio.CancelledError:
            if not self._tickets.drop(ticket):
                self._forget(ticket)
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
        return len(self._tickets)

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
        while self._tickets and len(self._under_way) < more * self.num_workers:
            now = self._loop.time()
            flight = _Flight(self._tickets.pop(), now, since=now)
            self._flights.add(flight)
            self._send(flight)

    def _send(self, flight: _Flight, *, with_kit: bool = False) -> None:
        """Submit a job, or once more."""
        try:
            future = self._transport.send(flight.ticket.job, with_kit=with_kit)
        except Exception as error:  # it was shut down, mostly; each kind of executor has errors of its own
            self._break(refused(error))
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
        if flight.ticket.brings_another:
            self._loop.call_later(ANOTHER_SECONDS, self._dispatch)
        else:
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
        if killed_workers(error):  # after several workers: whoever knows its records finds out which did it
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
        """Let every job fail from now on, for the first of such reasons."""
        reason = self._tickets.refuse_all(error)
        for flight in list(self._flights):
            self._give_up(flight, copy(reason))

    def _give_up(self, flight: _Flight, error: AioloadError) -> None:
        """Let a job fail; one that a thread works on still holds its memory."""
        ticket = flight.ticket
        if flight.futures and self._transport.shares_memory:
            ticket.fail(error)
        else:
            self._settle(flight)
            ticket.refuse(error)

    def _forget(self, ticket: Ticket) -> None:
        """Be done with a job that nobody waits for; one that a thread works on still holds its memory."""
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
