"""Parcel: a job with all the bytes it needs, for whoever does not share the arena, and what comes back.

A parcel has addresses of its own. First come its inputs (packed samples that are to be collated), then, from
`base` on, the places for what is made of them; raw records lie by themselves, or are read where the job is
done. Whoever does it answers with the bytes of each place that are in use, which are copied to where the job
wanted them. A part of a batch of rows travels as a batch of its own.

Bytes are copied once when a job is wrapped and once when its answer is placed, and pickled at most once: by
protocol 5 they go beside the pickle, where its reader allows that.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._version import __version__
from .jobs import TABLE, Answer, Collate, Decode, Failure, Job, Outcome, Segment
from .layout import Layout
from .space import Span, align

__all__ = ["Blob", "Kit", "Parcel", "Reply", "covering", "make_kit", "place", "wrap"]

_GAP_BYTES = 256  # between records: so much copied in vain costs less than one more slice


class Blob:
    """Bytes on their way to another process, or on their way back.

    Args:
        data: the bytes; they are not copied.
    """

    __slots__ = ("_data",)

    def __init__(self, data: Any) -> None:
        self._data = data

    @property
    def array(self) -> NDArray[np.uint8]:
        """The bytes; they cannot be written to."""
        array = np.frombuffer(self._data, np.uint8) if len(self) else np.empty(0, np.uint8)
        array.flags.writeable = False
        return array

    def __len__(self) -> int:
        return memoryview(self._data).nbytes

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if protocol >= 5:
            return Blob, (pickle.PickleBuffer(self._data),)
        return Blob, (self._data if type(self._data) is bytes else bytes(self._data),)


@dataclass(frozen=True, slots=True)
class Kit:
    """What whoever does jobs must have beside them: sent once, known by a hash of it."""

    key: bytes
    version: str  # of this package: another one may mean something else by a job
    recipe: bytes  # pickled `Recipe`
    reach: bytes = b""  # pickled `Reach`, if records are to be read there


@dataclass(frozen=True, slots=True)
class Parcel:
    """A job as it travels."""

    job: Job  # by the parcel's addresses
    key: bytes  # of the kit that it is done with
    kit: Kit | None  # if it may be lacking
    table: Blob  # `TABLE`; places of records are those in `records`, or in their shards
    records: Blob
    inputs: Blob
    base: int  # where places for what is made begin
    size: int  # bytes of them


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a parcel."""

    worker: str  # who did it
    answer: Answer | None = None  # None: not done, since
    trouble: str = ""  # the kit could not be loaded, for this reason; or, if that is empty, was lacking
    trace: str = ""
    parts: tuple[tuple[Blob, Blob], ...] = ()  # of each outcome: the batch's rows, and the place


def make_kit(recipe: bytes, reach: bytes) -> Kit:
    """Return what workers elsewhere must have.

    Args:
        recipe: pickled `Recipe`.
        reach: pickled `Reach`, or nothing if they are not to read.
    """
    key = blake2b(recipe + b"\0" + reach + __version__.encode(), digest_size=16).digest()
    return Kit(key, __version__, recipe, reach)


def wrap(job: Job, array: NDArray[np.uint8], kit: Kit, *, with_kit: bool) -> Parcel:
    """Put a job together with what it needs.

    Args:
        job: by addresses of the arena.
        array: the arena's bytes.
        kit: what it is done with.
        with_kit: send that along.
    """
    table = array[job.table.start : job.table.stop].view(TABLE).copy()
    records, inputs = b"", b""
    if isinstance(job, Decode):
        records = _gather(table, array)
        travelling: Job
        travelling, base, stop = _decode(job)
    else:
        inputs = _packed(job, array)
        travelling, base, stop = _collate(job)
    own = kit if with_kit else None
    return Parcel(travelling, kit.key, own, Blob(table), Blob(records), Blob(inputs), base, stop - base)


def place(job: Job, reply: Reply, array: NDArray[np.uint8]) -> Answer:
    """Copy what came back to where the job wanted it.

    Args:
        job: as it was given to `wrap`.
        reply: to its parcel; it has an answer.
        array: the arena's bytes.
    """
    assert reply.answer is not None
    if isinstance(job, Collate):
        ((_, packed),) = reply.parts
        array[job.place.start : job.place.start + len(packed)] = packed.array
        return reply.answer
    outcomes = []
    for segment, outcome, (rows, packed) in zip(
        job.segments, reply.answer.outcomes, reply.parts, strict=True
    ):
        array[segment.place.start : segment.place.start + len(packed)] = packed.array
        if segment.layout is not None and segment.batch is not None and len(rows):
            batch = array[segment.batch.start : segment.batch.stop]
            _place_rows(segment, segment.layout, rows.array, batch)
        outcomes.append(_in_batch(outcome, segment) if segment.layout is not None else outcome)
    return replace(reply.answer, outcomes=tuple(outcomes))


