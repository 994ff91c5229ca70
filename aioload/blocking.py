"""Blocking: coroutines that are waited for in plain code, and how whoever waits for one is let go.

Opening a set can take hours. Ctrl-C comes to the thread that waits; a `Stop` ends what another one waits for;
and one is set when the program ends, since the standard library then waits for jobs of processes that the
coroutine may have called in.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from anyio.from_thread import start_blocking_portal

from .errors import ClosedError
from .lifetime import Origin, at_exit

__all__ = ["Stop", "run_blocking"]

T = TypeVar("T")


class Stop:
    """Ends what is waited for by `run_blocking`, from any thread or signal handler, once and for all."""

    def __init__(self) -> None:
        self._is_set = False
        self._waited: set[Future[Any]] = set()
        self._lock = threading.RLock()  # a signal handler may come while it is held

    def set(self) -> None:
        """End what is under way, and whatever is begun under this later."""
        with self._lock:
            self._is_set = True
            for future in self._waited:
                future.cancel()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Have all that this thread waits for inside of the block end with it."""
        token = _heeded.set(self)
        try:
            yield
        finally:
            _heeded.reset(token)

    @contextmanager
    def ends(self, future: Future[Any]) -> Iterator[None]:
        """Have a future cancelled with it."""
        with self._lock:
            self._waited.add(future)
            if self._is_set:
                future.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._waited.discard(future)


_heeded: ContextVar[Stop | None] = ContextVar("_heeded", default=None)


def run_blocking(waited: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a thread of its own: the caller's may have a loop that runs already.

    Ctrl-C, which comes to the caller's thread, cancels it.

    Raises:
        ClosedError: a `Stop` that is heeded here was set meanwhile, or the program ends.
    """

    async def wait() -> T:
        return await waited

    stop = _heeded.get() or Stop()
    with _under_way(), start_blocking_portal() as portal:
        future = portal.start_task_soon(wait)
        with stop.ends(future), _at_exit.ends(future):
            try:
                return future.result()
            except CancelledError as error:
                raise ClosedError("closed while a data set was being opened") from error


@contextmanager
def _under_way() -> Iterator[None]:
    """Have the program's end wait a little until the block is left."""
    mark = object()
    with _changed:
        _blocks.add(mark)
    try:
        yield
    finally:
        with _changed:
            _blocks.discard(mark)
            _changed.notify_all()


_LEAVE_SECONDS = 5.0  # more than processes are given to end
_at_exit = Stop()
_blocks: set[object] = set()  # that threads are in
_changed = threading.Condition()


def _end_all() -> None:
    if _origin.is_left:  # what is waited for is the parent's
        return
    _at_exit.set()
    with _changed:  # a thread that gives processes back while the interpreter goes leaves their semaphores
        _changed.wait_for(lambda: not _blocks, _LEAVE_SECONDS)


_origin = Origin()
at_exit(_end_all)
