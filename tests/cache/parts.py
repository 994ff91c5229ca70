"""Functions that travel to workers: in a module of their own, which loads nothing that takes long."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["DiesOnce", "Unknown", "drop_odd", "odd", "prepare", "transform", "with_rng"]


def prepare(sample: dict[str, Any]) -> dict[str, Any]:
    """Do what always gives the same."""
    wave = np.sin(sample["wave"].astype(np.float32))
    return {"n": sample["n"], "mel": wave.reshape(8, 25).T, "name": sample["name"], "key": sample["__key__"]}


def transform(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Do what is random, and write into the sample."""
    sample["mel"][rng.integers(25)] = np.random.rand()
    sample["name"] += sample["__key__"]
    return sample


def with_rng(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Ask for what is not given."""
    return sample


def odd(sample: dict[str, Any]) -> dict[str, Any]:
    """Return something that cannot be kept."""
    return {"n": sample["n"], "odd": frozenset([1])}


def drop_odd(sample: dict[str, Any]) -> dict[str, Any]:
    """Return what can be stacked."""
    return {"n": sample["n"], "size": len(sample["odd"])}


class DiesOnce:
    """Transforms, but ends its process at one record, once.

    Args:
        mark: tells that it did.
    """

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Transform a sample."""
        if sample["n"] == 77 and not self.mark.exists():
            self.mark.touch()
            os._exit(9)
        return transform(sample, rng)


class Unknown:
    """Holds what no name can be made of."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the number."""
        return {"n": sample["n"]}
