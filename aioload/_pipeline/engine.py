"""Engine: an event loop in a thread of its own, in which the passes over the data run.

The user's thread trains; a step there must not hold up a read here. The two meet at a `Handover` and nowhere
else.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import anyio

from .._device.convert import Convert
from .._device.copier import Copier
from ..errors import AioloadError, ClosedError
from ..lifetime import Origin
from .device import copied
from .house import House, Settings
from .passes import Item, as_ours
from .reorder import Handover
from .turns import Turns

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from anyio.streams.memory import MemoryObjectSendStream

    from .._device.landing import Landing
    from ..stats import Counters
    from .plan import Plan

__all__ = ["Engine"]

_log = logging.getLogger("aioload.engine")

_CLOSE_SECONDS = 4.5  # for all that closing waits for; with the rest of it, promise M3's 5 s

Errand = Callable[[Turns], None]


class Engine:
    """Runs passes until it is closed.

    Args:
        settings: what to run with.
        counters: told of everything.
    """

    def __init__(self, settings: Settings, counters: Counters) -> None:
        self._settings = settings
        self._counters = counters
        self._thread = threading.Thread(target=self._run, name="aioload-engine", daemon=True)
        self._started = threading.Event()
        self._failure: AioloadError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._errands: MemoryObjectSendStream[Errand] | None = None
        self._turns: Turns | None = None
        # again by the same thread: a loader may be collected, and so closed, wherever objects are made
        self._lock = threading.RLock()
        self._pid, self._origin = os.getpid(), Origin()
        self._handovers: list[Handover[Item]] = []
        # a pass that has begun before it was asked for
        self._ahead: tuple[Plan, Handover[Item]] | None = None
        self._begun = 0  # passes that were begun because they were asked for
        self._copier: Copier | None = None
        if settings.device is not None:
            self._copier = Copier(settings.device, counters, settings.convert or Convert())

    def start(self) -> None:
        """Start the thread and wait until its loop runs.

        Raises:
            ConfigError: there is no room for the memory limit.
        """
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def open_pass(self, plan: Plan, following: Plan | None) -> Handover[Item] | Landing:
        """Begin a pass, or take the one that has begun ahead if it is the same.

        Args:
            plan: what to bring.
            following: the plan that most likely comes next.

        Returns:
            Where the batches come out.
        """
        turns = self._turns
        if turns is None:
            raise self._failure or ClosedError("the loader was closed; make a new one to go on")
        with self._lock:
            ahead, self._ahead = self._ahead, None
            if ahead is not None and ahead[0].name == plan.name:
                handover = ahead[1]
                self._handovers = [handover]
                self._post(lambda turns: turns.advance(following))
            else:
                if ahead is not None:
                    ahead[1].close()  # nobody will take what it has made
                self._begun += 1
                number, handover = self._begun, Handover(0, plan.steps, self._taken)
                self._handovers = [handover]
                self._post(lambda turns: turns.begin(plan, handover, following, number))
        return handover if self._copier is None else copied(handover, self._copier)

    def levels(self) -> dict[str, float]:
        """Return how things are as of now, by their names in the stats."""
        turns = self._turns
        return {} if turns is None else turns.levels()

    def pause(self) -> AbstractContextManager[None]:
        """Return a context in which nothing is done to the device."""
        return contextlib.nullcontext() if self._copier is None else self._copier.pause()

    def check(self) -> None:
        """Raise if the engine has died: whoever waits for it must not wait for ever."""
        self.check_process()
        if not self._thread.is_alive():
            raise self._failure or ClosedError("the loader was closed; make a new one to go on")
        if self._copier is not None:
            self._copier.check()

    @property
    def forked(self) -> bool:
        """Whether this is a copy that a fork has made, of everything but the engine's thread."""
        return self._origin.is_left

    def check_process(self) -> None:
        """Raise where nobody would ever answer: in a copy that a fork has made."""
        if self.forked:
            raise ClosedError(
                "this process was forked after the loader had started, and its workers and reads stayed with "
                f"the parent (process {self._pid}); make a loader in this process, or fork before iterating"
            )

    def close(self) -> None:
        """End all work, processes and the thread, within `_CLOSE_SECONDS`; twice is free."""
        self.close_all([self])

    @staticmethod
    def close_all(engines: Iterable[Engine]) -> None:
        """Close engines side by side, within `_CLOSE_SECONDS` for all of them."""
        closing = [engine for engine in list(engines) if engine._begin_close()]
        deadline = time.monotonic() + _CLOSE_SECONDS
        for engine in closing:
            if engine._copier is not None:
                engine._copier.join(max(deadline - time.monotonic(), 0))
        for engine in closing:
            engine._thread.join(max(deadline - time.monotonic(), 0))
            if engine._thread.is_alive():
                _log.warning("the engine did not end within %s s and is left behind", _CLOSE_SECONDS)

    def _begin_close(self) -> bool:
        """Have all work end; tell whether there is a thread to wait for."""
        if self.forked:
            return False  # all of it is the parent's
        if self._copier is not None:
            self._copier.begin_close()
        self._close_handovers(None)
        if self._loop is not None and self._errands is not None:
            with contextlib.suppress(RuntimeError):  # its loop has just ended
                self._loop.call_soon_threadsafe(self._errands.close)
        return self._thread.is_alive() and self._thread is not threading.current_thread()

    def _taken(self, item: Item) -> None:
        """Note, in the thread that takes, that a step was taken."""
        # looked up each time: an iterator that the user keeps must not keep the arena
        turns = self._turns
        if turns is not None:
            turns.taken(item)

    def _post(self, errand: Errand) -> None:
        """Have something done in the loop."""
        if self._loop is not None and self._errands is not None:
            with contextlib.suppress(RuntimeError):  # its loop has just ended, and whoever waits will see it
                self._loop.call_soon_threadsafe(self._errands.send_nowait, errand)

    def _run(self) -> None:
        """Be the thread."""
        try:
            anyio.run(self._main, backend_options={"use_uvloop": _have_uvloop()})
        except BaseException as error:
            self._failure = as_ours(error)
            _log.debug("the engine failed", exc_info=True)
        finally:
            self._turns = None
            self._started.set()
            self._close_handovers(self._failure)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._errands, errands = anyio.create_memory_object_stream[Errand](math.inf)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._errands)
            stack.enter_context(errands)
            stack.enter_context(self._errands)  # where `close` does not come to it
            async with anyio.create_task_group() as group:
                adopt = None if self._copier is None else self._copier.adopt
                house = await House.open(self._settings, self._counters, stack, group, adopt)
                self._turns = turns = Turns(house, group, self._announce)
                self._started.set()
                async for errand in errands:  # until `close` closes the other end
                    errand(turns)
                self._turns = None
                group.cancel_scope.cancel()
                await house.end_workers()  # while reads under way are waited for

    def _announce(self, plan: Plan, number: int) -> Handover[Item] | None:
        """Make and remember the hand-over of a pass that begins ahead; None if the user went elsewhere."""
        with self._lock:
            if self._turns is None or number != self._begun:
                return None
            handover: Handover[Item] = Handover(0, plan.steps, self._taken)
            self._ahead = (plan, handover)
            self._handovers.append(handover)
        return handover

    def _close_handovers(self, error: AioloadError | None) -> None:
        with self._lock:
            handovers, self._handovers = self._handovers, []
            self._ahead = None
        for handover in handovers:
            handover.close(error)


def _have_uvloop() -> bool:
    return importlib.util.find_spec("uvloop") is not None
