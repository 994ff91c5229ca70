"""Passes: one epoch's batches on their way, from plan to hand-over.

A pass is one task group. Its producer admits runs in the order of need: each waits until it is not too far
ahead of the user, then for its memory, then walks by itself. The walk is the library's only catch-all:
whatever goes wrong takes the place of the steps it concerns, so earlier batches come out first and the error
comes bare, at its own step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio
import numpy as np

from .._workers.files import Unmapped
from .._workers.jobs import TABLE
from .._workers.layout import align
from ..errors import AioloadError, ConfigError
from ..table import largest_batch
from .decode import Decoder
from .deliver import Delivery, Joined, Made, deliver, deliver_joined
from .fetch import Fetcher
from .house import MAX_READ_BYTES
from .memory import enough_for
from .plan import merge, plan_run
from .window import Window

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from numpy.typing import NDArray

    from .._workers.pool import Runner
    from .decode import Put
    from .fetch import Failures
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
        self._wanted: tuple[int, int] | None = (
            None  # the step that waits for room, and how far ahead it may be
        )
        recipe = house.settings.recipe
        self._steps = 0  # of the run before
        self._decoder = Decoder(
            runner,
            house.memory,
            house.sizes,
            house.labels,
            stacks=recipe.collate is None,
            plain=recipe.collate is None and not recipe.seeded,
            counters=house.counters,
            suspects=house.suspects,
            decide=house.settings.decide,
            mapped=house.mapped,
        )

    def cancel(self) -> None:
        """End the pass; what it leased goes back when nobody writes to it any more."""
        self._scope.cancel()

    def come_first(self) -> None:
        """Note that the user takes no more steps of the pass before."""
        self._before = None
        self.look_again()

    @property
    def may_go_on(self) -> bool:
        """Whether the next run waits for the user to come near, and the user has; from any thread."""
        wanted = self._wanted
        return wanted is not None and self._ahead(wanted[0]) <= wanted[1]

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
            mapped = self._house.mapped
            pieces = mapped is None or mapped.cold
            run = plan_run(self.plan, step, stop, order=(self._number, number), with_pieces=pieces)
            self._house.enter(run.order, partial(self._is_due, step))
            try:
                brought = await self._admit(run, window)
            except BaseException as error:
                self._house.leave(run.order)
                if not isinstance(error, AioloadError):
                    raise
                self.handover.put(step, self._told(error, step))
                return
            self._steps = stop - step
            if mapped is not None and mapped.cold:
                group.start_soon(mapped.advise, run)
            self._house.counters.add(record_bytes=int(run.sizes.sum()))
            group.start_soon(self._walk, run, brought)
            step, number = stop, number + 1

    async def _admit(self, run: Run, window: Window) -> _Brought:
        """Take memory for a run, and let reads of its pieces begin."""
        mapped = self._house.mapped
        if mapped is not None and mapped.serves(run):
            run.table["mapped"] = 1
            run.table["start"], run.table["stop"] = run.offsets, run.offsets + run.sizes
            return _Brought(await self._house.memory.lease(run.table.nbytes, run.order), 0, (), ())
        chunks, rows = window.admit(run)
        try:
            return await self._place(run, rows, chunks)
        except BaseException:
            for chunk in chunks:
                chunk.lease.release()
            raise

    async def _place(self, run: Run, rows: NDArray[np.int64], chunks: Sequence[Chunk] = ()) -> _Brought:
        """Take memory for these rows of a run, and write where they will lie into its table."""
        reads, raw_bytes = merge(run, rows, max_gap_bytes=_MAX_GAP_BYTES, max_read_bytes=MAX_READ_BYTES)
        raw = await self._house.memory.lease(align(raw_bytes) + run.table.nbytes, run.order)
        run.table["start"][rows] += np.uint64(raw.span.start)
        run.table["stop"][rows] += np.uint64(raw.span.start)
        return _Brought(raw, align(raw_bytes), reads, chunks)

    async def _walk(self, run: Run, brought: _Brought) -> None:
        """Take a run through the pipeline."""
        missing = set(run.steps)

        def put(step: int, result: Made | Joined | AioloadError) -> None:
            items = self._deliver(result)
            missing.difference_update(range(step, step + len(items)))
            told = [
                self._told(item, place) if isinstance(item, AioloadError) else item
                for place, item in enumerate(items, step)
            ]
            self.handover.put(step, *told)

        try:
            try:
                await self._make(run, brought, put, missing)
            except Exception as error:
                if not isinstance(first_of(error), Unmapped):
                    raise
                await self._make_read(run, put, missing)
        except Exception as error:
            failure = as_ours(error)
            for step in sorted(missing):
                put(step, failure)
        finally:
            self._house.leave(run.order)

    async def _make(self, run: Run, brought: _Brought, put: Put, steps: set[int]) -> None:
        """Make steps of a run of what was brought for it, which is let go at the end."""
        memory, raw, chunks = self._house.memory, brought.raw, brought.chunks
        try:
            failures: Failures = {}
            if brought.reads or chunks:
                failures = await Fetcher(run, self._house.reader, memory).fetch(brought.reads, raw, chunks)
            table = raw.span.start + brought.table
            memory.arena.array[table : table + run.table.nbytes] = run.table.view(np.uint8)
            leases = [raw, *(chunk.lease for chunk in chunks)]
            await self._decoder.make(run, leases, table, failures, put, set(steps))
        finally:
            raw.release()
            for chunk in chunks:
                chunk.lease.release()

    async def _make_read(self, run: Run, put: Put, steps: set[int]) -> None:
        """Make steps of a run whose records could not be had from mapped files."""
        if self._house.mapped is not None:
            self._house.mapped.refuse(run)
        run.table["mapped"] = 0
        brought = await self._place(run, np.arange(len(run.table)))
        await self._make(run, brought, put, steps)

    def _deliver(self, result: Made | Joined | AioloadError) -> list[Item]:
        if isinstance(result, AioloadError):
            return [result]
        memory, output = self._house.memory, self._house.settings.output
        try:
            if isinstance(result, Joined):
                return [*deliver_joined(result, memory, output, self._count_copy)]
            return [deliver(result, memory, output, self._count_copy)]
        except Exception as error:
            failed = as_ours(error)
            steps = len(result.rows) if isinstance(result, Joined) else 1
            return [copy(failed) for _ in range(steps)]  # each is told its own step

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
        sizes, rows = self._house.sizes, self.plan.part.batch_size
        # longer by and by: a long run is long on its way, and the user has nothing yet
        steps = min(sizes.steps_per_run(rows), max(sizes.first_steps(rows), 2 * self._steps))
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
            self._wanted = stop, most
            if self.may_go_on:
                self._wanted = None
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
        before = (
            self._before
        )  # once: the user's thread looks here too, and the loop may let go of it meanwhile
        return 0 if before is None else before.stop - before.due

    def _depth(self, steps: int) -> int:
        """Return how many steps may lie between, where so many walk together."""
        return self._house.tuner.depth(self.plan.part.batch_size, steps)


@dataclass(frozen=True, slots=True)
class _Brought:
    """What was taken and begun for a run."""

    raw: Lease  # of records that are read by themselves, and the table
    table: int  # where in it
    reads: Sequence[Read]
    chunks: Sequence[Chunk]


def first_of(error: BaseException) -> BaseException:
    """Return the first reason of what a task group raised: it is the reason."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def as_ours(error: BaseException) -> AioloadError:
    """Return the error that the user meets for one that came up in here."""
    error = first_of(error)
    if isinstance(error, AioloadError):
        return error
    ours = AioloadError(
        f"aioload failed inside: {error!r}; this is a bug, please report it", cause=repr(error)
    )
    ours.__cause__ = error
    return ours
