"""Subset: some records of a table as a table of their own; pure, at no or at eight bytes a record."""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .order import Blocks
from .picks import Picks
from .table import Place, RecordTable, Spans, name_content

__all__ = ["SubsetTable"]

Records = NDArray[np.int64]
_STRIDE = 64  # picks whose bytes are summed up at once: an eighth of a byte a record


class SubsetTable(RecordTable):
    """Some records of a table, in the order in which they were picked.

    A block is what neighbours in the list have of a block of the table, whatever was left out between them.

    Args:
        parent: the table.
        picks: its records.
    """

    def __init__(self, parent: RecordTable, picks: Picks) -> None:
        super().__init__()
        self._parent = parent
        self._picks = picks

    @property
    def shards(self) -> tuple[str, ...]:
        """Names of the table's shards."""
        return self._parent.shards

    @property
    def shard_sources(self) -> tuple[int, ...]:
        """The sets of the table's shards."""
        return self._parent.shard_sources

    @property
    def sets(self) -> int:
        """Number of the table's sets."""
        return self._parent.sets

    def __len__(self) -> int:
        return len(self._picks)

    def places(self, records: Records) -> Place:
        """Return where these records lie, by their numbers in their sets."""
        return self._parent.places(self._picked(records))

    def spans(self, first: Records, stop: Records) -> Spans:
        """Return where ranges of records lie, with those between them that were not picked."""
        head, last = self._picked(first), self._picked(stop - 1)
        whole = self._parent.spans(np.minimum(head, last), np.maximum(head, last) + 1)
        record_bytes = self.bytes_before(stop) - self.bytes_before(first)
        return Spans(whole.shard, whole.start, whole.stop, record_bytes)

    def bytes_before(self, records: Records) -> Records:
        """Return the bytes of all records before each of these.

        Of a range that leaves records out it is a share of those in it: enough to tell that it is not dense.
        """
        if not isinstance(self._picks, range):
            whole, rest = np.divmod(records, _STRIDE)
            row, column = np.nonzero(np.arange(_STRIDE) < rest[:, None])
            sizes = self._sizes(self._picks[whole[row] * _STRIDE + column])
            near = np.zeros_like(records)
            np.add.at(near, row, sizes)
            return self._bytes_by_stride[whole] + near
        begin, step = self._picks.start + (self._picks.step < 0), self._picks.step
        reached = np.clip(begin + records * step, 0, len(self._parent))
        between: Records = self._parent.bytes_before(reached)
        between -= self._parent.bytes_before(np.array([begin], np.int64))
        return np.abs(between) // abs(step)

    def fingerprint(self) -> str:
        """Return a name for the picked content and its order."""
        return self._fingerprint

    def _picked(self, records: Records) -> Records:
        """Return the numbers of records in the table."""
        picks = self._picks
        return picks.start + records * picks.step if isinstance(picks, range) else picks[records]

    def _sizes(self, picked: Records) -> Records:
        return self._parent.bytes_before(picked + 1) - self._parent.bytes_before(picked)

    @cached_property
    def _fingerprint(self) -> str:
        picks = self._picks
        if isinstance(picks, range):
            return name_content("range", self._parent.fingerprint(), picks.start, picks.step, len(picks))
        digest = hashlib.blake2b(np.ascontiguousarray(picks, "<i8").data, digest_size=16).hexdigest()
        return name_content("picks", self._parent.fingerprint(), digest, len(picks))

    @cached_property
    def _bytes_by_stride(self) -> Records:
        """Return the bytes before every so many picks."""
        assert not isinstance(self._picks, range)
        sums = [0]
        for first in range(0, len(self), _STRIDE << 10):  # so that what is summed up stays small
            sizes = self._sizes(self._picks[first : first + (_STRIDE << 10)])
            sums += np.add.reduceat(sizes, np.arange(0, len(sizes), _STRIDE)).tolist()
        return np.cumsum(sums, dtype=np.int64)

    def _cut_blocks(self, block_bytes: int) -> Blocks:
        """Cut where the table's blocks end, and where the picks go back."""
        edges, picks = self._parent.blocks(block_bytes).firsts, self._picks
        if not isinstance(picks, range):
            cuts = [np.zeros(1, np.int64)]
            for first in range(1, len(picks), 1 << 16):
                some = picks[first - 1 : first + (1 << 16)]
                block = np.searchsorted(edges, some, side="right")
                cuts.append(first + np.flatnonzero((block[1:] != block[:-1]) | (some[1:] < some[:-1])))
            return Blocks(np.unique(np.concatenate([*cuts, np.array([len(picks)], np.int64)])))
        if picks.step > 0:
            places = -((picks.start - edges) // picks.step)  # the first pick that is not before the edge
        else:
            places = (picks.start - edges) // -picks.step + 1  # the first that is
        return Blocks(np.unique(np.append(np.clip(places, 0, len(picks)), [0, len(picks)])))
