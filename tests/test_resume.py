"""A state goes on at the very next record: at every position, with other workers, ranks and batches."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import counted, pack
from orders import WORLDS
from resuming import RecordingDataset, pairwise, rows, run, steps, take

from aioload import Loader

RECORDS = 61
MODES = [False, True, "full"]
BATCH_SIZES = [1, 3, 5, 8]

SHAPES = pairwise(
    {
        "shuffle": MODES,
        "workers": [0, 1, 4],
        "workers_after": [0, 1, 4],
        "batch_size": [3, 4],
        "batch_size_after": [2, 3, 7],
        "world_size": [1, 2, 3],
        "world_size_after": [1, 2, 3],
        "memory_limit": ["auto", "24MiB"],
        "batches": [1, 3, 5],
    },
    times=2,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """61 records in four shards."""
    return counted(tmp_path_factory.mktemp("resume") / "set", RECORDS, shard_bytes=3500)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 records of 6,000 bytes: so far apart that no read runs over one that is not due."""
    samples = ({"n": record, "x": bytes(6000)} for record in range(300))
    return pack(tmp_path_factory.mktemp("large") / "set", {"n": "int", "x": "bytes"}, samples)


def in_steps(order: list[int], size: int) -> list[list[int]]:
    """Cut an order into global batches, each sorted."""
    return [sorted(order[low : low + size]) for low in range(0, len(order), size)]


def states(path: Path, shuffle: Any) -> tuple[list[int], list[dict[str, Any]]]:
    """Return an epoch's order, and the state at each of its positions."""
    with Loader(path, batch_size=1, num_workers=0, shuffle=shuffle, seed=4).sync() as loader:
        found = [loader.state_dict()]
        order = []
        for batch in loader:
            order += rows(batch)
            found.append(loader.state_dict())
    return order, found


# Every position ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", MODES)
def test_every_position_goes_on_exactly(path: Path, shuffle: Any) -> None:
    """From each of 61 positions, with world and batch sizes in turn: exactly what was to come."""
    order, saved = states(path, shuffle)
    shapes = list(itertools.islice(itertools.cycle(itertools.product(BATCH_SIZES, WORLDS)), RECORDS))

    found = [
        steps(path, state, world, batch_size=size, num_workers=0, shuffle=shuffle, seed=4)
        for state, (size, world) in zip(saved, shapes, strict=False)
    ]

    assert sorted(order) == list(range(RECORDS))
    assert found == [in_steps(order[at:], size * world) for at, (size, world) in enumerate(shapes)]


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("shuffle", MODES)
def test_every_position_in_every_shape(path: Path, shuffle: Any, batch_size: int, world_size: int) -> None:
    """The whole matrix of the test above, with two workers on rank 0."""
    order, saved = states(path, shuffle)
    options = {"batch_size": batch_size, "num_workers": 2, "shuffle": shuffle, "seed": 4}

    found = [steps(path, state, world_size, **options) for state in saved[:-1]]

    assert found == [in_steps(order[at:], batch_size * world_size) for at in range(RECORDS)]


def ident(case: dict[str, Any]) -> str:
    """Name a case by its values."""
    return "-".join(map(str, case.values()))


@pytest.mark.parametrize("case", SHAPES, ids=ident)
def test_pairs_of_changes_go_on_exactly(path: Path, case: dict[str, Any]) -> None:
    """Any two changes together: the state of the last rank, taken with workers, serves all ranks after."""
    world, batches = case["world_size"], case["batches"]
    last = {"rank": world - 1, "world_size": world, "batch_size": case["batch_size"]}
    options = {"shuffle": case["shuffle"], "seed": 4}
    order, _ = states(path, case["shuffle"])

    _, state = run(path, None, batches, num_workers=case["workers"], **last, **options)
    found = steps(
        path,
        state,
        case["world_size_after"],
        batch_size=case["batch_size_after"],
        num_workers=case["workers_after"],
        memory_limit=case["memory_limit"],
        **options,
    )

    position = batches * case["batch_size"] * world
    assert state["position"] == position
    assert found == in_steps(order[position:], case["batch_size_after"] * case["world_size_after"])


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers_after", [0, 1, 4])
@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("shuffle", MODES)
def test_every_change_of_workers_at_every_batch(
    path: Path, shuffle: Any, workers: int, workers_after: int
) -> None:
    """After each batch of an epoch, from and to 0, 1 and 4 workers."""
    order, _ = states(path, shuffle)
    options = {"batch_size": 5, "shuffle": shuffle, "seed": 4}

    saved = [run(path, None, count, num_workers=workers, **options)[1] for count in range(1, 12)]
    found = [run(path, state, None, num_workers=workers_after, **options)[0] for state in saved]

    assert [[n for batch in one for n in batch] for one in found] == [
        order[count * 5 :] for count in range(1, 12)
    ]


