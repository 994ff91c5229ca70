"""Transforms that draw random numbers, in a module that workers import in no time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

__all__ = [
    "Keyed",
    "from_numpy",
    "from_random",
    "from_rng",
    "from_rng_by_default",
    "from_rng_by_keyword",
    "from_torch",
]


def from_rng(sample: Any, rng: np.random.Generator) -> Any:
    """Draw from the generator that is handed over."""
    return {"n": sample["n"], "drawn": rng.integers(1 << 60)}


def from_rng_by_keyword(sample: Any, *, rng: np.random.Generator) -> Any:
    """The same, where it can only be named."""
    return {"n": sample["n"], "drawn": rng.integers(1 << 60)}


def from_rng_by_default(sample: Any, scale: int = 1, rng: Any = None) -> Any:
    """The same, behind a parameter with a default."""
    return {"n": sample["n"], "drawn": scale * rng.integers(1 << 60)}


def from_random(sample: Any) -> Any:
    """Draw from Python's global generator."""
    return {"n": sample["n"], "drawn": random.getrandbits(60)}


def from_numpy(sample: Any) -> Any:
    """Draw from numpy's global generator."""
    return {"n": sample["n"], "drawn": np.random.randint(1 << 60)}


def from_torch(sample: Any) -> Any:
    """Draw from torch's global generator; a worker has no torch until then."""
    import torch

    return {"n": sample["n"], "drawn": int(torch.randint(1 << 60, ()))}


class Keyed:
    """A transform that is an object."""

    def __call__(self, sample: Any, rng: np.random.Generator) -> Any:
        return {"n": sample["n"], "drawn": rng.integers(1 << 60)}
