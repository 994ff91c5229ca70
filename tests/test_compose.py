"""Selections, several sets end to end and mixes load like one set: content, ranks, resuming, randomness."""

from __future__ import annotations

import json
import pickle
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import counted, pack
from orders import WORLDS
from resuming import RecordingDataset, rows, steps, take

from aioload import Concat, ConfigError, Dataset, Loader, Mix
from aioload.compose import Selection
from aioload.errors import SampleError

MODES = [False, True, "full"]
A, B = 60, 36  # records of the two sets


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two sets of the same fields, 60 records in four shards and 36 in two, told apart by `text`."""
    folder = tmp_path_factory.mktemp("compose")
    samples = ({"n": 1000 + n, "text": f"b{n}", "array": np.full((2, 3), n, np.float32)} for n in range(B))
    fields = {"n": "int", "text": "str", "array": "ndarray"}
    return (
        counted(folder / "a", A, shard_bytes=3500),
        pack(folder / "b", fields, samples, shard_bytes=3500),
    )


@pytest.fixture
def a(paths: tuple[Path, Path]) -> Dataset:
    """60 records whose `n` is their number."""
    return Dataset(paths[0])


@pytest.fixture
def b(paths: tuple[Path, Path]) -> Dataset:
    """36 records whose `n` is 1000 more than their number."""
    return Dataset(paths[1])


def loaded(collection: Any, epochs: int = 1, **options: Any) -> list[list[int]]:
    """Return the records that a loader gives in some epochs."""
    with Loader(collection, **({"batch_size": 7, "num_workers": 0} | options)).sync() as source:
        return [[n for batch in take(source) for n in batch] for _ in range(epochs)]


def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return a record's number with what its randomness gives, and its set."""
    return {"n": sample["n"], "r": int(rng.integers(1 << 40)), "s": sample.get("__source__", -1)}


# Selections -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (range(10, 20), list(range(10, 20))),
        (range(50, 3, -7), [50, 43, 36, 29, 22, 15, 8]),
        (slice(-5, None), [55, 56, 57, 58, 59]),
        (slice(None, None, 20), [0, 20, 40]),
        (np.arange(A) % 9 == 4, [4, 13, 22, 31, 40, 49, 58]),
        ([True] * 3 + [False] * (A - 3), [0, 1, 2]),
        ([17, 3, 59, 4], [17, 3, 59, 4]),
        (np.array([5, 3], np.uint8), [5, 3]),
        ([8], [8]),
        ([], []),
        (range(0), []),
    ],
    ids=str,
)
def test_a_selection_gives_what_was_asked_for(a: Dataset, wanted: Any, expected: list[int]) -> None:
    """Without a shuffle records come in the order given, by index and by loader; with one, all of them."""
    selection = a.select(wanted)

    assert len(selection) == len(expected)
    assert [selection[i]["n"] for i in range(len(selection))] == expected
    assert loaded(selection) == [expected]
    assert [sorted(epoch) for epoch in loaded(selection, 2, shuffle=True)] == [sorted(expected)] * 2


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([3, 4, 3], "record 3 was selected twice"),
        ([0, A], f"records are 0 to {A - 1}, but {A}"),
        ([-1], "but -1 was selected"),
        (range(A + 1), "not within the records"),
        (range(-1, 5), "not within the records"),
        ([True, False], "a mask has a truth value for each of the 60"),
        ([0.5], "select takes"),
        ([[1, 2]], "select takes"),
        ("3", "select takes"),
    ],
    ids=str,
)
def test_a_selection_that_cannot_be_is_refused(a: Dataset, wanted: Any, message: str) -> None:
    """Records that are not there, or twice, or no numbers, are an error that says which."""
    with pytest.raises(ConfigError, match=message):
        a.select(wanted)


def test_selections_of_selections_compose(a: Dataset) -> None:
    """A selection is numbered from 0 like a set, and selecting of it selects of the set, in every kind."""
    numbers = np.arange(A)
    wild = np.random.default_rng(1).permutation(A)[:40]
    kinds: list[Any] = [range(5, 55), slice(None, None, -1), wild]

    for first in kinds:
        for second in (range(3, 30, 4), range(30, 3, -4), [9, 2, 30], numbers[:40] % 3 == 0):
            size = len(a.select(first))
            inner = second if not isinstance(second, np.ndarray) else np.arange(size) % 3 == 0
            found = a.select(first).select(inner)
            expected = (numbers[list(first)] if isinstance(first, range) else numbers[first])[
                list(inner) if isinstance(inner, range) else inner
            ]
            assert [found[i]["n"] for i in range(len(found))] == expected.tolist()


