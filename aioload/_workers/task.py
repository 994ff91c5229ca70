"""Task: what a worker does with a job, and all that a worker process knows.

A job says where raw records lie in the arena and where the outcome may go; the answer says how much of that
place is in use. Payload never travels with either. The same `Worker` serves in a process of the pool and,
with `num_workers=0`, in the user's own thread.

Nothing that user code raises leaves `Worker.run`: it comes back as texts, since an exception that cannot be
rebuilt on the other side would take the pool down with its cause lost.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..cache.stock import IN_MEMORY, Lost, Stock
from ..collate import apply, default
from .bulk import LEAST_ROWS, Bulk, columns_of
from .failures import describe, failure_of_batch
from .files import Files
from .items import Items
from .jobs import (
    MARK,
    TABLE,
    Answer,
    Collate,
    Decode,
    Failure,
    Job,
    Outcome,
    Recipe,
    Segment,
)
from .layout import RowWriter, learn
from .leaf import NoRoom
from .making import Maker, Making
from .own import bytes_owned
from .packed import descriptor as read_descriptor
from .packed import pack, unpack
from .space import Span

if TYPE_CHECKING:
    from ..cache.memory import MemoryStore

__all__ = ["Worker", "is_lost"]

_MOST_IN_GROUP, _MOST_BYTES = 8, 1 << 20  # samples that are begun before one is ended, and of their arrays


class Worker:
    """Runs jobs over one arena with one recipe.

    Args:
        array: the arena's bytes.
        recipe: what to do with them.
        mark: one `MARK`, kept up to date for whoever watches.
        memory: where samples are kept in memory, if they are.
        caught: what becomes a failure when user code raises it. In a process of its own that is everything;
            in the user's thread Ctrl-C stays Ctrl-C, and `sys.exit` in a signal handler ends the program.
    """

    def __init__(
        self,
        array: NDArray[np.uint8],
        recipe: Recipe,
        *,
        mark: NDArray[np.void] | None = None,
        memory: MemoryStore | None = None,
        caught: type[BaseException] | tuple[type[BaseException], ...] = BaseException,
    ) -> None:
        self._caught = caught
        place = np.zeros(1, MARK) if mark is None else mark
        self._mark_row, self._mark_began = place["row"], place["began"]
        self._row = 0  # of the job's table, at which the segment begins
        self._array = array
        # read-only: a job may be done twice, so nothing may change the raw bytes
        self._records = array.view()
        self._records.flags.writeable = False
        self._recipe = recipe
        self._seeds = recipe.seeds
        self._stock = None if recipe.stock is None else Stock(recipe.stock, memory)
        self._files = Files(recipe.paths)
        self._bulk = Bulk(recipe, self._raw)
        self._maker = Maker(recipe, self._stock, self._raw)
        self._in_groups = recipe.stock is not None and recipe.transform is not None and recipe.items is None
        self._shares = False  # somebody else has had hold of a sample that was made
        self._collate_seconds = 0.0
        self._has_run = False

    def close(self) -> None:
        """Give back what is open for samples that are kept."""
        if self._stock is not None:
            self._stock.close()

    def run(self, job: Job) -> Answer:
        """Do a job. Never raises for the user's reasons."""
        costs = self._maker.start()
        self._collate_seconds = self._bulk.check_seconds = 0.0
        began = self._mark_none()
        faults = _faults() if self._recipe.paths else 0
        outcomes = (self._collate(job),) if isinstance(job, Collate) else tuple(self._decode(job))
        if self._stock is not None and isinstance(job, Decode) and any(map(is_lost, outcomes)):
            self._stock.find_lost(self._table(job.table))
        self._mark_row[0] = -1
        self._mark_began[0] = 0.0
        # the first sample of all may have imported much, which tells nothing about samples
        longest, self._has_run = costs.longest if self._has_run else 0.0, True
        return Answer(
            outcomes,
            costs.decode,
            costs.transform,
            self._collate_seconds,
            os.getpid(),
            _faults() - faults if self._recipe.paths else 0,
            began=began,
            stopped=time.perf_counter(),
            check_seconds=costs.check + self._bulk.check_seconds,
            longest_seconds=longest,
            prepare_seconds=costs.prepare,
            prepared=costs.prepared,
            prepared_bytes=costs.prepared_bytes,
            kept=None if self._stock is None else self._stock.take_tally(),
            notes=tuple(self._maker.notes),
        )

    def _mark_none(self) -> float:
        """Note that what happens from now on is about no single record; return the time."""
        self._mark_row[0] = -1
        self._mark_began[0] = now = time.perf_counter()
        return now

    def _decode(self, job: Decode) -> Iterator[Outcome]:
        table = self._table(job.table)
        if job.files and self._stock is not None:
            self._stock.know(job.files)
        first = 0
        for segment in job.segments:
            rows = table[first : first + segment.rows]
            self._row = first
            first += segment.rows
            yield self._segment(segment, rows, job)

    def _segment(self, segment: Segment, rows: NDArray[Any], job: Decode) -> Outcome:
        try:
            if self._recipe.items is not None and self._recipe.items.batched:
                self._look_ahead(self._recipe.items, rows)
            if segment.layout is not None:
                return self._rows(segment, rows)
            if job.collect:
                return self._collected(segment, rows)
            made = list(self._samples(segment, rows))
            return self._packed(segment, made, learn_layout=job.learn)
        except NoRoom as small:
            return Outcome(need=small.need)
        except _Failed as failed:
            return Outcome(failure=failed.failure)
        except self._caught as error:
            return Outcome(failure=failure_of_batch(error, f"batch {segment.step}", rows))

    def _rows(self, segment: Segment, rows: NDArray[Any]) -> Outcome:
        """Write samples straight into their rows of the batch."""
        assert segment.layout is not None
        assert segment.batch is not None
        writer = RowWriter(segment.layout, self._place(segment.batch), segment.batch_rows)
        if not self._in_bulk(segment, rows, writer):
            writer.forget_texts()
            for made in self._samples(segment, rows, self._direct(writer)):
                if not writer.write(segment.first + made.row, made.result, made.rooms or {}):
                    return Outcome(misfit=True)
        texts = writer.pack_texts(self._place(segment.place))
        return Outcome(used=texts[-1].stop if texts else 0, texts=texts)

    def _in_bulk(self, segment: Segment, rows: NDArray[Any], writer: RowWriter) -> bool:
        """Write all records at once where nothing has to be done to them; tell whether that went well."""
        if len(rows) < LEAST_ROWS or not self._bulk.possible:
            return False
        self._mark_none()
        began = time.perf_counter()
        written = self._bulk.write(rows, writer, segment.first)
        self._maker.costs.decode += time.perf_counter() - began
        return written

    def _collected(self, segment: Segment, rows: NDArray[Any]) -> Outcome:
        """Pack the samples that can be made, and tell of those that cannot."""
        made: list[Making] = []
        failures: list[Failure] = []
        for row, entry in enumerate(rows.tolist()):
            making = Making(row, entry)
            try:
                self._guarded(making, segment, self._maker.make)
                made.append(making)
            except _Failed as failed:
                failures.append(failed.failure)
        self._mark_none()
        where, used = pack(_tree(segment, made), self._place(segment.place))
        return Outcome(used=used, descriptor=where, failures=tuple(failures))

    def _packed(self, segment: Segment, made: list[Making], *, learn_layout: bool) -> Outcome:
        """Pack a whole batch, collated, or samples that wait for the rest of theirs."""
        self._mark_none()
        tree = _tree(segment, made)
        samples, keys, _ = tree
        layout = learn(samples) if learn_layout else None
        packed = self._batch(samples, keys) if segment.whole else tree
        where, used = self._pack(packed, segment.place)
        return Outcome(used=used, descriptor=where, layout=layout)

    def _batch(self, samples: list[Any], keys: list[str | int]) -> Any:
        began = time.perf_counter()
        try:
            return apply(self._recipe.collate or default, samples, keys=keys)
        finally:
            self._collate_seconds += time.perf_counter() - began

    def _pack(self, tree: Any, place: Span) -> tuple[Span, int]:
        """Pack something into a place; return where its descriptor lies, and the bytes in use."""
        began = time.perf_counter()
        try:
            return pack(tree, self._place(place))
        finally:
            self._collate_seconds += time.perf_counter() - began

    def _collate(self, job: Collate) -> Outcome:
        """Make a batch of the samples of several segments."""
        try:
            samples: list[Any] = []
            keys: list[str | int] = []
            rows: list[int] = []
            for place, where in job.parts:
                part = self._place(place)
                if self._recipe.collate is not None:
                    part = part.copy()  # it may write to them, and the job may be done twice
                some, their_keys, their_rows = unpack(part, read_descriptor(part, where))
                samples += some
                keys += their_keys
                rows += their_rows.tolist()
            if rows != sorted(rows):  # a sample that came in another's place
                by_row = sorted(range(len(rows)), key=rows.__getitem__)
                samples, keys = [samples[at] for at in by_row], [keys[at] for at in by_row]
            where, used = self._pack(self._batch(samples, keys), job.place)
            return Outcome(used=used, descriptor=where)
        except NoRoom as small:
            return Outcome(need=small.need)
        except self._caught as error:
            return Outcome(failure=failure_of_batch(error, f"batch {job.step}", self._table(job.table)))

    def _samples(
        self, segment: Segment, rows: NDArray[Any], places: Sequence[tuple[str, NDArray[Any]]] = ()
    ) -> Iterator[Making]:
        """Make the samples of a segment, and give them in order.

        Args:
            places: fields whose decoders may write to the batch, and the column of each.
        """
        if self._in_groups:
            yield from self._grouped(segment, rows)
            return
        rooms = (
            {field: column[at] for field, column in places} if places else None
            for at in range(segment.first, segment.first + len(rows))
        )
        for making in map(Making, range(len(rows)), rows.tolist(), rooms):
            self._guarded(making, segment, self._maker.make)
            yield making

    def _grouped(self, segment: Segment, rows: NDArray[Any]) -> Iterator[Making]:
        """Make samples in groups, each step for all of a group before the next step for any.

        A failure ends its group and is told after what comes before it, as if they had been made one by one.
        A sample of which somebody else has hold cannot wait: whatever user code runs next may change it.
        """
        waiting: list[Making] = []
        size = 0
        for row, entry in enumerate(rows.tolist()):
            if self._shares and entry[-1] < IN_MEMORY:
                yield from self._ended(waiting, segment)
            making = Making(row, entry)
            failed = self._begun(making, segment)
            own = None if failed else _own_bytes(making)
            if own is None and waiting:
                yield from self._ended(waiting, segment)
                if not failed:  # what has just run may have changed it
                    making = Making(row, entry)
                    failed = self._begun(making, segment)
            if failed:
                raise failed
            self._shares |= own is None
            size = (size if waiting else 0) + (own or 0)
            waiting.append(making)
            if own is None or size >= _MOST_BYTES or len(waiting) == _MOST_IN_GROUP:
                yield from self._ended(waiting, segment)
        yield from self._ended(waiting, segment)

    def _begun(self, making: Making, segment: Segment) -> _Failed | None:
        """Begin a sample; return what went wrong, for later."""
        try:
            self._guarded(making, segment, self._maker.begin)
        except _Failed as failed:
            return failed
        return None

    def _ended(self, waiting: list[Making], segment: Segment) -> Iterator[Making]:
        """Keep and transform what waits; nothing does afterwards."""
        for making in waiting:
            self._guarded(making, segment, self._maker.keep)
        waiting.reverse()
        while waiting:  # whoever takes a result may let it go
            making = waiting.pop()
            self._guarded(making, segment, self._maker.end)
            yield making

    def _guarded(self, making: Making, segment: Segment, step: Callable[[Making], None]) -> None:
        """Take a sample a step further; whatever goes wrong becomes a failure that names it."""
        # hot: once per record, or a few times
        had_torch = "torch" in sys.modules
        self._mark_began[0] = time.perf_counter() - making.spent  # as if no other sample had come between
        self._mark_row[0] = self._row + making.row
        try:
            step(making)
            if self._seeds and not had_torch and "torch" in sys.modules:
                # user code has just imported it, and may have drawn before its generator was set: once again
                step(making)
        except self._caught as error:  # user code may raise anything, SystemExit among it
            record, shard = making.entry[2:4]
            row, field, stage = segment.first + making.row, making.field, making.stage
            failure = describe(error, row, shard, record, making.key, field, stage)
            raise _Failed(failure) from error

    def _look_ahead(self, items: Items, rows: NDArray[Any]) -> None:
        """Have samples made all at once; where that fails each is made by itself, which names the one."""
        self._mark_none()
        try:
            self._maker.look_ahead(items, rows)
        except self._caught:
            return

    def _direct(self, writer: RowWriter) -> list[tuple[str, NDArray[Any]]]:
        """Return the fields whose decoders can write straight to their rows, and these."""
        if not self._recipe.decodes_alone:  # somebody could write to them
            return []
        columns = columns_of(writer.structure, tuple(field for field, _ in self._recipe.decoders))
        return [
            (field, writer.targets[column])
            for column, (field, decode) in zip(columns or (), self._recipe.decoders, strict=False)
            if hasattr(decode, "into") and writer.targets[column].ndim > 1
        ]

    def _raw(self, shard: int, mapped: int | bool) -> NDArray[np.uint8]:
        """Return the memory that a shard's records lie in; it cannot be written to."""
        return self._files.array(shard) if mapped else self._records

    def _place(self, span: Span) -> NDArray[np.uint8]:
        return self._array[span.start : span.stop]

    def _table(self, span: Span) -> NDArray[Any]:
        return self._place(span).view(TABLE)


def _tree(segment: Segment, made: list[Making]) -> tuple[list[Any], list[Any], NDArray[np.int64]]:
    """Return samples, their keys, and their rows of the batch."""
    rows = np.array([segment.first + one.row for one in made], np.int64)
    return [one.result for one in made], [one.name for one in made], rows


def _own_bytes(making: Making) -> int | None:
    """Return the bytes of a sample of which nobody else has hold; None where somebody may."""
    if making.found is not None:
        return making.found
    if type(making.sample) is dict:
        making.sample = dict(making.sample)  # `prepare` may fill the same dict each time
    return bytes_owned(making.sample)


class _Failed(Exception):
    """Carries a failure out of the loop over records."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure


def is_lost(outcome: Outcome) -> bool:
    """Tell whether a sample that was kept could not be had."""
    failures = (outcome.failure, *outcome.failures)
    return any(failure is not None and failure.kind == Lost.__name__ for failure in failures)


def _faults() -> int:
    """Return how often this process has waited for the disk because of a page that was not in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
