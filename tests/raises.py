"""Exceptions that hardly get from one process to another, and transforms that raise, in a light module."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["CannotBeShown", "HoldsALock", "OddMessage", "TwoArguments", "raising", "warning"]


class TwoArguments(Exception):
    """Cannot be made again from its message alone."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class HoldsALock(Exception):
    """Cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class CannotBeShown(Exception):
    """Has no message: to ask for it raises."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


class OddMessage(Exception):
    """Its message is of a class that no other process knows."""

    def __str__(self) -> str:
        return type("Odd", (str,), {})("odd")


def raising(make: Callable[[], BaseException], sample: dict[str, Any]) -> dict[str, Any]:
    """Raise at record 13."""
    if sample["n"] == 13:
        raise make()
    return sample


def warning(sample: dict[str, Any]) -> dict[str, Any]:
    """Warn at record 13 where warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if sample["n"] == 13:
            warnings.warn("careful", RuntimeWarning, stacklevel=1)
    return sample
