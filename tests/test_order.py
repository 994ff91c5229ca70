"""An order is a permutation, mixes well, reads in pieces, and is the same for ever."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from orders import block_order, every, make_index

from aioload import ConfigError
from aioload.order import (
    BlockOrder,
    Blocks,
    FullOrder,
    SequentialOrder,
    Shuffle,
    default_block_bytes,
    default_lanes,
    make_key,
    permute,
)
from aioload.table import IndexTable

SHARDS = st.lists(st.lists(st.integers(1, 60), max_size=30), min_size=1, max_size=6)
LANES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 64, 192, 500])
BLOCK_BYTES = st.sampled_from([1, 7, 64, 200, 10_000])


def chi_square(counts: NDArray[np.int64]) -> float:
    """Return how far counts are from being equal."""
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


# The permutation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [24, 64])
@pytest.mark.parametrize("seed", [0, 1, 2**64 + 5])
def test_small_permutations_are_exact(seed: int, rounds: int) -> None:
    """For every size up to 130, each element comes exactly once."""
    key = make_key(seed, 3, 0)

    found = [np.sort(permute(every(size), size, key, rounds=rounds)) for size in range(1, 131)]

    assert all(np.array_equal(one, every(size)) for size, one in enumerate(found, 1))


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20), seed=st.integers(0, 2**70))
def test_many_permutations_at_once(sizes: list[int], seed: int) -> None:
    """With a size and a key for each place, every set is permuted within itself."""
    places = np.concatenate([every(size) for size in sizes])
    of_place = np.repeat(np.array(sizes, np.int64), sizes)
    keys = make_key(seed, 0, 2) + np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)

    found = permute(places, of_place, keys, rounds=24)

    borders = np.cumsum(sizes)[:-1]
    assert [sorted(one.tolist()) for one in np.split(found, borders)] == [list(range(n)) for n in sizes]


@given(size=st.integers(1 << 20, 1 << 40), seed=st.integers(0, 2**64), start=st.floats(0, 1))
def test_large_permutations_have_no_collisions(size: int, seed: int, start: float) -> None:
    """Of sets up to 2^40, 4,096 neighbours and 4,096 scattered places all go to different places inside."""
    first = int(start * (size - 4096))
    neighbours = np.arange(first, first + 4096, dtype=np.int64)
    scattered = np.random.default_rng(seed).integers(0, size, 4096)
    places = np.union1d(neighbours, scattered)

    found = FullOrder(size, seed, 0).records(places)

    assert len(np.unique(found)) == len(places)
    assert 0 <= int(found.min()) <= int(found.max()) < size


def test_all_of_a_million_come_once() -> None:
    """A size that is no power of anything, whole."""
    size = 1_000_003

    found = FullOrder(size, 5, 1).records(every(size))

    assert np.array_equal(np.sort(found), every(size))


def test_pieces_take_all_arrangements_equally_often() -> None:
    """Of 48,000 keys, each of the 24 arrangements of four gets its share (23 degrees, p > 1e-4)."""
    keys = make_key(11, 0, 2) + np.arange(48_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    places, sizes = np.tile(every(4), 48_000), np.full(4 * 48_000, 4, np.int64)

    found = permute(places, sizes, np.repeat(keys, 4), rounds=24).reshape(-1, 4)

    kinds, counts = np.unique(found @ [64, 16, 4, 1], return_counts=True)
    assert len(kinds) == 24
    assert chi_square(counts) < 57.6


def test_seeds_and_epochs_take_all_arrangements_equally_often() -> None:
    """The full order of three over 30 seeds and 40 epochs (chi square, 5 degrees, p > 1e-4)."""
    found = [FullOrder(3, seed, epoch).records(every(3)) for seed in range(30) for epoch in range(40)]

    kinds, counts = np.unique(np.array(found) @ [9, 3, 1], return_counts=True)
    assert len(kinds) == 6
    assert chi_square(counts) < 25.8


def test_each_place_goes_everywhere_equally_often() -> None:
    """Where 20 elements go over 1,000 seeds: each of 400 pairs gets its share (361 degrees, p > 1e-4)."""
    counts = np.zeros((20, 20), np.int64)
    for seed in range(1000):
        counts[every(20), FullOrder(20, seed, 0).records(every(20))] += 1

    assert chi_square(counts) < 468


def test_neighbours_go_apart() -> None:
    """Neighbouring places of a large set land apart like random ones: their distances rank uniformly."""
    size = 1 << 40
    places = np.arange(0, 40_000, dtype=np.int64)

    found = FullOrder(size, 1, 0).records(places)

    steps = (np.diff(found) % size) * 64 // size
    assert chi_square(np.bincount(steps, minlength=64)) < 115


# The same for ever ------------------------------------------------------------------------------------

GOLDEN_TEN = [0, 1, 4, 6, 2, 3, 8, 5, 7, 9]
GOLDEN_LARGE = [711686476620, 27563337266, 2201584957, 1025068624136, 451040546053, 904130467315]
GOLDEN_LONG_SEED = [969, 224, 972, 436, 926]
GOLDEN_BLOCK = [
    44,
    10,
    27,
    39,
    43,
    8,
    25,
    22,
    40,
    9,
    26,
    21,
    41,
    11,
    0,
    20,
    42,
    29,
    4,
    23,
    18,
    28,
    5,
    16,
    19,
    33,
    1,
    15,
    35,
    32,
    2,
    12,
    34,
    31,
    3,
    14,
    36,
    30,
    38,
    17,
    6,
    24,
    37,
    13,
    7,
]


def test_golden_full() -> None:
    """Pinned: an upgrade that moved a record would silently break every run that is resumed."""
    positions = np.array([0, 1, 2, 10**6, 10**9, (1 << 40) - 1], np.int64)

    assert FullOrder(10, 0, 0).records(every(10)).tolist() == GOLDEN_TEN
    assert FullOrder(1 << 40, 7, 3).records(positions).tolist() == GOLDEN_LARGE
    assert FullOrder(1000, 2**80 + 1, 0).records(every(5)).tolist() == GOLDEN_LONG_SEED


def test_golden_block() -> None:
    """Pinned likewise: blocks, lanes and pieces of three shards."""
    order = block_order([[10] * 20, [7, 30] * 10, [25] * 5], block_bytes=60, lanes=4, seed=3, epoch=2)

    assert order.records(every(45)).tolist() == GOLDEN_BLOCK


def test_golden_defaults() -> None:
    """Pinned likewise: the lanes and block sizes that come from the set."""
    records = [0, 1, 7, 8, 12, 16, 100, 383, 384, 500, 767, 768, 10**9]

    assert [default_lanes(count) for count in records] == [1, 1, 1, 2, 3, 4, 24, 64, 96, 96, 96, 192, 192]
    sizes = [0, 384, 38_400, 10 << 20, 96 << 20, 1 << 30, 1 << 40, 1 << 41]
    assert [default_block_bytes(size, 192) for size in sizes] == [
        1,
        1,
        100,
        27_306,
        1 << 18,
        1 << 18,
        1 << 18,
        1 << 19,
    ]
    assert default_block_bytes(38_400, 1) == 19_200


# The block order --------------------------------------------------------------------------------------


@given(shards=SHARDS, block_bytes=BLOCK_BYTES, lanes=LANES, seed=st.integers(0, 99), epoch=st.integers(0, 3))
def test_every_record_comes_once(
    shards: list[list[int]], block_bytes: int, lanes: int, seed: int, epoch: int
) -> None:
    """Whatever shards, blocks and lanes there are: the block order is a permutation."""
    order = block_order(shards, block_bytes=block_bytes, lanes=lanes, seed=seed, epoch=epoch)

    records = order.records(every(len(order)))

    assert sorted(records.tolist()) == list(range(sum(map(len, shards))))


@given(shards=SHARDS, block_bytes=BLOCK_BYTES, lanes=LANES, seed=st.integers(0, 99))
def test_pieces_part_the_records(shards: list[list[int]], block_bytes: int, lanes: int, seed: int) -> None:
    """Each record is in one piece; a piece is in one shard and lane, and knows when it begins and ends."""
    order = block_order(shards, block_bytes=block_bytes, lanes=lanes, seed=seed)
    positions, shard_records = every(len(order)), make_index(shards).shard_records
    records, pieces = order.records(positions), order.pieces(positions)

    ranges = sorted(set(zip(pieces.first.tolist(), pieces.stop.tolist(), strict=True)))
    members = [records[pieces.first == first] for first, _ in ranges]
    due = [positions[pieces.first == first] for first, _ in ranges]
    known = [(pieces.first_position[at[0]], pieces.last_position[at[0]]) if len(at) else (0, 0) for at in due]

    assert [sorted(one.tolist()) for one in members] == [list(range(*one)) for one in ranges]
    assert known == [(at.min(), at.max()) for at in due]
    assert all(len({int(one) % lanes for one in at}) == 1 for at in due)
    assert all(
        np.searchsorted(shard_records, first, "right") == np.searchsorted(shard_records, stop - 1, "right")
        for first, stop in ranges
    )


@given(shards=SHARDS, block_bytes=BLOCK_BYTES)
def test_blocks_are_cells_of_a_shard(shards: list[list[int]], block_bytes: int) -> None:
    """Records share a block if, and only if, they begin in the same `block_bytes` of the same shard."""
    index = make_index(shards)
    cells = [
        (number, int(begin) // block_bytes)
        for number, sizes in enumerate(shards)
        for begin in np.cumsum([0, *sizes[:-1]])[: len(sizes)]
    ]
    edges = [record for record in range(len(cells)) if record == 0 or cells[record] != cells[record - 1]]

    blocks = Blocks.cut(index.positions, index.shard_records, block_bytes)

    assert blocks.firsts.tolist() == sorted({0, *edges, len(cells)})


@pytest.mark.parametrize("start", [0, 1, 130, 777])
@pytest.mark.parametrize(("world_size", "lanes"), [(1, 12), (2, 12), (3, 12), (4, 12), (8, 64), (8, 192)])
def test_a_rank_reads_each_of_its_pieces_alone(world_size: int, lanes: int, start: int) -> None:
    """Where the world size divides the lanes, no piece is needed by two ranks, from whichever position on."""
    order = block_order([[10] * 700, [13] * 900], block_bytes=100, lanes=lanes)
    positions = np.arange(start, len(order), dtype=np.int64)

    pieces = [set(order.pieces(positions[rank::world_size]).first.tolist()) for rank in range(world_size)]

    assert len(set.union(*pieces)) == sum(map(len, pieces))


@pytest.mark.parametrize(
    ("world_size", "lanes", "most"), [(5, 12, 5), (8, 12, 2), (16, 192, 1), (9, 192, 3), (6, 4, 3), (7, 1, 7)]
)
def test_amplification_is_bounded(world_size: int, lanes: int, most: int) -> None:
    """Elsewhere a piece is needed by at most W / gcd(W, L) ranks, so each rank reads that much too much."""
    order = block_order([[10] * 3000], block_bytes=200, lanes=lanes)
    positions = every(len(order))

    readers = [np.unique(order.pieces(positions[rank::world_size]).first) for rank in range(world_size)]
    counts = np.unique(np.concatenate(readers), return_counts=True)[1]

    assert int(counts.max()) == most


def test_each_epoch_gives_a_rank_another_part() -> None:
    """Over epochs a rank's records change: two epochs share about as much as chance would."""
    orders = [block_order([[10] * 8000], block_bytes=100, lanes=64, epoch=epoch) for epoch in range(2)]

    first, second = (set(order.records(every(8000)[::4]).tolist()) for order in orders)

    assert 350 < len(first & second) < 650  # of 2,000, and by chance 500


