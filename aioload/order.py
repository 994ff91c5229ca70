"""Order: which record stands at which position of an epoch; pure arithmetic.

An order is a function of the index, seed, epoch and mode, and of nothing else: not of workers, ranks, batch
size, storage or time. Any position is found at once, so resuming costs the same everywhere and nothing is
replayed; memory does not grow with the number of records.

*Sequential*: position t is record t.

*Full*: a keyed permutation of all records. `permute` is the swap-or-not shuffle of Hoang, Morris and Rogaway
("An Enciphering Scheme Based on a Card Shuffle", CRYPTO 2012): in each round every element has one partner,
its mirror at a secret point, and a hash of the pair says whether they change places. It needs no table, works
for any size, and a round is a handful of operations on whole arrays.

*Block*: shards are cut into blocks of neighbouring records; the blocks, shuffled, make a line; the line is
cut into L lanes of equal length, and the epoch takes one record from each lane in turn. Where a block and a
lane meet is a *piece*: a contiguous range of a shard that is read once, and whose records are shuffled among
themselves. Position t is place t div L of lane t mod L. So a batch draws from L distant places of the line,
while storage sees large reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError

__all__ = [
    "BlockOrder",
    "Blocks",
    "FullOrder",
    "Order",
    "Pieces",
    "SequentialOrder",
    "Shuffle",
    "default_block_bytes",
    "default_lanes",
    "make_key",
    "permute",
]

Records = NDArray[np.int64]

_LANES = 192  # 2^6 x 3: many world sizes divide it, and a batch of 256 sees more than 134 places of the line
_LEAST_PER_LANE = 4  # records; smaller sets have fewer lanes
_BLOCK_BYTES = 256 << 10
_MOST = 1 << 40  # lanes and bytes of a block: beyond any set, and arithmetic in 64 bits stays exact
_MAX_BLOCKS = 1 << 22  # beyond 1 TiB blocks grow, so that the tables of an epoch stay under 100 MB
_FULL_ROUNDS = 64  # any two elements are told from random ones with odds of about 2^-32
_AT_ONCE = 2048
_PIECE_ROUNDS = 24  # pieces are small, and neighbours in a piece are L positions apart

_WORD = 0xFFFFFFFFFFFFFFFF
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class Order(Protocol):
    """What every mode answers."""

    @property
    def lanes(self) -> int:
        """Lanes of the block shuffle; 1 in the other modes."""

    def __len__(self) -> int:
        """Return the number of positions."""

    def records(self, positions: Records) -> Records:
        """Return the records at these positions."""

    def pieces(self, positions: Records) -> Pieces | None:
        """Return the pieces that hold these positions' records, or None where a record stands for itself."""

    def epochs(self, positions: Records) -> Records | None:
        """Return the epochs that these positions' randomness belongs to, or None if it is the loader's."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """For each of some positions, the piece its record lies in."""

    first: Records
    """The piece's first record."""
    stop: Records
    """The record after its last."""
    first_position: Records
    """The lowest position of the epoch that the piece holds."""
    last_position: Records
    """The highest."""


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How the records of any epoch are ordered."""

    mode: str = "none"
    """ "none", "block" or "full"."""
    seed: int = 0
    """Of all randomness."""
    lanes: int = 1
    """Of the block shuffle."""
    block_bytes: int = 0
    """Of the block shuffle."""

    @classmethod
    def choose(
        cls,
        shuffle: object,
        *,
        seed: int,
        lanes: int | None,
        block_bytes: int | None,
        records: int,
        data_bytes: int,
    ) -> Shuffle:
        """Return what a loader's options mean for a set; defaults come from the set alone.

        Raises:
            ConfigError: an option cannot be.
        """
        if shuffle is False or shuffle is None:
            return cls("none", seed)
        if shuffle == "full":
            return cls("full", seed)
        if shuffle is not True and shuffle != "block":
            raise ConfigError(f'shuffle must be False, True, "block" or "full", got {shuffle!r}')
        for name, value in (("lanes", lanes), ("block_bytes", block_bytes)):
            if value is not None and (type(value) is not int or not 1 <= value <= _MOST):
                raise ConfigError(f"{name} must be a whole number from 1 to {_MOST}, got {value!r}")
        lanes = lanes or default_lanes(records)
        return cls("block", seed, lanes, block_bytes or default_block_bytes(data_bytes, lanes))


@dataclass(frozen=True, slots=True)
class SequentialOrder:
    """Records as they lie."""

    size: int
    """Records in all."""

    @property
    def lanes(self) -> int:
        """One."""
        return 1

    def __len__(self) -> int:
        return self.size

    def records(self, positions: Records) -> Records:
        """Return the positions themselves."""
        return positions

    def pieces(self, positions: Records) -> None:
        """Return None: neighbours are read together anyway."""

    def epochs(self, positions: Records) -> None:
        """Return None: the epoch is the loader's."""


