"""What goes wrong with a sample arrives as one error in its place, or is left out and the rest the same."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripts
import torch
from batches import counted, gather, pack, plain, take_sync
from fakes import Raising, identity
from raises import CannotBeShown, HoldsALock, OddMessage, TwoArguments, raising, warning

import aioload
from aioload import AioloadError, ConfigError, Loader, NotFoundError, SampleError, ShardError, Skip

RECORDS = 40
WORKERS = [0, 1, 2]


@pytest.fixture(scope="session")
def forty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 records in several shards."""
    return counted(tmp_path_factory.mktemp("forty") / "set", RECORDS, shard_bytes=1500)


def at(*records: int) -> Raising:
    """A transform that fails at some records."""
    return Raising(lambda sample: sample["n"] in records)


def numbers(batches: list[Any]) -> list[list[int]]:
    """The records of each batch; none where a batch has not even a layout."""
    return [batch["n"].tolist() if batch else [] for batch in batches]


def without(records: set[int], size: int = 8) -> list[list[int]]:
    """The batches that are left without some records."""
    stops = [min(start + size, RECORDS) for start in range(0, RECORDS, size)]
    return [[n for n in range(max(stop - 1, 0) // size * size, stop) if n not in records] for stop in stops]


def caught(loader: Loader, kind: type[BaseException] = AioloadError) -> tuple[list[Any], Any]:
    """Take batches up to an error; return both."""
    found: list[Any] = []
    with loader.sync() as given, pytest.raises(kind) as error:
        found.extend(iter(given))
    return found, error.value


# What user code raises -------------------------------------------------------------------------------


IN_ANY_PROCESS = {
    "ValueError: bad": functools.partial(raising, lambda: ValueError("bad")),
    "TwoArguments: a and b": functools.partial(raising, lambda: TwoArguments("a", "b")),
    "HoldsALock: held": functools.partial(raising, lambda: HoldsALock("held")),
    "StopIteration: over": functools.partial(raising, lambda: StopIteration("over")),
    "StopAsyncIteration: over": functools.partial(raising, lambda: StopAsyncIteration("over")),
    "GeneratorExit: gone": functools.partial(raising, lambda: GeneratorExit("gone")),
    "CancelledError: cut": functools.partial(raising, lambda: asyncio.CancelledError("cut")),
    "MemoryError: full": functools.partial(raising, lambda: MemoryError("full")),
    "ExceptionGroup: two (2 sub-exceptions)": functools.partial(
        raising, lambda: ExceptionGroup("two", [ValueError(), TypeError()])
    ),
    "CannotBeShown: <its message cannot be shown>": functools.partial(raising, CannotBeShown),
    "OddMessage: odd": functools.partial(raising, OddMessage),
    "RuntimeWarning: careful": warning,
}
IN_WORKERS = {
    "SystemExit: 3": functools.partial(raising, lambda: SystemExit(3)),
    "KeyboardInterrupt: now": functools.partial(raising, lambda: KeyboardInterrupt("now")),
    "BaseException: base": functools.partial(raising, lambda: BaseException("base")),
}
CASES = [(told, transform, workers) for told, transform in IN_ANY_PROCESS.items() for workers in WORKERS]
CASES += [(told, transform, workers) for told, transform in IN_WORKERS.items() for workers in (1, 2)]


@pytest.mark.parametrize(("told", "transform", "num_workers"), CASES)
def test_whatever_is_raised_arrives_as_one_error(
    forty: Path, told: str, transform: Callable[[Any], Any], num_workers: int
) -> None:
    """Class, message, traceback, shard, record and key arrive at its step; with skip it is missing."""
    options = {"batch_size": 8, "transform": transform, "num_workers": num_workers}

    found, error = caught(Loader(forty, **options), SampleError)
    left = take_sync(Loader(forty, on_error="skip", **options))

    assert numbers(found) == [list(range(8))]
    assert told in str(error)
    assert (error.record, error.key, error.step) == (13, "k13", 1)
    assert error.shard is not None
    assert error.shard in str(error)
    assert error.error == told.split(":")[0]
    assert "in raising" in error.cause or "in warning" in error.cause
    assert numbers(left) == without({13})


def test_a_class_of_the_script_arrives(forty: Path, tmp_path: Path) -> None:
    """An exception defined in `__main__` needs no main guard and is told by name."""
    script = """
        import sys, aioload

        class Mine(Exception):
            def __init__(self, first, second):
                super().__init__(f"{first}-{second}")

        def transform(sample):
            if sample["n"] == 13:
                raise Mine("a", "b")
            return sample

        loader = aioload.Loader(sys.argv[1], batch_size=8, transform=transform, num_workers=1)
        with loader.sync() as batches:
            try:
                for batch in batches:
                    pass
            except aioload.SampleError as error:
                print(error.error, error.record, str(error).endswith("Mine: a-b"))
    """

    ended = scripts.run(script, forty, folder=tmp_path)

    assert (ended.out, ended.err, ended.status) == ("Mine 13 True\n", "", 0)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_message_of_any_length_is_shortened(forty: Path, num_workers: int) -> None:
    """An exception that prints a whole array does not travel whole."""
    transform = functools.partial(raising, lambda: ValueError("begin" + "x" * 10_000_000 + "end"))

    _, error = caught(Loader(forty, batch_size=8, transform=transform, num_workers=num_workers))

    assert 10_000 < len(str(error)) < 20_000
    assert "begin" in str(error)
    assert str(error).endswith("end")


@pytest.mark.parametrize("num_workers", WORKERS)
def test_collate_that_raises_is_told_at_its_step(forty: Path, num_workers: int) -> None:
    """An error of a whole batch cannot be left out: it names the batch and records, whatever the policy."""

    def collate(samples: list[Any]) -> Any:
        if samples[0]["n"] == 16:
            raise TwoArguments("a", "b")
        return {"n": np.array([sample["n"] for sample in samples])}

    loader = Loader(forty, batch_size=8, collate=collate, num_workers=num_workers, on_error="skip")

    found, error = caught(loader, SampleError)

    assert numbers(found) == cut_first(2)
    assert "TwoArguments: a and b" in str(error)
    assert error.step == 2
    assert "16, 17, 18, 19" in str(error)


def cut_first(batches: int) -> list[list[int]]:
    """The first batches, whole."""
    return without(set())[:batches]


# Leaving out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 3, 8, 40])
@pytest.mark.parametrize("num_workers", WORKERS)
def test_only_the_bad_samples_are_missing(forty: Path, num_workers: int, batch_size: int) -> None:
    """Batches are smaller, never fewer, and the rest is as without bad records."""
    bad = {0, 7, 8, 21, 39}
    loader = Loader(
        forty, batch_size=batch_size, transform=at(*bad), on_error="skip", num_workers=num_workers, prefetch=2
    )

    found = take_sync(loader)

    assert len(found) == len(loader)
    assert numbers(found) == without(bad, batch_size)
    texts = [batch["text"] if batch else [] for batch in found]
    assert texts == [[f"t{n}" for n in batch] for batch in without(bad, batch_size)]
    assert [skipped.record for skipped in loader.skipped] == sorted(bad)
    assert loader.stats().skipped == 5
    assert loader.stats().samples == 35


@pytest.mark.parametrize("shuffle", [True, "full"])
def test_a_shuffled_epoch_is_the_same_with_any_workers(forty: Path, shuffle: Any) -> None:
    """What is left of a shuffled epoch does not depend on the workers, nor do the next epochs."""
    options = {
        "batch_size": 6,
        "transform": at(3, 4, 5, 30),
        "on_error": "skip",
        "shuffle": shuffle,
        "seed": 5,
    }

    runs = []
    for workers in WORKERS:
        with Loader(forty, num_workers=workers, **options).sync() as batches:
            runs.append(plain([list(batches) for _ in range(3)]))

    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_batch_of_which_nothing_is_left_has_no_rows(forty: Path, num_workers: int) -> None:
    """It has the dtypes and shapes of the others, and lists without a text."""
    loader = Loader(forty, batch_size=4, transform=at(8, 9, 10, 11), on_error="skip", num_workers=num_workers)

    found = take_sync(loader)

    whole, empty = found[0], found[2]
    assert len(found) == 10
    assert list(empty) == ["n", "text", "array", "__key__"]
    assert empty["n"].shape == (0,)
    assert empty["n"].dtype == torch.int64
    assert empty["array"].shape == (0, 2, 3)
    assert empty["array"].dtype == whole["array"].dtype
    assert (empty["text"], empty["__key__"]) == ([], [])


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_first_batch_of_which_nothing_is_left_is_an_empty_dict(forty: Path, num_workers: int) -> None:
    """Nobody knows yet what it would look like, whoever is faster among the workers; later it is known."""
    bad = {0, 1, 2, 3, 8, 9, 10, 11}
    loader = Loader(forty, batch_size=4, transform=at(*bad), on_error="skip", num_workers=num_workers)

    with loader.sync() as batches:
        first = list(batches)
        second = list(batches)

    assert first[0] == {}
    assert first[2]["array"].shape == (0, 2, 3)
    assert second[0]["array"].shape == (0, 2, 3)
    assert second[0] is not second[2]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_all_may_be_bad(forty: Path, num_workers: int) -> None:
    """An epoch of which nothing is left still has all its batches."""
    options = {"transform": at(*range(RECORDS)), "on_error": Skip(1.0), "num_workers": num_workers}

    found = take_sync(Loader(forty, batch_size=8, **options))

    assert found == [{}] * 5


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_custom_collate_gets_what_is_left(forty: Path, num_workers: int) -> None:
    """Collate is called with the good samples, and not at all where there are none."""

    def collate(samples: list[Any]) -> Any:
        return {"n": np.array([sample["n"] for sample in samples]), "count": len(samples)}

    options = {"transform": at(1, 4, 5, 6, 7), "collate": collate, "on_error": "skip"}

    found = take_sync(Loader(forty, batch_size=4, num_workers=num_workers, **options))

    assert [batch.get("count") for batch in found[:3]] == [3, None, 4]
    assert found[1] == {}  # a count is no row: nobody knows what it would be


@pytest.mark.parametrize("num_workers", WORKERS)
def test_dtypes_do_not_depend_on_who_is_left(tmp_path: Path, num_workers: int) -> None:
    """A sample of another dtype that is left out takes part in nothing."""
    samples = [{"x": np.zeros(2, np.float64 if n == 1 else np.float32), "n": n} for n in range(12)]
    path = pack(tmp_path / "set", {"x": "ndarray", "n": "int"}, samples)
    options = {"transform": at(1), "on_error": "skip", "num_workers": num_workers}

    found = take_sync(Loader(path, batch_size=4, **options))

    assert [batch["x"].dtype for batch in found] == [torch.float32] * 3


@pytest.mark.parametrize("rank", [0, 1])
def test_padding_may_be_bad(forty: Path, rank: int) -> None:
    """A bad record that is repeated as padding is missing in both places; all ranks get as many batches."""
    options = {"transform": at(0, 1, 2), "on_error": "skip", "rank": rank, "world_size": 3, "num_workers": 1}
    loader = Loader(forty, batch_size=7, **options)

    found = take_sync(loader)

    assert len(found) == len(loader) == 2
    assert sum(len(batch["n"]) for batch in found) + len(loader.skipped) == 7 + 7


def test_an_async_loop_gets_the_same(forty: Path) -> None:
    """`async for` leaves out what the plain loop does."""

    async def main() -> list[Any]:
        async with Loader(forty, batch_size=8, transform=at(9), on_error="skip", num_workers=1) as loader:
            return await gather(loader)

    found = asyncio.run(main())

    assert numbers(found) == without({9})


# Limits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [2, 0.05])
@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_limit_ends_the_epoch_at_the_same_place(forty: Path, num_workers: int, limit: float) -> None:
    """The record that is one too many is raised at its own step, however far ahead the work is."""
    options = {"transform": at(2, 11, 19, 20, 35), "on_error": Skip(limit), "num_workers": num_workers}
    loader = Loader(forty, batch_size=8, **options)

    found, error = caught(loader, SampleError)

    assert numbers(found) == without({2, 11})[:2]
    assert (error.record, error.step) == (19, 2)
    assert "on_error allows 2" in "".join(error.__notes__)
    assert [skipped.record for skipped in loader.skipped] == [2, 11, 19]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_may_be_begun_again_after_its_limit(forty: Path, num_workers: int) -> None:
    """After an error, and after a `break`, an iteration counts from nothing, and the order is the same."""
    options = {"transform": at(2, 11, 19), "on_error": Skip(2), "num_workers": num_workers}

    with Loader(forty, batch_size=8, **options).sync() as batches:
        for _ in range(3):
            assert numbers(list(itertools.islice(batches, 2))) == without({2, 11})[:2]
        with pytest.raises(SampleError, match="record 19"):
            list(batches)
        again = list(itertools.islice(batches, 2))
        batches.set_epoch(1)  # whose batches are made ahead
        with pytest.raises(SampleError, match="record 19"):
            list(batches)

    assert numbers(again) == without({2, 11})[:2]


def test_a_limit_is_for_each_epoch(forty: Path) -> None:
    """What one epoch left out does not count in the next."""
    loader = Loader(forty, batch_size=8, transform=at(2, 11), on_error=Skip(2), num_workers=1)

    with loader.sync() as batches:
        epochs = [numbers(list(batches)) for _ in range(3)]

    assert epochs == [without({2, 11})] * 3
    assert [skipped.epoch for skipped in loader.skipped] == [0, 0, 1, 1, 2, 2]


def test_a_state_counts_what_was_left_out(forty: Path) -> None:
    """Positions of records that were left out are behind a state like any others."""
    options = {"batch_size": 8, "transform": at(2, 11, 21), "on_error": "skip", "num_workers": 1}

    with Loader(forty, **options).sync() as batches:
        first = list(itertools.islice(batches, 2))
        state = batches._loader.state_dict()
    resumed = Loader(forty, **options)
    resumed.load_state_dict(state)
    rest = take_sync(resumed)

    assert numbers(first + rest) == without({2, 11, 21})


# Functions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_replacement_keeps_its_place(forty: Path, num_workers: int) -> None:
    """What the function returns stands where the bad sample would."""

    def replace(error: AioloadError) -> Any:
        return {"n": -error.record, "text": "none", "array": np.ones((2, 3), np.float32), "__key__": "-"}

    options = {"transform": at(9, 14, 15, 16), "on_error": replace, "num_workers": num_workers}
    loader = Loader(forty, batch_size=8, **options)

    found = take_sync(loader)

    assert numbers(found)[1:3] == [[8, -9, 10, 11, 12, 13, -14, -15], [-16, *range(17, 24)]]
    assert found[1]["text"][1] == "none"
    assert found[1]["array"][1].tolist() == [[1, 1, 1]] * 2
    assert loader.skipped == ()


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_function_decides_record_by_record(forty: Path, num_workers: int) -> None:
    """One record is left out, one replaced, and one raises."""

    def decide(error: AioloadError) -> Any:
        replaced = {"n": 99, "text": "", "array": np.zeros((2, 3), np.float32), "__key__": ""}
        return {3: "skip", 4: replaced, 20: "raise"}[error.record]

    options = {"transform": at(3, 4, 20), "on_error": decide, "num_workers": num_workers}
    loader = Loader(forty, batch_size=8, **options)

    found, error = caught(loader, SampleError)

    assert numbers(found) == [[0, 1, 2, 99, 5, 6, 7], list(range(8, 16))]
    assert error.record == 20
    assert [skipped.record for skipped in loader.skipped] == [3]


@pytest.mark.parametrize(
    ("decide", "told"),
    [
        (lambda error: 1 / 0, "on_error raised ZeroDivisionError"),
        (lambda error: next(iter(())), "on_error raised StopIteration"),
        (lambda error: None, "on_error returned None"),
        (lambda error: threading.Lock(), "the sample that on_error gave cannot be packed"),
        (lambda error: {"another": 1}, "a dict with the keys ['another']"),
        (lambda error: [1, 2], "batch 1"),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_function_that_goes_wrong_is_told_at_the_step(
    forty: Path, num_workers: int, decide: Any, told: str
) -> None:
    """An odd answer or an exception is an error of its batch, and no hang."""
    loader = Loader(forty, batch_size=8, transform=at(9), on_error=decide, num_workers=num_workers)

    found, error = caught(loader)

    assert numbers(found) == [list(range(8))]
    assert told in str(error)


def test_a_function_is_asked_once_for_each(forty: Path) -> None:
    """Each bad record of an epoch is asked about once."""
    asked: list[int] = []

    def decide(error: AioloadError) -> str:
        asked.append(error.record)
        return "skip"

    with Loader(
        forty, batch_size=8, transform=at(1, 9, 10), on_error=decide, prefetch=1, num_workers=2
    ).sync() as b:
        list(itertools.islice(b, 3))

    assert asked == [1, 9, 10]


# Damaged data ----------------------------------------------------------------------------------------


def damage(path: Path, record: int) -> None:
    """Flip a bit of a record."""
    dataset = aioload.Dataset(path)
    (where,) = (dataset.index.locate(np.array([record])),)
    file = path / dataset.index.shards[int(where.shard[0])]
    content = bytearray(file.read_bytes())
    content[int(where.stop[0]) - 1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_damaged_record_is_left_out(tmp_path: Path, num_workers: int) -> None:
    """A record that fails its checksum is skipped like one that fails in a transform."""
    path = counted(tmp_path / "set", RECORDS, shard_bytes=1500)
    damage(path, 17)
    loader = Loader(path, batch_size=8, on_error="skip", num_workers=num_workers)

    _, error = caught(Loader(path, batch_size=8, num_workers=num_workers), ShardError)
    found = take_sync(loader)

    assert error.record == 17
    assert numbers(found) == without({17})
    assert "checksum" in loader.skipped[0].error


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_missing_shard_counts_as_one(tmp_path: Path, num_workers: int) -> None:
    """All records of a shard that is gone are left out, and it is one against the limit."""
    path = counted(tmp_path / "set", RECORDS, shard_bytes=1500)
    index = aioload.Dataset(path).index
    gone = set(range(int(index.shard_records[1]), int(index.shard_records[2])))
    (path / index.shards[1]).unlink()
    loader = Loader(path, batch_size=8, on_error=Skip(1), num_workers=num_workers)

    _, error = caught(Loader(path, batch_size=8, num_workers=num_workers, on_error=Skip(0)), NotFoundError)
    left = take_sync(loader)

    assert error.record == min(gone)
    assert numbers(left) == without(gone)
    assert {skipped.record for skipped in loader.skipped} == gone
    assert {skipped.shard for skipped in loader.skipped} == {index.shards[1]}
    assert loader.stats().skipped == len(gone)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_shard_cut_short_gives_what_is_left(tmp_path: Path, num_workers: int) -> None:
    """Records before the cut are there, those behind it are left out."""
    path = counted(tmp_path / "set", RECORDS, shard_bytes=1 << 20)
    dataset = aioload.Dataset(path)
    place = int(dataset.index.locate(np.array([30])).start[0])
    file = path / dataset.index.shards[0]
    file.write_bytes(file.read_bytes()[: place + 3])

    found = take_sync(Loader(path, batch_size=8, on_error=Skip(10), num_workers=num_workers))

    assert numbers(found) == without(set(range(30, 40)))


# Memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_limit_that_serves_whole_batches_serves_those_with_gaps(tmp_path: Path, num_workers: int) -> None:
    """Making a batch once more, in pieces, needs no more memory than the batch did."""
    samples = ({"n": n, "x": np.full(20_000, n, np.uint8)} for n in range(64))
    path = pack(tmp_path / "set", {"n": "int", "x": "ndarray"}, samples)
    options = {"batch_size": 16, "num_workers": num_workers}

    whole, limit = take_with_least(functools.partial(Loader, path, transform=identity, **options))
    transform = at(3, 20, 21, 40, 63)
    found = take_sync(Loader(path, transform=transform, on_error="skip", memory_limit=limit, **options))

    assert len(whole) == len(found) == 4
    assert sum(len(batch["n"]) for batch in found) == 59


def take_with_least(make: Callable[..., Loader], limit: int = 1 << 20) -> tuple[list[Any], int]:
    """Take an epoch with about the least memory that does; return it, and the limit."""
    try:
        return take_sync(make(memory_limit=limit)), limit
    except ConfigError as error:
        return take_with_least(make, error.needed)


@pytest.mark.parametrize("stage", ["decode", "prepare", "transform"])
def test_samples_that_are_left_out_took_their_time(forty: Path, stage: str) -> None:
    """What failed is counted where it failed, so that the report does not blame another stage."""
    spent: list[float] = []

    def fail(value: Any) -> Any:
        began = time.perf_counter()
        sum(range(1000))
        spent.append(time.perf_counter() - began)
        raise ValueError("of the user")

    options: dict[str, Any] = {"decode": {"n": fail}} if stage == "decode" else {stage: fail}
    with Loader(forty, batch_size=8, num_workers=0, on_error=Skip(RECORDS), **options).sync() as loader:
        assert len(list(loader)) == 5
        found = loader.stats()

    assert len(spent) >= RECORDS
    assert getattr(found, f"{stage}_seconds") >= sum(spent)
