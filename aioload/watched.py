"""Watched: a loader that is looked at while it is iterated, by the thread that takes its batches."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol
from weakref import finalize

from .errors import ConfigError
from .iterate import BatchIterator, LateIterator
from .lifetime import Origin
from .sync import Face, SyncLoader

if TYPE_CHECKING:
    from ._pipeline.plan import Plan
    from .stats import Counters, LoaderStats

__all__ = ["Moment", "Onlooker", "Watchable", "WatchedLoader"]


class Watchable(Face, Protocol):
    """What looking needs of a loader."""

    world_size: int
    counters: Counters

    def __aiter__(self) -> BatchIterator | LateIterator: ...

    def batches(self) -> BatchIterator:
        """Begin an epoch."""

    async def aclose(self) -> None:
        """End all processes and threads of the loader."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What an iteration has come to."""

    now: float
    """Seconds of a clock that only runs forward."""
    epoch: int
    """The one that is iterated."""
    taken: int
    """Batches of this iteration that were handed out."""
    done: int
    """Batches of the epoch, those before a position that was loaded included."""
    total: int
    """Batches of the epoch on this rank; 0 while it is not known."""
    stats: LoaderStats
    """What was counted since the loader was made; of a wait that goes on, its time so far."""


class Onlooker(Protocol):
    """Who looks at an iteration."""

    def look(self, moment: Moment) -> float:
        """Look; return when to look again, by the moment's clock. What this raises, the loop gets."""

    def end(self, moment: Moment, *, complete: bool) -> None:
        """Look for the last time: after the last batch, or where the iteration was left."""


class WatchedLoader(SyncLoader):
    """A face of a `Loader` for `for` and for `async for`, whose iterations are looked at.

    It is a `SyncLoader`, so trainers, `state_dict` and all else find the loader behind it as ever.

    Args:
        loader: the loader whose batches it gives.
        makers: each makes, of the loader, who looks at an iteration, or None if nobody wants to.
    """

    def __init__(self, loader: Watchable, makers: tuple[Callable[[Watchable], Onlooker | None], ...]) -> None:
        super().__init__(loader)
        self._watchable = loader
        self._makers = makers
        self._round: _Round | None = None

    @classmethod
    def of(
        cls, loader: Watchable | SyncLoader, maker: Callable[[Watchable], Onlooker | None]
    ) -> WatchedLoader:
        """Return a face of a loader, or of the one behind a face, at which one more looks.

        Raises:
            ConfigError: it is something else.
        """
        if isinstance(loader, WatchedLoader):
            return cls(loader._watchable, (*loader._makers, maker))
        found: Any = loader.loader if isinstance(loader, SyncLoader) else loader
        if not hasattr(found, "batches"):
            told = f"got a {type(found).__name__}"
            raise ConfigError(f"only a Loader, or what its sync() gives, can be looked at; {told}")
        return cls(found, (maker,))

    def __iter__(self) -> Iterator[Any]:
        found = self._begin()
        if found is None:
            return self._watchable.batches()
        batches = self._watchable.batches()
        found.begun(batches)
        return _Watched(batches, found)

    def __aiter__(self) -> AsyncIterator[Any]:
        found = self._begin()
        batches = self._watchable.__aiter__()
        if found is None:
            return batches
        if isinstance(batches, LateIterator):
            batches.then(found.begun)
        else:
            found.begun(batches)
        return _Watched(batches, found)

    async def __aenter__(self) -> WatchedLoader:
        self._watchable.check_open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End all processes and threads of the loader, within 5 s; twice is free."""
        self._leave()
        await self._watchable.aclose()

    def close(self) -> None:
        """End all processes and threads of the loader, within 5 s; twice is free."""
        self._leave()
        super().close()

    def _begin(self) -> _Round | None:
        """Let everybody look who wants to; None if nobody does."""
        self._leave()  # an iteration that is under way is taken over
        self._watchable.check_open()
        onlookers = [onlooker for make in self._makers if (onlooker := make(self._watchable)) is not None]
        self._round = _Round(self._watchable, onlookers) if onlookers else None
        return self._round

    def _leave(self) -> None:
        if self._round is not None:
            self._round.end(complete=False)
            self._round = None


class _Watched:
    """The batches of an iteration that is looked at.

    It looks before it takes a batch, never after: what interrupts a look has lost no batch.
    """

    def __init__(self, batches: Any, found: _Round) -> None:
        self._batches = batches
        self._round = found
        finalize(self, found.end, complete=False)  # after `break` too, and at exit

    def __iter__(self) -> _Watched:
        return self

    def __aiter__(self) -> _Watched:
        return self

    def __next__(self) -> Any:
        if time.monotonic() >= self._round.due:
            self._round.look()
        try:
            return next(self._batches)
        except StopIteration:
            self._round.end(complete=True)
            raise
        except (Exception, KeyboardInterrupt):
            self._round.end(complete=False)
            raise

    async def __anext__(self) -> Any:
        if time.monotonic() >= self._round.due:
            self._round.look()
        try:
            return await self._batches.__anext__()
        except StopAsyncIteration:
            self._round.end(complete=True)
            raise
        except Exception:  # a wait that was cancelled has taken nothing, and may go on
            self._round.end(complete=False)
            raise


class _Round:
    """One iteration that is looked at; does not know who iterates, so it keeps nobody alive."""

    def __init__(self, loader: Watchable, onlookers: list[Onlooker]) -> None:
        self.due = 0.0  # when somebody looks next
        self._loader = loader
        self._onlookers = onlookers
        self._plan: Plan | None = None
        self._before = self._skipped = self._total = 0
        self._origin = Origin()

    def begun(self, batches: BatchIterator) -> None:
        """Take note that the loader runs, and look while it is waited for."""
        plan, part = batches.plan, batches.plan.part
        self._plan = plan
        self._before = self._loader.stats().batches
        self._total = len(self._loader) if part.start else plan.steps
        self._skipped = max(self._total - plan.steps, 0)
        batches.while_waiting = self.glance

    def glance(self) -> None:
        """Look, if it is time."""
        if time.monotonic() >= self.due:
            self.look()

    def look(self) -> None:
        """Have everybody look; who need not yet says when."""
        if self._origin.is_left:
            self.due = math.inf
            return
        moment = self._moment()
        self.due = min(onlooker.look(moment) for onlooker in self._onlookers)

    def end(self, *, complete: bool) -> None:
        """Have everybody look for the last time; twice is free."""
        onlookers, self._onlookers, self.due = self._onlookers, [], math.inf
        if not onlookers or self._origin.is_left:  # in a fork: line and figures are the parent's
            return
        moment = self._moment()
        with ExitStack() as ends:
            for onlooker in reversed(onlookers):
                ends.callback(onlooker.end, moment, complete=complete)

    def _moment(self) -> Moment:
        counters, plan = self._loader.counters, self._plan
        stats = replace(self._loader.stats(), wait_seconds=counters.waited)
        taken = stats.batches - self._before if plan is not None else 0
        epoch = self._loader.epoch if plan is None else plan.epoch
        return Moment(time.monotonic(), epoch, taken, self._skipped + taken, self._total, stats)