@dataclass(frozen=True, slots=True)
class FullOrder:
    """All records in one keyed permutation."""

    size: int
    """Records in all, up to 2^62."""
    seed: int
    """Of all randomness."""
    epoch: int
    """Each has its own permutation."""

    @property
    def lanes(self) -> int:
        """One."""
        return 1

    def __len__(self) -> int:
        return self.size

    def records(self, positions: Records) -> Records:
        """Return the records at these positions."""
        return permute(positions, self.size, make_key(self.seed, self.epoch, 0), rounds=_FULL_ROUNDS)

    def pieces(self, positions: Records) -> None:
        """Return None: each record is read by itself."""

    def epochs(self, positions: Records) -> None:
        """Return None: the epoch is the loader's."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Shards cut into blocks of neighbouring records."""

    firsts: Records
    """[blocks + 1] the record with which a block begins; the last is the number of records."""

    @classmethod
    def cut(cls, positions: NDArray[np.uint64], shard_records: Records, block_bytes: int) -> Blocks:
        """Cut so that the records that begin within the same `block_bytes` of a shard are one block.

        Args:
            positions: [records + 1] where each record begins, as in the index.
            shard_records: [shards + 1] the record with which a shard begins.
            block_bytes: of a cell; a longer record is a block of its own.
        """
        if block_bytes < 1:
            raise ConfigError(f"block_bytes must be positive, got {block_bytes}")
        size = len(positions) - 1
        cuts = [np.array([0, size], np.int64), shard_records.astype(np.int64)]
        for first, stop in zip(shard_records[:-1].tolist(), shard_records[1:].tolist(), strict=True):
            cells = (positions[first:stop] - positions[first]) // np.uint64(block_bytes)
            cuts.append(first + 1 + np.flatnonzero(cells[1:] != cells[:-1]))
        return cls(_distinct(np.concatenate(cuts)))

    def __len__(self) -> int:
        return len(self.firsts) - 1


class BlockOrder:
    """Shuffled blocks on a line, the line in lanes, records shuffled in each piece.

    Args:
        blocks: of the set.
        seed: of all randomness.
        epoch: each has its own line.
        lanes: places of the line that are drawn from at once.
    """

    def __init__(self, blocks: Blocks, *, seed: int, epoch: int, lanes: int) -> None:
        if lanes < 1:
            raise ConfigError(f"lanes must be positive, got {lanes}")
        self._blocks = blocks
        self._size = int(blocks.firsts[-1])
        self.lanes = lanes
        self._block_key = make_key(seed, epoch, 1)
        self._piece_key = make_key(seed, epoch, 2)

    def __len__(self) -> int:
        return self._size

    def records(self, positions: Records) -> Records:
        """Return the records at these positions."""
        if len(positions) > _AT_ONCE:  # so many stay in the processor's nearest cache
            parts = range(0, len(positions), _AT_ONCE)
            return np.concatenate([self.records(positions[part : part + _AT_ONCE]) for part in parts])
        piece, place = self._find(positions)
        begin, size = piece.first, piece.stop - piece.first
        with np.errstate(over="ignore"):
            # no two pieces begin with the same record
            key = self._piece_key + begin.astype(np.uint64) * _GOLDEN
        return begin + permute(place, size, key, rounds=_PIECE_ROUNDS)

    def pieces(self, positions: Records) -> Pieces:
        """Return the pieces that hold these positions' records."""
        return self._find(positions)[0]

    def epochs(self, positions: Records) -> None:
        """Return None: the epoch is the loader's."""

    @cached_property
    def _line(self) -> tuple[Records, Records]:
        """Return the blocks in the order of the line, and where on it each begins."""
        count = len(self._blocks)
        shuffled = np.argsort(
            _mix(np.arange(count, dtype=np.uint64) * _GOLDEN ^ self._block_key), kind="stable"
        )
        sizes = np.diff(self._blocks.firsts)[shuffled]
        return shuffled, np.cumsum(np.concatenate([np.zeros(1, np.int64), sizes]))

    def _find(self, positions: Records) -> tuple[Pieces, Records]:
        """Return the piece of each position, and its place in that piece."""
        shuffled, starts = self._line
        lane, place = positions % self.lanes, positions // self.lanes
        least, longer = divmod(self._size, self.lanes)
        lane_start = lane * least + np.minimum(lane, longer)
        lane_stop = lane_start + least + (lane < longer)

        on_line = lane_start + place
        number = np.searchsorted(starts, on_line, side="right") - 1
        start = np.maximum(starts[number], lane_start)
        stop = np.minimum(starts[number + 1], lane_stop)
        first = self._blocks.firsts[shuffled[number]] + start - starts[number]
        pieces = Pieces(
            first,
            first + stop - start,
            (start - lane_start) * self.lanes + lane,
            (stop - 1 - lane_start) * self.lanes + lane,
        )
        return pieces, on_line - start


