"""Executors: what can be told of one of the user's: its workers, where they are, what its errors mean.

Dask's is known by names, as its package need not be there. It has a client, which knows the workers.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor

from ..errors import WorkerError
from ..machine import usable_cpus
from .visitor import greet

__all__ = [
    "capacity",
    "is_closed",
    "is_dasks",
    "is_near",
    "killed_workers",
    "refused",
    "shares_memory",
    "warm_up",
]


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
    client = getattr(executor, "_client", None)
    if client is not None and not getattr(client, "asynchronous", False):
        with contextlib.suppress(Exception):  # whatever is wrong with it, a task will meet
            return max(int(sum(client.ncores().values())), 1)
    return usable_cpus()


def is_dasks(executor: Executor) -> bool:
    """Tell the executor of a Dask client."""
    return type(executor).__module__.partition(".")[0] == "distributed"


def is_closed(executor: Executor) -> bool:
    """Tell whether a Dask client was closed: futures of its executor are then left as they are."""
    return getattr(getattr(executor, "_client", None), "status", None) == "closed"


def killed_workers(error: BaseException) -> bool:
    """Tell Dask's error of a task at which several workers died."""
    return any(cls.__name__ == "KilledWorker" for cls in type(error).__mro__)


def warm_up(executor: Executor) -> None:
    """Have the processes of an executor start before there are threads of ours, which a fork would copy.

    Raises:
        WorkerError: it takes no tasks.
    """
    try:
        executor.submit(greet)
    except Exception as error:
        raise refused(error) from error


def refused(error: BaseException) -> WorkerError:
    """Return the error of an executor that takes no tasks."""
    return WorkerError(
        f"the executor takes no tasks ({error}); keep it open for as long as the loader is used",
        cause=repr(error),
    )
