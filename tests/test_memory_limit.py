"""The memory limit: refused before the first batch or never, the least named, and a larger one works too."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import batches
import numpy as np
import pytest
from batches import pack, take_sync
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioload import Concat, ConfigError, Dataset, Loader, Mix, Skip
from aioload.batching import Budget

MARGIN = 0.97  # a limit this far below the one that is named must be refused


@dataclass
class Case:
    """A set, and how it is loaded."""

    fields: dict[str, str]
    samples: list[dict[str, Any]]
    options: dict[str, Any]


def sized(size: int, number: int) -> bytes:
    """Return that many bytes, which tell the number."""
    return (number.to_bytes(2, "little") * (size // 2 + 1))[:size]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a few records whose sizes are spread over orders of magnitude, and options."""
    largest = draw(st.sampled_from([10, 1000, 100_000]))
    exponents = draw(st.lists(st.floats(0, 1), min_size=1, max_size=40))
    blobs = [sized(int(largest**exponent), number) for number, exponent in enumerate(exponents)]
    kind = draw(st.sampled_from(["bytes", "str", "mixed", "ndarray"]))
    fields = {"x": kind if kind != "mixed" else "bytes"}
    samples: list[dict[str, Any]] = [{"x": blob} for blob in blobs]
    if kind == "str":
        samples = [{"x": blob.hex()} for blob in blobs]
    elif kind == "mixed":
        fields |= {"n": "int", "t": "str"}
        samples = [{"x": blob, "n": n, "t": "é" * n} for n, blob in enumerate(blobs)]
    elif kind == "ndarray":
        samples = [{"x": np.full(largest, n % 251, np.uint8)} for n in range(len(blobs))]
    options = {
        "batch_size": draw(st.sampled_from([1, 2, 7, 64])),
        "shuffle": draw(st.sampled_from([False, True, "full"])),
        "prefetch": draw(st.sampled_from(["auto", 1, 8])),
    }
    return Case(fields, samples, options)


def refused(path: Any, limit: int, **options: Any) -> int:
    """Return which limit is named instead of a limit; 0 if that works for two epochs, in its bounds."""
    with Loader(path, memory_limit=limit, **options).sync() as loader:
        taken = 0
        try:
            for _ in range(2):
                for _ in loader:
                    taken += 1
        except ConfigError as error:
            assert taken == 0
            return int(error.needed)  # type: ignore[attr-defined]  # a fact
        assert loader.stats().memory_peak <= limit
        return 0


def larger(limit: int) -> Iterator[int]:
    """Yield the next powers of two."""
    yield from (1 << power for power in range(limit.bit_length(), limit.bit_length() + 3))