def test_sorted_classes_mix() -> None:
    """At default settings a batch of 256 sees at least 80% of the classes that a full shuffle shows."""
    sizes = np.random.default_rng(0).integers(1800, 2200, (4, 25_000)).tolist()
    table = IndexTable(make_index(sizes))
    block, full = (
        table.order(_choose(mode, table), 0).records(every(100_000)) // 1000 for mode in ("block", "full")
    )

    seen, ideal = (_classes_per_batch(order) for order in (block, full))

    assert seen >= 0.8 * ideal
    assert ideal == pytest.approx(92.4, abs=0.5)


@pytest.mark.parametrize("records", [40, 240, 1000, 5000, 30_000])
@pytest.mark.parametrize("rows", [8, 16, 40])
def test_small_sorted_sets_mix(records: int, rows: int) -> None:
    """However small a set and a batch, it sees at least 80% of the classes that a full shuffle shows."""
    table = IndexTable(make_index([[2000] * records]))
    seen, ideal = (
        np.mean(
            [
                _classes_per_batch(
                    table.order(_choose(mode, table), epoch).records(every(records)) * 10 // records, rows
                )
                for epoch in range(8)
            ]
        )
        for mode in ("block", "full")
    )

    assert seen >= 0.8 * ideal


# Every mode -------------------------------------------------------------------------------------------


