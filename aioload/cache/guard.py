"""Guard: whether the machine has memory to spare, so that what is kept never drives it into swap.

Two readings, each of which is enough: how much memory is left of what this process may have, and for which
share of the last ten seconds somebody waited for memory (the kernel's pressure stall information). Under
pressure the pipeline first looks less far ahead; where that is not enough, nothing more is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from .. import cgroup
from ..machine import available_memory, total_memory

__all__ = ["Guard", "Pressure", "Reading", "affordable", "read"]

_LOOK_SECONDS = 1.0  # asking takes about a millisecond
_TIGHT_SHARE, _SEVERE_SHARE, _EASY_SHARE = 0.08, 0.04, 0.12  # of memory that is left
_TIGHT_STALL, _SEVERE_STALL, _EASY_STALL = 10.0, 30.0, 5.0  # per cent of the time
_PATIENCE = 2  # looks that find it tight, after which looking less far ahead was not enough
_LEAST_FREE, _FREE_SHARE = 512 << 20, 0.1  # that a limit leaves to others: the greater of these


class Pressure(IntEnum):
    """How scarce memory is."""

    NONE = 0
    TIGHT = 1
    """Look less far ahead."""
    SEVERE = 2
    """Keep nothing more, too."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the system says."""

    available: int
    """Bytes that this process may still have."""
    total: int
    """Bytes that it may have in all."""
    stalled: float | None
    """Per cent of the last ten seconds in which somebody waited for memory; None where nobody tells."""


def read() -> Reading:
    """Ask the system."""
    return Reading(available_memory(), _total(), cgroup.memory_stall())


class Guard:
    """Looks now and then.

    Args:
        ask: gives a reading.
        clock: seconds.
    """

    def __init__(
        self, ask: Callable[[], Reading] = read, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._next = 0.0
        self._tight = 0  # looks in a row
        self.pressure = Pressure.NONE
        """What the last look has found."""

    def look(self) -> Pressure:
        """Return how scarce memory is; asks the system once a second at most."""
        now = self._clock()
        if now >= self._next:
            self._next = now + _LOOK_SECONDS
            self.pressure = self._judge(self._ask())
        return self.pressure

    def _judge(self, found: Reading) -> Pressure:
        share = found.available / max(found.total, 1)
        stalled = found.stalled or 0.0
        if share < _SEVERE_SHARE or stalled >= _SEVERE_STALL:
            self._tight = _PATIENCE
            return Pressure.SEVERE
        if share < _TIGHT_SHARE or stalled >= _TIGHT_STALL:
            self._tight += 1
            return Pressure.SEVERE if self._tight > _PATIENCE else Pressure.TIGHT
        if self.pressure and (share < _EASY_SHARE or stalled >= _EASY_STALL):
            return self.pressure  # neither: what helped goes on
        self._tight = 0
        return Pressure.NONE


def affordable(found: Reading, others: int) -> int:
    """Return the bytes that may be kept on this machine.

    Args:
        found: what the system says.
        others: bytes that our pipelines may yet take.
    """
    return max(found.available - others - max(_LEAST_FREE, int(found.total * _FREE_SHARE)), 0)


@cache
def _total() -> int:
    return total_memory()
