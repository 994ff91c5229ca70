"""Transport: how jobs get to the workers of a user's executor, and answers back.

Threads share the arena, so a job is all that they need. Others are sent parcels (see `parcel`), and what they
need besides goes with the first ones, until as many workers have told that they have it as there should be;
one that lacks it says so, and is asked again.
"""

from __future__ import annotations

import time
import warnings
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any, Protocol

from numpy.typing import NDArray

from ..errors import ClosedError, WorkerError
from .executors import is_closed, is_dasks, refused
from .jobs import Answer, Job, Recipe
from .parcel import Kit, Parcel, Reply, place, wrap
from .task import Worker
from .visitor import visit

__all__ = ["Far", "Lacking", "Near", "Transport"]


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
        self.cancels = True
        self._options: dict[str, Any] = {}
        if is_dasks(executor):
            self.cancels = False  # it logs an error, with a traceback, for each task that is
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
        """Raise if nobody is left who would answer."""
        if is_closed(self._executor):
            raise refused(ClosedError("its client was closed"))