def covering(
    start: NDArray[np.int64], stop: NDArray[np.int64], max_gap: int
) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
    """Return ranges that hold all of these, and how far each moves when the ranges are laid end to end."""
    order = np.argsort(start, kind="stable")
    first, last = start[order], np.maximum.accumulate(stop[order])
    heads = np.concatenate([[0], np.flatnonzero(first[1:] > last[:-1] + max_gap) + 1])
    begins, ends = first[heads], last[np.concatenate([heads[1:], [len(order)]]) - 1]
    places = np.cumsum(ends - begins) - (ends - begins)
    moves = np.empty(len(order), np.int64)
    moves[order] = (places - begins)[np.searchsorted(heads, np.arange(len(order)), "right") - 1]
    return list(zip(begins.tolist(), ends.tolist(), strict=True)), moves


def _gather(table: NDArray[Any], array: NDArray[np.uint8]) -> bytes:
    """Return the records that lie in the arena, end to end, and write where they lie now into the table."""
    rows = np.flatnonzero(table["mapped"] == 0)
    if not len(rows):
        return b""
    start, stop = table["start"][rows].astype(np.int64), table["stop"][rows].astype(np.int64)
    found, moves = covering(start, stop, _GAP_BYTES)
    table["start"][rows], table["stop"][rows] = start + moves, stop + moves
    memory = array.data
    return b"".join([memory[first:last] for first, last in found])


def _decode(job: Decode) -> tuple[Decode, int, int]:
    """Return a job by a parcel's addresses, and where its places begin and end."""
    segments, stop = [], 0
    for segment in job.segments:
        batch = None
        if segment.layout is not None:
            batch = Span(stop, stop + segment.layout.starts(segment.rows)[-1])
            segment = replace(segment, first=0, batch_rows=segment.rows)
            stop = align(batch.stop)
        own = Span(stop, stop + len(segment.place))
        segments.append(replace(segment, place=own, batch=batch))
        stop = align(own.stop)
    return replace(job, segments=tuple(segments)), 0, stop


def _collate(job: Collate) -> tuple[Collate, int, int]:
    parts = tuple((Span(start, start + size), where) for start, size, where in _inputs(job.parts))
    base = align(parts[-1][0].stop) if parts else 0
    own = Span(base, base + len(job.place))
    return replace(job, parts=parts, place=own), base, own.stop


def _packed(job: Collate, array: NDArray[np.uint8]) -> bytes:
    """Return packed samples, each beginning where arrays may."""
    memory, pieces = array.data, list[memoryview | bytes]()
    for (span, _), (_, size, _) in zip(job.parts, _inputs(job.parts), strict=True):
        pieces += [memory[span.start : span.start + size], bytes(align(size) - size)]
    return b"".join(pieces)


def _inputs(parts: Sequence[tuple[Span, Span]]) -> Iterator[tuple[int, int, Span]]:
    """Return where in the inputs each part begins, and what is in use of it: its descriptor ends it."""
    start = 0
    for _, where in parts:
        yield start, where.stop, where
        start = align(start + where.stop)


def _place_rows(segment: Segment, layout: Layout, rows: NDArray[np.uint8], batch: NDArray[np.uint8]) -> None:
    """Copy the columns of some rows into those of their batch."""
    if segment.whole:
        batch[: len(rows)] = rows
        return
    source, target = layout.starts(segment.rows), layout.starts(segment.batch_rows)
    for number, column in enumerate(layout.columns):
        size = segment.rows * column.row_bytes
        start = target[number] + segment.first * column.row_bytes
        batch[start : start + size] = rows[source[number] : source[number] + size]


def _in_batch(outcome: Outcome, segment: Segment) -> Outcome:
    """Return an outcome whose failures name rows of the batch again."""

    def moved(failure: Failure) -> Failure:
        return failure if failure.row is None else replace(failure, row=failure.row + segment.first)

    failure = None if outcome.failure is None else moved(outcome.failure)
    return replace(outcome, failure=failure, failures=tuple(map(moved, outcome.failures)))
