"""Seat: one worker process with its executor, its mark, and what can be told of its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from enum import Enum
from typing import TYPE_CHECKING

from .context import WorkerContext
from .task import MARK, Answer, Job, Startup, ping, run_job, start_worker
from .trace import STACK_SIGNAL, StackFile

if TYPE_CHECKING:
    from .arena import ArenaHandle
    from .pool import Ticket
    from .space import Span

__all__ = ["Seat", "SeatState"]

_START_TIMEOUT = 30.0  # seconds for a process to start and import what it needs, on a loaded machine too
_STACK_SECONDS = 1.0  # for a hung process to write down where it is


class SeatState(Enum):
    """What a seat can be used for."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"  # finishes what it has, and is replaced
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
        self._array = handle.attach().array[mark.start : mark.stop].view(MARK)
        self._array[0] = (-1, 0)
        self._threads = threads
        self._context = WorkerContext()
        self._stack = StackFile()
        self._executor = ProcessPoolExecutor(
            1, self._context, start_worker, (handle, mark, recipe, self._stack.handle())
        )
        self._closing = False
        self._exit_code: int | None = None

    @property
    def row(self) -> int:
        """The row of the running job's table that the worker is at; -1 between records."""
        return int(self._array["row"][0])

    @property
    def seconds_at_row(self) -> float:
        """How long the worker has been at that row."""
        return time.perf_counter() - float(self._array["began"][0])

    @property
    def exit_code(self) -> int | None:
        """How the process ended, once it has been closed: a negative number is a signal's."""
        return self._exit_code

    @property
    def stopped(self) -> bool:
        """Whether the process was stopped by a signal, and may go on any time."""
        for pid in self._pids():
            with contextlib.suppress(OSError, IndexError):
                with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - procfs
                    return file.read().rpartition(")")[2].split()[0] in ("T", "t")
        return False

    def start(self) -> Startup:
        """Start the process and wait until it has answered. Blocks: for a thread."""
        return self._executor.submit(ping).result(timeout=_START_TIMEOUT)

    def submit(self, job: Job) -> Future[Answer]:
        """Give the worker a job."""
        return self._executor.submit(run_job, job)

    def dump_stack(self) -> str:
        """Have the process write down where it is, and return that. Blocks: for a thread."""
        for pid in self._pids():
            with contextlib.suppress(OSError):
                os.kill(pid, STACK_SIGNAL)
        return self._stack.read(_STACK_SECONDS)

    def kill(self) -> None:
        """End the process by force."""
        self._context.kill()

    def close(self, grace: float) -> None:
        """End the process, by force after `grace` seconds. Blocks: for a thread; twice is free."""
        if self._closing:
            return
        self._closing = True
        ending = self._threads.submit(self._executor.shutdown, wait=True, cancel_futures=True)
        while not wait([ending], grace).done:  # again, since a start may have been under way
            self._context.kill()
        for process in self._context.processes:
            self._exit_code = process.exitcode
        self._context.close()
        self._stack.close()

    def _pids(self) -> list[int]:
        return [process.pid for process in self._context.processes if process.pid is not None]


def signal_name(number: int) -> str:
    """Return what a signal is called."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
