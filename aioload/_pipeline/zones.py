"""Zones: how a limit is divided, and the least limit that works; pure.

The lower zone is the *head's*, kept for the run whose batches are needed next. It holds what any batch may
need, and half of the limit at least: so whether a limit works depends on sizes alone, and a larger limit
always works where a smaller one does. Then comes the *window's*, for pieces that several runs share, if a
quarter is left beside it; the *shared* one has the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from .needs import Need

__all__ = ["Zones", "divide", "least", "too_small", "wanted_window"]

_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Zones:
    """Bytes of a limit, from below."""

    limit: int
    """All of it."""
    head: int
    """Where the head's zone ends, and the window's begins."""
    shared: int
    """Where the window's zone ends, and the shared one begins."""

    @property
    def guessable(self) -> int:
        """Bytes that a run may lease on a guess, all its leases together."""
        return self.head // 4


def wanted_window(lanes: int, piece_bytes: int, data_bytes: int, limit: int) -> int:
    """Return the room that pieces should have, or 0 where a limit has none for those of all lanes at once.

    Args:
        lanes: that a rank draws from.
        piece_bytes: of the largest piece of each.
        data_bytes: of all records.
        limit: of memory.
    """
    needed = min(lanes * piece_bytes, data_bytes) + (1 << 16)
    # more than the lanes' own: batches on their way still use older pieces, the next epoch's come early
    window = min(needed * 5 // 2, limit // 4)
    return window if window >= needed else 0


def divide(limit: int, need: Need, *, window: int = 0, reserved: int = 0) -> Zones:
    """Divide a limit.

    Args:
        limit: bytes.
        need: of any batch.
        window: bytes that the window would like to have.
        reserved: bytes set aside for good.

    Raises:
        ConfigError: it is too small; names the least that is enough.
    """
    rest = _up(reserved) + _PAGE  # that the shared zone has at least
    head = max(_up(need.run) + _PAGE, min(limit // 2, limit - rest) // _PAGE * _PAGE)
    if head + rest > limit:
        raise too_small(limit, need, reserved=reserved)
    window = window // _PAGE * _PAGE
    if window > limit - max(limit // 4, rest) - head:
        window = 0
    return Zones(limit, head, head + window)


def least(need: Need, *, reserved: int = 0, told: bool = False) -> int:
    """Return the least limit that works.

    Args:
        need: of any batch.
        reserved: bytes set aside for good.
        told: what becomes of records was told by a batch, after the limit had been divided without that.
    """
    rest = _up(reserved) + _PAGE
    head = _up(need.run) + _PAGE
    return max(2 * head, head + rest) if told else head + rest


def too_small(limit: int, need: Need, *, reserved: int = 0, told: bool = False) -> ConfigError:
    """Return the error of a limit that cannot work; the arguments are those of `least`."""
    enough = least(need, reserved=reserved, told=told)
    return ConfigError(
        f"memory_limit of {limit} bytes cannot hold what a batch needs on its way, up to {need.run} bytes "
        f"for records, samples made of them and the batch; {enough} bytes are enough",
        needed=enough,
    )


def _up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
