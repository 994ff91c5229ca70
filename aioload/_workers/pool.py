"""Pool: jobs in, answers out, the most urgent job first; workers that die are replaced.

Each worker is a seat: a `ProcessPoolExecutor` of one process. The executor brings start, queue, results and
the noticing of death; one seat a process makes plain which job a process had when it died, and lets a seat be
replaced without touching the others. A seat is given one job, or two where jobs are so short that the way
there and back would show; everything else waits here, where it can still be dropped or overtaken.

A dead worker's running job comes back as `WorkerDied`, with the record it was at; what else it was given goes
back into the queue. Whether a job is worth another try is for those to say who know its records.

A death is told by the executor, at once. From time to time the pool looks for itself, since the executor
misses a process that dies in the middle of a message, and looks after a worker only while it has a job.

All of it runs in the engine's loop, but for starting and ending processes, which block and go to threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio

from ..errors import ClosedError, WorkerError
from .jobs import Answer, Decode, Job
from .seat import Seat, SeatState, signal_name
from .ticket import ANOTHER_SECONDS, Order, Ticket, Tickets

if TYPE_CHECKING:
    from .arena import ArenaHandle
    from .space import Span

__all__ = ["Order", "PoolOptions", "Runner", "Ticket", "WorkerDied", "WorkerPool"]

_log = logging.getLogger("aioload.workers")

_AT_WORK = (SeatState.READY, SeatState.LEAVING)
_SHORT_JOB = 0.15  # seconds; below it a seat has its next job before it asks: the way takes 0.3 to 3 ms
_CHEAP_RECORD = 1e-5  # seconds; below it a seat gets several jobs before the next has any
_CHEAP_DEPTH = 4
_GRACE = 1.0  # seconds for processes to end by themselves when the pool closes
_MAX_FAILED_STARTS = 8  # in a row: then starting is hopeless
_LOOK_SECONDS = 0.5  # between two looks at all workers
_DEATHS_IN_A_ROW = 24  # without a job done in between: two for each record that "skip" allows, and some
_DEATHS_A_MINUTE = 60  # and two more for each worker: a machine on which so many die is no place to train


class Runner(Protocol):
    """Whoever runs jobs: the pool, or the user's own thread."""

    async def run(self, job: Job, order: Order, done: Callable[[], None]) -> Answer:
        """Run a job; `done` is called once it no longer touches the arena, also if the wait was cancelled."""


class WorkerDied(Exception):
    """The worker that ran a job died, or was ended because it did not answer; no error as yet.

    Args:
        how: what is known of its end, in words.
        row: of the job's table, at which it was; None between records.
        exit_code: of the process; a negative number is a signal's.
        stack: where it was, if it did not answer.
    """

    def __init__(self, how: str, row: int | None, exit_code: int | None, stack: str | None) -> None:
        super().__init__(how)
        self.how = how
        self.row = row
        self.exit_code = exit_code
        self.stack = stack


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How a pool treats its workers."""

    num_workers: int
    """Processes, at first."""
    timeout: float | None = None
    """Seconds a worker may be at one record or at a batch's collate; None: for ever."""
    max_jobs: int | None = None
    """Jobs after which a worker is replaced; None: never."""
    most_workers: int | None = None
    """What `resize` may make of it; None: never more."""


