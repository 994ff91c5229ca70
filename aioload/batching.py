"""Batching by size: batches of variable length, up to a budget of tokens, pixels or bytes; pure.

Costs come from the index, before any payload is read. The positions of an epoch are cut in their order, in
windows that are each cut alone: a batch is closed when the next record would exceed the budget, and a
window's batches are split until their number is a multiple of the ranks, so every rank has equally many.
Batch k of the epoch goes to rank k mod W.

The exception to what `order` and `part` promise: knowing where batch k begins takes one pass over the costs
of an epoch, and memory for the place of each batch.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .shard.index import Index
    from .table import Table

__all__ = ["Budget", "BudgetPart", "Source", "costs_of"]

_WINDOW = 1 << 14  # positions that are cut together: memory for them is small, and splits are few


@dataclass(frozen=True, slots=True)
class Budget:
    """What a batch may cost in all; give it to a loader as `batch_size`.

    Raises:
        ConfigError: a number is not positive.
    """

    max_cost: float
    """Of one batch on one rank, in the unit of `cost`."""
    cost: str = "bytes"
    """Where a record's cost comes from: "bytes", its stored length, or the name of an index field."""
    padded: bool = False
    """Count the costliest record of a batch for each of its rows: what padding makes of it."""
    max_rows: int | None = None
    """Rows of one batch at most."""

    def __post_init__(self) -> None:
        if not self.max_cost > 0:
            raise ConfigError(f"max_cost must be positive, got {self.max_cost!r}")
        if self.max_rows is not None and self.max_rows < 1:
            raise ConfigError(f"max_rows must be positive, got {self.max_rows!r}")


class Source(Protocol):
    """What costs are looked up in: a packed set."""

    @property
    def source(self) -> str:
        """What messages call it."""

    @property
    def index(self) -> Index:
        """Its index, with columns."""


