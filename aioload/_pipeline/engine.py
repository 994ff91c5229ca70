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
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from ..errors import AioloadError, ClosedError
from .house import House, Settings
from .passes import Item, as_ours
from .reorder import Handover
from .turns import Turns

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectSendStream

    from ..stats import Counters
    from .plan import Plan

__all__ = ["Engine"]

_log = logging.getLogger("aioload.engine")

_CLOSE_SECONDS = 5.0

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
        self._lock = threading.Lock()
        self._handovers: list[Handover[Item]] = []
        self._ahead: tuple[Plan, Handover[Item]] | None = (
            None  # a pass that has begun before it was asked for
        )
        self._begun = 0  # passes that were begun because they were asked for

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

    def open_pass(self, plan: Plan, following: Plan | None) -> Handover[Item]:
        """Begin a pass, or take the one that has begun ahead if it is the same.

        Args:
            plan: what to bring.
            following: the plan that most likely comes next.

        Returns:
            Where the batches come out.
        """
        turns = self._turns
        if turns is None:
            raise ClosedError("the loader was closed; make a new one to go on")
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
                number, handover = self._begun, Handover(0, plan.steps, turns.taken)
                self._handovers = [handover]
                self._post(lambda turns: turns.begin(plan, handover, following, number))
        return handover

    def check(self) -> None:
        """Raise if the engine has died: whoever waits for it must not wait for ever."""
        if not self._thread.is_alive():
            raise self._failure or ClosedError("the loader was closed; make a new one to go on")

    def close(self) -> None:
        """End all work, processes and the thread, within `_CLOSE_SECONDS`; twice is free."""
        self._close_handovers(None)
        if self._loop is not None and self._errands is not None:
            with contextlib.suppress(RuntimeError):  # its loop has just ended
                self._loop.call_soon_threadsafe(self._errands.close)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():
                _log.warning("the engine did not end within %s s and is left behind", _CLOSE_SECONDS)

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
            async with anyio.create_task_group() as group:
                house = await House.open(self._settings, self._counters, stack, group)
                self._turns = turns = Turns(house, group, self._announce)
                self._started.set()
                async for errand in errands:  # until `close` closes the other end
                    errand(turns)
                self._turns = None
                group.cancel_scope.cancel()

    def _announce(self, plan: Plan, number: int) -> Handover[Item] | None:
        """Make and remember the hand-over of a pass that begins ahead; None if the user went elsewhere."""
        with self._lock:
            if self._turns is None or number != self._begun:
                return None
            handover: Handover[Item] = Handover(0, plan.steps, self._turns.taken)
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