def default_lanes(records: int) -> int:
    """Return the lanes of a set of this size: 192, or a divisor of it that leaves each lane some records."""
    divisors = [lanes for lanes in range(1, _LANES + 1) if _LANES % lanes == 0]
    return max((lanes for lanes in divisors if lanes * _LEAST_PER_LANE <= records), default=1)


def default_block_bytes(data_bytes: int, lanes: int) -> int:
    """Return the block size of a set with so many bytes of records.

    A small set has smaller blocks, two for each lane. With fewer, neighbouring lanes would lie in one block,
    and a batch of fewer records than there are lanes would be of one place of the set, such as one class.
    """
    usual = max(_BLOCK_BYTES, -(-data_bytes // _MAX_BLOCKS))
    return min(usual, max(data_bytes // (2 * lanes), 1))


def make_key(seed: int, epoch: int, purpose: int) -> NDArray[np.uint64]:
    """Return the key of one use of randomness: an array of one."""
    words = [purpose, epoch & _WORD]
    while True:  # a seed of any size, 64 bits at a time
        words.append(seed & _WORD)
        seed >>= 64
        if not seed:
            break
    state = 0
    for word in words:
        state = int(_mix(np.array([((state ^ word) + int(_GOLDEN)) & _WORD], np.uint64))[0])
    return np.array([state], np.uint64)


def permute(places: Records, size: Records | int, keys: NDArray[np.uint64], *, rounds: int) -> Records:
    """Return where a keyed permutation of `size` elements takes each place.

    Args:
        places: from 0 to `size` - 1.
        size: of the set that is permuted; one for each place if it is an array, then less than 2^31.
        keys: one, or one for each place.
        rounds: of the shuffle.
    """
    # hot: once per record; guarded by benchmarks/bench_order.py. In place, for arrays cost more than sums
    numbers = np.arange(1, rounds + 1, dtype=np.uint64)[:, None]
    with np.errstate(over="ignore"):
        turns = _mix(numbers * _GOLDEN ^ keys)
        points = _points(_mix(numbers * _MIX_2 ^ keys), size)
        x = places.astype(np.int64)
        for turn, point in zip(turns, points, strict=True):
            mirror = point - x
            mirror += (mirror >> 63) & size
            coin = np.maximum(x, mirror).view(np.uint64)
            coin *= _GOLDEN
            coin ^= turn
            coin ^= coin >> np.uint64(29)
            coin *= _MIX_1
            mirror ^= x
            mirror &= coin.view(np.int64) >> 63  # all ones or all zeros, by the highest bit
            x ^= mirror
    return x


def _distinct(records: Records) -> Records:
    """Return each record once, ascending; they are nearly so already.

    `np.unique` goes by a hash, which takes seconds for millions of evenly spaced numbers.
    """
    ordered: Records = np.sort(records, kind="stable")
    is_new: NDArray[np.bool_] = np.append(True, ordered[1:] != ordered[:-1])
    return ordered[is_new]


def _points(drawn: NDArray[np.uint64], size: Records | int) -> Records:
    """Return the mirrors' points of all rounds: shares of the size that the keys draw."""
    if isinstance(size, np.ndarray):
        return ((drawn >> np.uint64(32)) * size.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
    return np.array([[int(word) * size >> 64 for word in row] for row in drawn], np.int64)


def _mix(words: Any) -> Any:
    """Mix the bits of 64-bit words (the finaliser of splitmix64)."""
    words = (words ^ words >> np.uint64(30)) * _MIX_1
    words = (words ^ words >> np.uint64(27)) * _MIX_2
    return words ^ words >> np.uint64(31)
