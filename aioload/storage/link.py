"""Link: what all reads over one network connection to one place share, whatever loop they run in."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields

from .gate import Gate
from .growth import Growth
from .lateness import Allowance, Latencies
from .throttle import Throttle

__all__ = ["Link", "NetworkCounts"]

_log = logging.getLogger("aioload.storage")

_TELL_AFTER = 5.0  # seconds of an outage, after which the log says why nothing comes
_OUTAGE_GAP = 10.0  # seconds without a try, after which an outage counts anew
_SPARE_HEDGE = 1.0  # seconds without a hedge, after which one is free: what waits for a read earns none
_START, _LEAST, _MOST = 64 << 20, 1 << 20, 128 << 20  # bytes in flight: 128, 2 and 256 small reads


@dataclass(frozen=True, slots=True)
class NetworkCounts:
    """What went over a link."""

    requests: int = 0
    """Requests that were sent, retries and hedges included."""
    retries: int = 0
    """Requests that were sent because an earlier one failed."""
    hedges: int = 0
    """Requests that were sent because an earlier one was late."""
    hedges_won: int = 0
    """Of these, those that answered first."""
    throttles: int = 0
    """Answers that said "slow down" (429, 503)."""
    bytes: int = 0
    """Bytes that reads brought, each once."""


class Link:
    """Counts, recent latencies, room in flight and a server's wish to be left alone, of one place.

    Safe to use from several threads.

    Args:
        max_in_flight: bytes in flight at most; by default they follow what the link gives.
        shown: the place, for the log; nothing secret is in it.
        clock: tells the time.
    """

    def __init__(
        self,
        *,
        max_in_flight: int | None = None,
        shown: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shown = shown
        self._is_told = False  # the log knows of the outage
        most = _MOST if max_in_flight is None else max_in_flight
        start = _START if max_in_flight is None else max_in_flight
        self.clock = clock
        self.gate = Gate(Growth(start, min(_LEAST, start), most), clock)
        self.most = most
        """Bytes that can ever be in flight at once."""
        self.has_answered = False
        """Whether the place has ever answered: else a wrong address is likelier than an outage."""
        self._out: tuple[float, float] | None = None  # first and latest time that it could not be reached
        self._counts = dict.fromkeys((field.name for field in fields(NetworkCounts)), 0)
        self._latencies = Latencies()
        self._allowance = Allowance()
        self._hedged_at = clock()
        self._throttle = Throttle()
        self._lock = threading.Lock()

    def counts(self) -> NetworkCounts:
        """Return what went over the link so far."""
        with self._lock:
            return NetworkCounts(**self._counts)

    def add(self, **amounts: int) -> None:
        """Add to some counts."""
        with self._lock:
            self._add(amounts)

    def answered(self, size: int) -> None:
        """Note a request that brought so many bytes and all it should."""
        self.has_answered = True
        with self._lock:
            self._out = None
            self._add({"bytes": size})
            self._throttle.answered(self.clock())

    def failed(
        self,
        filled: int = 0,
        *,
        throttled: bool = False,
        retry_after: float | None = None,
        answered: bool = False,
    ) -> None:
        """Note a request that failed, maybe after some bytes or with an answer that was no good."""
        with self._lock:
            self.has_answered |= answered
            self._out = None if answered else self._out
            self._add({"bytes": filled, "throttles": int(throttled)})
            now = self.clock()
            rests = throttled and self._throttle.throttled(now, retry_after)
        if rests:
            self.gate.narrow(now)

    def unreachable(self) -> float:
        """Note that the place could not be reached; return for how many seconds that has been so.

        Reads that only begin while it is out do not wait for it as long as the first did.
        """
        with self._lock:
            now = self.clock()
            if self._out is None or now - self._out[1] > _OUTAGE_GAP:
                self._out, self._is_told = (now, now), False
            self._out = self._out[0], now
            seconds = now - self._out[0]
            tells = seconds > _TELL_AFTER and not self._is_told
            self._is_told |= tells
        if tells:
            _log.warning(
                "%s has not been reached for %.0f s; reads wait for it until their deadline",
                self._shown or "a storage",
                seconds,
            )
        return seconds

    def rest(self) -> float:
        """Return the seconds until requests should be sent again, which a server that throttles decides."""
        with self._lock:
            return self._throttle.rest(self.clock())

    def took(self, size: int, seconds: float) -> None:
        """Note what a read took, from the moment it was sent."""
        with self._lock:
            self._latencies.note(size, seconds)

    def sent(self) -> None:
        """Note a read that may become late: of so many, one may be asked again."""
        with self._lock:
            self._allowance.earn()

    def late(self, size: int) -> float | None:
        """Return after how many seconds a read of so many bytes is late; None if that is not known yet."""
        with self._lock:
            return self._latencies.late(size)

    def hedge(self, size: int) -> bool:
        """Tell whether a late read may be asked again now, and take the room; `unhedge` gives it back."""
        with self._lock:
            now = self.clock()
            earned = self._allowance.is_left
            if not (earned or now - self._hedged_at >= _SPARE_HEDGE) or self._throttle.is_on(now):
                return False
            if not self.gate.squeeze(size):
                return False
            self._hedged_at = now
            if earned:
                self._allowance.spend()
            self._add({"requests": 1, "hedges": 1})
        return True

    def unhedge(self, size: int) -> None:
        """Give back the room of a read that was asked again."""
        self.gate.unsqueeze(size)

    def __repr__(self) -> str:
        gate = self.gate
        state = f"in_flight={gate.used} of {gate.limit} waiting={gate.waiting}"
        return f"<Link requests={self._counts['requests']} {state}>"

    def _add(self, amounts: dict[str, int]) -> None:
        for name, amount in amounts.items():
            self._counts[name] += amount
