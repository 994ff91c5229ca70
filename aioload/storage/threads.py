"""Threads for blocking reads: at most so many, started when needed, and never waited for at interpreter exit.

The executors of the standard library join their threads when the interpreter exits. A read that is stuck in
the kernel (a dead network mount) would keep a finished program from ending, so these threads are daemons.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from ..errors import ClosedError

__all__ = ["DaemonExecutor", "undo_result"]

P = ParamSpec("P")
T = TypeVar("T")


class DaemonExecutor(Executor):
    """Runs calls in daemon threads; one that is forgotten ends its idle threads when it is collected.

    Args:
        max_threads: threads at most; each is started when a call finds no idle one.
        name: of the threads, which are numbered.
    """

    def __init__(self, max_threads: int, *, name: str = "aioload-read") -> None:
        if max_threads < 1:
            raise ValueError(f"max_threads must be positive, got {max_threads}")
        self._max_threads = max_threads
        self._name = name
        self._threads: list[threading.Thread] = []
        # all that the threads know, so that the executor can be collected while they idle
        self._jobs = _Jobs()
        weakref.finalize(self, self._jobs.close).atexit = False

    @property
    def ended(self) -> Future[None]:
        """Done when the executor has been shut down and its last call has returned."""
        return self._jobs.ended

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` in a thread as soon as one is free.

        Raises:
            ClosedError: the executor has been shut down.
        """
        job = _Job(fn, args, kwargs)
        with self._jobs.changed:
            self._jobs.put(job)
            if len(self._jobs.waiting) > self._jobs.idle and len(self._threads) < self._max_threads:
                self._start_thread()
        return job.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and end the threads once those already taken have been made.

        Args:
            wait: return only when all threads have ended, which a stuck one may never do; `ended` can be
                waited for with a deadline.
            cancel_futures: drop the calls that no thread has begun.
        """
        self._jobs.close()
        if cancel_futures:
            self._jobs.drop()
        if wait:
            for thread in self._threads:
                thread.join()

    def __repr__(self) -> str:
        alive = sum(thread.is_alive() for thread in self._threads)
        state = " closed" if self._jobs.closed else ""
        waiting = len(self._jobs.waiting)
        return f"<DaemonExecutor threads={alive} of {self._max_threads} waiting={waiting}{state}>"

    def _start_thread(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads; those there are do the work
            if not self._threads:
                self._jobs.waiting.pop()
                raise
        else:
            self._threads.append(thread)
            self._jobs.threads += 1


def undo_result(undo: Callable[[T], object], future: Future[T]) -> None:
    """Undo what came of a call that nobody waits for any more, once it is done."""
    if not future.cancelled() and future.exception() is None:
        undo(future.result())


class _Job:
    """A call, and the future that tells its outcome."""

    __slots__ = ("args", "fn", "future", "kwargs")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.future: Future[Any] = Future()
        self.fn, self.args, self.kwargs = fn, args, kwargs

    def run(self) -> None:
        """Make the call, unless it was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.fn(*self.args, **self.kwargs)
        except BaseException as error:  # whoever waits for a future must learn of any end
            self.future.set_exception(error)
            del self  # the traceback refers to this frame: without this, a cycle keeps the arguments alive
        else:
            self.future.set_result(result)


class _Jobs:
    """Calls that wait for a thread, and a count of the threads that wait for a call."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[_Job] = deque()
        self.idle = 0
        self.threads = 0
        self.closed = False
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()  # a waiter who gives up must not cancel it for all

    def put(self, job: _Job) -> None:
        """Take a call; the caller holds `changed`."""
        if self.closed:
            raise ClosedError("the threads for reading have been shut down; open the storage again")
        self.waiting.append(job)
        self.changed.notify()

    def __iter__(self) -> Iterator[_Job]:
        """Wait for calls, one after the other, until the last has been made after closing."""
        while True:
            with self.changed:
                self.idle += 1
                self.changed.wait_for(lambda: self.waiting or self.closed)
                self.idle -= 1
                if not self.waiting:
                    return
                job = self.waiting.popleft()
            yield job
            del job  # an idle thread must not keep the memory alive that it read into

    def close(self) -> None:
        """Take no more calls."""
        with self.changed:
            ends_now = not self.closed and not self.threads
            self.closed = True
            self.changed.notify_all()
        if ends_now:
            self.ended.set_result(None)

    def drop(self) -> None:
        """Cancel the calls that no thread has begun."""
        with self.changed:
            dropped = list(self.waiting)
            self.waiting.clear()
        for job in dropped:
            job.future.cancel()

    def leave(self) -> None:
        """Count a thread out that has found no more calls."""
        with self.changed:
            self.threads -= 1
            last = not self.threads
        if last:
            self.ended.set_result(None)


def _work(jobs: _Jobs) -> None:
    """Make calls until there are no more."""
    for job in jobs:
        job.run()
        del job
    jobs.leave()