def test_randomness_does_not_depend_on_the_selection(a: Dataset) -> None:
    """A record's augmentation is that of the whole set."""
    with Loader(a, batch_size=A, num_workers=0, transform=drawn).sync() as source:
        whole = dict(zip(*(next(iter(source))[name].tolist() for name in ("n", "r")), strict=True))

    with Loader(a.select([40, 7, 22]), batch_size=3, num_workers=0, transform=drawn).sync() as source:
        some = dict(zip(*(next(iter(source))[name].tolist() for name in ("n", "r")), strict=True))

    assert some == {n: whole[n] for n in (40, 7, 22)}


@pytest.mark.parametrize("wanted", [range(10, 40), [3, 4, 5, 30, 31, 50]], ids=["range", "list"])
def test_only_what_was_selected_is_read(paths: tuple[Path, Path], wanted: Any) -> None:
    """A block shuffle reads each selected record once, and no other."""
    dataset = RecordingDataset(paths[0])
    options = {"shuffle": True, "lanes": 2, "block_bytes": 1500, "num_workers": 0, "prefetch": 1}

    with Loader(dataset.select(wanted), batch_size=2, **options).sync() as source:
        take(source, len(source) - 1)  # so that the next epoch does not begin ahead
        read = dataset.records_read

    assert len(set(read)) == len(read) >= len(wanted) - 2
    assert set(read) <= set(wanted)


@pytest.mark.parametrize("shuffle", MODES)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_selection_resumes(a: Dataset, shuffle: Any, world_size: int) -> None:
    """A run goes on with another world size where it stopped; another selection is refused."""
    selection = a.select(range(1, A, 2))
    options = {"shuffle": shuffle, "num_workers": 0}
    with Loader(selection, batch_size=6, **options).sync() as source:
        before = take(source, 2)
        state = source.state_dict()

    after = steps(selection, state, world_size, batch_size=4, **options)

    assert sorted(n for batch in before + after for n in batch) == list(range(1, A, 2))
    with (
        Loader(a.select(range(0, A, 2)), batch_size=6, **options).sync() as other,
        pytest.raises(ConfigError, match="other data"),
    ):
        other.load_state_dict(state)


# Splits -----------------------------------------------------------------------------------------------


def test_a_split_is_disjoint_and_complete(a: Dataset) -> None:
    """Parts hold every record once, in exact sizes, each in the order of the records, and at random."""
    parts = a.split({"train": 0.7, "val": 0.2, "test": 0.1}, seed=4)

    numbers = {name: loaded(part)[0] for name, part in parts.items()}
    assert {name: len(part) for name, part in parts.items()} == {"train": 42, "val": 12, "test": 6}
    assert sorted(n for part in numbers.values() for n in part) == list(range(A))
    assert all(part == sorted(part) for part in numbers.values())
    assert max(numbers["val"]) - min(numbers["val"]) > 20


def test_a_split_depends_on_size_and_seed_alone(a: Dataset, paths: tuple[Path, Path]) -> None:
    """The same split comes out each time and for other content of that size; another seed gives another."""
    shares = {"train": 0.5, "val": 0.5}

    first, again, other = (loaded(a.split(shares, seed=seed)["val"]) for seed in (1, 1, 2))
    elsewhere = Concat([Dataset(paths[1]), a.select(range(A - B))]).split(shares, seed=1)["val"]

    assert first == again != other
    assert [elsewhere._picks[i] for i in range(3)] == first[0][:3]


