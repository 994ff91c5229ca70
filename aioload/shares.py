"""Shares: a whole number dealt out by weights, exactly; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from .errors import ConfigError

__all__ = ["Weights", "as_weights", "draws_of_epoch", "in_lowest_terms", "is_whole", "share_out"]

Weights = tuple[int | float, ...]
"""Of the sources, in whatever unit."""


def as_weights(weights: Sequence[Any]) -> Weights:
    """Check weights and make them plain numbers.

    Raises:
        ConfigError: they cannot be.
    """
    plain: list[int | float] = []
    for weight in weights:
        if is_whole(weight):
            plain.append(int(weight))
        elif isinstance(weight, (float, np.floating)) and math.isfinite(weight):
            plain.append(float(weight))
        else:
            raise ConfigError(f"a weight must be a number, got {weight!r}")
    if min(plain) < 0 or not any(plain):
        raise ConfigError(f"weights must not be negative, nor all 0, got {plain}")
    return tuple(plain)


def share_out(total: int, weights: Sequence[int], given: tuple[int, int] | None = None) -> list[int]:
    """Return whole shares of a total, by the largest remainders: less than one away from the weights'.

    Args:
        total: what is shared.
        weights: of those who share it.
        given: one of them, and the share it must have; it may be less than one away as well.
    """
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    remainders = [total * weight % whole for weight in weights]
    if given is not None:
        shares[given[0]], remainders[given[0]] = given[1], -1
    by_remainder = sorted(range(len(weights)), key=lambda i: (-remainders[i], i))
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return shares


def draws_of_epoch(sizes: Sequence[int], weights: Weights, length: int | None, stop: str) -> list[int]:
    """Return how many samples each source gives in an epoch, less than one away from its weight's share.

    Args:
        sizes: records of each source.
        weights: of the sources; 0.7 is seven tenths, not the double next to it.
        length: samples of an epoch; None: as `stop` says.
        stop: "first": until the first source has given each record once; "all": until the last has.
    """
    parts = [Fraction(repr(weight)) for weight in weights]
    unit = math.lcm(*(part.denominator for part in parts))
    shares = [int(part * unit) for part in parts]
    if length is not None:
        return share_out(length, shares)
    epochs = {i: Fraction(sizes[i] * sum(shares), share) for i, share in enumerate(shares) if share}
    choose, round_off = (min, math.floor) if stop == "first" else (max, math.ceil)
    ending = choose(epochs, key=lambda i: epochs[i])
    return share_out(round_off(epochs[ending]), shares, given=(ending, sizes[ending]))


def in_lowest_terms(weights: Weights) -> list[str]:
    """Return the shares of the whole that weights mean, as fractions."""
    shares = [Fraction(repr(weight)) for weight in weights]
    return [str(share / sum(shares)) for share in shares]


def is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number, and no truth value."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
