"""Decode: the records of a run become its batches, by jobs that workers do.

Three ways, by what is known. A small batch is one part of a job and comes back whole. A large batch whose
samples have a known layout is cut into parts that write their rows into the batch's place. A large batch of
unknown make comes back as packed samples, from which one more job makes the batch; what is learnt on the way
makes the next one a batch of rows. A batch in which a sample does not fit is done again the third way.

A batch over which a worker died, or that lacks samples and may lack them, is left to `careful`.

Whatever takes more memory than a run may have is `TooSmall`: the caller then has each batch made alone, whole
and with patience, which takes as little as will do.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
from numpy.typing import NDArray

from .._workers.files import Unmapped
from .._workers.jobs import TABLE, Answer, Collate, Decode, Failure, Job, Outcome
from .._workers.leaf import texts
from .._workers.packed import descriptor
from .._workers.pool import WorkerDied
from .._workers.space import Span, align
from ..errors import AioloadError, SampleError, ShardError, WorkerError
from .caching import warn
from .careful import Careful, Piece, Suspects
from .deliver import Joined, Made
from .parts import Part

if TYPE_CHECKING:
    from .._workers.layout import Layout
    from .._workers.pool import Runner
    from ..policy import Skips
    from ..stats import Counters
    from ..timeline import Batch
    from ..tracing import Teller
    from .caching import Caching
    from .mapped import Mapped
    from .memory import Lease, Memory
    from .plan import Run
    from .sizes import Sizes

__all__ = ["Decoder", "Walk"]

Put = Callable[[int, "Made | Joined | AioloadError"], None]
Decide = Callable[[AioloadError], Any]

_COLLATE_TRIES = 3
_JOINED_BYTES = 1 << 20  # of batches that share a stretch of memory; and at most
_JOINED_SHARE = 64  # of the memory limit, since one that the user keeps keeps all of it
_DIED = Outcome()  # stands where there is none, as the worker died


class Decoder:
    """Makes batches of runs.

    Args:
        runner: who does the jobs.
        memory: where outcomes go.
        sizes: what is known about them.
        shards: names of the shards, for errors.
        stacks: whether the default collate stacks batches, so that rows can have their place beforehand.
        plain: whether no code of the user's runs, which might fail.
        counters: told of the workers' time.
        suspects: records at which workers died.
        decide: what becomes of a record that fails (see `Careful`); None: its error takes the batch's place.
        mapped: shards that workers map; None if all records are in the arena.
        between: called now and then while something takes long.
        caching: finds samples that were kept; None if none are.
        travels: whether what workers make is sent here: samples had better not go back to be collated.
    """

    def __init__(
        self,
        runner: Runner,
        memory: Memory,
        sizes: Sizes,
        shards: Sequence[str],
        *,
        stacks: bool,
        plain: bool,
        counters: Counters,
        suspects: Suspects,
        decide: Decide | None,
        mapped: Mapped | None = None,
        between: Callable[[], object] = int,
        caching: Caching | None = None,
        travels: bool = False,
    ) -> None:
        self._runner = runner
        self._memory = memory
        self._sizes = sizes
        self._shards = shards
        self._stacks = stacks
        self._plain = plain
        self._counters = counters
        self._suspects = suspects
        self._decide = decide
        self._mapped = mapped
        self._between = between
        self._caching = caching
        self._travels = travels

    async def make(
        self,
        run: Run,
        leases: list[Lease],
        table: int,
        failed: dict[int, AioloadError],
        put: Put,
        steps: Container[int],
        *,
        alone: bool = False,
    ) -> None:
        """Make the batches of a run and put each, or its error, when it is there.

        Args:
            run: what to make.
            leases: where its records lie, and its table.
            table: where in the arena the run's `TABLE` begins.
            failed: what could not be read, by row of the run's table.
            put: called once for each of these steps, or for the first of several that are joined.
            steps: of the run, those to be made.
            alone: the run is one batch, which must do with as little memory as possible.

        Raises:
            Unmapped: records cannot be had from mapped files; some steps may have been put before.
            Lost: samples that were kept cannot be had; likewise.
            TooSmall: the run needs more memory than it may have; likewise.
        """
        walk = Walk(self, run, leases, table, put, patient=alone)
        whole = await walk.settle_failed(failed, steps)
        if not whole:
            return
        count = 1 if alone or len(run.rows) > 1 else self._parts(run, len(leases[0]))
        if count > 1:
            await walk.make_split(list(walk.parts(whole[0], count)))
            return
        for neighbours in _neighbours(whole):
            parts = [part for step in neighbours for part in walk.parts(step, 1)]
            for group in walk.groups(parts):
                await walk.make_whole(group)

    def _parts(self, run: Run, present: int) -> int:
        """Return into how many jobs a batch is cut: one, if samples and batch have no room side by side."""
        if self._travels and self._sizes.layout is None:
            return 1
        made = self._sizes.made(run.rows[0], int(run.sizes.sum()))
        return self._sizes.parts(run.rows[0]) if present + 2 * made <= self._memory.per_run else 1


class Walk:
    """One run on its way through the workers."""

    def __init__(
        self, decoder: Decoder, run: Run, leases: list[Lease], table: int, put: Put, *, patient: bool
    ) -> None:
        self._runner = decoder._runner
        self._memory = decoder._memory
        self._sizes = decoder._sizes
        self._shards = decoder._shards
        self._stacks = decoder._stacks
        self._plain = decoder._plain
        self._counters = decoder._counters
        self.suspects = decoder._suspects
        self._decide = decoder._decide
        self._mapped = decoder._mapped
        self._between = decoder._between
        self._caching = decoder._caching
        self._run = run
        self._leases = leases
        self._table = table
        self._put = put
        self._patient = patient
        self._answered: set[int] = set()  # where the tables of jobs begin that were done before

    def parts(self, step: int, count: int) -> Iterator[Part]:
        """Cut a batch into `count` parts of nearly equal length."""
        rows = self._run.rows[step - self._run.first_step]
        begin = sum(self._run.rows[: step - self._run.first_step])
        sizes = self._run.sizes
        for number in range(count):
            first, stop = rows * number // count, rows * (number + 1) // count
            raw_bytes = int(sizes[begin + first : begin + stop].sum())
            start = self._table + TABLE.itemsize * (begin + first)
            table = Span(start, start + TABLE.itemsize * (stop - first))
            yield Part(step, first, stop - first, rows, table, raw_bytes)

    async def settle_failed(self, failed: dict[int, AioloadError], steps: Container[int]) -> list[int]:
        """Deal with those of the steps that lack records; return the others."""
        if not failed:
            return [step for step in self._run.steps if step in steps]
        first, whole = 0, []
        for step, rows in zip(self._run.steps, self._run.rows, strict=True):
            missing = {row - first: failed[row] for row in range(first, first + rows) if row in failed}
            first += rows
            if step not in steps:
                continue
            if not missing:
                whole.append(step)
            elif self._decide is None:
                self._put(step, missing[min(missing)])
            else:
                await self._make_careful(next(self.parts(step, 1)), missing)
        return whole

    def groups(self, parts: list[Part]) -> Iterator[list[Part]]:
        """Cut whole batches into groups whose rows have room at the same time."""
        group: list[Part] = []
        size = 0
        for part in parts:
            layout = self._sizes.layout
            if layout is not None:
                more = layout.starts(part.rows)[-1] + self._text_room(layout, part, 1)
            else:  # guesses share what may be guessed
                more = self._guess(part, 1) if self._sizes.growth is not None else 0
            if group and size + more > self._memory.guessable:
                yield group
                group, size = [], 0
            group.append(part)
            size += more
        if group:
            yield group

    # whole batches, one job

    async def make_whole(self, parts: list[Part]) -> None:
        """Make batches that are each one part of one job."""
        layout = self._sizes.layout
        if layout is None:
            await self._make_packed(parts)
            return
        if await self._make_joined(parts, layout):
            return

        troubled: list[Part] = []
        with contextlib.ExitStack() as stack:
            batches = [await self.lease(stack, layout.starts(part.rows)[-1]) for part in parts]
            places = [await self.lease(stack, self._text_room(layout, part, len(parts))) for part in parts]
            segments = tuple(
                part.segment(place.span, layout, batch.span)
                for part, place, batch in zip(parts, places, batches, strict=True)
            )
            table = Span(parts[0].table.start, parts[-1].table.stop)
            try:
                answer = await self._do(Decode(table, segments), [*batches, *places])
            except WorkerDied:
                outcomes: tuple[Outcome, ...] = (_DIED,) * len(parts)
            else:
                outcomes = answer.outcomes

            again = []
            for part, batch, place, outcome in zip(parts, batches, places, outcomes, strict=True):
                if outcome is _DIED or (outcome.failure is not None and self._decide is not None):
                    troubled.append(part)
                elif outcome.failure is not None:
                    self._put(part.step, self.error(outcome.failure, part.step))
                elif outcome.misfit or outcome.need:
                    again.append((part, outcome))
                else:
                    lists = self._texts(part, place, outcome)
                    made = Made(
                        part.step, part.rows, batch.keep(), len(batch), None, layout, lists, outcome.used
                    )
                    self._put(part.step, made)
        for part, outcome in again:
            self._note_misfit(part, outcome)
            await self._make_packed([part])
        for part in troubled:
            await self._make_careful(part)

    async def _make_joined(self, parts: list[Part], layout: Layout) -> bool:
        """Make batches of small records at once, as if they were one; tell whether that went well.

        They lie in one stretch of memory, which goes back with the last of them, so it must be small.
        """
        rows = sum(part.rows for part in parts)
        size = layout.starts(rows)[-1]
        if (
            not self._plain
            or len(parts) == 1
            or size > min(_JOINED_BYTES, self._memory.limit // _JOINED_SHARE)
        ):
            return False
        table = Span(parts[0].table.start, parts[-1].table.stop)
        whole = Part(parts[0].step, 0, rows, rows, table, sum(part.raw_bytes for part in parts))
        with contextlib.ExitStack() as stack:
            batch = await self.lease(stack, size)
            place = await self.lease(stack, self._text_room(layout, whole, 1))
            job = Decode(table, (whole.segment(place.span, layout, batch.span),))
            try:
                outcome = (await self._do(job, [batch, place])).outcomes[0]
            except WorkerDied:
                return False
            if outcome.failure is not None or outcome.misfit or outcome.need:
                if outcome.need:
                    self._note_misfit(whole, outcome)
                return False
            lists = self._texts(whole, place, outcome)
            made = Made(whole.step, rows, batch.keep(), size, None, layout, lists, outcome.used)
            self._put(whole.step, Joined(made, tuple(part.rows for part in parts)))
        return True

    async def _make_packed(self, parts: list[Part]) -> None:
        """Make whole batches that describe themselves; those that had too little room come last."""
        again: list[tuple[Part, int]] = []
        troubled: list[Part] = []

        async def make(part: Part, size: int) -> None:
            with contextlib.ExitStack() as stack:
                try:
                    outcome, lease = await self._pack(part, size, stack)
                except WorkerDied:
                    troubled.append(part)
                    return
                if outcome.need:
                    again.append((part, outcome.need))
                elif outcome.failure is not None and self._decide is not None:
                    troubled.append(part)
                else:
                    self._put(part.step, self._packed(part, outcome, lease))

        async with anyio.create_task_group() as group:
            for part in parts:
                group.start_soon(make, part, self._guess(part, len(parts)))
        while again:  # one by one, as there may be room for one only; it may grow once more
            await make(*again.pop(0))
        for part in troubled:
            await self._make_careful(part)

    async def _make_careful(self, part: Part, known: dict[int, AioloadError] | None = None) -> None:
        """Make one whole batch in which something went wrong."""
        decide = self._decide or _raise
        self._put(part.step, await Careful(self, part, known or {}, decide).make())

    # large batches, several jobs

    async def make_split(self, parts: list[Part]) -> None:
        """Make one batch of several parts."""
        try:
            result = await self._make_rows(parts) if self._sizes.layout is not None else None
            if result is None:
                result = await self._make_collated(parts)
        except _Troubled:
            await self._make_careful(next(self.parts(parts[0].step, 1)))
            return
        self._put(parts[0].step, result)

    async def _make_rows(self, parts: list[Part]) -> Made | AioloadError | None:
        """Make a batch whose rows have their places; None if a sample does not fit."""
        layout = self._sizes.layout
        assert layout is not None
        with contextlib.ExitStack() as stack:
            batch = await self.lease(stack, layout.starts(parts[0].batch_rows)[-1])
            places = [await self.lease(stack, self._text_room(layout, part, len(parts))) for part in parts]
            outcomes: dict[int, Outcome] = {}

            async def fill(number: int, part: Part, place: Lease) -> None:
                segment = part.segment(place.span, layout, batch.span)
                try:
                    answer = await self._do(Decode(part.table, (segment,)), [batch, place])
                except WorkerDied:
                    outcomes[number] = _DIED
                else:
                    outcomes[number] = answer.outcomes[0]

            async with anyio.create_task_group() as group:
                for number, (part, place) in enumerate(zip(parts, places, strict=True)):
                    group.start_soon(fill, number, part, place)

            ordered = [outcomes[number] for number in range(len(parts))]
            failed = self._first_failure(ordered, parts[0].step)
            if failed is not None:
                return failed
            unfit = [outcome.misfit or outcome.need > 0 for outcome in ordered]
            if any(unfit):
                worst = unfit.index(True)
                self._note_misfit(parts[worst], ordered[worst])
                return None
            lists = [self._texts(*one) for one in zip(parts, places, ordered, strict=True)]
            merged = tuple([text for part in column for text in part] for column in zip(*lists, strict=True))
            used, size = sum(outcome.used for outcome in ordered), len(batch)
            return Made(parts[0].step, parts[0].batch_rows, batch.keep(), size, None, layout, merged, used)

    async def _make_collated(self, parts: list[Part]) -> Made | AioloadError:
        """Make a batch of samples that are packed part by part."""
        with contextlib.ExitStack() as stack:
            packed = await self._pack_all(parts, stack)
            failed = self._first_failure([outcome for outcome, _ in packed], parts[0].step)
            if failed is not None:
                return failed
            table = Span(parts[0].table.start, parts[-1].table.stop)
            whole = Part(parts[0].step, 0, parts[0].batch_rows, parts[0].batch_rows, table, 0)
            sources = [
                (lease, outcome.descriptor) for outcome, lease in packed if outcome.descriptor is not None
            ]
            return await self._collate(whole, sources, sum(outcome.used for outcome, _ in packed))

    async def _pack_all(self, parts: list[Part], stack: contextlib.ExitStack) -> list[tuple[Outcome, Lease]]:
        """Have all parts packed; those that had too little room again, once the others hold no guesses."""
        packed: dict[int, tuple[Outcome, Lease]] = {}

        async def pack(number: int, size: int) -> None:
            try:
                packed[number] = await self._pack(parts[number], size, stack)
            except WorkerDied:
                packed[number] = _DIED, self._leases[0]

        sizes = {number: self._guess(part, len(parts)) for number, part in enumerate(parts)}
        while sizes and not any(outcome is _DIED for outcome, _ in packed.values()):
            async with anyio.create_task_group() as group:
                for number, size in sizes.items():
                    group.start_soon(pack, number, size)
            sizes = {number: outcome.need for number, (outcome, _) in packed.items() if outcome.need}
        return [packed[number] for number in range(len(parts))]

    async def _collate(
        self, whole: Part, sources: Sequence[tuple[Lease, Span]], used: int
    ) -> Made | AioloadError:
        """Have a batch made of packed samples.

        Args:
            whole: the batch.
            sources: where samples lie, and where in it their descriptor.
            used: bytes of them all.
        """
        size = align(used + (1 << 12))
        places = tuple((lease.span, where) for lease, where in sources)
        while True:
            with contextlib.ExitStack() as stack:
                lease = await self.lease(stack, size)
                job = Collate(whole.step, places, lease.span, whole.table)
                outcome = await self._do_collate(job, [lease, *(lease for lease, _ in sources)])
                if not outcome.need:
                    return self._packed(whole, outcome, lease)
            size = outcome.need

    async def _do_collate(self, job: Collate, leases: list[Lease]) -> Outcome:
        """Have a batch collated, again if a worker dies over it."""
        for _ in range(_COLLATE_TRIES):
            try:
                return (await self._do(job, leases)).outcomes[0]
            except WorkerDied as died:
                last = died
        message = f"batch {job.step}: each worker process that put it together {last.how}"
        raise _killed(message, last, step=job.step)

    # for `careful`

    async def collect(self, part: Part, whole: Part, stack: contextlib.ExitStack) -> tuple[Outcome, Lease]:
        """Have some rows of a batch packed as samples, as far as they can be made.

        Raises:
            WorkerDied: a worker died over them.
        """
        size = self._guess(part, -(-whole.rows // part.rows))
        while True:
            with contextlib.ExitStack() as own:
                lease = await self.lease(own, size)
                job = Decode(part.table, (part.segment(lease.span),), collect=True)
                outcome = (await self._do(job, [lease])).outcomes[0]
                if not outcome.need:
                    if outcome.failure is not None:  # what was made could not be packed
                        raise self.error(outcome.failure, part.step)
                    self._memory.trim(lease, outcome.used)
                    stack.enter_context(own.pop_all())
                    return outcome, lease
            size = outcome.need

    async def finish(self, whole: Part, pieces: Sequence[Piece], skipped: Skips) -> Made | AioloadError:
        """Make a batch of the pieces that are left of it."""
        if not pieces:
            with contextlib.ExitStack() as stack:
                lease = await self.lease(stack, 1)
                return Made(whole.step, 0, lease.keep(), 0, None, None, (), skipped=skipped)
        whole = replace(whole, rows=sum(piece.rows for piece in pieces))
        sources = [(piece.lease, piece.descriptor) for piece in pieces]
        made = await self._collate(whole, sources, sum(piece.used for piece in pieces))
        return made if isinstance(made, AioloadError) else replace(made, skipped=skipped)

    @property
    def epoch(self) -> int:
        """The epoch of the run's first record."""
        return int(self._run.table["epoch"][0])

    def records(self, part: Part) -> list[tuple[int, int]]:
        """Return set and number of the records of some rows."""
        first = (part.table.start - self._table) // TABLE.itemsize
        rows = self._run.table[first : first + part.rows]
        return list(zip(rows["source"].tolist(), rows["record"].tolist(), strict=True))

    def array(self, lease: Lease) -> NDArray[np.uint8]:
        """Return the bytes of a lease."""
        return self._memory.arena.array[lease.span.start : lease.span.stop]

    def place_of(self, part: Part, row: int) -> tuple[str, int]:
        """Return shard and number of the record of a row."""
        entry = self._run.table[(part.table.start - self._table) // TABLE.itemsize + row]
        return self._shards[int(entry["shard"])], int(entry["record"])

    def killed(self, part: Part, died: WorkerDied) -> WorkerError:
        """Return the error of a record that kills workers."""
        shard, record = self.place_of(part, 0)
        message = f"record {record} ({shard}): the worker process that worked on it {died.how}, each time"
        return _killed(message, died, shard=shard, record=record, step=part.step)

    # what all of them have in common

    async def _pack(self, part: Part, size: int, stack: contextlib.ExitStack) -> tuple[Outcome, Lease]:
        """Have one part packed. Where there was room enough, the stack releases it; else it is released."""
        with contextlib.ExitStack() as own:
            lease = await self.lease(own, size)
            job = Decode(part.table, (part.segment(lease.span),), learn=self._learning)
            outcome = (await self._do(job, [lease])).outcomes[0]
            if outcome.need:
                self._sizes.outcome(part.rows, outcome.need, part.raw_bytes)
                self._counters.add(jobs_again=1)
            else:
                self._note(part, outcome, lease)
                stack.enter_context(own.pop_all())
        return outcome, lease

    def _guess(self, part: Part, parts: int) -> int:
        """Return the room to try for a packed part; a guess never takes what its `parts` may really need."""
        return self._guessed(self._sizes.room(part.rows, part.raw_bytes), parts)

    def _text_room(self, layout: Layout, part: Part, parts: int) -> int:
        """Return the room to try for the texts beside rows."""
        if not layout.has_texts:
            return 0
        return self._guessed(self._sizes.text_room(part.rows, part.raw_bytes), parts)

    def _guessed(self, room: int, parts: int) -> int:
        """Return what may be taken of a room that is a guess; all of it, where it is known beforehand."""
        if self._sizes.growth is not None:
            return room
        most = self._memory.guessable // parts
        return min(room, most, self._memory.left(self._run.order)) if self._patient else min(room, most)

    @property
    def _learning(self) -> bool:
        return self._stacks and self._sizes.learning

    def _note(self, part: Part, outcome: Outcome, lease: Lease) -> None:
        """Learn from a packed outcome, and take back the room it did not need."""
        if outcome.failure is None:
            self._sizes.outcome(part.rows, outcome.used, part.raw_bytes)
            self._memory.trim(lease, outcome.used)
        if outcome.layout is not None:
            self._sizes.learn(outcome.layout)

    async def _do(self, job: Job, leases: list[Lease]) -> Answer:
        """Have a job done; what it touches stays leased until it has ended, even if nobody waits any more."""
        if self._caching is not None and isinstance(job, Decode):
            job = self._caching.with_files(job, self._rows_of(job))
        kept = [lease.keep() for lease in (*leases, *self._leases)]

        def done() -> None:
            for lease in kept:
                lease.release()

        asked = time.perf_counter()
        try:
            answer = await self._runner.run(job, self._run.order, done)
        except WorkerDied as died:
            if (trace := self._counters.trace) is not None:
                trace.died(died.how, self._batches(job))
            if self._is_mapped and died.exit_code == -signal.SIGBUS:  # the file was cut under its mapping
                raise Unmapped from died
            if isinstance(job, Decode) and not job.collect and died.row is not None:
                self._suspect(job, died.row)
            raise
        if (trace := self._counters.trace) is not None:
            self._trace(trace, job, answer, asked)
        if self._mapped is not None:
            self._mapped.note(answer.faults)
            if any(map(_is_unmapped, answer.outcomes)):
                raise Unmapped
        if self._caching is not None:
            # a job that is repeated finds what it has kept itself
            self._caching.take_in(answer, is_repeated=job.table.start in self._answered)
            self._answered.add(job.table.start)
        else:
            warn(self._counters, answer.notes)
        self._count(job, answer)
        return answer

    def _rows_of(self, job: Decode) -> NDArray[Any]:
        """Return the rows of the run's table that a job is about."""
        first = (job.table.start - self._table) // TABLE.itemsize
        return self._run.table[first : first + len(job.table) // TABLE.itemsize]

    def _trace(self, trace: Teller, job: Job, answer: Answer, asked: float) -> None:
        """Tell a trace of a job that has come back."""
        parts = (
            ("decode", answer.decode_seconds),
            ("prepare", answer.prepare_seconds),
            ("transform", answer.transform_seconds),
            ("collate", answer.collate_seconds),
        )
        what = "collate" if isinstance(job, Collate) else ""
        place = answer.pid, answer.began, answer.stopped
        trace.job(what, self._batches(job), asked, place, parts)

    def _batches(self, job: Job) -> tuple[Batch, ...]:
        """Return the batches that a job is about, as traces call them."""
        number, first = self._run.order[0], self._run.first_step
        if isinstance(job, Collate):
            return ((number, job.step),)
        steps = list(dict.fromkeys(segment.step for segment in job.segments))
        last, rows = steps[-1] - first, self._run.rows
        joined = job.segments[-1].batch_rows - rows[last]
        while joined > 0:  # batches that are made as if they were one
            last += 1
            joined -= rows[last]
            steps.append(first + last)
        return tuple((number, step) for step in steps)

    @property
    def _is_mapped(self) -> bool:
        """Whether the run's records lie in mapped files."""
        return self._mapped is not None and bool(self._run.table["mapped"].any())

    def _suspect(self, job: Decode, row: int) -> None:
        """Note the record of a job at which a worker died."""
        place = (job.table.start - self._table) // TABLE.itemsize + row
        if place < len(self._run.table):
            entry = self._run.table[place]
            self.suspects.note((int(entry["source"]), int(entry["record"])))

    def _count(self, job: Job, answer: Answer) -> None:
        if isinstance(job, Decode):
            records = sum(segment.rows for segment in job.segments)
            seconds = answer.decode_seconds + answer.prepare_seconds
            seconds += answer.transform_seconds + answer.collate_seconds
            seconds += 0.0 if answer.kept is None else answer.kept.read_seconds
            self._counters.add(uneven_seconds=self._sizes.excess(records, answer))
            if not any(outcome.failure for outcome in answer.outcomes):
                self._sizes.took(records, seconds)
        self._counters.add(
            jobs=1,
            decode_seconds=answer.decode_seconds,
            prepare_seconds=answer.prepare_seconds,
            prepared_samples=answer.prepared,
            measured_samples=int(answer.prepared_bytes > 0),
            prepared_bytes=answer.prepared_bytes,
            transform_seconds=answer.transform_seconds,
            collate_seconds=answer.collate_seconds,
            work_seconds=answer.work_seconds,
            blocked_seconds=answer.blocked_seconds,
            queued_seconds=answer.queued_seconds,
            check_seconds=answer.check_seconds,
        )

    def _note_misfit(self, part: Part, outcome: Outcome) -> None:
        """Learn from rows that could not be written as they were meant to."""
        if outcome.misfit:
            self._sizes.misfit()
        else:
            self._sizes.texts(part.rows, outcome.need)

    async def lease(self, stack: contextlib.ExitStack, size: int) -> Lease:
        """Lease memory that the stack releases."""
        lease = await self._memory.lease(size, self._run.order, patient=self._patient)
        stack.callback(lease.release)
        return lease

    def _texts(self, part: Part, place: Lease, outcome: Outcome) -> tuple[list[str] | list[bytes], ...]:
        """Return the text columns of some rows as lists."""
        if not outcome.texts:
            return ()
        self._sizes.texts(part.rows, outcome.used)
        array = self._memory.arena.array[place.span.start : place.span.stop]
        return tuple(texts(array, leaf, self._between) for leaf in outcome.texts)

    def _packed(self, part: Part, outcome: Outcome, lease: Lease) -> Made | AioloadError:
        """Return a packed batch, or its error; what lies behind the last byte goes back."""
        if outcome.failure is not None:
            return self.error(outcome.failure, part.step)
        assert outcome.descriptor is not None
        array = self._memory.arena.array[lease.span.start : lease.span.stop]
        tree = descriptor(array, outcome.descriptor)
        self._memory.trim(lease, outcome.used)
        return Made(part.step, part.rows, lease.keep(), outcome.used, tree, None, ())

    def _first_failure(self, outcomes: list[Outcome], step: int) -> AioloadError | None:
        """Return the error of the lowest row: the same one however the batch was cut.

        Raises:
            _Troubled: the batch must be made carefully.
        """
        failed = any(outcome.failure is not None for outcome in outcomes)
        if any(outcome is _DIED for outcome in outcomes) or (failed and self._decide is not None):
            raise _Troubled
        for outcome in outcomes:
            if outcome.failure is not None:
                return self.error(outcome.failure, step)
        return None

    def error(self, failure: Failure, step: int) -> AioloadError:
        """Return what a worker told in texts as the error that the user meets."""
        kind = ShardError if failure.kind == "ShardError" else SampleError
        facts = {**failure.facts, "step": step, "cause": failure.trace, "error": failure.name}
        message = failure.message
        if failure.record is not None:
            shard = self._shards[failure.shard or 0]
            where = f"record {failure.record} ({f'key {failure.key!r}, ' if failure.key else ''}{shard})"
            told = message if failure.name in ("ShardError", "SampleError") else f"{failure.name}: {message}"
            if failure.field is not None:
                told = f"field {failure.field.name!r} ({failure.field.stored}): {told}"
            message = f"{where}: {told}"
            facts |= {"shard": shard, "record": failure.record, "key": failure.key or facts.get("key")}
            if kind is ShardError:
                facts |= {"offset": self._offset(failure)}
        error = kind(message, **facts)
        error.add_note(f"in a worker:\n{failure.trace}")
        return error

    def _offset(self, failure: Failure) -> int | None:
        """Return the byte of its shard at which a record that failed begins."""
        table = self._run.table
        found = np.flatnonzero((table["record"] == failure.record) & (table["shard"] == failure.shard))
        return int(self._run.offsets[found[0]]) if len(found) else None


class _Troubled(Exception):
    """The batch must be made carefully."""


def _raise(error: AioloadError) -> Any:
    raise error


def _killed(message: str, died: WorkerDied, **facts: Any) -> WorkerError:
    """Return the error of something over which workers die."""
    error = WorkerError(message, exit_code=died.exit_code, cause=died.stack or died.how, **facts)
    if died.stack is not None:
        error.add_note(f"it was at:\n{died.stack or 'its stack could not be had'}")
    return error


def _is_unmapped(outcome: Outcome) -> bool:
    """Tell whether records could not be had from a mapped file."""
    failures = (outcome.failure, *outcome.failures)
    return any(failure is not None and failure.kind == Unmapped.__name__ for failure in failures)


def _neighbours(steps: Sequence[int]) -> Iterator[list[int]]:
    """Group steps that follow each other without a gap: their tables lie end to end."""
    group: list[int] = []
    for step in steps:
        if group and step != group[-1] + 1:
            yield group
            group = []
        group.append(step)
    if group:
        yield group
