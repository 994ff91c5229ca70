"""Crews: who makes shards: processes of this machine, this process, or the workers of a Dask scheduler."""

from __future__ import annotations

import time
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
_DESERTED_SECONDS = 60
_SCHEMES = ("", "tcp", "tls", "ucx", "ucxx", "ws", "wss")
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
    _check_address(address)
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
        workers = _Workers(address, client)
        yield Crew(
            client.get_executor,
            lambda executor: executor.shutdown(wait=False),
            lambda: max(1, _PER_THREAD * workers.threads()),
            workers.check,
            elsewhere=True,
        )


def _check_address(address: str) -> None:
    """Refuse what Dask would refuse, too, a minute and some tracebacks later."""
    scheme, _, location = address.removesuffix("/").rpartition("://")
    if scheme == "inproc":
        return
    host, _, port = location.rpartition(":")
    if scheme not in _SCHEMES or not host or not port.isdigit():
        raise ConfigError(f"{address!r} is no address of a Dask scheduler, which is like tcp://host:8786")


class _Workers:
    """Those of a scheduler, which come and go."""

    def __init__(self, address: str, client: Any) -> None:
        self._address = address
        self._client = client
        self._last = time.monotonic()  # that there were any

    def threads(self) -> int:
        """Return how many tasks they do at once.

        Raises:
            WorkerError: the scheduler is gone.
        """
        try:
            threads: int = sum(self._client.nthreads().values())
        except OSError as error:
            raise WorkerError(
                f"the scheduler {self._address} was lost ({error}); what is done is kept for another run"
            ) from error
        if threads:
            self._last = time.monotonic()
        return threads

    def check(self) -> None:
        """Raise if there have been none for a while: Dask itself would wait for others without end."""
        if not self.threads() and time.monotonic() - self._last > _DESERTED_SECONDS:
            raise WorkerError(
                f"the scheduler {self._address} has had no workers for {_DESERTED_SECONDS} s; start some and "
                "run the same again: what is done is kept"
            )
