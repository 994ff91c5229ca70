"""Ranks: which of how many processes this one is, by arguments, torch.distributed or torchrun's variables."""

from __future__ import annotations

import os
import sys
from typing import Any

from .errors import ConfigError

__all__ = ["check_rank", "find_rank"]


def find_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return this process's rank and the number of ranks.

    What is given counts; else `torch.distributed` if it is initialised, else `RANK` and `WORLD_SIZE`, else 0
    of 1.

    Raises:
        ConfigError: only one of the two is known, or they do not fit each other.
    """
    if rank is None and world_size is None:
        rank, world_size = _from_torch() or _from_environment() or (0, 1)
        where = "torch.distributed or the environment"
    else:
        where = "the loader's arguments"
    if rank is None or world_size is None:
        raise ConfigError(
            f"rank and world_size must be given both or not at all; got rank={rank}, world_size={world_size}"
        )
    if not (_whole(rank) and _whole(world_size)) or not 0 <= rank < world_size:
        raise ConfigError(
            f"{where} say rank {rank!r} of world size {world_size!r}; a rank is from 0 to world_size - 1"
        )
    return int(rank), int(world_size)


def check_rank(rank: int, world_size: int) -> None:
    """Compare what was found when a loader was made with what torch.distributed says when it starts.

    A trainer may set up its processes in between, and each of them would train on all of the data.

    Raises:
        ConfigError: they differ.
    """
    now = _from_torch() or (rank, world_size)
    if now != (rank, world_size):
        raise ConfigError(
            f"the loader was made as rank {rank} of {world_size}, and torch.distributed, initialised since, "
            f"says rank {now[0]} of {now[1]}; make the loader after that (in Lightning, in "
            "train_dataloader), or say rank= and world_size="
        )


def _from_torch() -> tuple[int, int] | None:
    """Ask torch, if the program has imported it: before that nobody can have initialised it."""
    torch = sys.modules.get("torch")
    distributed: Any = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _from_environment() -> tuple[int, int] | None:
    values = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if values == (None, None):
        return None
    if not all(value is not None and value.strip().isdecimal() for value in values):
        raise ConfigError(
            f"the environment says RANK={values[0]!r} and WORLD_SIZE={values[1]!r}; set both or neither, "
            "or make the loader when torch.distributed is initialised"
        )
    return int(values[0] or 0), int(values[1] or 0)


def _whole(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)
