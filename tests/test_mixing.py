"""A mix deals draws exactly, evenly and lane by lane; its sources go through epochs of their own."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixes import farthest, make_mix, seen, taken
from orders import make_index

from aioload import ConfigError
from aioload.deal import MAX_POSITIONS, Deal, _Tree
from aioload.mixing import MixTable
from aioload.order import Shuffle
from aioload.shares import as_weights, draws_of_epoch, share_out
from aioload.table import IndexTable

AWKWARD = [
    (0.7, 0.3),
    (1 / 3, 2 / 3),
    (0.618, 0.382),
    (0.99, 0.01),
    (0.5, 0.3, 0.2),
    (1, 1, 1),
    (0.98, 0.013, 0.007),
    (0.2, 0.2, 0.2, 0.2, 0.2),
    (0.4, 0.3, 0.15, 0.1, 0.05),
    (31, 29, 17, 13, 10),
]

counts = st.lists(st.integers(0, 400), min_size=1, max_size=6).filter(any)
lanes = st.sampled_from([1, 2, 3, 4, 7, 12, 24, 48, 100, 192])


# Dealing ----------------------------------------------------------------------------------------------


@given(counts, lanes)
def test_every_draw_has_one_position(drawn: list[int], count: int) -> None:
    """Each source gives each draw at exactly one position, and the position of a draw is found again."""
    deal = Deal(drawn, count)
    positions = np.arange(len(deal), dtype=np.int64)

    source, draw = deal.draws(positions)

    expected = [(number, each) for number, some in enumerate(drawn) for each in range(some)]
    assert sorted(zip(source.tolist(), draw.tolist(), strict=True)) == expected
    assert deal.positions(source, draw).tolist() == positions.tolist()


@pytest.mark.parametrize("count", [1, 3, 7])
@pytest.mark.parametrize("weights", [(1, 1), *AWKWARD[4:9], (997, 2, 1)], ids=str)
def test_every_draw_has_one_position_over_many_cycles(weights: tuple[float, ...], count: int) -> None:
    """The same in an epoch of several full cycles and an incomplete row."""
    deal = Deal(draws_of_epoch([], weights, 5 * 1024 * count + 700 * count + count // 2, "first"), count)
    positions = np.arange(len(deal), dtype=np.int64)

    source, draw = deal.draws(positions)

    expected = [(number, each) for number, some in enumerate(deal.counts) for each in range(some)]
    assert sorted(zip(source.tolist(), draw.tolist(), strict=True)) == expected
    assert deal.positions(source, draw).tolist() == positions.tolist()


@given(counts, lanes)
def test_prefix_counts_grow_to_the_position(drawn: list[int], count: int) -> None:
    """Counts before a position never fall, sum to the position, and end with what each source gives."""
    deal = Deal(drawn, count)
    positions = np.arange(len(deal), dtype=np.int64)

    before = taken(deal.draws(positions)[0], len(drawn))

    assert (np.diff(before) >= 0).all()
    assert before.sum(axis=0).tolist() == list(range(len(deal) + 1))
    assert before[:, -1].tolist() == drawn


@given(counts, lanes)
def test_a_lane_draws_from_its_own_lane_of_each_source(drawn: list[int], count: int) -> None:
    """Draws of one class modulo the lanes come in one lane alone, in order, up to the incomplete row."""
    deal = Deal(drawn, count)
    positions = np.arange(len(deal) // count * count, dtype=np.int64)

    source, draw = deal.draws(positions)

    lane = positions % count
    by_lane = [
        draw[(source == number) & (lane == each)] for number in range(len(drawn)) for each in range(count)
    ]
    classes = Counter(zip(source.tolist(), (draw % count).tolist(), lane.tolist(), strict=True))
    assert all((np.diff(draws) > 0).all() for draws in by_lane)
    assert len({(number, of_draws) for number, of_draws, _ in classes}) == len(classes)
    assert len({(number, of_lane) for number, _, of_lane in classes}) == len(classes)


@given(counts, lanes, st.data())
def test_positions_are_found_one_by_one_as_all_at_once(
    drawn: list[int], count: int, data: st.DataObject
) -> None:
    """What a position takes does not depend on which others are asked for."""
    deal = Deal(drawn, count)
    source, draw = deal.draws(np.arange(len(deal), dtype=np.int64))
    asked = data.draw(st.lists(st.integers(0, len(deal) - 1), min_size=1, max_size=20))

    found = deal.draws(np.array(asked, np.int64))

    assert found[0].tolist() == source[asked].tolist()
    assert found[1].tolist() == draw[asked].tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 12, 48, 192, 1000, 4096])
@pytest.mark.parametrize("weights", AWKWARD, ids=str)
def test_any_thousand_samples_have_the_weights(weights: tuple[float, ...], count: int) -> None:
    """In any 1,000 consecutive samples each source is less than 1% of them away from its weight."""
    shares = [weight / sum(weights) for weight in weights]
    lengths = [1003, 1500, 10_007, 200_003]

    found = [
        farthest(
            Deal(draws_of_epoch([], weights, length, "first"), count).draws(np.arange(length))[0], shares
        )
        for length in lengths
    ]

    assert max(found) < 10


@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=5), st.sampled_from([1, 192]), st.integers(0, 1 << 40)
)
def test_a_place_in_a_huge_epoch_is_found_without_drift(
    weights: list[int], count: int, position: int
) -> None:
    """At 2^40 positions draws are found again, and each source is where its weight says."""
    deal = Deal(share_out(MAX_POSITIONS, weights), count)
    start = min(position, MAX_POSITIONS - 256)
    positions = np.arange(start, start + 256, dtype=np.int64)

    source, draw = deal.draws(positions)

    ideal = np.array([start * weight / sum(weights) for weight in weights])[source]
    assert deal.positions(source, draw).tolist() == positions.tolist()
    assert np.abs(draw - ideal).max() < 4 * count + 256


def test_memory_does_not_grow_with_the_epoch() -> None:
    """An epoch of 2^40 samples takes no more memory than one of a few million."""
    tracemalloc.start()

    deal = Deal(share_out(MAX_POSITIONS, [7, 3]), 192)
    for start in range(0, MAX_POSITIONS - 256, MAX_POSITIONS // 64):
        deal.draws(np.arange(start, start + 256, dtype=np.int64))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 4 << 20


@given(counts)
def test_turns_are_found_by_source_as_by_number(totals: list[int]) -> None:
    """Each turn is one source's, as many as it has in all, and is found again by the source's count."""
    tree = _Tree(totals)

    before = [tree.counts(turn) for turn in range(sum(totals) + 1)]

    steps = np.diff(before, axis=0)
    source = steps.argmax(axis=1)
    count = np.array(before)[np.arange(len(source)), source]
    assert ((steps == 0) | (steps == 1)).all()
    assert before[-1].tolist() == totals
    assert tree.place(source, count).tolist() == list(range(sum(totals)))


@pytest.mark.parametrize(("drawn", "count"), [([0], 1), ([MAX_POSITIONS, 1], 1), ([5], 1 << 21)])
def test_an_epoch_beyond_the_limits_is_refused(drawn: list[int], count: int) -> None:
    """No positions, too many of them or too many lanes are an error, not a wrong result."""
    with pytest.raises(ConfigError, match="a mix has 1 to"):
        Deal(drawn, count)


# Shares -----------------------------------------------------------------------------------------------


@given(st.integers(0, MAX_POSITIONS), st.lists(st.integers(0, 1 << 60), min_size=1, max_size=9).filter(any))
def test_shares_are_whole_and_less_than_one_off(total: int, weights: list[int]) -> None:
    """Shares sum to the total, and each is its weight's share rounded up or down."""
    shares = share_out(total, weights)

    exact = [Fraction(total * weight, sum(weights)) for weight in weights]
    assert sum(shares) == total
    assert all(abs(share - ideal) < 1 for share, ideal in zip(shares, exact, strict=True))


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 100)), min_size=1, max_size=6),
    st.sampled_from(["first", "all"]),
)
def test_an_epoch_ends_with_its_source(parts: list[tuple[int, int]], stop: str) -> None:
    """The first, or last, source to end gives each record once; no other less, or more, and all by weight."""
    sizes, weights = [size for size, _ in parts], tuple(weight / 7 for _, weight in parts)

    drawn = draws_of_epoch(sizes, weights, None, stop)

    exact = [Fraction(repr(weight)) for weight in weights]
    ideal = [sum(drawn) * share / sum(exact) for share in exact]
    sign = 1 if stop == "first" else -1
    assert any(given == size for given, size in zip(drawn, sizes, strict=True))
    assert all(sign * given <= sign * size for given, size in zip(drawn, sizes, strict=True))
    assert all(abs(given - share) < 1 for given, share in zip(drawn, ideal, strict=True))