class WorkerPool:
    """Worker processes over one arena.

    Args:
        options: how many, and how they are treated.
        handle: the arena they map.
        marks: where in the arena each writes which record it is at; as many as there may ever be.
        recipe: pickled `Recipe`.
        threads: where starting, ending and asking processes may block; enough for all workers at once.
        on_restart: told of each worker that was replaced because it died.
        on_start: told of each worker that is up: its process, and when its start began.
    """

    def __init__(
        self,
        options: PoolOptions,
        handle: ArenaHandle,
        marks: list[Span],
        recipe: bytes,
        threads: Executor,
        on_restart: Callable[[], None],
        on_start: Callable[[int, float], None] = lambda pid, began: None,
    ) -> None:
        self._options = options
        self._handle = handle
        self._recipe = recipe
        self._threads = threads
        self._on_restart = on_restart
        self._on_start = on_start
        self.on_change: Callable[[], object] = int  # before a worker comes, goes, or is given a job
        self._tickets = Tickets()
        self._job_seconds = 1.0  # moving average; the first jobs count as long
        self._record_seconds = 1.0  # likewise, of work on one record
        self._closed = False
        self._deaths: deque[float] = deque()
        self._deaths_in_a_row = 0
        self._failed_starts = 0
        self._leaving: list[Seat] = []
        self._loop = asyncio.get_running_loop()
        self._to_start, self._starts = anyio.create_memory_object_stream[Seat](1 << 16)
        self._seats = [self._seat(mark) for mark in marks[: options.num_workers]]
        self._marks = marks[options.num_workers :]  # of workers that there may be

    async def serve(self) -> None:
        """Start workers, watch them and replace those that die, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            async for seat in self._starts:
                group.start_soon(self._start, seat)

    async def run(self, job: Job, order: Order, done: Callable[[], None]) -> Answer:
        """Run a job on a worker, as `Runner` says.

        Raises:
            WorkerDied: the worker died while it ran this job.
            WorkerError: no worker can be had.
            ClosedError: the pool was closed.
        """
        ticket = self._tickets.add(job, order, done)
        self._dispatch()
        try:
            return await ticket.answer
        except asyncio.CancelledError:
            self._tickets.drop(ticket)
            raise

    @property
    def ready(self) -> int:
        """Workers that can do jobs."""
        return sum(seat.state in _AT_WORK for seat in self._seats)

    @property
    def busy(self) -> int:
        """Workers that have a job."""
        return sum(bool(seat.jobs) for seat in self._seats)

    @property
    def jobs_running(self) -> int:
        """Jobs that workers have."""
        return sum(len(seat.jobs) for seat in self._seats)

    @property
    def jobs_waiting(self) -> int:
        """Jobs that no worker has yet."""
        return len(self._tickets)

    @property
    def num_workers(self) -> int:
        """Workers that there are or that are on their way, without those on their way out."""
        return sum(not seat.surplus for seat in self._seats)

    @property
    def settled(self) -> bool:
        """Whether all workers that there should be are up, and no others."""
        return all(seat.state is not SeatState.STARTING and not seat.surplus for seat in self._seats)

    @property
    def worker_bytes(self) -> int:
        """Memory that the largest worker has for itself."""
        return max((seat.private_bytes for seat in self._seats), default=0)

    def resize(self, num_workers: int) -> None:
        """Have so many workers: further ones take part once they are up; those too many end what they have.

        One that cannot be started is given up: the others go on, and `num_workers` tells.
        """
        if self._tickets.broken is not None:
            return
        for _ in range(self.num_workers, num_workers):
            if not self._marks:
                return
            self._seats.append(self._seat(self._marks.pop(), extra=True))
        idle_first = sorted(self._seats, key=lambda seat: len(seat.jobs))
        ready = [seat for seat in idle_first if seat.state is SeatState.READY]
        for seat in ready[: max(self.num_workers - num_workers, 0)]:
            seat.surplus = True
            self._retire(seat)

    async def aclose(self) -> None:
        """End all processes, side by side; twice is free."""
        self._tickets.refuse_all(ClosedError("the workers were ended; make a new loader to go on"))
        self._closed = True
        self._to_start.close()
        await asyncio.gather(*(self._close(seat) for seat in (*self._seats, *self._leaving)))
        self._starts.close()

    def _seat(self, mark: Span, *, extra: bool = False) -> Seat:
        """Make a seat, to be started; an extra one may fail to start."""
        seat = Seat(self._handle, mark, self._recipe, self._threads)
        seat.extra = extra
        self._to_start.send_nowait(seat)
        return seat

    async def _start(self, seat: Seat) -> None:
        """Start a seat's process."""
        began = time.perf_counter()
        try:
            startup = await self._loop.run_in_executor(self._threads, seat.start)
        except (OSError, EOFError, RuntimeError) as error:  # TimeoutError, BrokenProcessPool are among them
            await self._did_not_start(seat, error)
            return
        if startup.trace is not None and seat.extra:
            await self._give_up(seat, startup.message)
            return
        if startup.trace is not None:
            what = "the data set, decoders, transform or collate"
            message = f"a worker process could not load {what}: {startup.message}"
            self._tickets.refuse_all(WorkerError(message, cause=startup.trace))
            return
        self._failed_starts = 0
        self._on_start(startup.pid, began)
        seat.extra = False
        if seat.state is SeatState.STARTING:
            self.on_change()
            seat.state = SeatState.READY
        self._dispatch()

    async def _did_not_start(self, seat: Seat, error: Exception) -> None:
        """Try again where a process died on the way, a few times; one that hangs there would hang again."""
        if seat.extra:
            await self._give_up(seat, repr(error))
            return
        hangs = isinstance(error, TimeoutError)
        stack = await self._loop.run_in_executor(self._threads, seat.dump_stack) if hangs else ""
        await self._close(seat)
        self._failed_starts += 1
        if hangs:
            message = "a worker process hangs while it loads the decoders, transform or collate"
            broken = WorkerError(message, cause=stack or repr(error))
            broken.add_note(f"it was at:\n{stack}")
            self._tickets.refuse_all(broken)
        elif self._failed_starts >= _MAX_FAILED_STARTS:
            message = f"worker processes do not start: {error!r}; the last {_how(seat.exit_code)}"
            self._tickets.refuse_all(WorkerError(message, cause=repr(error), exit_code=seat.exit_code))
        self._replace(seat)

    async def _give_up(self, seat: Seat, why: str) -> None:
        """Do without a worker that was to come in addition."""
        _log.info("a further worker process did not start (%s); the others go on without it", why)
        seat.surplus = True
        await self._close(seat)
        self._replace(seat)

    def _close(self, seat: Seat) -> asyncio.Future[None]:
        """Have a seat closed in a thread."""
        return self._loop.run_in_executor(self._threads, seat.close, _GRACE)

    def _dispatch(self) -> None:
        """Hand waiting jobs to seats that have room."""
        depth = 2 if self._job_seconds < _SHORT_JOB and self._options.timeout is None else 1
        cheap = depth > 1 and self._record_seconds < _CHEAP_RECORD
        depth = _CHEAP_DEPTH if cheap else depth
        while self._tickets:
            free = [seat for seat in self._seats if seat.state is SeatState.READY and len(seat.jobs) < depth]
            if not free:
                return
            if cheap:  # whoever gives them out is the slow one: let few processes share the CPUs with it
                best = free[0]
            else:  # of those that have a job, the one that has been at it the longest: it will end first
                best = min(free, key=lambda seat: (len(seat.jobs), seat.jobs[0].began if seat.jobs else 0.0))
            self._submit(self._tickets.pop(), best)

    def _submit(self, ticket: Ticket, seat: Seat) -> None:
        try:
            future = seat.submit(ticket.job)
        except BrokenProcessPool:
            self._tickets.put_back(ticket)
            seat.state = SeatState.BROKEN
            # behind the answers that it gave before, which are on their way
            self._loop.call_soon(self._died, seat)
            return
        ticket.began = self._loop.time()
        self.on_change()
        seat.jobs.append(ticket)

        def finished(future: Future[Answer]) -> None:  # in the executor's thread
            try:
                self._loop.call_soon_threadsafe(self._finished, ticket, seat, future)
            except RuntimeError:
                _log.debug("a job ended after its loop")

        future.add_done_callback(finished)

    def _finished(self, ticket: Ticket, seat: Seat, future: Future[Answer]) -> None:
        if ticket not in seat.jobs:
            return  # its worker died, and that has been dealt with
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or isinstance(error, BrokenProcessPool):
            self._died(seat)
            return
        self.on_change()
        seat.jobs.remove(ticket)
        seat.jobs_done += 1
        self._deaths_in_a_row = 0
        self._job_seconds += (self._loop.time() - ticket.began - self._job_seconds) / 8
        if error is not None:
            ticket.refuse(WorkerError(f"a job did not get to a worker or back: {error!r}", cause=repr(error)))
        else:
            answer = future.result()
            if isinstance(ticket.job, Decode):
                cost = answer.work_seconds / max(sum(one.rows for one in ticket.job.segments), 1)
                self._record_seconds += (cost - self._record_seconds) / 8
            ticket.accept(answer)
        most = self._options.max_jobs
        if seat.state is SeatState.LEAVING or (most is not None and seat.jobs_done >= most):
            self._retire(seat)
        if ticket.brings_another:
            self._loop.call_later(ANOTHER_SECONDS, self._dispatch)
        else:
            self._dispatch()

    def _died(self, seat: Seat, hung: str = "", stack: str | None = None) -> None:
        """Deal with a seat whose process is gone: tell the job it ran, queue the others, replace it.

        Args:
            seat: whose process it was.
            hung: in words, what it was ended for, if it did not end by itself.
            stack: where it was then.
        """
        if seat.state is SeatState.DEAD:
            return
        self.on_change()
        seat.state = SeatState.DEAD
        jobs, seat.jobs = seat.jobs, []
        running = jobs.pop(0) if jobs and not self._closed else None
        for ticket in jobs:
            self._tickets.put_back(ticket)
        if not self._closed:
            self._close(seat).add_done_callback(lambda _: self._tell(seat, running, hung, stack))

    def _tell(self, seat: Seat, running: Ticket | None, hung: str, stack: str | None) -> None:
        """Go on after a death, now that the process has left its exit code."""
        how = hung or _how(seat.exit_code)
        row = seat.row
        _log.info("a worker process %s; it is replaced", how)
        self._count_death(how)
        if running is not None and not seat.works:  # it had not begun
            self._tickets.put_back(running)
        elif running is not None:
            running.refuse(WorkerDied(how, row if row >= 0 else None, seat.exit_code, stack))
        self._replace(seat)
        self._dispatch()

    def _count_death(self, how: str) -> None:
        """End it all where workers die faster than they work."""
        now = time.monotonic()
        self._on_restart()
        self._deaths_in_a_row += 1
        self._deaths.append(now)
        while self._deaths and self._deaths[0] < now - 60:
            self._deaths.popleft()
        most = _DEATHS_A_MINUTE + 2 * len(self._seats)
        in_a_row = max(_DEATHS_IN_A_ROW, 2 * len(self._seats))  # a file that is cut ends all who map it
        if self._deaths_in_a_row > in_a_row or len(self._deaths) > most:
            message = (
                f"{len(self._deaths)} worker processes died within a minute, {self._deaths_in_a_row} of them "
                f"without a job done in between; the last {how}. Look for what kills them (memory, mostly)"
            )
            self._tickets.refuse_all(WorkerError(message, cause=how))

    def _replace(self, seat: Seat) -> None:
        """Put a new process in a seat's place, or take the seat away if there are too many."""
        if self._tickets.broken is not None or seat not in self._seats:
            return
        if seat.surplus:
            self._seats.remove(seat)
            self._marks.append(seat.mark)
        else:
            self._seats[self._seats.index(seat)] = self._seat(seat.mark)

    def _retire(self, seat: Seat) -> None:
        """Let a worker go that has done its share, and close it when it has nothing left to do."""
        if seat.state is SeatState.READY:
            seat.state = SeatState.LEAVING
        if seat.state is SeatState.LEAVING and not seat.jobs:
            seat.state = SeatState.DEAD
            self._leaving.append(seat)
            self._close(seat).add_done_callback(lambda _: self._left(seat))

    def _left(self, seat: Seat) -> None:
        self._leaving.remove(seat)
        self._replace(seat)

    async def _watch(self) -> None:
        """Look after the workers from time to time: for deaths that nobody told of, and those that hang."""
        timeout = self._options.timeout
        pause = _LOOK_SECONDS if timeout is None else min(timeout / 4, _LOOK_SECONDS)
        gone: set[Seat] = set()
        while True:
            await anyio.sleep(pause)
            known = [seat for seat in self._seats if seat.state in _AT_WORK]
            before, gone = gone, {seat for seat in known if not seat.runs}
            for seat in gone & before:
                self._died(seat)
            for seat in known:
                if timeout is not None and seat.jobs and seat.seconds_at(pause) > timeout:
                    await self._end_hung(seat, timeout)

    async def _end_hung(self, seat: Seat, timeout: float) -> None:
        """End a worker that does not answer, unless it goes on at the last moment."""
        at = seat.at
        stack = await self._loop.run_in_executor(self._threads, seat.dump_stack)
        if seat.at == at and seat.jobs:
            seat.kill()
            self._died(seat, f"did not answer for {timeout:g} s and was ended", stack)


def _how(exit_code: int | None) -> str:
    """Return how a process ended, in words."""
    if exit_code is None:
        return "ended for a reason unknown"
    if exit_code < 0:
        hint = " (out of memory is the usual reason)" if exit_code == -9 else ""
        return f"was ended by {signal_name(-exit_code)}{hint}"
    return f"ended with exit code {exit_code}"
