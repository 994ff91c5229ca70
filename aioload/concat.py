"""Concat: several tables, one after the other, as one; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .order import Blocks
from .table import Place, RecordTable, Spans, name_content

__all__ = ["ConcatTable"]

Records = NDArray[np.int64]


class ConcatTable(RecordTable):
    """The records of several tables, one table after the other.

    Args:
        parts: the tables.
    """

    def __init__(self, parts: Sequence[RecordTable]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self.firsts = _running_sum([len(part) for part in parts])
        """[parts + 1] the record with which a part begins."""
        self._first_shards = _running_sum([len(part.shards) for part in parts])
        self._first_sets = _running_sum([part.sets for part in parts])

    @property
    def shards(self) -> tuple[str, ...]:
        """Names of the parts' shards."""
        return tuple(shard for part in self.parts for shard in part.shards)

    @property
    def shard_sources(self) -> tuple[int, ...]:
        """The sets of the shards, counted over all parts."""
        parts = zip(self.parts, self._first_sets.tolist(), strict=False)
        return tuple(first + source for part, first in parts for source in part.shard_sources)

    @property
    def sets(self) -> int:
        """Number of the parts' sets."""
        return int(self._first_sets[-1])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def places(self, records: Records) -> Place:
        """Return where these records lie."""
        source, shard, start, stop, record = (np.zeros_like(records) for _ in range(5))
        sums = np.zeros(len(records), np.uint32)
        for number, rows, inside in self._by_part(records):
            place = self.parts[number].places(inside)
            source[rows] = place.source + self._first_sets[number]
            shard[rows] = place.shard + self._first_shards[number]
            start[rows], stop[rows], record[rows] = place.start, place.stop, place.record
            if place.sums is not None:
                sums[rows] = place.sums
        return Place(source, shard, start, stop, sums, record)

    def sizes(self) -> Iterator[NDArray[np.int64]]:
        """Yield the bytes of each record, some at a time."""
        for part in self.parts:
            yield from part.sizes()

    def spans(self, first: Records, stop: Records) -> Spans:
        """Return where ranges of records lie; no block has records of two parts."""
        shard, start, end, record_bytes = (np.zeros_like(first) for _ in range(4))
        for number, rows, inside in self._by_part(first):
            spans = self.parts[number].spans(inside, inside + stop[rows] - first[rows])
            shard[rows] = spans.shard + self._first_shards[number]
            start[rows], end[rows], record_bytes[rows] = spans.start, spans.stop, spans.record_bytes
        return Spans(shard, start, end, record_bytes)

    def bytes_before(self, records: Records) -> Records:
        """Return the bytes of all records before each of these."""
        before = np.zeros_like(records)
        firsts = _running_sum([part.data_bytes for part in self.parts])
        for number, rows, inside in self._by_part(records):
            before[rows] = firsts[number] + self.parts[number].bytes_before(inside)
        return before

    def fingerprint(self) -> str:
        """Return a name for the parts' content."""
        return name_content("concat", *(part.fingerprint() for part in self.parts))

    def _by_part(self, records: Records) -> list[tuple[int, NDArray[np.intp], Records]]:
        """Return the part, the rows and the numbers in the part of the records of each part that has any."""
        part = np.clip(np.searchsorted(self.firsts, records, side="right") - 1, 0, len(self.parts) - 1)
        members = [(number, np.flatnonzero(part == number)) for number in np.unique(part).tolist()]
        return [(number, rows, records[rows] - self.firsts[number]) for number, rows in members]

    def _cut_blocks(self, block_bytes: int) -> Blocks:
        """Put the parts' blocks end to end."""
        cuts = [
            part.blocks(block_bytes).firsts + first
            for part, first in zip(self.parts, self.firsts.tolist(), strict=False)
        ]
        return Blocks(np.unique(np.concatenate([np.zeros(1, np.int64), *cuts])))


def _running_sum(counts: Sequence[int]) -> Records:
    return np.cumsum([0, *counts], dtype=np.int64)
