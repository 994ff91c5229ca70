"""Passes: one epoch's batches on their way, from plan to hand-over.

A pass is one task group. Its producer admits runs in the order of need: each waits until it is not too far
ahead of the user, then for its memory, then walks by itself. The walk is the library's only catch-all:
whatever goes wrong takes the place of the steps it concerns, so earlier batches come out first and the error
comes bare, at its own step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import numpy as np

from .._workers.files import Unmapped
from .._workers.space import align
from ..cache.stock import Lost
from ..errors import AioloadError
from ..reason import first_of
from .decode import Decoder
from .deliver import Delivery, Joined, Made, deliver, deliver_joined
from .fetch import Fetcher
from .house import MAX_READ_BYTES
from .memory import TooSmall
from .needs import Need
from .plan import AT_ONCE, merge, plan_run
from .window import Window

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from numpy.typing import NDArray

    from .._workers.pool import Order, Runner
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
            between=house.manners.give_way,
            caching=house.caching,
            travels=house.travels,
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
        caching = self._house.caching
        with self._scope:
            try:
                if caching is not None:
                    caching.begin()
                async with anyio.create_task_group() as group:
                    wanted = None if caching is None else partial(caching.is_wanted, self.plan)
                    window = Window(self._house.memory, self._house.reader.read_into, group, wanted)
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
            began = time.perf_counter()
            stop = await self._until_near(step)
            self._house.manners.look()
            mapped, trace = self._house.mapped, self._house.counters.trace
            if trace is not None:
                trace.held(began, "is far enough ahead")
            began = time.perf_counter()
            run = self._marked(self._planned(step, stop, (self._number, number)))
            self._house.counters.add(plan_seconds=time.perf_counter() - began)
            stop = run.steps.stop
            if trace is not None:
                trace.planned(began, run.order, run.steps, len(run.table))
                began = time.perf_counter()
            self._house.enter(run.order, partial(self._is_due, step))
            try:
                brought = await self._admit(run, window)
            except BaseException as error:
                self._house.leave(run.order)
                if not isinstance(error, AioloadError):
                    raise
                self.handover.put(step, self._told(error, step))
                return
            if trace is not None:
                trace.held(began, "waits for memory")
            self._steps = stop - step
            if mapped is not None and mapped.due:
                group.start_soon(mapped.look)
            if mapped is not None and mapped.cold and run.table["mapped"][:1].any():
                group.start_soon(mapped.advise, run)
            self._count(run)
            caching = self._house.caching
            if caching is not None and caching.is_cold(run):
                group.start_soon(caching.advise, run)
            group.start_soon(self._walk, run, brought)
            step, number = stop, number + 1
            # planning takes milliseconds: the reads of this run should be on their way meanwhile
            await anyio.lowlevel.checkpoint()

    def _planned(self, step: int, stop: int, order: Order) -> Run:
        """Plan a run from a step on; it ends before `stop` where so much would not fit into memory."""
        mapped = self._house.mapped
        pieces = mapped is None or mapped.cold or mapped.reads
        between = self._house.manners.between
        while True:
            run = plan_run(self.plan, step, stop, order=order, with_pieces=pieces, between=between)
            if stop == step + 1 or self._needs(run) <= self._house.memory.per_run:
                return run
            stop = (step + stop + 1) // 2

    def _marked(self, run: Run, *, anew: bool = False) -> Run:
        """Return a run that knows what is kept of its records."""
        caching = self._house.caching
        return run if caching is None else caching.mark(run, anew=anew)

    def _count(self, run: Run) -> None:
        """Count what a run reads."""
        sizes = run.sizes if run.kept is None else run.sizes[~run.kept.rows]
        self._house.counters.add(record_bytes=int(sizes.sum()))

    def _needs(self, run: Run) -> int:
        """Return what a run needs on its way, as far as that is known: its batches are made one by one."""
        batches = np.add.reduceat(run.sizes, np.cumsum([0, *run.rows[:-1]]))
        made = self._house.sizes.made(max(run.rows), int(batches.max()))
        return int(batches.sum()) + run.table.nbytes + 2 * made

    async def _admit(self, run: Run, window: Window) -> _Brought | None:
        """Take memory for a run, and let reads of its pieces begin; None if its batches must come alone."""
        chunks: Sequence[Chunk] = ()
        try:
            if self._map(run):
                window.retire(run.stop_position)
                return await self._bring_table(run)
            chunks, rows = window.admit(run)
            return await self._place(run, rows, chunks)
        except BaseException as error:
            for chunk in chunks:
                chunk.lease.release()
            if isinstance(error, TooSmall):
                return None
            raise

    def _map(self, run: Run) -> bool:
        """Let workers map the shards of a run, if they may; what has no records needs no reading either."""
        if self._house.settings.recipe.items is not None:
            return True
        mapped = self._house.mapped
        if run.kept is not None and run.kept.rows.all():
            return False  # nothing is read
        if mapped is None or not mapped.serve(run):
            return False
        self._house.counters.set(mapped=True)
        run.table["start"], run.table["stop"] = run.offsets, run.offsets + run.sizes
        return True

    async def _bring_table(self, run: Run, *, alone: bool = False) -> _Brought:
        """Take memory for the table of a run whose records are mapped."""
        raw = await self._house.memory.lease(run.table.nbytes, run.order, patient=alone)
        return _Brought(raw, 0, (), ())

    async def _place(
        self, run: Run, rows: NDArray[np.int64], chunks: Sequence[Chunk] = (), *, alone: bool = False
    ) -> _Brought:
        """Take memory for these rows of a run, and write where they will lie into its table."""
        if run.kept is not None:
            rows = rows[~run.kept.rows[rows]]
        gap = 0 if alone else _MAX_GAP_BYTES
        reads, raw_bytes = merge(run, rows, max_gap_bytes=gap, max_read_bytes=MAX_READ_BYTES)
        size = align(raw_bytes) + run.table.nbytes
        self._house.tuner.foresee(len(run.rows), len(reads) + len(chunks))
        raw = await self._house.memory.lease(size, run.order, patient=alone)
        run.table["start"][rows] += np.uint64(raw.span.start)
        run.table["stop"][rows] += np.uint64(raw.span.start)
        return _Brought(raw, align(raw_bytes), reads, chunks)

    async def _walk(self, run: Run, brought: _Brought | None) -> None:
        """Take a run through the pipeline."""
        missing = set(run.steps)

        def put(step: int, result: Made | Joined | AioloadError) -> None:
            trace, began = self._house.counters.trace, time.perf_counter()
            items = self._deliver(step, result)
            if trace is not None:
                items = self._numbered(step, items)
            missing.difference_update(range(step, step + len(items)))
            if not missing and self._house.caching is not None:  # before the user can see an epoch's end
                self._house.caching.count(run)
            told = [
                self._told(item, place) if isinstance(item, AioloadError) else item
                for place, item in enumerate(items, step)
            ]
            self._house.watch.look()
            if trace is not None:  # before the user can have taken them
                trace.ready(began, tuple((self._number, place) for place in range(step, step + len(told))))
            self.handover.put(step, *told)
            if trace is not None and self._before is None:  # else the user still takes from the pass before
                trace.waiting(self.handover.ready)

        try:
            if brought is None or not await self._make_together(run, brought, put, missing):
                for step in sorted(missing):
                    await self._make_alone(step, run.order, put)
        except Exception as error:
            failure = as_ours(error)
            for step in sorted(missing):
                put(step, failure)
        finally:
            self._house.leave(run.order)

    async def _make_together(self, run: Run, brought: _Brought, put: Put, steps: set[int]) -> bool:
        """Make the steps of a run; return False if some are left that must be made alone."""
        try:
            await self._make(run, brought, put, steps)
        except Exception as error:
            if isinstance(first_of(error), Unmapped):
                self._refuse_to_map(run)
            elif not isinstance(first_of(error), TooSmall | Lost):
                raise
            return False
        return True

    async def _make_alone(self, step: int, order: Order, put: Put) -> None:
        """Make one batch with as little memory as will do, all of which may be the head's.

        It waits until it gets that: no other way is left.
        """
        anew = False
        while True:
            await self._house.memory.until_gone(order)
            run = plan_run(self.plan, step, step + 1, order=order, with_pieces=False)
            run = self._marked(run, anew=anew)
            try:
                if self._map(run):
                    brought = await self._bring_table(run, alone=True)
                else:
                    brought = await self._place(run, np.arange(len(run.table)), alone=True)
                await self._make(run, brought, put, {step}, alone=True)
            except Exception as error:
                if isinstance(first_of(error), Unmapped):
                    self._refuse_to_map(run)
                elif isinstance(first_of(error), Lost):
                    anew = True
                else:
                    raise
            else:
                return

    def _refuse_to_map(self, run: Run) -> None:
        """Have the shards of a run read from now on."""
        run.table["mapped"] = 0
        if self._house.mapped is not None:
            self._house.mapped.refuse(run)

    async def _make(
        self, run: Run, brought: _Brought, put: Put, steps: set[int], *, alone: bool = False
    ) -> None:
        """Make steps of a run of what was brought for it, which is let go at the end."""
        memory, raw, chunks = self._house.memory, brought.raw, brought.chunks
        try:
            failures: Failures = {}
            if brought.reads or chunks:
                failures = await Fetcher(run, self._house.reader, memory).fetch(brought.reads, raw, chunks)
            self._house.note_brought(run.order)
            if self._house.caching is not None:
                self._house.caching.write(run)
            table = raw.span.start + brought.table
            memory.arena.array[table : table + run.table.nbytes] = run.table.view(np.uint8)
            leases = [raw, *(chunk.lease for chunk in chunks)]
            await self._decoder.make(run, leases, table, failures, put, set(steps), alone=alone)
        finally:
            raw.release()
            for chunk in chunks:
                chunk.lease.release()

    def _deliver(self, step: int, result: Made | Joined | AioloadError) -> list[Item]:
        if isinstance(result, AioloadError):
            return [result]
        memory, output, began = self._house.memory, self._house.settings.output, time.perf_counter()
        try:
            if isinstance(result, Joined):
                self._check_first(step, result.made, result.rows[0])
                return [*deliver_joined(result, memory, output, self._count_copy)]
            self._check_first(step, result, result.rows)
            return [deliver(result, memory, output, self._count_copy)]
        except Exception as error:
            failed = as_ours(error)
            steps = len(result.rows) if isinstance(result, Joined) else 1
            return [copy(failed) for _ in range(steps)]  # each is told its own step
        finally:
            size = (result.made if isinstance(result, Joined) else result).size
            self._house.counters.add(decoded_bytes=size, deliver_seconds=time.perf_counter() - began)

    def _numbered(self, step: int, items: list[Item]) -> list[Item]:
        """Return what is delivered with what a trace calls it."""
        return [
            replace(item, batch_id=(self._number, place)) if isinstance(item, Delivery) else item
            for place, item in enumerate(items, step)
        ]

    def _check_first(self, step: int, made: Made, rows: int) -> None:
        """Refuse the limit where the first batch of all shows that there is no room for a larger one.

        Later nothing is refused.
        """
        house = self._house
        if house.memory.settled or self._before is not None or step != self.handover.due:
            return
        need = house.need.with_made(made.size * rows // max(made.rows, 1))
        if house.enough(need) > house.memory.limit:
            made.lease.release()
            raise TooSmall("", needs=need.run)
        house.memory.settle()

    def _told(self, error: AioloadError, step: int) -> AioloadError:
        """Return an error as it is put at a step; one about memory names a limit for all."""
        if isinstance(error, TooSmall):
            house = self._house
            need = house.need.with_made(house.sizes.made(self.plan.part.batch_size, house.need.raw))
            error = house.refusal(Need(max(need.run, error.facts["needs"])))
        error.step, error.facts = step, {**error.facts, "step": step}
        return error

    def _count_copy(self) -> None:
        self._house.counters.add(copies=1)

    def _steps_per_run(self) -> int:
        sizes, rows = self._house.sizes, self.plan.part.batch_size
        steps = sizes.steps_per_run(rows)
        if self._house.manners.gentle:
            steps = max(min(steps, AT_ONCE // rows), 1)
        if self._before is None:  # longer by and by: a long run is long on its way, and the user has nothing
            steps = min(steps, max(sizes.first_steps(rows), 2 * self._steps))
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
        # once: the user's thread looks here too, and the loop may let go of it meanwhile
        before = self._before
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
