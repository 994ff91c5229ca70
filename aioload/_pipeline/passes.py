"""Passes: one epoch's batches on their way, from plan to hand-over.

A pass is one task group. Its producer admits runs in the order of need: each waits until it is not too far
ahead of the user, then for its memory, then walks by itself. The walk is the library's only catch-all:
whatever goes wrong takes the place of the steps it concerns, so earlier batches come out first and the error
comes bare, at its own step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio
import numpy as np

from .._workers.layout import align
from .._workers.task import TABLE
from ..errors import AioloadError, ConfigError
from ..table import largest_batch
from .decode import Decoder
from .deliver import Delivery, Made, deliver
from .fetch import Fetcher
from .house import MAX_READ_BYTES
from .memory import enough_for
from .plan import merge, plan_run
from .window import Window

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from .._workers.pool import Runner
    from .house import House
    from .memory import Lease
    from .plan import Plan, Read, Run
    from .reorder import Handover
    from .window import Chunk

__all__ = ["Item", "Pass", "as_ours"]

_log = logging.getLogger("aioload.engine")

_MAX_GAP_BYTES = 4 << 10  # on a local disk, reading a page in vain costs less than another read

Item = Delivery | AioloadError
"""What a step of a pass turns out to be."""


class Pass:
    """One pass over the data.

    Args:
        house: the parts that all passes share.
        number: of the pass; earlier ones are more urgent.
        plan: what to bring.
        handover: where to.
        runner: who decodes.
        before: the pass whose steps the user takes first, if this one runs ahead.
    """

    def __init__(
        self,
        house: House,
        number: int,
        plan: Plan,
        handover: Handover[Item],
        runner: Runner,
        before: Handover[Item] | None = None,
    ) -> None:
        self.plan = plan
        self.handover = handover
        self.produced = False
        self._house = house
        self._number = number
        self._before = before
        self._scope = anyio.CancelScope()
        self._room = anyio.Event()
        self._decoder = Decoder(
            runner,
            house.memory,
            house.sizes,
            house.labels,
            stacks=house.settings.recipe.collate is None,
            counters=house.counters,
            suspects=house.suspects,
            decide=house.settings.decide,
        )

    def cancel(self) -> None:
        """End the pass; what it leased goes back when nobody writes to it any more."""
        self._scope.cancel()

    def come_first(self) -> None:
        """Note that the user takes no more steps of the pass before."""
        self._before = None
        self.look_again()

    def look_again(self) -> None:
        """Note that the user has taken a step, so that there may be room for the next run."""
        self._room.set()

    async def run(self, on_produced: Callable[[Pass], None]) -> None:
        """Bring all steps.

        Args:
            on_produced: called when the last run has been admitted, so that the next epoch's may follow.
        """
        with self._scope:
            try:
                async with anyio.create_task_group() as group:
                    window = Window(self._house.memory, self._house.reader.read_into, group)
                    try:
                        await self._produce(window, group)
                    finally:
                        window.close()
                    self.produced = True
                    on_produced(self)
            except Exception as error:
                _log.debug("a pass failed", exc_info=True)
                self.handover.close(as_ours(error))

    async def _produce(self, window: Window, group: TaskGroup) -> None:
        """Admit runs, one after the other, until all steps are under way or one cannot be."""
        step, number = self.handover.due, 0
        while step < self.handover.stop:
            stop = await self._until_near(step)
            run = plan_run(self.plan, step, stop, order=(self._number, number))
            self._house.enter(run.order, partial(self._is_due, step))
            chunks: list[Chunk] = []
            try:
                chunks, rows = window.admit(run)
                reads, raw_bytes = merge(
                    run, rows, max_gap_bytes=_MAX_GAP_BYTES, max_read_bytes=MAX_READ_BYTES
                )
                raw = await self._house.memory.lease(align(raw_bytes) + run.table.nbytes, run.order)
            except BaseException as error:
                for chunk in chunks:
                    chunk.lease.release()
                self._house.leave(run.order)
                if not isinstance(error, AioloadError):
                    raise
                self.handover.put(step, self._told(error, step))
                return
            run.table["start"][rows] += np.uint64(raw.span.start)
            run.table["stop"][rows] += np.uint64(raw.span.start)
            self._house.counters.add(record_bytes=int(run.sizes.sum()))
            group.start_soon(self._walk, run, raw, raw.span.start + align(raw_bytes), reads, chunks)
            step, number = stop, number + 1

    async def _walk(
        self, run: Run, raw: Lease, table: int, reads: tuple[Read, ...], chunks: list[Chunk]
    ) -> None:
        """Take a run through the pipeline."""
        missing = set(run.steps)

        def put(step: int, result: Made | AioloadError) -> None:
            missing.discard(step)
            item = self._deliver(result)
            self.handover.put(step, self._told(item, step) if isinstance(item, AioloadError) else item)

        try:
            memory = self._house.memory
            failures = await Fetcher(run, self._house.reader, memory).fetch(reads, raw, chunks)
            memory.arena.array[table : table + run.table.nbytes] = run.table.view(np.uint8)
            leases = [raw, *(chunk.lease for chunk in chunks)]
            await self._decoder.make(run, leases, table, failures, put)
        except Exception as error:
            failure = as_ours(error)
            for step in sorted(missing):
                put(step, failure)
        finally:
            raw.release()
            for chunk in chunks:
                chunk.lease.release()
            self._house.leave(run.order)

    def _deliver(self, result: Made | AioloadError) -> Item:
        if isinstance(result, AioloadError):
            return result
        try:
            return deliver(result, self._house.memory, self._house.settings.output, self._count_copy)
        except Exception as error:
            return as_ours(error)

    def _told(self, error: AioloadError, step: int) -> AioloadError:
        """Return an error as it is put at a step; one about memory names a limit for all."""
        if isinstance(error, ConfigError) and "needed" in error.facts:
            memory, rows = self._house.memory, self.plan.part.batch_size
            largest = largest_batch(self.plan.table, rows)
            needs = self._house.sizes.needs(largest) + 4 * rows * TABLE.itemsize
            enough = max(enough_for(needs), error.facts["needed"])
            error = ConfigError(
                f"memory_limit of {memory.limit} bytes cannot hold what a batch needs on its way: up to "
                f"{largest} bytes of records, samples made of them and the batch; {enough} bytes are enough",
                needed=enough,
            )
        error.step, error.facts = step, {**error.facts, "step": step}
        return error

    def _count_copy(self) -> None:
        self._house.counters.add(copies=1)

    def _steps_per_run(self) -> int:
        steps = self._house.sizes.steps_per_run(self.plan.part.batch_size)
        prefetch = self._house.settings.prefetch
        return steps if prefetch is None else max(1, min(steps, prefetch // 2))

    async def _until_near(self, step: int) -> int:
        """Wait until the run that begins at a step is not too early; return where it ends.

        How long it is is decided anew at each look: a run that was planned while records seemed cheap may be
        longer than what may lie ahead now, and would wait for ever.
        """
        while True:
            self._room = anyio.Event()  # before looking: the user may take a step in between
            steps = self._steps_per_run()
            most = self._depth(steps)
            stop = min(step + min(steps, most), self.handover.stop)
            if self._ahead(stop) <= most:
                return stop
            with self._house.tuner.holding():
                await self._room.wait()

    def _ahead(self, stop_step: int) -> int:
        """Return how many steps lie between the user and a step."""
        return self._steps_before() + stop_step - self.handover.due

    def _is_due(self, step: int) -> bool:
        """Tell whether the user has taken all that comes before a step."""
        return not self._steps_before() and self.handover.due >= step

    def _steps_before(self) -> int:
        """Return how many steps of the pass before have not been taken."""
        return 0 if self._before is None else self._before.stop - self._before.due

    def _depth(self, steps: int) -> int:
        """Return how many steps may lie between, where so many walk together."""
        return self._house.tuner.depth(self.plan.part.batch_size, steps)


def as_ours(error: BaseException) -> AioloadError:
    """Return the error that the user meets for one that came up in here."""
    while isinstance(error, BaseExceptionGroup):  # of a task group inside; the first reason is the reason
        error = error.exceptions[0]
    if isinstance(error, AioloadError):
        return error
    ours = AioloadError(
        f"aioload failed inside: {error!r}; this is a bug, please report it", cause=repr(error)
    )
    ours.__cause__ = error
    return ours
