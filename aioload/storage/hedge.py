"""Hedge: a read that is later than its like is asked again, and the first answer wins."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import anyio
from anyio.abc import TaskGroup

from ..wake import running_loop, spawn
from .base import Storage, check_range
from .link import Link
from .wrapping import Wrapping

__all__ = ["Hedged"]

_LOOK = 0.5  # seconds between two looks at a read that cannot be asked again yet
_PATIENCE = 2  # times what makes a read late, after which a second request is given up for another
_NEVER = float("inf")


class Hedged(Wrapping):
    """Asks a late read a second time, into memory of its own.

    The first request reads straight into `out`. Should the second answer first, the first one is cancelled,
    and `out` is written only after it has stopped to. Where both fail, the first one's error is raised. Sizes
    and small files are asked once.

    Args:
        storage: the one inside, one request a call.
        link: knows what is late, and how many may be asked again: few, and none while the server throttles.
    """

    def __init__(self, storage: Storage, link: Link) -> None:
        super().__init__(storage)
        self._link = link
        self._watches = WeakKeyDictionary[Any, _Watch]()

    # hot: once per read
    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on."""
        view = check_range(start, out)
        if not len(view):
            await self._storage.read_into(name, start, view)
            return
        loop = running_loop()
        watch = self._watches.get(loop)
        if watch is None:
            watch = self._watches.setdefault(loop, _Watch(self._link))
        began = self._link.clock()
        self._link.sent()
        await _Race(self._storage, self._link, name, start, view).run(watch)
        self._link.took(len(view), self._link.clock() - began)


class _Watch:
    """Looks after the reads of one event loop that may become late; its task is there while there are any.

    One task for all of them: a task for each would cost a tenth of a small read, and nearly all are in time.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._races = set[_Race]()
        self._task: object = None
        self._looks_at = _NEVER
        self._sooner = anyio.Event()

    def add(self, race: _Race) -> None:
        """Look after a read, from when it is due on."""
        self._races.add(race)
        if self._task is None:
            self._task = spawn(self._run)
        else:
            self.look_at(race)

    def look_at(self, race: _Race) -> None:
        """Note when a read is due now."""
        if race.due < self._looks_at:
            self._sooner.set()

    def discard(self, race: _Race) -> None:
        """Leave a read alone."""
        self._races.discard(race)
        if not self._races:
            self._sooner.set()  # nothing is left behind

    async def _run(self) -> None:
        """Have reads asked again as they become late, until a look finds none."""
        try:
            while self._races:  # again, as some may come while the group ends
                async with anyio.create_task_group() as group:
                    await self._look_after(group)
        finally:
            self._task = None

    async def _look_after(self, group: TaskGroup) -> None:
        while self._races:
            now = self._link.clock()
            for race in [race for race in self._races if race.due <= now]:
                if race.may_be_asked_again(now):
                    group.start_soon(race.ask_again, self)
            await self._wait(now)

    async def _wait(self, now: float) -> None:
        """Wait until a read is due."""
        self._sooner = anyio.Event()
        self._looks_at = min((race.due for race in self._races), default=now)
        with anyio.move_on_after(self._looks_at - now):
            await self._sooner.wait()


class _Race:
    """One read that may be asked again.

    Each request is ended by a scope inside its task. Were the task itself cancelled, what anyio keeps of it
    would hold the caller's memory until the next garbage collection.
    """

    def __init__(self, storage: Storage, link: Link, name: str, start: int, view: memoryview) -> None:
        self._storage = storage
        self._link = link
        self._name = name
        self._start = start
        self._view = view
        self._size = len(view)
        self._began = link.clock()
        late = link.late(self._size)
        self.due = self._began + (_LOOK if late is None else late)
        """When to look whether it is late."""
        self._late = _NEVER
        self._first = anyio.CancelScope()
        self._other: _Other | None = None  # the second request, from when it is allowed until it is over
        self._second: bytearray | None = None  # its answer
        self._is_over = False  # the first one is

    async def run(self, watch: _Watch) -> None:
        """Read, and be looked after meanwhile."""
        failure: Exception | None = None
        has_first_won = False
        watch.add(self)
        try:
            with self._first:
                try:
                    await self._storage.read_into(self._name, self._start, self._view)
                    has_first_won = True
                except Exception as error:  # raised below, unless the second request answers
                    failure = error
            self._is_over, self.due = True, _NEVER
            if failure is not None and self._other is not None and not getattr(failure, "final", False):
                await self._other.over.wait()
            if self._second is not None and not has_first_won:
                self._take(self._second, failure)
            elif failure is not None:
                raise failure
        finally:
            del failure  # this frame is among its own, and holds the caller's memory
            self._view = memoryview(b"")
            self._is_over, self.due = True, _NEVER
            try:
                await self._end_other()
            finally:
                watch.discard(self)

    def may_be_asked_again(self, now: float) -> bool:
        """Tell whether it is late and may be asked again, and take the room; both can change later."""
        late = self._link.late(self._size)
        if late is None:
            self.due = now + _LOOK
        elif self._began + late > now:
            self.due = self._began + late
        elif not self._link.hedge(self._size):
            self.due = now + max(late, _LOOK)
        else:
            self.due, self._late = _NEVER, late
            self._other = _Other()
            return True
        return False

    async def ask_again(self, watch: _Watch) -> None:
        """Ask once more; should that fail or be late too, the read may become late again."""
        other = self._other
        if other is None:  # it ended before this began
            return
        other.has_begun = True
        try:
            with other.scope, anyio.move_on_after(_PATIENCE * self._late):
                await self._ask_once()
        finally:
            self._other = None
            self._link.unhedge(self._size)
            other.over.set()
        if self._second is None and not self._is_over:
            self._began = self._link.clock()
            self.due = self._began + self._late
            watch.look_at(self)

    async def _ask_once(self) -> None:
        scratch = bytearray(self._size)
        try:
            await self._storage.read_into(self._name, self._start, memoryview(scratch))
        except Exception as error:  # whatever it is, the first request may still answer
            self._note(error)
        else:
            self._second = scratch
            self._first.cancel()

    async def _end_other(self) -> None:
        """End the second request, and wait for that: what it has taken is free again then."""
        other = self._other
        if other is None:
            return
        if not other.has_begun:
            self._other = None
            self._link.unhedge(self._size)
            return
        other.scope.cancel()
        with anyio.CancelScope(shield=True):
            await other.over.wait()

    def _take(self, second: bytearray, failure: Exception | None) -> None:
        """Take the second answer: nobody writes to the caller's memory any more."""
        self._view[:] = second
        self._link.add(hedges_won=1)
        if failure is not None:
            self._note(failure)

    def _note(self, failure: Exception) -> None:
        """Tell of a failure that nobody else gets to see."""
        self._link.failed(
            throttled=getattr(failure, "throttled", False),
            retry_after=getattr(failure, "retry_after", None),
        )


class _Other:
    """A second request."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.over = anyio.Event()
        self.has_begun = False
