"""Seat: one worker process with its executor, its mark, and what can be told of its end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from .context import WorkerContext
from .jobs import MARK, Answer, Job, Startup
from .process import ping, run_job, start_worker
from .trace import STACK_SIGNAL, StackFile

if TYPE_CHECKING:
    from .arena import ArenaHandle
    from .space import Span
    from .ticket import Ticket

__all__ = ["Seat", "SeatState", "signal_name"]

_log = logging.getLogger("aioload.workers")

_START_TIMEOUT = 120.0  # seconds to import what the recipe needs: torch from a cold network disk takes long
_STACK_SECONDS = 1.0  # for a hung process to write down where it is
_TRIES = 3  # to end a process by force; one that is stuck in the kernel ends when that lets it go


class SeatState(Enum):
    """What a seat can be used for."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"  # finishes what it has, and is replaced
    BROKEN = "broken"  # its process has ended, and what that means is about to be found out
    DEAD = "dead"


class Seat:
    """One worker process and the jobs it was given, the running one first.

    Args:
        handle: the arena it maps.
        mark: where in the arena it writes which record it is at.
        recipe: pickled `Recipe`.
        threads: where starting and ending may block.
    """

    def __init__(self, handle: ArenaHandle, mark: Span, recipe: bytes, threads: Executor) -> None:
        self.state = SeatState.STARTING
        self.jobs: list[Ticket] = []
        self.jobs_done = 0
        self.mark = mark
        self.extra = False  # came in addition, and has not started yet
        self.surplus = False  # is not to be replaced
        self._handle = handle
        self._recipe = recipe
        self._threads = threads
        self._array = handle.attach().array[mark.start : mark.stop].view(MARK)
        self._array[0] = (-1, 0)
        self._at = b""  # the mark at the last look
        self._seconds = 0.0  # since it changed
        self._context = WorkerContext()
        self._executor: ProcessPoolExecutor | None = None
        self._stack: StackFile | None = None
        self._exit_code: int | None = None
        self._closed = False
        self._lock = threading.Lock()  # held while closing: who comes second waits for the first

    @property
    def row(self) -> int:
        """The row of the running job's table that the worker is at; -1 between records."""
        return int(self._array["row"][0])

    @property
    def works(self) -> bool:
        """Whether the worker has begun a job and not ended it."""
        return bool(self._array["began"][0])

    @property
    def at(self) -> bytes:
        """What the worker is at: changes whenever it goes on to something else."""
        return self._array.tobytes()

    @property
    def runs(self) -> bool:
        """Whether the process runs."""
        return bool(self._context.pids)

    @property
    def private_bytes(self) -> int:
        """Memory that the process has for itself; 0 where that cannot be told."""
        for pid in self._context.pids:
            with contextlib.suppress(OSError, ValueError):
                _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
                return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
        return 0

    @property
    def exit_code(self) -> int | None:
        """How the process ended, once it has been closed: a negative number is a signal's."""
        return self._exit_code

    def seconds_at(self, passed: float) -> float:
        """Return how long the worker has been at the same thing.

        Only what passes between two looks counts, and not while the process is stopped: neither a debugger
        nor a machine that sleeps makes a worker look hung.

        Args:
            passed: seconds since the last look.
        """
        at = self.at
        if at != self._at or not self.works:
            self._at, self._seconds = at, 0.0
        elif not self._stopped:
            self._seconds += passed
        return self._seconds

    def start(self) -> Startup:
        """Start the process and wait until it has answered. Blocks: for a thread."""
        with self._lock:
            if self._closed:
                raise BrokenProcessPool("closed before it was started")
            self._stack = StackFile()
            self._executor = ProcessPoolExecutor(
                1, self._context, start_worker, (self._handle, self.mark, self._recipe, self._stack.handle())
            )
        return self._executor.submit(ping).result(timeout=_START_TIMEOUT)

    def submit(self, job: Job) -> Future[Answer]:
        """Give the worker, which has started, a job."""
        assert self._executor is not None
        return self._executor.submit(run_job, job)

    def dump_stack(self) -> str:
        """Have the process write down where it is, and return that. Blocks: for a thread."""
        if self._stack is None:
            return ""
        with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile, and was closed
            self._stack.clear()
            for pid in self._context.pids:
                os.kill(pid, STACK_SIGNAL)
            return self._stack.read(_STACK_SECONDS)
        return ""

    def kill(self) -> None:
        """End the process by force."""
        self._context.kill()

    def close(self, grace: float) -> None:
        """End the process, by force after `grace` seconds. Blocks: for a thread; twice is free."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._executor is not None:
                self._end(self._executor, grace)
            self._exit_code = self._context.close()
            if self._stack is not None:
                self._stack.close()

    def _end(self, executor: ProcessPoolExecutor, grace: float) -> None:
        ending = self._threads.submit(executor.shutdown, wait=True, cancel_futures=True)
        for _ in range(_TRIES):  # more than one, since a start may have been under way
            if wait([ending], grace).done:
                return
            self._context.hang_up()
            self._context.kill()
        if not wait([ending], grace).done:
            _log.warning("worker process %s could not be ended and is left behind", self._context.pids)

    @property
    def _stopped(self) -> bool:
        """Whether the process was stopped by a signal, and may go on any time."""
        for pid in self._context.pids:
            with contextlib.suppress(OSError, IndexError):
                status = Path(f"/proc/{pid}/stat").read_bytes()
                return status.rpartition(b")")[2].split()[0] in (b"T", b"t")
        return False


def signal_name(number: int) -> str:
    """Return what a signal is called."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