def test_a_split_by_numbers_may_leave_records(a: Dataset) -> None:
    """Whole numbers are numbers of records; shares that do not fit are given out by largest remainder."""
    few = a.split({"few": 3, "more": 10})
    thirds = a.select(range(10)).split({"x": 1 / 3, "y": 1 / 3, "z": 1 / 3})

    assert [len(part) for part in few.values()] == [3, 10]
    assert len({n for part in few.values() for n in loaded(part)[0]}) == 13
    assert [len(part) for part in thirds.values()] == [4, 3, 3]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"a": 0.9},
        {"a": 0.9, "b": 0.2},
        {"a": -0.1, "b": 1.1},
        {"a": 61},
        {"a": -1},
        {"a": 1, "b": 0.5},
        {"a": "x"},
    ],
    ids=str,
)
def test_a_split_that_cannot_be_is_refused(a: Dataset, parts: Any) -> None:
    """Shares sum to 1, numbers fit, and the two are not mixed."""
    with pytest.raises(ConfigError):
        a.split(parts)


# Concat -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_sets_come_one_after_the_other(a: Dataset, b: Dataset, num_workers: int) -> None:
    """Records keep set and order, and transforms are told the set."""
    both = Concat([a, b.select(range(10, 20)), b])

    with Loader(both, batch_size=20, num_workers=num_workers, transform=drawn).sync() as source:
        found = [
            pair for batch in source for pair in zip(batch["n"].tolist(), batch["s"].tolist(), strict=True)
        ]

    assert found == [
        *((n, 0) for n in range(A)),
        *((1000 + n, 1) for n in range(10, 20)),
        *((1000 + n, 2) for n in range(B)),
    ]
    assert (both[A]["text"], both[A]["__source__"]) == ("b10", 1)
    assert both[-1]["text"] == f"b{B - 1}"


@pytest.mark.parametrize("shuffle", MODES)
@pytest.mark.parametrize("world_size", WORLDS)
def test_concatenated_sets_are_shared_out(a: Dataset, b: Dataset, shuffle: Any, world_size: int) -> None:
    """All ranks together get each record of each set once."""
    found = steps(Concat([a, b]), None, world_size, batch_size=5, shuffle=shuffle, num_workers=0)

    assert sorted(n for batch in found for n in batch) == [*range(A), *range(1000, 1000 + B)]


def test_sets_of_other_fields_are_refused(a: Dataset, tmp_path: Path) -> None:
    """Sets go together only if their fields and kinds are the same; the error says what differs."""
    other = Dataset(pack(tmp_path / "c", {"n": "float", "text": "str"}, [{"n": 1.5, "text": "x"}]))

    with pytest.raises(
        ConfigError, match=r"has array ndarray, n int where .* has array missing, n float"
    ) as caught:
        Concat([a, other])
    with pytest.raises(ConfigError, match="Mix takes sets with the same fields"):
        Mix([(a, 1), (other, 1)])

    assert caught.value.facts["field"] == "array"


def test_errors_name_the_set(a: Dataset, b: Dataset) -> None:
    """A failure in one of several sets says in which shard of which set."""

    def fail(sample: dict[str, Any]) -> Any:
        if sample["n"] == 1003:
            raise ValueError(sample["n"])
        return sample

    with (
        Loader(Concat([a, b]), batch_size=100, num_workers=0, transform=fail).sync() as source,
        pytest.raises(SampleError) as caught,
    ):
        next(iter(source))

    assert str(b.source) in str(caught.value.shard)
    assert caught.value.record == 3


# Mixes ------------------------------------------------------------------------------------------------


def test_a_mix_ends_with_its_first_source(a: Dataset, b: Dataset) -> None:
    """By default an epoch is over when a source has given all its records; weights hold, sets are told."""
    mix = Mix([(a, 0.75), (b, 0.25)])
    assert len(mix) == 80

    with Loader(mix, batch_size=16, shuffle=True, num_workers=0, transform=drawn).sync() as source:
        epochs = [list(source) for _ in range(2)]

    sets = [Counter(s for batch in epoch for s in batch["s"].tolist()) for epoch in epochs]
    numbers = [sorted(n for batch in epoch for n in batch["n"].tolist()) for epoch in epochs]
    assert sets == [{0: 60, 1: 20}] * 2
    assert [n for n in numbers[0] if n < 1000] == [n for n in numbers[1] if n < 1000] == list(range(A))
    of_b = [n for epoch in numbers for n in epoch if n >= 1000]
    assert len(set(of_b)) == B
    assert Counter(Counter(of_b).values()) == {1: 32, 2: 4}  # 40 of 36: its second own epoch has begun


