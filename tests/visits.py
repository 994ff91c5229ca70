"""What workers of executors do in tests; they import this module, so it is light."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import numpy as np

__all__ = ["Unloadable", "die_at_forty", "doubled", "drawn", "drawn_globally", "gathered", "is_seven"]


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    """Do what is the same in each epoch."""
    return {"n": sample["n"], "twice": sample["array"] * 2}


def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Draw, and keep the key."""
    return {"n": sample["n"], "noise": rng.random(3), "key": sample["__key__"], "text": sample["text"]}


def drawn_globally(sample: dict[str, Any]) -> dict[str, Any]:
    """Draw from the global generators."""
    return {"n": sample["n"], "a": random.random(), "b": np.random.random()}


def gathered(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch of a kind of its own, having changed the samples."""
    for sample in samples:
        sample["array"] += 1
    return {"arrays": [sample["array"] for sample in samples], "count": len(samples), "what": {"a", "b"}}


def is_seven(sample: dict[str, Any]) -> bool:
    """Tell one record."""
    return bool(sample["n"] == 7)


def die_at_forty(sample: dict[str, Any]) -> dict[str, Any]:
    """End the process at one record."""
    if sample["n"] == 40:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


class Unloadable:
    """A transform that can be pickled, and not be made again."""

    def __reduce__(self) -> Any:
        return divmod, (1, 0)

    def __call__(self, sample: Any) -> Any:
        return sample
