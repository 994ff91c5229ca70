"""Inline: jobs done in the user's own thread, for a loader without workers.

The engine plans, reads and assembles as ever; only the work on samples waits until the user asks for a batch.
So a debugger stops in a transform, and the batches are those that workers would make.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .._workers.jobs import Answer, Job
    from .._workers.pool import Order
    from .._workers.task import Worker
    from .reorder import Handover

__all__ = ["InlineRunner"]


class InlineRunner:
    """Does jobs where the user waits for batches.

    Args:
        worker: does them.
        handover: where the user waits.
        seeded: whether jobs set the global generators, which are the user's here and are put back.
    """

    def __init__(self, worker: Worker, handover: Handover[Any], *, seeded: bool) -> None:
        self._worker = worker
        self._handover = handover
        self._seeded = seeded

    async def run(self, job: Job, order: Order, done: Callable[[], None]) -> Answer:
        """Run a job, as `Runner` says."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        # taken by whoever comes first: the user who does the job, or its cancellation
        claim = threading.Lock()

        def settle(result: Answer) -> None:
            done()
            if not answer.done():
                answer.set_result(result)

        def errand() -> None:  # in the user's thread
            if not claim.acquire(blocking=False):
                return
            try:
                with _generators_put_back() if self._seeded else nullcontext():
                    result = self._worker.run(job)
            except BaseException:  # Ctrl-C: whoever goes on iterating finds the job still to be done
                claim.release()
                self._handover.ask(errand, first=True)
                raise
            with suppress(RuntimeError):  # the loop has ended, and nobody waits
                loop.call_soon_threadsafe(settle, result)

        self._handover.ask(errand)
        try:
            return await answer
        except asyncio.CancelledError:
            if claim.acquire(blocking=False):
                done()
            raise


@contextmanager
def _generators_put_back() -> Iterator[None]:
    """Leave the user's global generators as they were."""
    # the engine's thread may be importing it right now; this waits until it is whole
    torch: Any = importlib.import_module("torch") if sys.modules.get("torch") else None
    python, legacy = random.getstate(), np.random.get_state()
    tensors = torch.get_rng_state() if torch is not None else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        if torch is not None and tensors is not None:
            torch.set_rng_state(tensors)