def test_a_mix_ends_with_its_last_source(a: Dataset, b: Dataset) -> None:
    """With stop="all" every record comes, and the source that ends early starts over in another order."""
    mix = Mix([(a, 1), (b.select(range(4)), 1)], stop="all")

    found = loaded(mix, shuffle="full")[0]

    assert len(mix) == len(found) == 120
    assert Counter(found) == {**dict.fromkeys(range(A), 1), **dict.fromkeys(range(1000, 1004), 15)}
    small = [n for n in found if n >= 1000]
    assert len({tuple(small[i : i + 4]) for i in range(0, 60, 4)}) > 5


@pytest.mark.parametrize("shuffle", MODES)
@pytest.mark.parametrize("world_size", WORLDS)
def test_a_mix_is_shared_out(a: Dataset, b: Dataset, shuffle: Any, world_size: int) -> None:
    """Which samples are in a global batch does not depend on how many ranks share it."""
    mix = Mix([(a, 0.7), (b, 0.3)], length=96)
    options = {"shuffle": shuffle, "num_workers": 0}

    alone = steps(mix, None, 1, batch_size=24, **options)

    assert steps(mix, None, world_size, batch_size=24 // world_size, **options) == alone
    assert [sum(n < 1000 for n in batch) for batch in alone] == pytest.approx([16.8] * 4, abs=2)


@pytest.mark.parametrize("batches", range(0, 17))
def test_a_mix_resumes_anywhere(a: Dataset, b: Dataset, batches: int) -> None:
    """From each position a run goes on with other ranks and batches as if it had not stopped."""
    mix = Mix([(a, 0.75), (b, 0.25)])
    options = {"shuffle": True, "num_workers": 0}
    with Loader(mix, batch_size=5, **options).sync() as source:
        whole = [n for _ in range(2) for batch in take(source) for n in batch]
    with Loader(mix, batch_size=5, **options).sync() as source:
        before = take(source, batches) if batches else []
        state = json.loads(json.dumps(source.state_dict()))

    after = steps(mix, state, 2, batch_size=4, **options)

    position, stop = 5 * batches, 160 if batches == 16 else 80
    assert [n for batch in before for n in batch] == whole[:position]
    assert [n for batch in after for n in batch] == [
        n for start in range(position, stop, 8) for n in sorted(whole[start : min(start + 8, stop)])
    ]


def test_randomness_goes_by_own_epoch_and_record(a: Dataset, b: Dataset) -> None:
    """A sample is augmented as its record is in that epoch, whatever the weights, and never twice alike."""
    options = {"shuffle": True, "num_workers": 0, "transform": drawn, "batch_size": 10}

    def draws(weights: tuple[float, float], epochs: int) -> list[tuple[int, int]]:
        mix = Mix([(a, weights[0]), (b.select(range(5)), weights[1])], length=60)
        with Loader(mix, **options).sync() as source:
            batches = [batch for _ in range(epochs) for batch in source]
        return [
            pair for batch in batches for pair in zip(batch["n"].tolist(), batch["r"].tolist(), strict=True)
        ]

    one, other = draws((1, 1), 2), draws((3, 1), 2)

    assert len(set(one)) == len(one) == 120
    assert {pair for pair in other if pair[0] >= 1000} <= set(one)
    assert {pair for pair in one if pair[0] < 1000} <= set(other)


def test_each_record_of_a_mix_is_read_once(paths: tuple[Path, Path]) -> None:
    """A block shuffle of a mix reads each record that is drawn once, ranks what is theirs alone."""
    a, b = RecordingDataset(paths[0]), RecordingDataset(paths[1])
    mix = Mix([(a, 60), (b, 36)])
    options = {"shuffle": True, "lanes": 4, "block_bytes": 600, "num_workers": 0, "prefetch": 1}

    for rank in (0, 1):
        with Loader(mix, batch_size=4, rank=rank, world_size=2, **options).sync() as source:
            take(source, len(source) - 1)  # so that the next epoch does not begin ahead

    assert set(Counter(a.records_read).values()) == set(Counter(b.records_read).values()) == {1}
    assert len(a.records_read) + len(b.records_read) >= A + B - 8


def test_weights_change_at_the_next_epoch(a: Dataset, b: Dataset) -> None:
    """Weights that are set in an epoch hold from the next, also where that was already begun ahead."""
    mix = Mix([(a, 0.75), (b, 0.25)], length=40)
    with Loader(mix, batch_size=10, shuffle=True, num_workers=0).sync() as source:
        first = take(source, 2)
        mix.set_weights([0.25, 0.75])
        assert len(source) == 4
        state = source.state_dict()
        source.load_state_dict(state)
        first += take(source)
        later = [[n for batch in take(source) for n in batch] for _ in range(3)]

    shares = [sum(n < 1000 for n in epoch) for epoch in ([n for batch in first for n in batch], *later)]
    of_a = [n for batch in first for n in batch if n < 1000] + [
        n for epoch in later for n in epoch if n < 1000
    ]
    assert shares == [30, 10, 10, 10]
    assert sorted(of_a) == list(range(A))  # 30 + 10 + 10 + 10: the source goes on where it stopped


def test_changed_weights_ride_in_the_state(a: Dataset, b: Dataset) -> None:
    """A run whose weights were changed, or are to change, goes on exactly in another process's mix."""

    def make() -> Mix:
        return Mix([(a, 0.75), (b, 0.25)], length=40)

    mix, states, found = make(), [], []  # of 3 epochs of 4 batches
    with Loader(mix, batch_size=10, shuffle=True, num_workers=0).sync() as source:
        for epoch in range(3):
            for batch in source:
                mix.set_weights([1 + epoch, 3])
                states.append(json.dumps(source.state_dict()))
                found.append(rows(batch))

    for at, state in enumerate(states):
        with Loader(make(), batch_size=10, shuffle=True, num_workers=0).sync() as source:
            source.load_state_dict(json.loads(state))
            again = take(source) + take(source)
        known = found[at + 1 : at // 4 * 4 + 8]  # up to the weights that are set next
        assert known == again[: len(known)]
    assert max(map(len, states)) < 1024


def test_the_length_follows_the_weights(a: Dataset, b: Dataset) -> None:
    """Where a source's end is the epoch's, other weights make another number of batches."""
    mix = Mix([(a, 0.75), (b, 0.25)])
    with Loader(mix, batch_size=10, num_workers=0).sync() as source:
        before = len(source), len(mix)
        mix.set_weights([0.25, 0.75])
        after = len(source), len(mix)
        batches = take(source)

    assert (before, after) == ((8, 80), (5, 48))
    assert [len(batch) for batch in batches] == [10, 10, 10, 10, 8]


def test_a_state_of_another_mix_is_refused(a: Dataset, b: Dataset) -> None:
    """A state fits sources, weights, length and stop; and no mix's state fits a set, nor a set's a mix."""
    with Loader(Mix([(a, 0.75), (b, 0.25)]), batch_size=5, num_workers=0).sync() as source:
        state = source.state_dict()

    for other in (
        Mix([(a, 0.7), (b, 0.3)]),
        Mix([(b, 0.75), (a, 0.25)]),
        Mix([(a, 0.75), (b, 0.25)], stop="all"),
        a,
    ):
        with (
            Loader(other, batch_size=5, num_workers=0).sync() as refused,
            pytest.raises(ConfigError, match="other data"),
        ):
            refused.load_state_dict(state)
    with Loader(a, batch_size=5, num_workers=0).sync() as refused, pytest.raises(ConfigError, match="mix"):
        refused.load_state_dict({**state, "mix": {"epoch": 0}})


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"epoch": -1, "draws": [0, 0], "weights": [1, 1], "next_weights": [1, 1]},
        {"epoch": 1, "draws": [0], "weights": [1, 1], "next_weights": [1, 1]},
        {"epoch": 1, "draws": [0, -2], "weights": [1, 1], "next_weights": [1, 1]},
        {"epoch": 1, "draws": [0, 0], "weights": [0, 0], "next_weights": [1, 1]},
        {"epoch": 1, "draws": 3, "weights": [1, 1], "next_weights": [1, 1]},
    ],
    ids=str,
)
def test_a_damaged_state_of_a_mix_is_refused(a: Dataset, b: Dataset, saved: Any) -> None:
    """What cannot be the weights and cursors of the mix is an error, and changes nothing."""
    mix = Mix([(a, 0.75), (b, 0.25)])
    with Loader(mix, batch_size=5, num_workers=0).sync() as source:
        state = source.state_dict()

        with pytest.raises(ConfigError):
            source.load_state_dict({**state, "mix": saved})

        assert source.state_dict() == state
    assert mix.weights == (0.75, 0.25)


