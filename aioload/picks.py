"""Picks: which records a selection or a split takes of a set; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError
from .order import make_key, permute
from .shares import is_whole, share_out

__all__ = ["Picks", "as_picks", "compose", "deal_out", "part_sizes"]

Records = NDArray[np.int64]
Picks = range | Records
"""Records of a set, in some order, none twice."""

_SPLIT = 3  # purpose of the key, beside those of `order`
_ROUNDS = 64
_CHUNK = 1 << 18  # records drawn at once


def as_picks(wanted: Any, size: int) -> Picks:
    """Return the numbers of the records that a user asks for, as a range where they are one."""
    if isinstance(wanted, slice):
        return range(*wanted.indices(size))
    if isinstance(wanted, range):
        if len(wanted) and not (0 <= wanted[0] < size and 0 <= wanted[-1] < size):
            raise ConfigError(f"{wanted} is not within the records, 0 to {size - 1}")
        return wanted
    numbers = np.asarray(wanted)
    if numbers.dtype == bool:
        if numbers.shape != (size,):
            raise ConfigError(
                f"a mask has a truth value for each of the {size} records, got the shape {numbers.shape}"
            )
        numbers = np.flatnonzero(numbers)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ConfigError(f"select takes a range, a slice, a mask or numbers of records, got {wanted!r}")
    return _checked(numbers.astype(np.int64), size)


def compose(outer: Picks, inner: Picks) -> Picks:
    """Return the picks that `inner` takes of those that `outer` took."""
    if isinstance(inner, range):
        return outer[slice(inner.start, inner.stop if inner.stop >= 0 else None, inner.step)]
    return outer.start + inner * outer.step if isinstance(outer, range) else outer[inner]


def part_sizes(parts: Mapping[str, float], size: int) -> list[int]:
    """Return how many records each part of a split gets."""
    shares: list[Any] = list(parts.values())
    if not shares:
        raise ConfigError("split needs at least one part")
    if all(map(is_whole, shares)):
        if min(shares) < 0 or sum(shares) > size:
            raise ConfigError(f"parts of {shares} records cannot be taken of {size}")
        return [int(share) for share in shares]
    fractions = [float(share) for share in shares if isinstance(share, (float, np.floating)) and share >= 0]
    if len(fractions) < len(shares) or not abs(math.fsum(fractions) - 1) <= 1e-9:
        raise ConfigError(
            f"parts must be shares that sum to 1 (such as 0.9 and 0.1) or numbers of records, got {shares}"
        )
    exact = [Fraction(share) for share in fractions]
    unit = math.lcm(*(share.denominator for share in exact))
    return share_out(size, [int(share * unit) for share in exact])


def deal_out(sizes: Sequence[int], size: int, seed: int) -> list[Records]:
    """Return which of `size` records each part gets, ascending; only the smaller parts are drawn."""
    key = make_key(seed, 0, _SPLIT)
    firsts = np.cumsum([0, *sizes]).tolist()
    longest = sizes.index(max(sizes)) if sum(sizes) == size else -1
    rest = np.ones(size, bool)
    dealt: list[Records] = []
    for number, (first, stop) in enumerate(pairwise(firsts)):
        drawn = np.empty(0 if number == longest else stop - first, np.int64)
        for begin in range(0, len(drawn), _CHUNK):
            end = min(begin + _CHUNK, len(drawn))
            places = np.arange(first + begin, first + end, dtype=np.int64)
            drawn[begin:end] = permute(places, size, key, rounds=_ROUNDS)
        drawn.sort()
        rest[drawn] = False
        dealt.append(drawn)
    if longest >= 0:
        dealt[longest] = np.flatnonzero(rest).astype(np.int64)
    return dealt


def _checked(numbers: Records, size: int) -> Picks:
    """Check the numbers of records; equal steps make a range."""
    if not len(numbers):
        return range(0)
    if not 0 <= int(numbers.min()) <= int(numbers.max()) < size:
        wrong = int(numbers[(numbers < 0) | (numbers >= size)][0])
        raise ConfigError(f"records are 0 to {size - 1}, but {wrong} was selected", record=wrong)
    steps = np.diff(numbers)
    if not len(steps) or (steps[0] != 0 and (steps == steps[0]).all()):
        step = int(steps[0]) if len(steps) else 1
        return range(int(numbers[0]), int(numbers[-1]) + (1 if step > 0 else -1), step)
    if not (steps > 0).all():
        ordered = np.sort(numbers)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            raise ConfigError(f"record {twice[0]} was selected twice; select each once", record=int(twice[0]))
    numbers.flags.writeable = False
    return numbers