@pytest.mark.parametrize("shuffle", MODES)
def test_twice_resumed(path: Path, shuffle: Any) -> None:
    """Stopped, gone on with, stopped again and gone on with: put together, the run that was not stopped."""
    order, _ = states(path, shuffle)
    options = {"num_workers": 0, "shuffle": shuffle, "seed": 4}

    first, state = run(path, None, 3, batch_size=4, **options)
    second, again = run(path, state, 2, batch_size=7, **options)
    third, end = run(path, again, None, batch_size=5, **options)

    assert [n for batch in first + second + third for n in batch] == order
    assert (state["position"], again["position"], end["position"], end["epoch"]) == (12, 26, 0, 1)


@pytest.mark.parametrize("shuffle", MODES)
def test_three_epochs_on(path: Path, shuffle: Any) -> None:
    """After a resume the epochs that follow are whole, and those of the run that was not stopped."""
    options = {"batch_size": 8, "num_workers": 1, "shuffle": shuffle}
    with Loader(path, **options).sync() as loader:
        expected = [[rows(batch) for batch in loader] for _ in range(4)]
    _, state = run(path, None, 5, **options)

    with Loader(path, **options).sync() as loader:
        loader.load_state_dict(state)
        found = [[rows(batch) for batch in loader] for _ in range(4)]

    assert found == [expected[0][5:], *expected[1:]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_randomness_goes_on(path: Path, num_workers: int) -> None:
    """What a transform draws depends on seed, epoch and record, so a resumed run draws the same."""
    options = {"batch_size": 6, "shuffle": True, "transform": draw}
    with Loader(path, num_workers=0, **options).sync() as loader:
        list(loader)
        expected = [batch["drawn"].tolist() for batch in loader]
    with Loader(path, num_workers=1, **options).sync() as loader:
        list(loader)
        taken = take_drawn(loader, 4)
        state = loader.state_dict()

    with Loader(path, num_workers=num_workers, **options).sync() as loader:
        loader.load_state_dict(state)
        rest = take_drawn(loader, None)

    assert taken + rest == expected


def draw(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Draw from both kinds of generators."""
    return {"drawn": np.array([rng.integers(1 << 30), np.random.randint(1 << 30)])}


def take_drawn(loader: Any, batches: int | None) -> list[Any]:
    """Take what was drawn for some batches."""
    return [batch["drawn"].tolist() for batch in itertools.islice(loader, batches)]


# When it was saved ------------------------------------------------------------------------------------


def test_saved_before_the_first_batch(path: Path) -> None:
    """A state of a loader that has not begun, or whose iterator has given nothing, is the beginning."""
    with Loader(path, batch_size=8, num_workers=1, shuffle=True).sync() as loader:
        before = loader.state_dict()
        iterator = iter(loader)
        begun = loader.state_dict()
        del iterator

    found, _ = run(path, begun, None, batch_size=8, num_workers=0, shuffle=True)

    assert before == begun
    assert (begun["epoch"], begun["position"]) == (0, 0)
    assert len(found) == 8


def test_saved_after_the_last_batch(path: Path) -> None:
    """With the last batch in hand, also before the loop has noticed its end, the next epoch is due."""
    with Loader(path, batch_size=8, num_workers=1, shuffle=True).sync() as loader:
        source = iter(loader)
        batches = [rows(next(source)) for _ in range(8)]
        state = loader.state_dict()
        over = next(source, None)
        after = loader.state_dict()

    assert sum(map(len, batches)) == RECORDS
    assert (state["epoch"], state["position"]) == (1, 0)
    assert over is None
    assert after == state


def test_saved_right_after_loading(path: Path) -> None:
    """Loading and saving again changes nothing, whether or not an iteration has begun."""
    _, state = run(path, None, 3, batch_size=8, num_workers=0, shuffle=True)

    with Loader(path, batch_size=8, num_workers=0, shuffle=True).sync() as loader:
        loader.load_state_dict(state)
        loaded = loader.state_dict()
        iterator = iter(loader)
        begun = loader.state_dict()
        first = rows(next(iterator))

    assert loaded == begun == state
    assert first == run(path, state, 1, batch_size=8, num_workers=0, shuffle=True)[0][0]


def test_a_state_does_not_count_what_was_read_ahead(path: Path) -> None:
    """However deep the prefetch, the state is what was handed out."""
    with Loader(path, batch_size=2, num_workers=1, prefetch=30).sync() as loader:
        source = iter(loader)
        found = [(next(source) and None) or loader.state_dict()["position"] for _ in range(4)]

    assert found == [2, 4, 6, 8]


def test_a_state_after_a_failure_is_what_was_handed_out(path: Path) -> None:
    """A batch that failed was not handed out: whoever goes on meets it again, at its place."""

    def fail(sample: Any) -> Any:
        return sample if sample["n"] != 17 else 1 / 0

    options = {"batch_size": 5, "num_workers": 1, "transform": fail}
    with Loader(path, **options).sync() as loader:
        source = iter(loader)
        before = [rows(next(source)) for _ in range(3)]
        with pytest.raises(Exception, match="ZeroDivisionError"):
            next(source)
        state = loader.state_dict()
    found, _ = run(path, state, 1, batch_size=5, num_workers=0)

    assert before[-1] == [10, 11, 12, 13, 14]
    assert state["position"] == 15
    assert found == [[15, 16, 17, 18, 19]]


def test_loading_ends_an_iteration_that_is_under_way(path: Path) -> None:
    """The old iterator says why it ended; the next begins where the state says; `remaining` tells all."""
    with Loader(path, batch_size=8, num_workers=1).sync() as loader:
        source = iter(loader)
        next(source)
        state = loader.state_dict()
        next(source)
        loader.load_state_dict(state)
        remaining = loader.remaining
        with pytest.raises(Exception, match="a state was loaded"):
            next(source)
        found = [rows(batch) for batch in loader]

    assert remaining == len(found) == 7
    assert found[0] == list(range(8, 16))


# Padding and dropping ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", MODES)
def test_padding_is_told_for_a_resumed_epoch(path: Path, shuffle: Any) -> None:
    """Resumed with another world size, `padded` speaks of this epoch to its last batch, then of the next."""
    order, saved = states(path, shuffle)
    options = {"rank": 3, "world_size": 4, "batch_size": 3, "num_workers": 0, "shuffle": shuffle, "seed": 4}

    with Loader(path, **options).sync() as loader:
        loader.load_state_dict(saved[34])
        told = [loader.padded]
        for batch in loader:
            told.append(loader.padded)
            last = rows(batch)
        next(iter(loader))
        told.append(loader.padded)

    assert told == [1, 1, 1, 1, 1]  # 27 are left, then 61 again: both lack one row of a multiple of 4
    assert last[-1] == order[0]


def test_padding_of_a_resumed_epoch_may_differ_from_the_next(path: Path) -> None:
    """27 records for 3 ranks need no padding, a whole epoch of 61 needs two rows."""
    _, saved = states(path, False)

    with Loader(path, rank=2, world_size=3, batch_size=2, num_workers=0, seed=4).sync() as loader:
        fresh = loader.padded
        loader.load_state_dict(saved[34])
        told = [(loader.padded, rows(batch)) for batch in loader]
        ended = loader.padded
        next(iter(loader))
        again = loader.padded

    assert (fresh, ended, again) == (1, 0, 1)
    assert [padded for padded, _ in told] == [0] * 5
    assert told[-1][1] == [60]


def test_drop_last_counts_from_the_position(path: Path) -> None:
    """A resumed epoch leaves out what does not fill a batch; with less than one left it is over at once."""
    _, saved = states(path, False)

    with Loader(path, batch_size=8, num_workers=0, drop_last=True, seed=4).sync() as loader:
        loader.load_state_dict(saved[40])
        lengths = [(loader.remaining, len(list(loader)))]
        loader.load_state_dict(saved[55])
        lengths += [(loader.remaining, len(list(loader))) for _ in range(2)]
        epoch = loader.epoch

    assert lengths == [(2, 2), (0, 0), (7, 7)]
    assert epoch == 2


# Reads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", MODES)
@pytest.mark.parametrize("batches", [1, 13, 57])
def test_nothing_is_read_that_was_handed_out_before(large: Path, shuffle: Any, batches: int) -> None:
    """A resumed run reads no record that came before its state, and none twice."""
    options = {"batch_size": 5, "num_workers": 0, "shuffle": shuffle, "prefetch": 1}
    before, state = run(large, None, batches, **options)
    dataset = RecordingDataset(large)

    with Loader(dataset, **options).sync() as loader:
        loader.load_state_dict(state)
        found = take(loader, 2)
        read = dataset.records_read

    handed_out = {n for batch in before for n in batch}
    assert handed_out.isdisjoint(read)
    assert {n for batch in found for n in batch} <= set(read)
    assert len(read) == len(set(read))


def test_the_first_batch_of_a_resume_takes_no_more_reads(large: Path) -> None:
    """Before its first batch a resumed run has read about as much as a fresh one: nothing is replayed."""
    options = {"batch_size": 5, "num_workers": 0, "prefetch": 1}
    _, state = run(large, None, 50, **options)
    fresh, resumed = RecordingDataset(large), RecordingDataset(large)

    with Loader(fresh, **options).sync() as loader:
        next(iter(loader))
    with Loader(resumed, **options).sync() as loader:
        loader.load_state_dict(state)
        next(iter(loader))

    assert len(resumed.records_read) <= 2 * 5 + 5
    assert len(fresh.records_read) <= 2 * 5 + 5
