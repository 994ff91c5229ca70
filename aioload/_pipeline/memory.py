"""Memory: who may have how much of the arena, and when.

The arena has three zones (see `zones`). The upper one, *shared*, serves every run in the order of need, and
what lies there is handed to the user in place. The middle one is the *window's*, for pieces of shards that
several runs share; nobody ever waits for room in it. The lower one, the *head's*, is kept for the run whose
batches are needed next; what is made there is handed over as a private copy. So the run at the head always
gets room: nothing in its zone waits for the user or for a later run, and every earlier run leaves it by
itself. This is what makes a deadlock by memory impossible, however sizes turn out and however many batches
the user keeps.

What one run needs on its way must fit into the head's zone, wherever it happens to lie: else whether a job
works would depend on timing. A run that needs more is `TooSmall`; it is then made batch by batch, each in
as little as will do. Should that be too much as well, the limit is refused where nothing has been handed out
yet. Later it is too late for that, and the head gets what it lacks beyond the limit: this happens only where
code of the user's makes more of a batch than it made of the first.

What waits for the user outside of the arena, texts and private copies, counts as part of the shared zone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from .._workers.space import Space, align
from ..errors import ConfigError
from .needs import UNKNOWN
from .zones import divide

if TYPE_CHECKING:
    from .._workers.arena import Arena
    from .._workers.pool import Order
    from .._workers.space import Span
    from .zones import Zones

__all__ = ["Charge", "Lease", "Memory", "TooSmall"]

_log = logging.getLogger("aioload.loader")

_SHARED_FOR_KEPT = 0.5  # share of the shared zone that the user may keep before copies are made
_PATIENCE = (
    0.5  # seconds to wait for memory that nobody should need, before errors that keep it are looked for
)
_WINDOW: Order = (-1, -1)  # what pieces count under: they are no run's


class TooSmall(ConfigError):
    """A run needs more than it may have. The user meets a `ConfigError` that says which limit is enough."""


class Charge:
    """Bytes outside of the arena that wait for the user; they count until they are taken, or dropped."""

    __slots__ = ("_memory", "_size")

    def __init__(self, memory: Memory, size: int) -> None:
        self._memory = memory
        self._size = size

    def end(self) -> None:
        """Count them no more; from any thread, twice is free."""
        size, self._size = self._size, 0
        if size:
            self._memory.put_back_later(size)

    __del__ = end


class Lease:
    """A stretch of the arena; it goes back when nobody keeps it any longer.

    Whoever lets another part touch the memory (a job in a worker, a read in a thread) keeps the lease for it
    first, so that a cancelled wait never frees memory that is still written to.
    """

    __slots__ = ("_keepers", "_memory", "freed", "held", "needed", "order", "private", "span")

    def __init__(self, memory: Memory, span: Span, order: Order, *, private: bool) -> None:
        self._memory = memory
        self._keepers = 1
        self.span = span
        self.order = order
        self.private = private  # not in the shared zone: to be handed over as a copy
        self.needed = True  # by its run, on its way
        self.held = False  # by the user
        self.freed = False

    def __len__(self) -> int:
        return self.span.stop - self.span.start

    def keep(self) -> Lease:
        """Keep the memory until one more `release`."""
        self._keepers += 1
        return self

    def release(self) -> None:
        """Let go of the memory. Only from the engine's loop."""
        if self.drop():
            self._memory.put_back(self)

    def release_soon(self) -> None:
        """Let go of the memory from any thread, also in the middle of a garbage collection."""
        self._memory.put_back_later(self)

    def drop(self) -> bool:
        """Count one keeper less; tell whether it was the last."""
        self._keepers -= 1
        return self._keepers == 0


@dataclass(order=True)
class _Waiter:
    order: Order
    number: int
    size: int = field(compare=False)
    patient: bool = field(compare=False)
    got: asyncio.Future[Lease] = field(compare=False)


