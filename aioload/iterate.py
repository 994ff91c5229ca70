"""Iterate: where the user takes batches, in a plain `for` or an `async for`, under asyncio or trio."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio
import anyio.lowlevel

from ._pipeline.deliver import Delivery
from .errors import AioloadError, ClosedError
from .profiled import profiling, shown
from .wake import waker

if TYPE_CHECKING:
    from ._device.landing import Landing
    from ._pipeline.engine import Engine
    from ._pipeline.passes import Item
    from ._pipeline.plan import Plan
    from ._pipeline.reorder import Handover
    from .stats import Counters

__all__ = ["BatchIterator", "LateIterator", "Owner", "Steps", "in_thread"]

_LIVENESS = 1.0  # seconds between two looks at whether anybody is still there, while waiting
_NEIGHBOURS = 0.02  # seconds after which `async for` lets other tasks run, also when batches are ready


class Owner(Protocol):
    """What an iterator needs of its loader."""

    counters: Counters

    def received(self, iterator: BatchIterator, item: Delivery) -> Any:
        """Return the batch of a delivery, or raise if it lacks too much."""

    def handed_out(self, iterator: BatchIterator, steps: int) -> None:
        """Note how far an iteration has come."""

    def paused(self, iterator: BatchIterator) -> None:
        """Note that an iteration has ended."""


class Place(Protocol):
    """Where batches come out."""

    def wait(self, timeout: float) -> None:
        """Block until there is something to take, or for `timeout` seconds."""

    def call_when_ready(self, waker: Callable[[], object]) -> None:
        """Have a callable called once, from any thread, when there is something to take."""

    def forget(self, waker: Callable[[], object]) -> None:
        """Take a callable back."""

    def errand(self) -> Callable[[], None] | None:
        """Return something to do while there is nothing to take."""


class Bringer(Protocol):
    """Who brings batches."""

    def check(self) -> None:
        """Raise if it has died: whoever waits for it must not wait for ever."""


class Steps(ABC):
    """Batch after batch, for `async for` and for `for`: at once if it is ready, else when there is news.

    Args:
        place: where they come out.
        bringer: who brings them.
        counters: told of each step.
    """

    def __init__(self, place: Place, bringer: Bringer, counters: Counters) -> None:
        self._place = place
        self._bringer = bringer
        self._counters = counters
        self._last_checkpoint = time.monotonic()
        self.while_waiting: Callable[[], None] = _nothing  # called now and then in a long wait

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if profiling():
            with shown():
                return self._next()
        return self._next()

    def _next(self) -> Any:
        arrived = self._counters.arrive()
        try:
            while True:
                try:
                    return self._take(arrived)
                except anyio.WouldBlock:
                    pass  # and wait outside: Ctrl-C must not look like a fault while handling this one
                except anyio.EndOfStream:
                    raise StopIteration from None
                if not self._run_errand():
                    self._place.wait(_LIVENESS)
                    self._bringer.check()
                    self.while_waiting()
        except BaseException:  # Ctrl-C among them: the wait is over
            self._counters.give_up()
            raise

    def __anext__(self) -> Awaitable[Any]:
        return self._anext_shown() if profiling() else self._anext()

    async def _anext_shown(self) -> Any:
        with shown():
            return await self._anext()

    async def _anext(self) -> Any:
        arrived = self._counters.arrive()
        try:
            if time.monotonic() - self._last_checkpoint > _NEIGHBOURS:
                self._last_checkpoint = time.monotonic()  # first: who polls would be cancelled here each time
                await anyio.lowlevel.checkpoint()
            while True:
                try:
                    return self._take(arrived)
                except anyio.WouldBlock:
                    pass
                except anyio.EndOfStream:
                    raise StopAsyncIteration from None
                if not self._run_errand():
                    await self._wait()
                    self._bringer.check()
                    self.while_waiting()
        except BaseException:  # a cancellation among them: the wait is over
            self._counters.give_up()
            raise

    @abstractmethod
    def _take(self, arrived: float) -> Any:
        """Return the next batch, which was asked for at a time.

        Raises:
            anyio.WouldBlock: it is not here yet.
            anyio.EndOfStream: there is none.
        """

    def _run_errand(self) -> bool:
        """Do a piece of the work of a loader without workers; tell whether there was one."""
        errand = self._place.errand()
        if errand is not None:
            errand()
        return errand is not None

    async def _wait(self) -> None:
        """Wait until there is news, or for a while; a cancelled wait has taken nothing."""
        news = anyio.Event()
        wake = waker(news)
        self._place.call_when_ready(wake)
        try:
            with anyio.move_on_after(_LIVENESS):
                await news.wait()
        finally:
            self._place.forget(wake)
        self._last_checkpoint = time.monotonic()


class BatchIterator(Steps):
    """The batches of one epoch; owns nothing that would need closing."""

    def __init__(self, loader: Owner, engine: Engine, handover: Handover[Item] | Landing, plan: Plan) -> None:
        super().__init__(handover, engine, loader.counters)
        self.plan = plan
        self._loader = loader
        self._engine = engine
        self._handover = handover
        self._over = False

    def end(self, reason: str) -> None:
        """End the iteration; its next step raises a `ClosedError` with this reason."""
        self._handover.close(ClosedError(reason))

    def _take(self, arrived: float) -> Any:
        """Return the next batch if it is ready, or raise its error."""
        self._engine.check_process()  # before any lock, which a fork may have copied while it was held
        if self._over:
            raise anyio.EndOfStream
        try:
            item = self._handover.take_nowait()
        except anyio.EndOfStream:
            self._over = True
            self._loader.paused(self)
            raise
        if isinstance(item, AioloadError):
            self._give_up(item)
            raise item
        return self._hand_out(item, arrived)

    def _hand_out(self, item: Delivery, arrived: float) -> Any:
        try:
            batch = self._loader.received(self, item)
        except AioloadError as error:
            self._give_up(error)
            raise
        self._counters.leave(arrived, item.rows, item.size)
        if (trace := self._counters.trace) is not None:
            trace.taken(arrived, item.batch_id, (self.plan.epoch, self._handover.due - 1), item.rows)
        self._loader.handed_out(self, self._handover.due)
        return batch

    def _give_up(self, error: AioloadError) -> None:
        """End the iteration at an error, which says so where other ranks go on."""
        part = self.plan.part
        if part.world_size > 1:
            error.add_note(
                f"this is rank {part.rank} of {part.world_size}: the others know nothing of it and will wait "
                "in their next collective operation; let the error end this process, and the job with it"
            )
        self._over = True
        self._loader.paused(self)
        self._handover.close()
        if (trace := self._counters.trace) is not None:
            trace.failed(type(error).__name__, error.step)


class LateIterator:
    """The batches of a loader that has yet to start, which it does at the first step, in a thread.

    Args:
        start: starts the loader; may block.
        begin: begins the epoch then.
    """

    def __init__(self, start: Callable[[], object], begin: Callable[[], BatchIterator]) -> None:
        self._start = start
        self._begin = begin
        self._batches: BatchIterator | None = None
        self._starting = anyio.Lock()  # two tasks may share an iterator

    def __aiter__(self) -> LateIterator:
        return self

    def then(self, told: Callable[[BatchIterator], None]) -> None:
        """Have a callable told of the iterator of the epoch, once there is one."""
        begin = self._begin

        def begin_and_tell() -> BatchIterator:
            batches = begin()
            told(batches)
            return batches

        self._begin = begin_and_tell

    async def __anext__(self) -> Any:
        if self._batches is None:
            async with self._starting:
                if self._batches is None:
                    await in_thread(self._start)
                    self._batches = self._begin()
        return await self._batches.__anext__()


def _nothing() -> None:
    """Do nothing."""


async def in_thread(function: Callable[[], object]) -> None:
    """Call what may block in a thread, and wait for it. A cancelled wait leaves it running."""
    failure: list[BaseException] = []
    ended = anyio.Event()
    wake = waker(ended)

    def call() -> None:
        try:
            function()
        except BaseException as error:
            failure.append(error)
        finally:
            wake()

    threading.Thread(target=call, name="aioload-wait", daemon=True).start()
    await ended.wait()
    if failure:
        raise failure[0]
