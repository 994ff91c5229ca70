"""Mixing: several sets drawn from at given weights, as one table; pure.

A source has epochs of its own: it goes on from one epoch of the mix to the next where it stopped, and when
all its records were drawn it starts over in another order. So its draw d, counted from the very first, is
position d mod n of its epoch d div n, and all that a mix must know of the past is a number for each source:
the draws before this epoch. While weights do not change, neither do the draws of an epoch, and that number
is a product.

Which position takes which draw is in `deal`. Randomness goes by the source's epoch and record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .concat import ConcatTable
from .deal import Deal
from .errors import ConfigError
from .order import Order, Pieces, Shuffle
from .shares import Weights, draws_of_epoch, in_lowest_terms
from .table import Place, RecordTable, Spans, name_content

__all__ = ["MixOrder", "MixTable"]

Records = NDArray[np.int64]


class MixOrder:
    """The order of one epoch of a mix.

    Args:
        deal: which draw each position takes.
        before: draws of each source before this epoch.
        sizes: records of each source.
        firsts: number of the first record of the own epoch in which a source begins; its next ones follow.
        make_order: makes the order of a source in an epoch of its own.
    """

    def __init__(
        self,
        deal: Deal,
        before: Records,
        sizes: Records,
        firsts: Records,
        make_order: Callable[[int, int], Order],
    ) -> None:
        self._deal = deal
        self._before = before
        self._sizes = sizes
        self._firsts = firsts
        self._make_order = make_order
        self._orders: dict[tuple[int, int], Order] = {}

    @property
    def lanes(self) -> int:
        """Lanes of the mix and of each source."""
        return self._deal.lanes

    def __len__(self) -> int:
        return len(self._deal)

    def records(self, positions: Records) -> Records:
        """Return the records at these positions; a record has another number in each own epoch."""
        records = np.zeros_like(positions)
        source, _, epoch, place = self._find(positions)
        for order, rows in self._orders_of(source, epoch):
            records[rows] = order.records(place[rows])
        return records + self._first_of(source, epoch)

    def pieces(self, positions: Records) -> Pieces | None:
        """Return the pieces that hold these positions' records.

        The first position is -1 where it is no use to read the piece whole: some of its draws are not of this
        epoch, or the record is due in the last, incomplete row, where it may be another rank's.
        """
        first, stop, first_draw, last_draw = (np.zeros_like(positions) for _ in range(4))
        source, draw, epoch, place = self._find(positions)
        for order, rows in self._orders_of(source, epoch):
            found = order.pieces(place[rows])
            if found is None:
                return None
            first[rows], stop[rows] = found.first, found.stop
            first_draw[rows], last_draw[rows] = found.first_position, found.last_position

        record, shift = self._first_of(source, epoch), draw - place
        first_draw, last_draw = first_draw + shift, last_draw + shift
        in_lanes, counts = self._deal.in_lanes[source], np.array(self._deal.counts, np.int64)[source]
        whole = (first_draw >= 0) & (last_draw < counts) & (draw < in_lanes)
        last_draw = np.where(last_draw < in_lanes, last_draw, last_draw - self.lanes)
        first_position = self._deal.positions(source, np.where(whole, first_draw, draw))
        last_position = self._deal.positions(source, np.where(whole, last_draw, draw))
        return Pieces(first + record, stop + record, np.where(whole, first_position, -1), last_position)

    def epochs(self, positions: Records) -> Records:
        """Return the own epochs of the sources at these positions."""
        return self._find(positions)[2]

    def _find(self, positions: Records) -> tuple[Records, Records, Records, Records]:
        """Return each position's source, draw in this epoch, the source's epoch and the position in it."""
        source, draw = self._deal.draws(positions)
        epoch, place = np.divmod(self._before[source] + draw, self._sizes[source])
        return source, draw, epoch, place

    def _first_of(self, source: Records, epoch: Records) -> Records:
        """Return the number of the first record of own epochs."""
        size: Records = self._sizes[source]
        since: Records = epoch - self._before[source] // size
        return self._firsts[source] + since * size

    def _orders_of(self, source: Records, epoch: Records) -> Iterator[tuple[Order, NDArray[np.intp]]]:
        """Yield the order of each own epoch there is, and its rows; orders that were just used are kept."""
        numbers, which = np.unique(self._first_of(source, epoch), return_inverse=True)
        kept, self._orders = self._orders, {}
        for number in range(len(numbers)):
            rows = np.flatnonzero(which == number)
            name = int(source[rows[0]]), int(epoch[rows[0]])
            self._orders[name] = kept.get(name) or self._make_order(*name)
            yield self._orders[name], rows


class MixTable:
    """Several tables that are drawn from at given weights.

    Args:
        parts: the sources' tables.
        weights: of the sources.
        length: samples of an epoch; None: as `stop` says.
        stop: "first" or "all": whose end is the epoch's.
        since: the epoch from which these weights hold.
        before: draws of each source before that epoch.
        name: fingerprint; by default that of these parts and weights.

    Raises:
        ConfigError: there is nothing to draw from a source.
    """

    def __init__(
        self,
        parts: Sequence[RecordTable],
        weights: Weights,
        length: int | None,
        stop: str,
        *,
        since: int = 0,
        before: Sequence[int] | None = None,
        name: str | None = None,
    ) -> None:
        self.weights = weights
        self.since = since
        self.before = tuple(before or [0] * len(parts))
        self._whole = ConcatTable(parts)
        self._length, self._stop = length, stop
        sizes = [len(part) for part in parts]
        for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
            if weight and not size:
                raise ConfigError(
                    f"source {number} of the mix has the weight {weight}, but no records; leave it out"
                )
        self.draws = tuple(draws_of_epoch(sizes, weights, length, stop))
        # an epoch begins within an own epoch and may end within one: two more than fit in
        numbers = [(draws // max(size, 1) + 2) * size for draws, size in zip(self.draws, sizes, strict=True)]
        self._firsts = np.cumsum([0, *numbers[:-1]], dtype=np.int64)
        self._sizes = np.array(sizes, np.int64)
        self._deal: Deal | None = None
        self._name = name or name_content(
            "mix", *(part.fingerprint() for part in parts), *in_lowest_terms(weights), length, stop
        )

    @property
    def shards(self) -> tuple[str, ...]:
        """Names of the sources' shards."""
        return self._whole.shards

    @property
    def shard_sources(self) -> tuple[int, ...]:
        """The sets of the shards, counted over all sources."""
        return self._whole.shard_sources

    @property
    def data_bytes(self) -> int:
        """Bytes of all records of all sources."""
        return self._whole.data_bytes

    @property
    def lines(self) -> tuple[int, ...]:
        """Records of each source that has any."""
        return tuple(size for size in self._sizes.tolist() if size)

    def __len__(self) -> int:
        return sum(self.draws)

    def places(self, records: Records) -> Place:
        """Return where these records lie, by their numbers in their sets."""
        return self._whole.places(self._in_whole(records))

    def spans(self, first: Records, stop: Records) -> Spans:
        """Return where ranges of records lie; each must be within one block of one own epoch."""
        begin = self._in_whole(first)
        return self._whole.spans(begin, begin + stop - first)

    def order(self, shuffle: Shuffle, epoch: int) -> MixOrder:
        """Return the order of an epoch; each source has its own, drawn apart from the others'."""
        lanes = shuffle.lanes if shuffle.mode == "block" else 1
        if self._deal is None or self._deal.lanes != lanes:
            self._deal = Deal(self.draws, lanes)

        def make_order(source: int, own_epoch: int) -> Order:
            apart = replace(shuffle, seed=shuffle.seed * len(self.draws) + source)
            return self._whole.parts[source].order(apart, own_epoch)

        before = np.array(self.draws_before(epoch), np.int64)
        return MixOrder(self._deal, before, np.maximum(self._sizes, 1), self._firsts, make_order)

    def draws_before(self, epoch: int) -> tuple[int, ...]:
        """Return how often each source was drawn from before an epoch.

        Before the epoch from which the weights hold it is as if they had always held.
        """
        if epoch < self.since:
            return tuple(epoch * draws for draws in self.draws)
        drawn = zip(self.before, self.draws, strict=True)
        return tuple(before + (epoch - self.since) * draws for before, draws in drawn)

    def reweighed(self, weights: Weights, since: int, before: Sequence[int] | None = None) -> MixTable:
        """Return the mix with other weights from an epoch on; its sources go on where they stopped."""
        drawn = self.draws_before(since) if before is None else before
        parts, length, stop = self._whole.parts, self._length, self._stop
        return MixTable(parts, weights, length, stop, since=since, before=drawn, name=self._name)

    def fingerprint(self) -> str:
        """Return a name for the sources' content and the weights that the mix was made with."""
        return self._name

    def largest(self, rows: int, *, as_they_lie: bool) -> int:
        """Return the most bytes that `rows` samples have; looks at every record of all sources."""
        found = []
        for part in self._whole.parts:
            if len(part):
                # a batch may see the end of an own epoch and the beginning of the next, and so a record twice
                times = 2 + rows // len(part)
                found.append(np.repeat(part.most(-(-rows // times)), times))
        return int(np.sort(np.concatenate(found))[-rows:].sum()) if found else 0

    def _in_whole(self, records: Records) -> Records:
        """Return the numbers of records among those of all sources, one source after the other."""
        source = np.searchsorted(self._firsts, records, side="right") - 1
        inside = (records - self._firsts[source]) % np.maximum(self._sizes[source], 1)
        return self._whole.firsts[source] + inside