class Memory:
    """Leases of one arena. All but `put_back_later` belongs to the engine's loop.

    Args:
        arena: the memory.
        on_short: called whenever batches that the user keeps make copies necessary.
        zones: how it is divided; by default in two halves, for batches of which nothing is known.

    Raises:
        ConfigError: the arena is too small for anything.
    """

    def __init__(self, arena: Arena, on_short: Callable[[], None], zones: Zones | None = None) -> None:
        self.arena = arena
        self.limit = arena.size
        self.zones = zones = zones or divide(arena.size, UNKNOWN)
        self.shareable = self.limit - zones.shared  # bytes that all runs have together, without copies
        self.guessable = zones.guessable
        self.per_run = zones.head  # bytes that a run may need
        self._space = Space(arena.size + arena.spare)
        self._on_short = on_short
        self._head: Order = (0, 0)
        self._private: dict[Order, int] = {}  # bytes outside of the shared zone by run
        self._needs: dict[Order, int] = {}  # bytes by run, wherever they lie
        self._reserved = 0  # bytes set aside for good
        self._shared = 0  # bytes in the shared zone
        self._outside = 0  # bytes that wait for the user outside of the arena
        self._held = 0  # bytes in the shared zone that the user keeps
        self._settled = self._warned = False
        self._waiting: list[_Waiter] = []
        self._leaving: dict[Order, asyncio.Event] = {}
        self._taken: deque[Lease] = deque()
        self._returned: deque[Lease | int] = deque()  # an int: bytes of a charge
        self._look: Callable[[], Order | None] = lambda: None
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self.on_wait: Callable[[], object] = int  # before somebody begins to wait for memory, or has waited
        self.peak = 0
        self.leases = 0  # that there are
        self.waits = 0  # how often somebody had to wait

    @property
    def settled(self) -> bool:
        """Whether nothing is refused any more."""
        return self._settled

    @property
    def used(self) -> int:
        """Bytes that are leased, those set aside for good not counted."""
        return self._space.used - self._reserved

    @property
    def crowded(self) -> bool:
        """Whether batches that the user keeps hold so much that the next ones must be copied."""
        self._collect()
        if self._held <= self.shareable * _SHARED_FOR_KEPT:
            return False
        self._on_short()
        return True

    def reserve(self, size: int) -> Span:
        """Take bytes for as long as the arena lives, before anything else is leased.

        Raises:
            TooSmall: there are not so many.
        """
        span = self._space.lease(size, within=(self.zones.shared, self.limit))
        if span is None:
            raise self._too_small(size, _WINDOW)
        self._reserved += len(span)
        self._shared += len(span)
        return span

    def settle(self) -> None:
        """Refuse nothing from now on: a batch is there, or it is known what any batch needs."""
        self._settled = True
        self._serve()

    def charge(self, size: int) -> Charge:
        """Count bytes outside of the arena that wait for the user."""
        self._outside += size
        return Charge(self, size)

    def finish(self, lease: Lease) -> None:
        """Count a lease no longer as its run's: a batch is made and waits for the user."""
        if lease.needed:
            self._need_less(lease.order, len(lease))
            lease.needed = False

    @property
    def short(self) -> bool:
        """Whether anybody waits for memory; from any thread."""
        return bool(self._waiting)

    def hold_later(self, lease: Lease) -> None:
        """Count a lease as the user's until it is given back; from any thread."""
        self._taken.append(lease)

    def follow(self, look: Callable[[], Order | None]) -> None:
        """Ask from now on, whenever it matters, which run is needed next."""
        self._look = look

    def move_head(self, order: Order) -> None:
        """Say which run is needed next, where nobody can be asked."""
        self._head = order
        self._serve()

    def look_again(self) -> None:
        """Serve those who wait, now that the user may have gone on."""
        self._serve()

    async def lease(self, size: int, order: Order, *, patient: bool = False) -> Lease:
        """Wait for `size` bytes.

        Args:
            size: bytes.
            order: of the run that needs them.
            patient: wait for it even if the run needs more than it may have, since it cannot do with less.

        Raises:
            TooSmall: they cannot be had within the limit.
        """
        size = align(max(size, 1))
        self._collect()
        if self._needs.get(order, 0) + size > self.per_run and not patient:
            raise self._too_small(size, order)
        lease = None
        if not self._waiting or order < self._waiting[0].order:
            lease = self.lease_nowait(size, order)
        if lease is not None:
            return lease

        self.on_wait()
        self.waits += 1
        waiter = _Waiter(order, next(self._numbers), size, patient, self._loop.create_future())
        heapq.heappush(self._waiting, waiter)
        self._serve()
        try:
            return await waiter.got
        except asyncio.CancelledError:
            self._forget(waiter)
            raise

    def lease_nowait(self, size: int, order: Order) -> Lease | None:
        """Return a lease if there is room for it now."""
        self._collect()
        span, private = None, False
        if self._shared + self._outside + size <= self.shareable:
            span = self._space.lease(size, within=(self.zones.shared, self.limit))
        if span is None and order <= self._find_head():
            span, private = self._space.lease(size, within=(0, self.zones.head)), True
        return None if span is None else self._lent(span, order, private=private)

    def left(self, order: Order) -> int:
        """Return the bytes that a run may yet need."""
        return max(self.per_run - self._needs.get(order, 0), 0)

    async def until_gone(self, order: Order) -> None:
        """Wait until a run needs nothing any more: jobs that nobody waits for may still write for a while."""
        while self._needs.get(order):
            gone = self._leaving.setdefault(order, asyncio.Event())
            with anyio.move_on_after(_PATIENCE) as waiting:
                await gone.wait()
            if waiting.cancelled_caught:
                gc.collect()  # an error in a cycle with its frames may keep an array over the memory
                self.look_again()

    def window_nowait(self, size: int) -> Lease | None:
        """Return a lease in the window's zone if there is room for it now."""
        self._collect()
        span = self._space.lease(align(max(size, 1)), within=(self.zones.head, self.zones.shared))
        if span is None:
            return None
        self._needs[_WINDOW] = self._needs.get(_WINDOW, 0) + len(span)
        self.leases += 1
        self.peak = max(self.peak, self._space.used)
        return Lease(self, span, _WINDOW, private=False)

    def put_back(self, lease: Lease) -> None:
        """Take a lease back and serve those who wait."""
        self._free(lease)
        self._serve()

    def put_back_later(self, gone: Lease | int) -> None:
        """Count one keeper of a lease less, or so many bytes of charges, soon."""
        self._returned.append(gone)
        if self._waiting:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                self._loop.call_soon_threadsafe(self._serve)

    def trim(self, lease: Lease, size: int) -> None:
        """Take back the end of a lease that turned out too large."""
        before = len(lease)
        lease.span = self._space.trim(lease.span, size)
        self._count_gone(lease, before - len(lease))
        self._serve()

    def _collect(self) -> None:
        """Note what other threads have done with leases since."""
        while self._taken:  # before what was returned: a lease is taken before it goes back
            lease = self._taken.popleft()
            if not lease.freed:
                self.finish(lease)
                self._held += len(lease)
                lease.held = True
        while self._returned:
            gone = self._returned.popleft()
            if isinstance(gone, int):
                self._outside -= gone
            elif gone.drop():
                self._free(gone)

    def _lent(self, span: Span, order: Order, *, private: bool) -> Lease:
        """Count a span that a run has got."""
        if private:
            self._private[order] = self._private.get(order, 0) + len(span)
        else:
            self._shared += len(span)
        self._needs[order] = self._needs.get(order, 0) + len(span)
        self.leases += 1
        self.peak = max(self.peak, self._space.used)
        return Lease(self, span, order, private=private)

    def _free(self, lease: Lease) -> None:
        size, lease.freed = len(lease), True
        self.leases -= 1
        if lease.held:
            self._held -= size
        self._space.release(lease.span)
        if lease.span.start >= self.limit:
            self.arena.discard(lease.span.start, lease.span.stop)
        self._count_gone(lease, size)

    def _count_gone(self, lease: Lease, size: int) -> None:
        """Count bytes of a lease that went back."""
        if lease.private:
            _subtract(self._private, lease.order, size)
        elif lease.order != _WINDOW:
            self._shared -= size
        if lease.needed:
            self._need_less(lease.order, size)

    def _need_less(self, order: Order, size: int) -> None:
        _subtract(self._needs, order, size)
        if order not in self._needs and order in self._leaving:
            self._leaving.pop(order).set()

    def _serve(self) -> None:
        """Give to those who wait, the most urgent first, as long as there is room."""
        self._collect()
        while self._waiting:
            waiter = self._waiting[0]
            lease = None if waiter.got.done() else self.lease_nowait(waiter.size, waiter.order)
            if lease is None and not waiter.got.done():
                if not self._hopeless(waiter):
                    return
                lease = self._lease_beyond(waiter) if waiter.patient else None
            self.on_wait()
            if lease is not None:
                waiter.got.set_result(lease)
            elif not waiter.got.done():
                waiter.got.set_exception(self._too_small(waiter.size, waiter.order))
            heapq.heappop(self._waiting)

    def _hopeless(self, waiter: _Waiter) -> bool:
        """Tell whether the run needs more than it may, or its own leases lie in its way."""
        is_head, needs = waiter.order <= self._find_head(), self._needs.get(waiter.order, 0)
        if needs + waiter.size > self.per_run and (is_head or not waiter.patient):
            return True
        return is_head and all(order >= waiter.order for order in self._private)

    def _lease_beyond(self, waiter: _Waiter) -> Lease | None:
        """Return a lease outside of the limit, where it is too late to refuse the limit."""
        if not self._settled:
            return None
        span = self._space.lease(waiter.size, within=(self.limit, self._space.size))
        if span is None:
            return None
        if not self._warned:
            self._warned = True
            _log.warning(
                "a batch needs %d bytes on its way, and memory_limit leaves %d for one; it gets them beyond "
                "the limit, as others will. Raise memory_limit, or make smaller batches",
                self._needs.get(waiter.order, 0) + waiter.size,
                self.per_run,
            )
        return self._lent(span, waiter.order, private=True)

    def _find_head(self) -> Order:
        """Return the run that is needed next."""
        self._head = self._look() or self._head
        return self._head

    def _too_small(self, size: int, order: Order) -> TooSmall:
        needs = self._needs.get(order, 0) + size
        return TooSmall(
            f"memory_limit of {self.limit} bytes leaves {self.per_run} bytes for a batch on its way, "
            f"and it needs {needs}",
            needs=needs,
        )

    def _forget(self, waiter: _Waiter) -> None:
        """Leave the queue, or return what was just given."""
        if waiter.got.done() and not waiter.got.cancelled() and waiter.got.exception() is None:
            waiter.got.result().release()
        self._serve()


def _subtract(sizes: dict[Order, int], order: Order, size: int) -> None:
    """Take from a run's sum, and forget the run with its last byte."""
    sizes[order] -= size
    if not sizes[order]:
        del sizes[order]