@given(
    size=st.integers(0, 300),
    mode=st.sampled_from(["none", "block", "full"]),
    picks=st.lists(st.integers(0, 299)),
)
def test_a_position_does_not_depend_on_what_else_is_asked(size: int, mode: str, picks: list[int]) -> None:
    """Any positions, alone or together, in any order, give what the whole epoch gives."""
    table = IndexTable(make_index([[10] * size]))
    order = table.order(Shuffle(mode, 4, 6, 64), 1)
    chosen = np.array([pick for pick in picks if pick < size], np.int64)

    together, whole = order.records(chosen), order.records(every(size))

    assert together.tolist() == whole[chosen].tolist()
    assert len(order) == size
    assert order.lanes == (6 if mode == "block" else 1)


@pytest.mark.parametrize("mode", ["block", "full"])
def test_seed_and_epoch_change_the_order(mode: str) -> None:
    """Any two of four seeds and four epochs differ, and the same again is the same."""
    table = IndexTable(make_index([[10] * 200]))
    orders = [Shuffle(mode, seed, 6, 64) for seed in range(4)]

    found = [
        tuple(table.order(one, epoch).records(every(200)).tolist()) for one in orders for epoch in range(4)
    ]

    assert len(set(found)) == 16
    assert found[5] == tuple(table.order(orders[1], 1).records(every(200)).tolist())


