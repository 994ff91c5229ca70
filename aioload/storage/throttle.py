"""Throttle: whether a server has too much to do, and how long all requests to it should rest; pure.

One "slow down" among many answers is everyday life with an object store and concerns its own read alone.
Where they are about a tenth of the recent answers or more, the server means everybody.
"""

from __future__ import annotations

__all__ = ["Throttle"]

_MEMORY = 64  # answers after which one counts for about a third
_HALF_LIFE = 10.0  # seconds after which an answer counts half
_TOO_MANY = 6.0  # throttled answers, so weighed: at 2% by chance, once in tens of thousands
_FIRST_REST, _LONGEST_REST = 0.1, 5.0  # seconds, doubled from rest to rest
_LONGEST_ASKED = 60.0  # seconds: a server that asks for more is meant by its own read, not by all
_CALM = 8  # good answers in a row after which the rests begin from the first again


class Throttle:
    """What is known about a server from its recent answers; the caller tells the time."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._seen_at = 0.0
        self._rest_until = float("-inf")
        self._next_rest = _FIRST_REST
        self._good = 0

    def answered(self, now: float) -> None:
        """Note an answer that was as it should be."""
        self._age(now)
        self._good += 1
        if self._good >= _CALM:
            self._next_rest = _FIRST_REST

    def throttled(self, now: float, retry_after: float | None) -> bool:
        """Note an answer that said "slow down"; return whether a new rest began for all."""
        self._age(now)
        self._weight += 1
        self._good = 0
        if self._weight < _TOO_MANY or now < self._rest_until:
            return False
        rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _LONGEST_REST)
        self._rest_until = now + max(rest, min(retry_after or 0.0, _LONGEST_ASKED))
        return True

    def is_on(self, now: float) -> bool:
        """Tell whether the server has too much to do."""
        return self.rest(now) > 0 or self._weight * _decay(now - self._seen_at) >= _TOO_MANY

    def rest(self, now: float) -> float:
        """Return the seconds until requests should be sent again; 0 if now."""
        return max(self._rest_until - now, 0.0)

    def _age(self, now: float) -> None:
        self._weight *= (1 - 1 / _MEMORY) * _decay(now - self._seen_at)
        self._seen_at = now


def _decay(seconds: float) -> float:
    return float(0.5 ** (max(seconds, 0.0) / _HALF_LIFE))
