"""Gate: so many bytes in flight at once, whoever came first goes first, from any number of event loops.

Were small reads let past a large one that does not fit yet, it might wait for ever. What waits is woken
from whichever thread makes room. A waiter is in one of three states, and every change happens under the lock,
so that room is neither given twice nor lost when a cancellation and a grant meet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from enum import Enum

import anyio

from ..wake import waker
from .growth import Growth

__all__ = ["SMALLEST_COST", "Gate"]

SMALLEST_COST = 512 << 10  # bytes that a read counts as at least: it takes a connection
_EXTRA = 4  # of the limit one part may be taken beside the queue


class Gate:
    """Room for reads.

    Args:
        growth: how much there is.
        clock: tells the time.
    """

    def __init__(self, growth: Growth, clock: Callable[[], float]) -> None:
        self._growth = growth
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting = deque[_Waiter]()
        self._used = 0
        self._extra = 0

    @property
    def limit(self) -> int:
        """Bytes that may be in flight."""
        return self._growth.limit

    @property
    def used(self) -> int:
        """Bytes in flight, those taken beside the queue included."""
        return self._used

    @property
    def waiting(self) -> int:
        """Reads that wait."""
        return len(self._waiting)

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Wait for room and keep it; leaving without an error says that so many bytes came."""
        cost = max(size, SMALLEST_COST)
        await self._take(cost)
        came = False
        try:
            yield
            came = True
        finally:
            self._give_back(cost, came)

    def squeeze(self, size: int) -> bool:
        """Take room beside the queue and beyond the limit, where that is little; given back by `unsqueeze`.

        What comes after waits until all of it is inside the limit again.
        """
        cost = max(size, SMALLEST_COST)
        with self._lock:
            if self._extra and self._extra + cost > self.limit // _EXTRA:
                return False
            self._extra += cost
            self._used += cost
        return True

    def unsqueeze(self, size: int) -> None:
        """Give back what `squeeze` took."""
        cost = max(size, SMALLEST_COST)
        with self._lock:
            self._extra -= cost
            self._used -= cost
        self._serve()

    def narrow(self, now: float) -> None:
        """Let fewer in: the server throttles."""
        with self._lock:
            self._growth.throttled(self._used, now)

    async def _take(self, cost: int) -> None:
        with self._lock:
            if not self._waiting and self._fits(cost):
                self._used += cost
                return
            waiter = _Waiter(cost)
            self._waiting.append(waiter)
        try:
            await waiter.event.wait()
        except BaseException:  # cancelled, or its loop ended: nobody else would give its room to the next
            self._leave(waiter)
            raise

    def _leave(self, waiter: _Waiter) -> None:
        """Go away without having used the room."""
        with self._lock:
            if waiter.state is _State.GRANTED:
                self._used -= waiter.cost
            elif waiter.state is _State.WAITING:
                self._waiting.remove(waiter)
            waiter.state = _State.GONE
        self._serve()  # also where it only waited: who is next may be smaller

    def _give_back(self, cost: int, came: bool) -> None:
        with self._lock:
            self._used -= cost
            if came:
                self._growth.arrived(cost, self._clock(), wanted=bool(self._waiting))
        self._serve()

    def _serve(self) -> None:
        """Let in who fits, in the order they came."""
        while granted := self._grant():
            self._wake(granted)

    def _grant(self) -> list[_Waiter]:
        granted: list[_Waiter] = []
        with self._lock:
            while self._waiting and self._fits(self._waiting[0].cost):
                waiter = self._waiting.popleft()
                waiter.state = _State.GRANTED
                self._used += waiter.cost
                granted.append(waiter)
        return granted

    def _wake(self, granted: Iterable[_Waiter]) -> None:
        """Tell those who were let in; the room of one whose loop has ended goes to the next."""
        for waiter in granted:
            if not waiter.wake():
                with self._lock:
                    if waiter.state is _State.GRANTED:
                        self._used -= waiter.cost
                        waiter.state = _State.GONE

    def _fits(self, cost: int) -> bool:
        """Whether a read goes in; one that is larger than everything goes alone."""
        return not self._used or self._used + cost <= self.limit


class _State(Enum):
    WAITING = "waiting"
    GRANTED = "granted"
    GONE = "gone"


class _Waiter:
    """A read that waits."""

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.state = _State.WAITING
        self.event = anyio.Event()
        self.wake = waker(self.event)