def test_sequential_is_the_records_as_they_lie() -> None:
    """Without a shuffle the position is the record."""
    order = SequentialOrder(7)

    assert order.records(every(7)).tolist() == list(range(7))
    assert order.pieces(every(7)) is None
    assert order.epochs(every(7)) is None


def test_memory_is_flat_at_a_large_position() -> None:
    """A batch at position 10^9 of 2^40 records takes less than 1 MB on the way, whatever the size."""
    order = FullOrder(1 << 40, 0, 0)
    positions = np.arange(10**9, 10**9 + 256, dtype=np.int64)
    order.records(positions)

    tracemalloc.start()
    found = order.records(positions)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(found) == 256
    assert peak < 1 << 20


def test_block_tables_grow_with_blocks_and_not_with_records() -> None:
    """Blocks of 10^9 records each take no more than blocks of one."""
    order = BlockOrder(Blocks(np.arange(0, 1001, dtype=np.int64) * 10**9), seed=0, epoch=0, lanes=192)
    positions = np.arange(10**9, 10**9 + 256, dtype=np.int64)

    tracemalloc.start()
    found = order.records(positions)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(np.unique(found)) == 256
    assert peak < 2 << 20


# Options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shuffle", "expected"),
    [
        (False, Shuffle("none", 5)),
        (True, Shuffle("block", 5, 192, 2604)),
        ("block", Shuffle("block", 5, 192, 2604)),
        ("full", Shuffle("full", 5)),
    ],
)
def test_options_become_a_shuffle(shuffle: object, expected: Shuffle) -> None:
    """What is not given comes from the set; the other modes have neither lanes nor blocks."""
    chosen = Shuffle.choose(shuffle, seed=5, lanes=None, block_bytes=None, records=1000, data_bytes=10**6)

    assert chosen == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"shuffle": "yes"}, "shuffle must be False, True"),
        ({"shuffle": 1}, "shuffle must be False, True"),
        ({"shuffle": True, "lanes": 0}, "lanes must be"),
        ({"shuffle": True, "lanes": 2.0}, "lanes must be"),
        ({"shuffle": True, "lanes": True}, "lanes must be"),
        ({"shuffle": True, "lanes": 1 << 64}, "lanes must be"),
        ({"shuffle": True, "block_bytes": -1}, "block_bytes must be"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], told: str) -> None:
    """A wrong option is a ConfigError that names it and what it got."""
    others: dict[str, object] = {"lanes": None, "block_bytes": None}

    with pytest.raises(ConfigError, match=told) as caught:
        Shuffle.choose(**{**others, **options}, seed=0, records=9, data_bytes=9)  # type: ignore[arg-type]

    assert repr(list(options.values())[-1]) in str(caught.value)


def _choose(mode: str, table: IndexTable) -> Shuffle:
    return Shuffle.choose(
        mode, seed=1, lanes=None, block_bytes=None, records=len(table), data_bytes=table.data_bytes
    )


def _classes_per_batch(classes: NDArray[np.int64], rows: int = 256) -> float:
    """Return how many classes a batch of so many rows sees on average."""
    batches = classes[: len(classes) // rows * rows].reshape(-1, rows)
    return float(np.mean([len(np.unique(batch)) for batch in batches]))