def test_seven_tenths_are_seven_tenths() -> None:
    """Weights mean the decimals they are written as, so sets that fit them exactly come out exactly."""
    assert draws_of_epoch([700_000_000_000, 300_000_000_000], (0.7, 0.3), None, "first") == [
        700_000_000_000,
        300_000_000_000,
    ]


@pytest.mark.parametrize(
    "weights", [[0, 0], [-1, 2], [float("nan"), 1], [float("inf"), 1], ["1", 1], [True, 1]]
)
def test_weights_that_cannot_be_are_refused(weights: list[object]) -> None:
    """A weight is a finite number that is not negative, and one of them is more than 0."""
    with pytest.raises(ConfigError, match="weight"):
        as_weights(weights)


# Orders and tables ------------------------------------------------------------------------------------

MODES = [Shuffle("none"), Shuffle("full", 5), Shuffle("block", 5, 12, 400), Shuffle("block", 5, 192, 400)]


@pytest.mark.parametrize("shuffle", MODES, ids=str)
@pytest.mark.parametrize(
    ("sizes", "weights", "stop"),
    [
        ([70, 30], (0.7, 0.3), "first"),
        ([100, 3, 57], (1, 1, 1), "all"),
        ([40, 200], (0.9, 0.1), "first"),
        ([13, 5, 90, 1, 33], (4, 3, 1.5, 1, 0.5), "all"),
    ],
)
def test_every_record_comes_once_in_each_own_epoch(
    shuffle: Shuffle, sizes: list[int], weights: tuple[float, ...], stop: str
) -> None:
    """Over epochs of the mix a source gives all its records, then all again; each epoch gives as many."""
    table = make_mix(sizes, weights, stop=stop)

    found = seen(table, shuffle, range(5))

    drawn = Counter(draw for epoch in found for draw in epoch)
    assert set(drawn.values()) == {1}
    for source, size in enumerate(sizes):
        whole, rest = divmod(5 * table.draws[source], size)
        per_epoch = Counter(epoch for (number, epoch, _) in drawn if number == source)
        assert per_epoch == Counter([*range(whole)] * size + [whole] * rest)
        per_mix = [sum(number == source for number, _, _ in epoch) for epoch in found]
        assert per_mix == [table.draws[source]] * 5


