"""Hedge: a read that is later than its like is asked again, and the first answer wins."""

from __future__ import annotations

import anyio

from .base import Storage, check_range
from .link import Link
from .wrapping import Wrapping

__all__ = ["Hedged"]

_LOOK = 0.5  # seconds between two looks at a read that cannot be asked again yet
_PATIENCE = 2  # times what makes a read late, after which a second request is given up for another


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

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on."""
        view = check_range(start, out)
        if not len(view):
            await self._storage.read_into(name, start, view)
            return
        began = self._link.clock()
        self._link.sent()
        await _Race(self._storage, self._link, name, start, view).run()
        self._link.took(len(view), self._link.clock() - began)


class _Race:
    """One read that may be asked again.

    Each request is ended by a scope inside its task. Were the task itself cancelled, what anyio keeps of it
    would hold the caller's memory until the next garbage collection, after each and every read.
    """

    def __init__(self, storage: Storage, link: Link, name: str, start: int, view: memoryview) -> None:
        self._storage = storage
        self._link = link
        self._name = name
        self._start = start
        self._view = view
        self._first = anyio.CancelScope()
        self._has_first_failed = False
        self._others = anyio.CancelScope()
        self._is_asked_again = False
        self._second: bytearray | None = None  # the first answer of the others

    async def run(self) -> None:
        failure: Exception | None = None
        has_first_won = False
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._ask_again)
                with self._first:
                    try:
                        await self._storage.read_into(self._name, self._start, self._view)
                        has_first_won = True
                    except Exception as error:  # raised below: bare, not in a group
                        failure = error
                        self._has_first_failed = True
                if has_first_won or (failure is not None and not self._may_be_saved(failure)):
                    self._others.cancel()

            if self._second is not None and not has_first_won:
                self._take(self._second, failure)
            elif failure is not None:
                raise failure
        finally:
            del failure  # this frame is among its own, and holds the caller's memory
            # from outside, the task of the others may have been cancelled all the same
            self._view = memoryview(b"")

    async def _ask_again(self) -> None:
        """Ask once more while the first request has no answer, and again should that fail or be late too."""
        with self._others:
            while self._second is None and not self._has_first_failed:
                late = await self._be_late()
                self._is_asked_again = True
                try:
                    with anyio.move_on_after(_PATIENCE * late):
                        await self._ask_once()
                finally:
                    self._is_asked_again = False
                    self._link.unhedge(len(self._view))
            self._first.cancel()

    async def _be_late(self) -> float:
        """Wait until this read is late and may be asked again; both can change while it waits."""
        began = self._link.clock()
        while True:
            late = self._link.late(len(self._view))
            rest = _LOOK if late is None else began + late - self._link.clock()
            if late is not None and rest <= 0:
                if self._link.hedge(len(self._view)):
                    return late
                rest = max(late, _LOOK)
            await anyio.sleep(rest)

    async def _ask_once(self) -> None:
        scratch = bytearray(len(self._view))
        try:
            await self._storage.read_into(self._name, self._start, memoryview(scratch))
        except Exception as error:  # whatever it is, the first request may still answer
            self._note(error)
        else:
            self._second = scratch

    def _may_be_saved(self, failure: Exception) -> bool:
        """Whether to wait for the second request after the first one failed."""
        return self._is_asked_again and not getattr(failure, "final", False)

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
