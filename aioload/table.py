"""Table: the records that a loader runs over, wherever they lie; pure.

A packed set is one table. A selection, several sets end to end, or a mix of sets are tables too, so that
order, ranks and resuming are written once. A record is named by its number in the table; where it lies, and
by which name its randomness goes, only the table knows.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .order import BlockOrder, Blocks, FullOrder, Order, SequentialOrder, Shuffle

if TYPE_CHECKING:
    from .shard.index import Index

__all__ = [
    "IndexTable",
    "Largest",
    "Place",
    "RecordTable",
    "Spans",
    "Table",
    "largest_record",
    "name_content",
    "plain_order",
]

Records = NDArray[np.int64]

_AT_A_TIME = 1 << 16  # records: so many sizes stay in a near cache


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where records lie and what they are called, one entry for each."""

    source: Records
    """Number of the set."""
    shard: Records
    """Number of the shard, counted over all sets."""
    start: Records
    """First byte in the shard's file."""
    stop: Records
    """Byte after the last."""
    sums: NDArray[np.uint32] | None
    """CRC-32C of each."""
    record: Records
    """Number in its set."""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Where ranges of neighbouring records lie, one entry for each range."""

    shard: Records
    """Number of the shard."""
    start: Records
    """First byte in the shard's file."""
    stop: Records
    """Byte after the last."""
    record_bytes: Records
    """Bytes of the records alone: less than the span where others lie between them."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest record of a table."""

    shard: int
    """Number of its shard, counted over all sets."""
    record: int
    """Its number in its set."""
    data_bytes: int
    """Its bytes."""


class Table(Protocol):
    """What a loader needs to know of its records."""

    @property
    def shards(self) -> tuple[str, ...]:
        """Names of all shards, those of each set relative to it."""

    @property
    def shard_sources(self) -> tuple[int, ...]:
        """[shards] the set each shard belongs to."""

    @property
    def data_bytes(self) -> int:
        """Bytes of all records."""

    @property
    def lines(self) -> tuple[int, ...]:
        """Records on each line that lanes are cut out of: one line, or one for each source of a mix."""

    def __len__(self) -> int:
        """Return the number of records of an epoch."""

    def places(self, records: Records) -> Place:
        """Return where these records lie."""

    def spans(self, first: Records, stop: Records) -> Spans:
        """Return where the records `first` to `stop` lie; each range must be within one block."""

    def order(self, shuffle: Shuffle, epoch: int) -> Order:
        """Return the order of an epoch."""

    def fingerprint(self) -> str:
        """Return a name for the content, the same wherever it lies."""

    def largest(self, rows: int, *, as_they_lie: bool) -> int:
        """Return the most bytes that `rows` records of any epoch have which come together.

        Args:
            rows: of a batch.
            as_they_lie: the records are neighbours; else they may be any.
        """


class RecordTable(ABC):
    """A table whose records are there once each, on one line; of such tables others are made."""

    def __init__(self) -> None:
        self._cut: tuple[int, Blocks] | None = None

    @property
    @abstractmethod
    def shards(self) -> tuple[str, ...]:
        """Names of all shards, those of each set relative to it."""

    @property
    @abstractmethod
    def shard_sources(self) -> tuple[int, ...]:
        """[shards] the set each shard belongs to."""

    @property
    @abstractmethod
    def sets(self) -> int:
        """Number of packed sets."""

    @property
    def data_bytes(self) -> int:
        """Bytes of all records."""
        return int(self.bytes_before(np.array([len(self)], np.int64))[0])

    @property
    def lines(self) -> tuple[int, ...]:
        """All records are on one line."""
        return (len(self),)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of records."""

    @abstractmethod
    def places(self, records: Records) -> Place:
        """Return where these records lie."""

    @abstractmethod
    def spans(self, first: Records, stop: Records) -> Spans:
        """Return where the records `first` to `stop` lie; each range must be within one block."""

    @abstractmethod
    def bytes_before(self, records: Records) -> Records:
        """Return the bytes of all records before each of these; the number of records may be among them."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a name for the content, the same wherever it lies."""

    def sizes(self) -> Iterator[NDArray[np.int64]]:
        """Yield the bytes of each record, some at a time."""
        for first in range(0, len(self), _AT_A_TIME):
            places = self.places(np.arange(first, min(first + _AT_A_TIME, len(self)), dtype=np.int64))
            yield places.stop - places.start

    def largest(self, rows: int, *, as_they_lie: bool) -> int:
        """Return the most bytes that `rows` records have which come together; looks at every record."""
        if rows >= len(self):
            return sum(int(sizes.sum()) for sizes in self.sizes())
        return _most_of_neighbours(self.sizes(), rows) if as_they_lie else int(self.most(rows).sum())

    def most(self, rows: int) -> NDArray[np.int64]:
        """Return the bytes of the `rows` largest records; looks at every record."""
        most = np.zeros(0, np.int64)
        for sizes in self.sizes():
            if len(most) == rows:
                sizes = sizes[sizes > most[0]]
            most = np.concatenate([most, sizes])
            if len(most) >= rows:
                most = np.partition(most, -rows)[-rows:]  # the least of them comes first
        return most

    def order(self, shuffle: Shuffle, epoch: int) -> Order:
        """Return the order of an epoch."""
        return plain_order(len(self), shuffle, epoch, self.blocks)

    def blocks(self, block_bytes: int) -> Blocks:
        """Return the blocks of neighbouring records; epochs share them."""
        if self._cut is None or self._cut[0] != block_bytes:
            self._cut = block_bytes, self._cut_blocks(block_bytes)
        return self._cut[1]

    @abstractmethod
    def _cut_blocks(self, block_bytes: int) -> Blocks: ...