def test_moved_sets_resume(paths: tuple[Path, Path], tmp_path: Path) -> None:
    """Where the sets lie is no part of a state."""

    def make(one: Path, other: Path) -> Mix:
        return Mix([(Dataset(one), 0.75), (Dataset(other).split({"x": 20, "y": 16})["x"], 0.25)])

    with Loader(make(*paths), batch_size=5, num_workers=0).sync() as source:
        take(source, 3)
        state = source.state_dict()
    mix = make(*(Path(shutil.copytree(path, tmp_path / path.name)) for path in paths))

    with Loader(mix, batch_size=5, num_workers=0).sync() as source:
        source.load_state_dict(state)
        again = take(source)

    assert [n for batch in again for n in batch] == loaded(mix)[0][15:]


@pytest.mark.parametrize(
    ("parts", "options"),
    [
        ([], {}),
        ([(1, 0.5)], {}),
        ([("a", -0.5), ("a", 1)], {}),
        ([("a", 0)], {}),
        ([("a", 1)], {"length": 0}),
        ([("a", 1)], {"length": 2.5}),
        ([("a", 1)], {"stop": "never"}),
        ([("a", 1)] * 257, {}),
        ([("a", 1, 2)], {}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_mix_that_cannot_be_is_refused(a: Dataset, parts: list[Any], options: dict[str, Any]) -> None:
    """Sets, weights, length and stop are checked before anything starts."""
    pairs = [tuple(a if part == "a" else part for part in pair) for pair in parts]

    with pytest.raises(ConfigError):
        Mix(pairs, **options)


def test_mixes_are_not_nested(a: Dataset, b: Dataset) -> None:
    """A mix has no records of its own, so nothing is made of it; the errors say what to do."""
    mix = Mix([(a, 1), (b, 1)])

    with pytest.raises(ConfigError, match="mix"):
        Concat([a, mix])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="mix"):
        Mix([(a, 1), (mix, 1)])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="2 sources"):
        mix.set_weights([1, 2, 3])


# What all offer ---------------------------------------------------------------------------------------


def test_collections_travel_and_tell_what_they_are(a: Dataset, b: Dataset) -> None:
    """They survive pickling, also after use, and their repr shows what they are made of."""
    mix = Mix([(a.select([3, 1]), 1), (b, 1)])
    mix.set_weights([1, 3])
    collections = [a.select(range(5)), a.select([3, 1]), Concat([a, b]), mix]
    lengths = [len(collection) for collection in collections]

    again = [pickle.loads(pickle.dumps(collection)) for collection in collections]

    assert lengths == [5, 2, A + B, 8]
    assert [len(collection) for collection in again] == lengths
    assert [loaded(collection) for collection in again] == [loaded(collection) for collection in collections]
    assert repr(again[0]) == f"<Selection {a.source} (5 of its records)>"
    assert repr(again[2]) == f"<Concat {a.source} + {b.source}>"
    assert repr(again[3]) == f"<Mix mix of {a.source} (2 of its records), {b.source}>"
    assert isinstance(again[0], Selection)


def test_metadata_is_what_the_sets_have_in_common(a: Dataset, tmp_path: Path) -> None:
    """Classes and the like are those that all parts were packed with."""
    fields, sample = {"n": "int"}, [{"n": 1}]
    one, same, other = (
        Dataset(pack(tmp_path / name, fields, sample, metadata={"classes": classes}))
        for name, classes in (("x", ["cat"]), ("y", ["cat"]), ("z", ["dog"]))
    )

    assert Concat([one, same]).metadata == Mix([(one, 1), (same, 1)]).metadata == {"classes": ["cat"]}
    assert Concat([one, other]).metadata is None
    assert one.select([0]).metadata == {"classes": ["cat"]}
    assert Concat([one, same]).fields == {"n": "int"}


@pytest.mark.parametrize("number", [8, -9])
def test_a_sample_that_is_not_there_is_an_index_error(a: Dataset, b: Dataset, number: int) -> None:
    """Looking beyond a collection raises what a list raises."""
    for collection in (
        a.select(range(8)),
        Concat([a.select(range(4)), b.select(range(4))]),
        Mix([(a, 1)], length=8),
    ):
        with pytest.raises(IndexError):
            collection[number]
