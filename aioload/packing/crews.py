"""Crews: who makes shards: processes of this machine, this process, or the workers of a Dask scheduler."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any, TypeVar

from .._workers.processes import Processes
from ..errors import ConfigError, WorkerError
from ..machine import usable_cpus
from .running import Crew
from .tasks import forget

__all__ = ["call_in"]

T = TypeVar("T")

_CONNECT_SECONDS = 30
_PER_THREAD = 2  # tasks a thread of a scheduler has: the next lies ready when one is done


@contextmanager
def call_in(num_workers: int | None, scheduler: str | None) -> Iterator[Crew]:
    """Give who works.

    Args:
        num_workers: processes of this machine; 0: this one. By default as many as there are CPUs.
        scheduler: address of a Dask scheduler, whose workers it is then.

    Raises:
        ConfigError: number or address cannot be, or Dask is not installed.
        WorkerError: there is no such scheduler, or it has no workers.
    """
    if scheduler is not None:
        if num_workers is not None:
            raise ConfigError("a scheduler knows its own workers; leave num_workers out")
        with _dask(scheduler) as crew, closing(crew):
            yield crew
        return
    if num_workers is not None and num_workers < 0:
        raise ConfigError(f"num_workers must not be negative, got {num_workers}")
    if num_workers == 0:
        try:
            yield Crew(_Inline, _Inline.shutdown, lambda: 1)
        finally:
            forget()
        return
    workers = num_workers or usable_cpus()
    with closing(Crew(lambda: Processes(workers), Processes.give_up, lambda: workers)) as crew:
        yield crew


class _Inline(Executor):
    """Does what it is given at once."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # raised where the result is asked for, as from any executor
            future.set_exception(error)
        return future


@contextmanager
def _dask(address: str) -> Iterator[Crew]:
    if not re.search(r"^inproc://|:[0-9]+/?$", address):  # Dask's client would be a minute about it
        raise ConfigError(f"a scheduler has an address such as tcp://host:8786, got {address!r}")
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise ConfigError("a scheduler needs Dask; install torch-aioload[dask]") from error
    try:
        client: Any = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise WorkerError(f"the scheduler {address} did not answer: {error}") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        except TimeoutError as error:
            raise WorkerError(f"the scheduler {address} has no workers") from error
        yield Crew(
            client.get_executor,
            lambda executor: executor.shutdown(wait=False),
            lambda: max(1, _PER_THREAD * sum(client.nthreads().values())),
        )
