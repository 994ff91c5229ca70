"""Jobs: what the parent and its workers tell each other; names, numbers and texts, never payload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cache.stock import StockPlan, Tally
from ..shard.format import RecordFormat
from .items import Items
from .layout import Layout
from .leaf import Leaf
from .space import Span

__all__ = [
    "CACHED",
    "MAPPED",
    "MARK",
    "TABLE",
    "Answer",
    "Collate",
    "Decode",
    "Failure",
    "Job",
    "Outcome",
    "Recipe",
    "Segment",
    "Startup",
    "Undecoded",
]

TABLE = np.dtype(
    [
        ("start", "<u8"),
        ("stop", "<u8"),
        ("record", "<i8"),
        ("shard", "<u4"),
        ("sum", "<u4"),
        ("epoch", "<u4"),
        ("source", "<u4"),
        ("mapped", "<u4"),
        ("tier", "<u4"),
    ]
)
"""One row a record: where its bytes lie, what they should be, and what its randomness goes by.

They lie in the arena or, where `mapped` is not 0, in the shard's file, which the worker maps: `MAPPED`, or
`CACHED` where it is a copy that a disk cache has. What `tier` says is told in `cache.stock`: of a sample that
was kept, place and sum are those of what was kept.
"""

MAPPED, CACHED = 1, 2

MARK = np.dtype([("row", "<i8"), ("began", "<f8")])
"""Which row of a job's table a worker is at (-1: between records), and since when (0: it has no job)."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that turns a raw record into a sample and samples into a batch."""

    formats: tuple[RecordFormat, ...]  # by set
    decoders: tuple[tuple[str, Callable[[memoryview], Any]], ...]  # by field, in the order of the manifest
    transform: Callable[..., Any] | None
    collate: Callable[[list[Any]], Any] | None  # None: stack
    seed: int
    seed_globals: bool
    checked: tuple[bool, ...]  # by set: compare each record with its sum
    seeded: bool  # user code runs, so randomness is set for each record
    paths: tuple[str, ...] = ()  # of all shards, where workers may map them
    items: Items | None = None  # what gives samples, where they are not made of records
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    stock: StockPlan | None = None  # where samples are kept as they are before the transform

    @property
    def decodes_alone(self) -> bool:
        """Whether samples are what decoders make of records, and nothing is done to them."""
        users = (self.prepare, self.transform, self.collate, self.items)
        return all(one is None for one in users)

    @property
    def seeds(self) -> bool:
        """Whether the global generators are set for each record."""
        return self.seeded and self.seed_globals


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one batch."""

    step: int
    first: int  # row in the batch
    rows: int  # of this segment
    batch_rows: int
    place: Span  # where the outcome may go
    layout: Layout | None = None  # write rows; `place` is then for texts only
    batch: Span | None = None  # with a layout: the whole batch's place

    @property
    def whole(self) -> bool:
        """Whether the segment is all of its batch, so that it is collated at once."""
        return self.rows == self.batch_rows


@dataclass(frozen=True, slots=True)
class Decode:
    """Decode and transform the records of some segments."""

    table: Span  # rows of `TABLE`, those of all segments one behind the other
    segments: tuple[Segment, ...]
    learn: bool = False  # tell the layout that the samples share
    collect: bool = False  # go on after a sample that failed, and never collate: packed samples are wanted
    files: tuple[tuple[int, str], ...] = ()  # in which samples were kept, by the numbers that `tier` tells


@dataclass(frozen=True, slots=True)
class Collate:
    """Make a batch of segments that came back as packed samples."""

    step: int
    parts: tuple[tuple[Span, Span], ...]  # the place of each, and where in it the descriptor lies
    place: Span
    table: Span  # of all rows, to name records in an error


Job = Decode | Collate


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A field whose decoder failed."""

    name: str
    stored: str  # what its bytes are: an encoding of a foreign format, else a kind


@dataclass(frozen=True, slots=True)
class Failure:
    """What user code or the data did, as texts."""

    kind: str  # the class that the user meets, SampleError or ShardError; Unmapped and Lost nobody meets
    name: str  # of the class that was raised
    message: str
    trace: str
    row: int | None  # in the batch
    shard: int | None
    record: int | None
    key: str | None
    facts: dict[str, Any]
    field: Undecoded | None = None  # whose decoder failed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one segment, or of one batch."""

    used: int = 0  # bytes of the place
    need: int = 0  # > 0: the place was too small, so much is enough
    misfit: bool = False  # a sample does not fit the layout
    descriptor: Span | None = None  # of the packed tree, in the place
    texts: tuple[Leaf, ...] = ()  # with a layout: the texts' places
    layout: Layout | None = None  # what was learnt
    failure: Failure | None = None
    failures: tuple[Failure, ...] = ()  # of a job that collects: samples that are missing


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a job."""

    outcomes: tuple[Outcome, ...]
    decode_seconds: float = 0.0
    transform_seconds: float = 0.0
    collate_seconds: float = 0.0
    pid: int = 0
    faults: int = 0  # waits for the disk, where records lie in mapped files
    work_seconds: float = 0.0  # all in all, in a process of its own
    blocked_seconds: float = 0.0  # of it, neither computing nor waiting for a CPU
    began: float = 0.0  # by `time.perf_counter`, which most systems count alike in all processes
    stopped: float = 0.0
    queued_seconds: float = 0.0  # of work_seconds, waiting for a CPU
    check_seconds: float = 0.0  # of decoding, comparing sums: a mapped file is waited for here
    longest_seconds: float = 0.0  # of decoding and transforming one record; 0 if not made one by one
    prepare_seconds: float = 0.0
    prepared: int = 0  # samples that were decoded and prepared
    prepared_bytes: int = 0  # that the first of them takes when it is kept; 0: that is not known
    kept: Tally | None = None  # what was kept and found again
    notes: tuple[tuple[str, str], ...] = ()  # what the user should know once: of what kind, and what


@dataclass(frozen=True, slots=True)
class Startup:
    """How the start of a worker process went."""

    pid: int
    message: str = ""
    trace: str | None = None  # of what the recipe raised while it was loaded