@given(cases())
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_the_limit_that_is_named_is_the_least_that_works(case: Case) -> None:
    """Just below it is refused, it works to the end, and so does any larger one: batches are the same."""
    with tempfile.TemporaryDirectory() as folder:
        path = pack(Path(folder) / "set", case.fields, case.samples)
        expected = take_sync(Loader(path, num_workers=0, **case.options))

        needed = refused(path, 1, num_workers=0, **case.options)

        assert refused(path, int(needed * MARGIN), num_workers=0, **case.options) == needed
        assert [refused(path, limit, num_workers=0, **case.options) for limit in larger(needed)] == [0] * 3
        found = take_sync(Loader(path, num_workers=0, memory_limit=needed, **case.options))
        assert [batches.plain(batch) for batch in found] == [batches.plain(batch) for batch in expected]


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 records of 10 B to 200 KB."""
    sizes = np.exp(np.random.default_rng(1).uniform(np.log(10), np.log(200_000), 300)).astype(int)
    samples = ({"x": sized(size, n), "n": n} for n, size in enumerate(sizes.tolist()))
    return pack(tmp_path_factory.mktemp("spread") / "set", {"x": "bytes", "n": "int"}, samples)


@pytest.mark.parametrize(("shuffle", "reads", "batch_size"), [(True, "mmap", 8), ("full", "file", 64)])
def test_the_limit_that_is_named_works_with_workers(
    spread: Path, shuffle: Any, reads: Any, batch_size: int
) -> None:
    """Timing decides nothing: the same holds with two processes, mapped and read."""
    options = {"batch_size": batch_size, "shuffle": shuffle, "reads": reads, "num_workers": 2}

    needed = refused(spread, 1, **options)

    assert refused(spread, int(needed * MARGIN), **options) == needed
    assert [refused(spread, limit, **options) for limit in (needed, *larger(needed))] == [0] * 4


@pytest.mark.full
@pytest.mark.parametrize("batch_size", [1, 3, 16, 300])
@pytest.mark.parametrize("shuffle", [False, True, "full"])
@pytest.mark.parametrize("reads", ["mmap", "file"])
@pytest.mark.parametrize("num_workers", [0, 1, 2, "auto"])
def test_every_limit_from_the_least_on_works(
    spread: Path, num_workers: Any, reads: Any, shuffle: Any, batch_size: int
) -> None:
    """At the least, a little above it, and at each power of two up to 256 MiB."""
    options = {"batch_size": batch_size, "shuffle": shuffle, "reads": reads, "num_workers": num_workers}
    needed = refused(spread, 1, **options)

    limits = [needed, needed * 5 // 4, *(1 << power for power in range(needed.bit_length(), 29))]

    assert refused(spread, int(needed * MARGIN), **options) == needed
    assert [refused(spread, limit, **options) for limit in limits] == [0] * len(limits)


def test_a_limit_is_refused_before_anything_runs(spread: Path) -> None:
    """What is known from the index and the decoders needs no batch to be found out."""
    loader = Loader(spread, batch_size=8, num_workers=2, memory_limit="1MiB", shuffle=True)

    with pytest.raises(ConfigError, match="memory_limit of 1048576 bytes"):
        next(iter(loader.sync()))

    stats = loader.stats()
    assert (stats.reads, stats.jobs) == (0, 0)
    loader.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda path: Dataset(path).select(range(0, 300, 7)),
        lambda path: Concat([Dataset(path).select(range(40)), Dataset(path).select(range(200, 240))]),
        lambda path: Mix([(Dataset(path).select(range(3)), 0.6), (Dataset(path), 0.4)]),
    ],
    ids=["selection", "concat", "mix"],
)
def test_sets_of_sets_have_a_least_limit_too(spread: Path, make: Any) -> None:
    """A mix may have a record of a small source more than once in a batch."""
    options = {"batch_size": 16, "shuffle": True, "num_workers": 0}

    needed = refused(make(spread), 1, **options)

    assert refused(make(spread), int(needed * MARGIN), **options) == needed
    assert refused(make(spread), needed, **options) == 0


@pytest.mark.parametrize("budget", [Budget(400_000), Budget(400_000, max_rows=4)])
def test_batches_of_a_budget_have_a_least_limit_too(spread: Path, budget: Budget) -> None:
    """It follows from what a batch may cost."""
    options = {"batch_size": budget, "shuffle": "full", "num_workers": 0}

    needed = refused(spread, 1, **options)

    assert needed < 4 * 400_000
    assert refused(spread, needed, **options) == 0


def test_ranks_that_read_in_order_have_a_least_limit_too(spread: Path) -> None:
    """What neighbours have at most is less than what the largest records have."""
    options = {"batch_size": 16, "num_workers": 0, "rank": 1, "world_size": 3}

    needed = refused(spread, 1, **options)

    assert needed < refused(spread, 1, shuffle=True, **options)
    assert refused(spread, needed, **options) == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_at_the_least_limit_bad_records_are_left_out_and_batches_kept(
    spread: Path, tmp_path: Path, num_workers: int
) -> None:
    """A batch that is made again in pieces, and a user who keeps all, need no more memory."""
    path = tmp_path / "set"
    path.mkdir()
    for file in spread.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    place = int(Dataset(path).index.locate(np.array([150])).start[0])
    with (path / Dataset(path).index.shards[0]).open("r+b") as file:
        file.seek(place)
        file.write(b"damage")
    options = {"batch_size": 16, "shuffle": True, "num_workers": num_workers, "on_error": Skip(5)}

    needed = refused(path, 1, **options)
    found = take_sync(Loader(path, memory_limit=needed, **options))

    assert sorted(n for batch in found for n in batch["n"].tolist()) == [n for n in range(300) if n != 150]


# What only trying tells -------------------------------------------------------------------------------


def growing(size: int, more: int = 0, those: tuple[int, ...] = ()) -> Callable[..., Any]:
    """Return a transform that makes arrays of so many bytes, of those records more."""

    def grow(sample: dict[str, Any]) -> dict[str, Any]:
        n = sample["n"]
        return {"n": n, "x": np.full(more if n in those else size, n % 251, np.uint8)}

    return grow  # not importable, so that workers need not import this module


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("collate", [None, list])
def test_the_first_batch_tells_what_a_transform_makes(spread: Path, num_workers: int, collate: Any) -> None:
    """A limit that is too small for it is refused at the first step; the one that is named works."""
    options = {
        "batch_size": 8,
        "num_workers": num_workers,
        "transform": growing(100_000),
        "collate": collate,
        "shuffle": True,
    }

    needed = refused(spread, refused(spread, 1, **options), **options)

    assert refused(spread, int(needed * MARGIN), **options) == pytest.approx(needed, rel=1 - MARGIN)
    assert [refused(spread, limit, **options) for limit in (needed, *larger(needed))] == [0] * 4


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_later_batch_that_grows_is_not_refused(spread: Path, num_workers: int) -> None:
    """It gets what it lacks beyond the limit, with one warning, and all data is right."""
    transform = growing(1000, 1_500_000, (100, 101, 200))
    options = {"batch_size": 4, "num_workers": num_workers, "transform": transform, "collate": list}

    with batches.Warnings() as warned, Loader(spread, memory_limit="4MiB", **options).sync() as loader:
        found = [sample for batch in loader for sample in batch]
        peak = loader.stats().memory_peak

    assert [int(sample["n"]) for sample in found] == list(range(300))
    assert all(int(sample["x"].sum()) == len(sample["x"]) * (sample["n"] % 251) for sample in found)
    assert len(warned.messages) == 1
    assert "beyond the limit" in warned.messages[0]
    assert peak <= 8 << 20
