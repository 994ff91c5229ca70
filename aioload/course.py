"""Course: where a loader stands in its epochs, and what comes next."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ._pipeline.plan import Plan
from ._pipeline.zones import wanted_window
from .batching import Budget, BudgetPart, costs_of
from .errors import ConfigError
from .order import Shuffle
from .part import Part, is_worth_sharing, readers_of_piece
from .state import State

if TYPE_CHECKING:
    from .collection import Collection
    from .table import Table

__all__ = ["Batching", "Course"]

_BATCHES_AT_ONCE = 1024  # whose sizes are summed up


@dataclass(frozen=True, slots=True)
class Batching:
    """How positions become batches of this rank."""

    size: int | Budget
    """Rows of a batch, or what it may cost."""
    rank: int
    """Of this process."""
    world_size: int
    """Ranks in all."""
    drop_last: bool
    """As in `Part`."""
    pad: bool
    """As in `Part`."""


class Course:
    """Epochs and positions of a loader; knows no workers, and nothing of what was read ahead.

    Args:
        dataset: whose records they are; opened when first needed.
        batching: how they become batches.
        shuffle: the loader's options `shuffle`, `lanes` and `block_bytes`.
        seed: of all randomness.

    Raises:
        ConfigError: an option cannot be.
    """

    def __init__(
        self,
        dataset: Collection,
        batching: Batching,
        shuffle: tuple[Any, int | None, int | None],
        seed: int,
    ) -> None:
        self.epoch = 0
        self.seed = seed
        self.start_position = 0  # of the next iteration
        self.under_way = False  # an iteration has begun and not ended
        self._dataset = dataset
        self._batching = batching
        self._options = shuffle
        _choose(shuffle, seed, records=0, data_bytes=0)
        self._chosen: Shuffle | None = None
        self._position = 0  # what was handed out of the present epoch
        self._begun: Table | None = None  # of the iteration that was begun last, or of a state
        self._latest: Part | BudgetPart | None = None  # likewise, unless another epoch was chosen
        self._cuts: dict[tuple[Any, ...], BudgetPart] = {}
        self._warned_short = False

    @property
    def shuffle(self) -> Shuffle:
        """How records are ordered, defaults filled in."""
        if self._chosen is None:
            table = self._dataset.table
            records = min(table.lines, default=0)
            self._chosen = _choose(self._options, self.seed, records=records, data_bytes=table.data_bytes)
        return self._chosen

    @property
    def padded(self) -> int:
        """Rows that repeat the epoch's first records, of the latest iteration, or of the next."""
        return (self._latest or self.part(self.epoch, self.start_position)).padded

    def part(self, epoch: int, start: int) -> Part | BudgetPart:
        """Return this rank's share of an epoch from a position on."""
        size, rows = len(self._table), self._batching.size
        if isinstance(rows, Budget):
            return self._budget_part(rows, epoch, start)
        self._warn_if_short(size, rows)
        batching, is_block = self._batching, self.shuffle.mode == "block"
        return Part(
            size,
            rows,
            batching.rank,
            batching.world_size,
            start,
            interleaved=is_block,
            drop_last=batching.drop_last,
            pad=batching.pad,
            shares_pieces=is_block and not is_worth_sharing(self.readers, self.record_bytes),
        )

    @property
    def readers(self) -> int:
        """Ranks that have records in the same piece of a block shuffle: 1 where they divide the lanes."""
        return readers_of_piece(self._batching.world_size, self.shuffle.lanes)

    @property
    def record_bytes(self) -> float:
        """Mean size of a record."""
        table = self._dataset.table
        return table.data_bytes / max(sum(table.lines), 1)

    def window_bytes(self, limit: int) -> int:
        """Return the room for pieces that are read whole: those of all lanes of this rank, or none.

        Args:
            limit: of memory.
        """
        shuffle, table = self.shuffle, self._dataset.table
        if shuffle.mode != "block" or not is_worth_sharing(self.readers, self.record_bytes):
            return 0
        lanes = len(table.lines) * shuffle.lanes * self.readers // self._batching.world_size
        return wanted_window(lanes, shuffle.block_bytes + int(self.record_bytes), table.data_bytes, limit)

    def largest_batch(self) -> tuple[int, int]:
        """Return the most rows and the most bytes that a batch of this rank has, whatever the epoch.

        Looks at every record. Where a `Budget` counts anything but bytes, it speaks of the present epoch.
        """
        table, rows, batching = self._dataset.table, self._batching.size, self._batching
        if isinstance(rows, Budget):
            return self._largest_by_cost(rows)
        as_they_lie = self.shuffle.mode == "none"
        most = table.largest(rows, as_they_lie=as_they_lie)
        if as_they_lie and batching.world_size > 1 and batching.pad:
            # the last batch may end with one of the epoch's first records, which lies far from the others
            first = table.largest(1, as_they_lie=True)
            most = max(most, table.largest(rows - 1, as_they_lie=True) + first if rows > 1 else first)
        return rows, most

    def _largest_by_cost(self, budget: Budget) -> tuple[int, int]:
        part, table = self.part(self.epoch, self.start_position), self._table
        assert isinstance(part, BudgetPart)
        rows = int(np.diff(part.edges).max(initial=1))
        if budget.cost == "bytes":
            return rows, min(int(budget.max_cost), table.data_bytes)
        order, most = table.order(self.shuffle, self.epoch), 0
        for first in range(0, len(part.edges) - 1, _BATCHES_AT_ONCE):
            edges = part.edges[first : first + _BATCHES_AT_ONCE + 1]
            places = table.places(order.records(np.arange(edges[0], edges[-1], dtype=np.int64)))
            most = max(most, int(np.add.reduceat(places.stop - places.start, edges[:-1] - edges[0]).max()))
        return rows, most

    def begin(self) -> Plan:
        """Begin the next iteration."""
        if not self.start_position:
            self._begun = self._dataset.table_at(self._begun_table, self.epoch)
        plan = self._plan(self.epoch, self.start_position)
        self._latest = plan.part
        self._position, self.start_position, self.under_way = plan.part.start, 0, True
        if not plan.steps:
            self._advance(plan)
        return plan

    def following(self, plan: Plan) -> Plan:
        """Return the plan that most likely comes after a plan."""
        return self._plan(plan.epoch + 1, 0)

    def handed_out(self, plan: Plan, steps: int) -> None:
        """Note how far the present iteration has come; after its last batch the next epoch is due."""
        if steps == plan.steps:
            self._advance(plan)
        else:
            self._position = plan.part.position_after(steps)

    def go_to(self, epoch: int, position: int) -> None:
        """Let the next iteration begin elsewhere."""
        self._latest, self.under_way = None, False
        self.epoch, self.start_position, self._position = epoch, position, position

    def state(self) -> State:
        """Return where the run stands."""
        return self._state(self.epoch, self._position)

    def load(self, state: Mapping[str, Any], *, adopt: bool, started: bool) -> None:
        """Go to where a state was taken; all or nothing.

        Args:
            state: as JSON.
            adopt: take seed and order from it.
            started: workers run with the present seed and order, so others cannot be taken.
        """
        loaded = State.from_json(state)
        table = self._dataset.table_of(loaded.mix)
        own = replace(self._state(self.epoch, 0), records=len(table))
        if adopt:
            own = replace(own, seed=loaded.seed, shuffle=loaded.shuffle, lanes=loaded.lanes)
            own = replace(own, block_bytes=loaded.block_bytes)
        loaded.check_against(own)
        if adopt:
            self._adopt(loaded, started=started)
        self._dataset.resume(loaded.mix)
        self._begun = table
        self.go_to(loaded.epoch, loaded.position)

    @property
    def _begun_table(self) -> Table:
        return self._dataset.table if self._begun is None else self._begun

    @property
    def _table(self) -> Table:
        """The records of the epoch that is under way, or begins next."""
        begins = not self.under_way and not self.start_position
        return self._dataset.table_at(self._begun_table, self.epoch) if begins else self._begun_table

    def _plan(self, epoch: int, start: int) -> Plan:
        part, table = self.part(epoch, start), self._table
        return Plan(table, table.order(self.shuffle, epoch), part, epoch, (self.shuffle, part, epoch, table))

    def _budget_part(self, budget: Budget, epoch: int, start: int) -> BudgetPart:
        """Return this rank's share where batches are cut by cost; the last cuts are kept."""
        batching, table = self._batching, self._table
        name = (epoch, start, self.shuffle, table)
        if name not in self._cuts:
            order, sources = table.order(self.shuffle, epoch), self._dataset.sources
            cut = BudgetPart.cut(
                len(table),
                budget,
                lambda positions: costs_of(budget.cost, table, sources, order.records(positions)),
                rank=batching.rank,
                world_size=batching.world_size,
                start=start,
                drop_last=batching.drop_last,
                pad=batching.pad,
            )
            self._cuts = dict([*self._cuts.items()][-2:]) | {name: cut}
        return self._cuts[name]

    def _warn_if_short(self, size: int, rows: int) -> None:
        step = rows * self._batching.world_size
        if self._batching.drop_last and size < step and not self._warned_short:
            self._warned_short = True
            warnings.warn(
                f"{self._dataset.source} has {size} records, fewer than the {step} of one step "
                f"(batch_size={rows}, {self._batching.world_size} ranks): with drop_last=True "
                "an epoch has no batch",
                stacklevel=4,
            )

    def _advance(self, plan: Plan) -> None:
        """Make the epoch after a plan's the present one."""
        self.under_way = False
        self.epoch, self._position = plan.epoch + 1, 0

    def _adopt(self, state: State, *, started: bool) -> None:
        """Take seed and order from a state."""
        present = self.shuffle
        taken = Shuffle(state.shuffle, state.seed, state.lanes, state.block_bytes)
        if started and taken != present:
            raise ConfigError(
                f"the loader has started with {present} and cannot take {taken}; load the state before the "
                "first iteration"
            )
        mode: Any = {"none": False}.get(state.shuffle, state.shuffle)
        block = state.shuffle == "block"
        self.seed, self._chosen = state.seed, None
        self._options = (mode, state.lanes if block else None, state.block_bytes if block else None)

    def _state(self, epoch: int, position: int) -> State:
        table, shuffle = self._begun_table, self.shuffle
        return State(
            epoch=epoch,
            position=position,
            records=len(table),
            fingerprint=table.fingerprint(),
            seed=self.seed,
            shuffle=shuffle.mode,
            lanes=shuffle.lanes,
            block_bytes=shuffle.block_bytes,
            mix=self._dataset.saved(table),
        )


def _choose(
    options: tuple[Any, int | None, int | None], seed: int, *, records: int, data_bytes: int
) -> Shuffle:
    shuffle, lanes, block_bytes = options
    return Shuffle.choose(
        shuffle, seed=seed, lanes=lanes, block_bytes=block_bytes, records=records, data_bytes=data_bytes
    )
