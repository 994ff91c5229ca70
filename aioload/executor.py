"""Executor: what the user gives a loader to decode with, checked before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

from ._workers.executors import capacity, shares_memory
from ._workers.executors import warm_up as greet
from ._workers.reach import Reach
from .collection import Source
from .dataset import Dataset
from .errors import ConfigError
from .options import count

__all__ = ["check", "check_seeds", "greet", "make_reach", "travels", "workers"]


def check(executor: Executor | None, *, remote_reads: bool, **ours: Any) -> None:
    """Refuse an executor that is none, and options that do not go with it, or only with one.

    Args:
        executor: as it was given.
        remote_reads: likewise.
        ours: options that are about worker processes of our own, where they were given.
    """
    if executor is None:
        if remote_reads:
            raise ConfigError(
                "remote_reads is for the workers of an executor; pass that too, or leave it out"
            )
        return
    _check_kind(executor)
    if remote_reads and shares_memory(executor):
        raise ConfigError("remote_reads is for workers elsewhere, and threads are in this process")
    given = [name for name, value in ours.items() if value is not None]
    if given:
        raise ConfigError(
            f"{given[0]} is about worker processes of aioload's own, the executor has others; leave it out"
        )


def _check_kind(executor: Any) -> None:
    if not isinstance(executor, Executor):
        hint = "; of a Dask client it is client.get_executor()" if hasattr(executor, "get_executor") else ""
        raise ConfigError(f"executor must be a concurrent.futures.Executor, got {executor!r}{hint}")


def workers(executor: Executor, num_workers: Any) -> int:
    """Return how many jobs an executor should have at once."""
    if num_workers == "auto":
        return capacity(executor)
    return count("num_workers", num_workers, least=1)


def check_seeds(executor: Executor | None, *, seeded: bool) -> None:
    """Refuse to set the global generators for code that runs in several threads at once.

    Args:
        executor: of the loader.
        seeded: whether they are to be set.
    """
    if executor is not None and seeded and shares_memory(executor):
        raise ConfigError(
            "threads share the global generators with each other and with the program, so they cannot be set "
            "for each sample: pass seed_globals=False, and draw from the rng of transform(sample, rng)"
        )


def make_reach(sources: Sequence[Source], shards: Sequence[str], of: Sequence[int]) -> Reach:
    """Return what reads the records of these sets elsewhere.

    Args:
        sources: the sets.
        shards: names of all shards.
        of: the set of each.
    """
    openers = []
    for source in sources:
        if not isinstance(source, Dataset):
            raise ConfigError("remote_reads needs sets in folders or at addresses")
        openers.append(source.away())
    return Reach(openers, shards, of)


def travels(executor: Executor | None, num_workers: int) -> bool:
    """Tell whether functions go to other processes."""
    return num_workers > 0 if executor is None else not shares_memory(executor)