@dataclass(frozen=True, slots=True)
class BudgetPart:
    """One rank's share of the positions from `start` on, cut by a budget; answers what `Part` answers."""

    size: int
    """Positions of the whole epoch."""
    budget: Budget
    """Of each batch."""
    rank: int
    """Of this process."""
    world_size: int
    """Ranks in all."""
    start: int
    """Position with which the run begins."""
    drop_last: bool
    """Leave out, on all ranks, last batches that are too few for all."""
    pad: bool
    """Give ranks that have none in the last step a row of the epoch's first records."""
    edges: NDArray[np.int64] = field(compare=False, repr=False)
    """[batches + 1] the position with which each batch of the epoch begins."""

    @classmethod
    def cut(
        cls,
        size: int,
        budget: Budget,
        costs: Callable[[NDArray[np.int64]], NDArray[Any]],
        *,
        rank: int,
        world_size: int,
        start: int,
        drop_last: bool,
        pad: bool,
    ) -> BudgetPart:
        """Cut an epoch from a position on.

        Args:
            size: positions of the epoch.
            budget: of each batch.
            costs: returns the costs of the records at some positions.
            rank: of this process.
            world_size: ranks in all.
            start: position with which the run begins.
            drop_last: as in `Part`.
            pad: as in `Part`.

        Raises:
            ConfigError: a record alone exceeds the budget; names its position.
        """
        edges = [np.array([start], np.int64)]
        for low in range(start, size, _WINDOW):
            positions = np.arange(low, min(low + _WINDOW, size), dtype=np.int64)
            edges.append(low + _cut(np.asarray(costs(positions), np.float64), budget, world_size, low))
        return cls(size, budget, rank, world_size, start, drop_last, pad, np.concatenate(edges))

    @property
    def shares_pieces(self) -> bool:
        """Whether most of a piece's records go to other ranks, so that it is not worth reading whole."""
        return self.world_size > 1

    @property
    def batch_size(self) -> int:
        """Rows of a batch on average, at least 1: for sizing work, not for anything exact."""
        batches = len(self.edges) - 1
        return max(1, (self.size - self.start) // batches) if batches else 1

    @property
    def steps(self) -> int:
        """Batches of this rank."""
        full, rest = divmod(len(self.edges) - 1, self.world_size)
        return full + (1 if rest and not self.drop_last and (self.pad or self.rank < rest) else 0)

    @property
    def padded(self) -> int:
        """Rows of this rank that repeat the epoch's first records."""
        rest = (len(self.edges) - 1) % self.world_size
        return int(bool(rest) and self.pad and not self.drop_last and self.rank >= rest)

    def rows(self, step: int) -> int:
        """Return how many rows a step has on this rank."""
        return len(self._positions(step))

    def positions(self, first_step: int, stop_step: int) -> NDArray[np.int64]:
        """Return the positions of consecutive steps, one after the other."""
        parts = [self._positions(step) for step in range(first_step, stop_step)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def position_after(self, steps: int) -> int:
        """Return the position that follows when so many steps have been handed out on every rank."""
        return int(self.edges[min(steps * self.world_size, len(self.edges) - 1)])

    def _positions(self, step: int) -> NDArray[np.int64]:
        batch = step * self.world_size + self.rank
        if batch < len(self.edges) - 1:
            return np.arange(self.edges[batch], self.edges[batch + 1], dtype=np.int64)
        return np.array([(batch - len(self.edges) + 1) % self.size], np.int64)


def _cut(costs: NDArray[np.float64], budget: Budget, world_size: int, low: int) -> NDArray[np.int64]:
    """Return where in a window each batch ends, as many as make a multiple of `world_size` if rows allow."""
    if len(costs) and not (float(costs.min()) >= 0 and float(costs.max()) <= budget.max_cost):
        worst = int(costs.argmax() if costs.max() > budget.max_cost else costs.argmin())
        raise ConfigError(
            f"the record at position {low + worst} of the epoch costs {costs[worst]:g}, and a batch may cost "
            f"{budget.max_cost:g}; raise max_cost, or leave such records out with dataset.select",
            position=low + worst,
        )
    ends, begin = [], 0
    while begin < len(costs):
        begin += _longest(costs[begin:], budget)
        ends.append(begin)
    return _split(np.array(ends, np.int64), world_size)


def _longest(costs: NDArray[np.float64], budget: Budget) -> int:
    """Return how many of the first records make one batch: at least one."""
    take = 64
    while True:
        head = costs[: min(take, budget.max_rows or take)]
        rows = np.arange(1, len(head) + 1)
        totals = np.maximum.accumulate(head) * rows if budget.padded else np.cumsum(head)
        fit = int(np.searchsorted(totals, budget.max_cost, side="right"))
        if fit < len(head) or len(head) == len(costs) or len(head) == budget.max_rows:
            return max(fit, 1)
        take *= 4


def _split(ends: NDArray[np.int64], world_size: int) -> NDArray[np.int64]:
    """Halve the longest batches until their number is a multiple of `world_size`, if rows allow."""
    rows = int(ends[-1]) if len(ends) else 0
    wanted = -(-len(ends) // world_size) * world_size
    if wanted > rows:
        return ends
    begins = [0, *ends[:-1].tolist()]
    longest = [(begin - end, begin, end) for begin, end in zip(begins, ends.tolist(), strict=True)]
    heapq.heapify(longest)
    while len(longest) < wanted:
        _, begin, end = heapq.heappop(longest)
        middle = (begin + end) // 2
        for one in ((begin - middle, begin, middle), (middle - end, middle, end)):
            heapq.heappush(longest, one)
    return np.sort(np.array([end for _, _, end in longest], np.int64))


def costs_of(cost: str, table: Table, sources: Sequence[Source], records: NDArray[np.int64]) -> NDArray[Any]:
    """Return what records cost: their stored bytes, or the values of an index field."""
    places = table.places(records)
    if cost == "bytes":
        return places.stop - places.start
    found = np.zeros(len(records), np.float64)
    for number, source in enumerate(sources):
        columns = source.index.columns
        if cost not in columns:
            raise ConfigError(
                f"a Budget's cost must be 'bytes' or an index field; {source.source} has the index fields "
                f"{sorted(columns)}, not {cost!r}: pack it with Writer(index_fields=[{cost!r}])"
            )
        mine = places.source == number
        found[mine] = columns[cost][places.record[mine]]
    return found
