"""Part: which positions of an epoch one rank gets, batch by batch; pure arithmetic, without talking.

The order of an epoch is one for all ranks. A global batch, that is `batch_size` times `world_size`
neighbouring positions, is shared out among the ranks, so which records are in it does not depend on how many
ranks share it. Where positions are interleaved (block shuffle), rank r takes every `world_size`-th of them,
and with them its own lanes; else it takes its neighbouring rows, which lie together in storage.

Counting begins where the run, or the resume, began: a state is a position, and serves any number of ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError

__all__ = ["Part", "is_worth_sharing", "readers_of_piece"]

_WASTED = 1 << 20  # bytes: a read of one's own costs as much, less on a disk and more over a network


def readers_of_piece(world_size: int, lanes: int) -> int:
    """Return how many ranks have records in the same piece of a block shuffle."""
    return world_size // math.gcd(world_size, lanes)


def is_worth_sharing(readers: int, record_bytes: float) -> bool:
    """Tell whether a piece is better read whole by so many ranks than each record by the rank it goes to.

    Args:
        readers: ranks that have records in it, equally many.
        record_bytes: mean size of a record.
    """
    return (readers - 1) * record_bytes <= _WASTED


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's share of the positions from `start` on."""

    size: int
    """Positions of the whole epoch."""
    batch_size: int
    """Rows per rank."""
    rank: int = 0
    """Of this process."""
    world_size: int = 1
    """Ranks in all."""
    start: int = 0
    """Position with which the run begins."""
    interleaved: bool = False
    """Whether ranks take turns by position."""
    drop_last: bool = False
    """Leave out, on all ranks, a last global batch that is not full."""
    pad: bool = True
    """Fill the last global batch up to a multiple of `world_size` with the epoch's first positions."""
    shares_pieces: bool = False
    """Whether most of a piece's records go to other ranks, so that it is not worth reading whole."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank must be from 0 to world_size - 1, got rank {self.rank} of {self.world_size}"
            )
        if not 0 <= self.start <= self.size:
            raise ConfigError(f"an epoch of {self.size} records cannot begin at position {self.start}")

    @property
    def global_batch(self) -> int:
        """Positions of one full step over all ranks."""
        return self.batch_size * self.world_size

    @property
    def steps(self) -> int:
        """Batches of this rank; the same on every rank unless `pad` and `drop_last` are both off."""
        full, rest = divmod(self.size - self.start, self.global_batch)
        return full + (1 if rest and not self.drop_last and self._last_rows(rest) else 0)

    @property
    def padded(self) -> int:
        """Rows of this rank that repeat the epoch's first records: none, or the last of the last batch."""
        rest = (self.size - self.start) % self.global_batch
        if not rest or self.drop_last:
            return 0
        return self._last_rows(rest) - self._own_rows(rest)

    def rows(self, step: int) -> int:
        """Return how many rows a step has on this rank."""
        rest = self._rest(step)
        return self.batch_size if rest >= self.global_batch else self._last_rows(rest)

    def positions(self, first_step: int, stop_step: int) -> NDArray[np.int64]:
        """Return the positions of consecutive steps, one after the other."""
        full_stop = min(stop_step, (self.size - self.start) // self.global_batch)
        parts = [self._full(first_step, full_stop)] if first_step < full_stop else []
        if max(first_step, full_stop) < stop_step:
            parts.append(self._last(full_stop if first_step < full_stop else first_step))
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def position_after(self, steps: int) -> int:
        """Return the position that follows when so many steps have been handed out on every rank."""
        return min(self.start + steps * self.global_batch, self.size)

    def _rest(self, step: int) -> int:
        return self.size - self.start - step * self.global_batch

    def _full(self, first_step: int, stop_step: int) -> NDArray[np.int64]:
        """Return the positions of full steps."""
        row = np.arange(self.batch_size, dtype=np.int64)
        if self.interleaved:
            row = self.rank + self.world_size * row
        else:
            row += self.rank * self.batch_size
        begin = self.start + np.arange(first_step, stop_step, dtype=np.int64) * self.global_batch
        return (begin[:, None] + row).ravel()

    def _last(self, step: int) -> NDArray[np.int64]:
        """Return the positions of the last step, which is not full."""
        rest, begin = self._rest(step), self.start + step * self.global_batch
        count, extra = self._own_rows(rest), rest % self.world_size
        if self.interleaved:
            own = begin + self.rank + self.world_size * np.arange(count, dtype=np.int64)
        else:
            before = self.rank * (rest // self.world_size) + min(self.rank, extra)
            own = begin + before + np.arange(count, dtype=np.int64)
        padding = np.full(self._last_rows(rest) - count, (self.rank - extra) % self.size, np.int64)
        return np.concatenate([own, padding])

    def _own_rows(self, rest: int) -> int:
        """Return how many of the last `rest` positions are this rank's."""
        each, extra = divmod(rest, self.world_size)
        return each + (self.rank < extra)

    def _last_rows(self, rest: int) -> int:
        """Return how many rows this rank's last batch has, padding included."""
        return -(-rest // self.world_size) if self.pad else self._own_rows(rest)
