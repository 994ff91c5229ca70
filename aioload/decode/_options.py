"""Options of the image decoder, brought into one form or refused."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..errors import ConfigError

__all__ = ["checked_flip", "checked_pair", "checked_size"]


def checked_size(size: Any) -> int | tuple[int, int] | None:
    """Return the size in plain numbers."""
    if size is None:
        return None
    plain: int | tuple[int, int]
    try:
        if hasattr(size, "__index__"):
            plain = operator.index(size)
        else:
            height, width = map(operator.index, size)
            plain = (height, width)
    except (TypeError, ValueError):
        raise ConfigError(f"size must be a whole number or a pair (height, width), got {size!r}") from None
    if isinstance(size, bool) or min(plain if isinstance(plain, tuple) else (plain,)) <= 0:
        raise ConfigError(f"size must be positive, got {size!r}")
    return plain


def checked_flip(flip: Any) -> float:
    """Return the probability of a flip."""
    try:
        probability = 0.5 * flip if isinstance(flip, bool | np.bool_) else float(flip)
    except (TypeError, ValueError):
        probability = -1
    if not 0 <= probability <= 1:
        raise ConfigError(f"flip must be True, False or a probability from 0 to 1, got {flip!r}")
    return float(probability)


def checked_pair(name: str, pair: Any) -> tuple[float, float]:
    """Return smallest and largest of something."""
    try:
        least, most = map(float, pair)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be a pair (smallest, largest), got {pair!r}") from None
    if not 0 < least <= most < float("inf"):
        raise ConfigError(f"{name} must be positive, and its first number not above its second; got {pair!r}")
    return least, most