class IndexTable(RecordTable):
    """The records of one packed set.

    Args:
        index: of the set.
    """

    def __init__(self, index: Index) -> None:
        super().__init__()
        self.index = index

    @property
    def shards(self) -> tuple[str, ...]:
        """Names of the shards."""
        return self.index.shards

    @property
    def shard_sources(self) -> tuple[int, ...]:
        """All belong to set 0."""
        return (0,) * len(self.index.shards)

    @property
    def sets(self) -> int:
        """One."""
        return 1

    def __len__(self) -> int:
        return len(self.index)

    def places(self, records: Records) -> Place:
        """Return where these records lie."""
        found = self.index.locate(records)
        start, stop = found.start.astype(np.int64), found.stop.astype(np.int64)
        return Place(np.zeros_like(records), found.shard, start, stop, found.sums, records)

    def spans(self, first: Records, stop: Records) -> Spans:
        """Return where ranges of records lie; neighbours have nothing between them."""
        last = self.index.locate(stop - 1)
        start, end = self.index.line_starts(first).astype(np.int64), last.stop.astype(np.int64)
        return Spans(last.shard, start, end, end - start)

    def bytes_before(self, records: Records) -> Records:
        """Return the bytes of all records before each of these."""
        return self.index.positions[records].astype(np.int64)

    def fingerprint(self) -> str:
        """Return the index's."""
        return self.index.fingerprint()

    def sizes(self) -> Iterator[NDArray[np.int64]]:
        """Yield the bytes of each record."""
        if self.index.far is not None and len(self.index.far):
            yield from super().sizes()
            return
        # neighbours have nothing between them
        for first in range(0, len(self), _AT_A_TIME):
            begins = self.index.positions[first : first + _AT_A_TIME + 1].astype(np.int64)
            yield begins[1:] - begins[:-1]

    def _cut_blocks(self, block_bytes: int) -> Blocks:
        """Cut each shard."""
        return Blocks.cut(self.index.positions, self.index.shard_records, block_bytes)


def plain_order(size: int, shuffle: Shuffle, epoch: int, blocks: Callable[[int], Blocks]) -> Order:
    """Return the order of an epoch over records that are numbered from 0.

    Args:
        size: number of records.
        shuffle: how they are ordered.
        epoch: which.
        blocks: cuts them into blocks of so many bytes.
    """
    if shuffle.mode == "none":
        return SequentialOrder(size)
    if shuffle.mode == "full":
        return FullOrder(size, shuffle.seed, epoch)
    return BlockOrder(blocks(shuffle.block_bytes), seed=shuffle.seed, epoch=epoch, lanes=shuffle.lanes)


def largest_record(table: Table) -> Largest | None:
    """Return which record is the largest; None where none has any bytes, or the table is a mix."""
    if not isinstance(table, RecordTable) or not len(table):
        return None
    number = most = first = 0
    for sizes in table.sizes():
        if len(sizes) and int(sizes.max()) > most:
            number, most = first + int(sizes.argmax()), int(sizes.max())
        first += len(sizes)
    if not most:
        return None
    place = table.places(np.array([number], np.int64))
    return Largest(int(place.shard[0]), int(place.record[0]), most)


def name_content(*facts: Any) -> str:
    """Return a fingerprint made of such facts, numbers and texts."""
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _most_of_neighbours(parts: Iterator[NDArray[np.int64]], rows: int) -> int:
    """Return the largest sum of so many neighbours."""
    most, before = 0, np.zeros(0, np.int64)
    for sizes in parts:
        sizes = np.concatenate([before, sizes])
        sums = np.cumsum(np.concatenate([np.zeros(1, np.int64), sizes]))
        if len(sizes) >= rows:
            most = max(most, int((sums[rows:] - sums[:-rows]).max()))
        before = sizes[max(len(sizes) - rows + 1, 0) :]
    return most