@settings(max_examples=40)
@given(
    st.sampled_from(MODES), st.lists(st.integers(1, 60), min_size=2, max_size=4), st.integers(0, 3), st.data()
)
def test_an_order_equals_its_slow_reference(
    shuffle: Shuffle, sizes: list[int], epoch: int, data: st.DataObject
) -> None:
    """A draw is the next position of the source's own order, whatever is asked for with it."""
    weights = tuple(data.draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes))))
    table = make_mix(sizes, weights, length=60)
    lanes = shuffle.lanes if shuffle.mode == "block" else 1

    found = seen(table, shuffle, [epoch])[0]

    source, draw = Deal(table.draws, lanes).draws(np.arange(60, dtype=np.int64))
    expected = []
    for number, each in zip(source.tolist(), draw.tolist(), strict=True):
        own_epoch, place = divmod(epoch * table.draws[number] + each, sizes[number])
        seed = shuffle.seed * len(sizes) + number
        apart = Shuffle(shuffle.mode, seed, shuffle.lanes, shuffle.block_bytes)
        order = make_mix(sizes, weights, length=1)._whole.parts[number].order(apart, own_epoch)
        expected.append((number, own_epoch, int(order.records(np.array([place]))[0])))
    assert found == expected


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_ranks_read_lanes_of_their_own(world_size: int) -> None:
    """Where ranks divide the lanes, no two read from one piece of a source, up to the incomplete row."""
    table = make_mix([5000, 900], (0.7, 0.3), stop="all")
    order = table.order(Shuffle("block", 1, 24, 1000), 0)
    positions = np.arange(len(order) // 24 * 24, dtype=np.int64)

    pieces = order.pieces(positions)

    assert pieces is not None
    readers = set(zip(pieces.first.tolist(), (positions % world_size).tolist(), strict=True))
    assert len(readers) == len(set(pieces.first.tolist()))


@given(
    st.lists(st.integers(1, 400), min_size=2, max_size=4),
    st.sampled_from(["first", "all"]),
    st.sampled_from([1, 6, 24, 192]),
    st.integers(0, 3),
)
def test_pieces_know_when_they_are_due(sizes: list[int], stop: str, count: int, epoch: int) -> None:
    """A piece that is to be read whole is due from its first position to its last, both in this epoch."""
    table = make_mix(sizes, tuple(range(1, len(sizes) + 1)), stop=stop)
    order = table.order(Shuffle("block", 3, count, 700), epoch)
    positions = np.arange(len(order), dtype=np.int64)

    pieces, records = order.pieces(positions), order.records(positions)

    assert pieces is not None
    assert ((pieces.first <= records) & (records < pieces.stop)).all()
    whole = pieces.first_position >= 0
    assert ((pieces.first_position <= positions) & (positions <= pieces.last_position))[whole].all()
    for first in np.unique(pieces.first[whole]).tolist():
        at = positions[whole & (pieces.first == first)]
        assert set(pieces.first_position[at].tolist()) == {int(at.min())}
        assert set(pieces.last_position[at].tolist()) == {int(at.max())}
    # only pieces that an edge of the epoch cuts are not: one a lane and source at each, of up to 7 records
    cut = (positions < len(order) // count * count) & ~whole
    assert cut.sum() <= 2 * len(sizes) * count * 7


@pytest.mark.parametrize("shuffle", MODES, ids=str)
def test_weights_change_at_an_edge_and_sources_go_on(shuffle: Shuffle) -> None:
    """From the epoch of the change on the new weights hold, and no record is given twice or left out."""
    before = make_mix([90, 40], (0.7, 0.3), length=50)

    after = before.reweighed((0.2, 0.8), 3)

    epochs = seen(before, shuffle, [0, 1, 2]) + seen(after, shuffle, [3, 4])
    drawn = [draw for epoch in epochs for draw in epoch]
    sources = [Counter(number for number, _, _ in epoch) for epoch in seen(after, shuffle, [3, 4])]
    assert len(set(drawn)) == len(drawn)
    assert sources == [{0: 10, 1: 40}] * 2
    assert after.draws_before(4) == (3 * 35 + 10, 3 * 15 + 40)
    assert {draw[1:] for draw in drawn if draw[0] == 0 and draw[1] == 0} == {
        (0, record) for record in range(90)
    }


def test_sources_of_the_same_size_are_shuffled_apart() -> None:
    """Two sets of equally many records do not come in the same order."""
    table = make_mix([500, 500], (1, 1))

    drawn = seen(table, Shuffle("full", 0), [0])[0]

    orders = [[record for number, _, record in drawn if number == source] for source in (0, 1)]
    assert sum(a == b for a, b in zip(*orders, strict=True)) < 20


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(1, 12), st.sampled_from(["first", "all"])
)
def test_no_batch_of_a_mix_is_larger_than_the_largest(counts: list[int], rows: int, stop: str) -> None:
    """Small sources start over within a batch, so a record may be in it more than once."""
    parts = [
        IndexTable(make_index([[10**n + number for n in range(count)]]))
        for number, count in enumerate(counts)
    ]
    table = MixTable(parts, tuple(1.0 + number for number in range(len(parts))), 50, stop)
    for shuffle in (Shuffle("none", 1), Shuffle("full", 1), Shuffle("block", 1, 2, 100)):
        order = table.order(shuffle, 0)
        places = table.places(order.records(np.arange(len(table), dtype=np.int64)))
        sizes = places.stop - places.start

        most = max(int(sizes[first : first + rows].sum()) for first in range(len(sizes)))

        assert most <= table.largest(rows, as_they_lie=False)


def test_a_source_without_records_is_refused() -> None:
    """A weight on an empty set is an error that names the source; without weight it does no harm."""
    assert len(make_mix([5, 0], (1, 0))) == 5

    with pytest.raises(ConfigError, match="source 1 of the mix"):
        make_mix([5, 0], (1, 1))


def test_a_mix_is_known_by_content_and_weights() -> None:
    """The fingerprint is made of sources, weights, length and stop; the unit of weights does not matter."""
    one = make_mix([70, 30], (0.7, 0.3)).fingerprint()

    assert make_mix([70, 30], (7, 3)).fingerprint() == one
    assert make_mix([70, 30], (0.7, 0.3)).reweighed((0.5, 0.5), 2).fingerprint() == one
    others = [
        make_mix([70, 31], (0.7, 0.3)),
        make_mix([70, 30], (0.6, 0.4)),
        make_mix([70, 30], (0.7, 0.3), length=100),
        make_mix([70, 30], (0.7, 0.3), stop="all"),
    ]
    assert one not in {table.fingerprint() for table in others}
