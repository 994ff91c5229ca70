"""Decode: the same batches however the work is cut, each step once, and every lease comes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioload._pipeline.memory import TooSmall
from aioload._workers.jobs import Collate, Decode
from aioload.errors import SampleError, ShardError

from .runs import make_recipe, walked

FIELDS = {"x": "ndarray", "n": "int", "t": "str"}
SAMPLES = [{"x": np.full((2, 3), row, "f4"), "n": row, "t": f"text {row}"} for row in range(8)]


def shown(batch: Any) -> Any:
    """Return a batch in which all can be compared."""
    return {
        name: (str(value.dtype), value.tolist()) if isinstance(value, np.ndarray) else value
        for name, value in batch.items()
    }


EXPECTED = shown(
    {
        "x": np.stack([sample["x"] for sample in SAMPLES]),
        "n": np.arange(8),
        "t": [f"text {row}" for row in range(8)],
    }
)


def growing(sample: dict[str, Any]) -> dict[str, Any]:
    """Make much of little: the raw record tells nothing about the size of the sample."""
    return {"x": np.full(40_000, sample["n"], "f4")}


def odd(sample: dict[str, Any]) -> dict[str, Any]:
    """Make one sample of another dtype than all others."""
    return {"x": sample["x"].astype("f8") if sample["n"] == 5 else sample["x"]}


def failing(*records: int) -> Any:
    """Make a transform that fails at some records."""

    def transform(sample: dict[str, Any]) -> Any:
        if sample["n"] in records:
            raise KeyError(sample["n"])
        return sample

    return transform


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 20])
async def test_a_batch_is_the_same_however_it_is_cut(workers: int) -> None:
    """One part or many, packed at first and in rows from then on: the batch is the same."""
    with walked(make_recipe(FIELDS), workers=workers) as walk:
        await walk.make([SAMPLES])
        await walk.make([SAMPLES], number=1, first_step=1)

        assert shown(walk.items[0]) == EXPECTED
        assert shown({name: walk.items[1][name] for name in FIELDS}) == EXPECTED


@pytest.mark.parametrize("workers", [1, 4])
async def test_rows_are_written_once_the_layout_is_known(workers: int) -> None:
    """The second batch needs no collating: its rows have their places."""
    with walked(make_recipe(FIELDS), workers=workers) as walk:
        await walk.make([SAMPLES])
        before = len(walk.here.jobs)

        await walk.make([SAMPLES], number=1, first_step=1)

        jobs = walk.here.jobs[before:]
        assert not any(isinstance(job, Collate) for job in jobs)
        assert all(segment.layout for job in jobs if isinstance(job, Decode) for segment in job.segments)


async def test_many_small_batches_are_one_job() -> None:
    """Batches of a run that have rows are made by one job."""
    with walked(make_recipe(FIELDS)) as walk:
        await walk.make([SAMPLES])
        before = len(walk.here.jobs)

        await walk.make([SAMPLES[:3], SAMPLES[3:4], SAMPLES[4:]], number=1, first_step=1)

        assert len(walk.here.jobs) - before == 1
        assert [walk.items[step]["n"].tolist() for step in (1, 2, 3)] == [[0, 1, 2], [3], [4, 5, 6, 7]]


@pytest.mark.parametrize("workers", [1, 3])
async def test_one_odd_sample_makes_no_other_batch(workers: int) -> None:
    """A batch in which a sample has another dtype is collated by all samples, known layout or not."""
    with walked(make_recipe(FIELDS, odd), workers=workers) as walk:
        await walk.make([SAMPLES])
        await walk.make([SAMPLES[:4]], number=1, first_step=1)
        await walk.make([SAMPLES], number=2, first_step=2)

        assert [str(walk.items[step]["x"].dtype) for step in range(3)] == ["float64", "float32", "float64"]
        assert walk.items[0]["x"].tolist() == walk.items[2]["x"].tolist()


@pytest.mark.parametrize("workers", [1, 3])
async def test_samples_much_larger_than_their_records_find_room(workers: int) -> None:
    """A guess that is too small costs another try, nothing else."""
    with walked(make_recipe(FIELDS, growing), workers=workers) as walk:
        await walk.make([SAMPLES])

        assert walk.items[0]["x"].shape == (8, 40_000)
        assert walk.counters.snapshot().jobs_again > 0


@pytest.mark.parametrize("collate", [None, lambda samples: {"n": np.array([s["n"] for s in samples])}])
async def test_a_guess_never_fails_what_has_room(collate: Any) -> None:
    """Many batches, or parts, whose guesses together exceed the limit are made all the same."""
    fields = {"n": "int", "blob": "bytes"}
    samples = [{"n": row, "blob": bytes(60_000)} for row in range(8)]
    recipe = make_recipe(fields, lambda sample: {"n": sample["n"]}, collate)
    with walked(recipe, workers=8, limit=2 << 20) as walk:
        await walk.make([samples])
        await walk.make([[sample] for sample in samples], number=1, first_step=1)

        assert walk.items[0]["n"].tolist() == list(range(8))
        assert [walk.items[step]["n"].tolist() for step in range(1, 9)] == [[row] for row in range(8)]


async def test_a_run_of_many_batches_needs_room_for_one() -> None:
    """Batches that grow a thousandfold are made one after the other rather than refused."""
    samples = [{"x": np.zeros(1, "u1"), "n": row, "t": ""} for row in range(64)]
    with walked(make_recipe(FIELDS, growing), limit=4 << 20) as walk:
        await walk.make([[sample] for sample in samples])
        await walk.make([[sample] for sample in samples], number=1, first_step=64)

        assert [walk.items[step]["x"][0, 0] for step in range(128)] == [*range(64), *range(64)]
        assert walk.memory.peak <= 4 << 20


@pytest.mark.parametrize("workers", [1, 3])
async def test_a_batch_that_cannot_have_room_is_a_config_error(workers: int) -> None:
    """A batch that needs more than a run may have tells how much that is."""
    with walked(make_recipe(FIELDS, growing), workers=workers, limit=1 << 20) as walk:
        with pytest.raises((TooSmall, ExceptionGroup)) as caught:
            await walk.make([SAMPLES])

        error: Any = caught.value
        found = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        assert isinstance(found, TooSmall)
        assert found.facts["needs"] > walk.memory.per_run


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("misfits", [3, 0], ids=["packed", "rows"])
async def test_the_first_failing_record_is_told_however_a_batch_is_cut(workers: int, misfits: int) -> None:
    """The same data gives the same error: that of the lowest row."""
    with walked(make_recipe(FIELDS, failing(3, 6)), workers=workers) as walk:
        await walk.make([SAMPLES[:2]])
        [walk.sizes.misfit() for _ in range(misfits)]

        await walk.make([SAMPLES], number=1, first_step=1)

        error = walk.items[1]
        assert type(error) is SampleError
        assert (error.record, error.step, error.shard) == (3, 1, "shard-0")
        assert str(error) == "record 3 (shard-0): KeyError: 3"
        assert "Traceback" in error.__notes__[0]


@pytest.mark.parametrize("misfits", [3, 0], ids=["packed", "rows"])
async def test_a_failing_batch_takes_no_other_with_it(misfits: int) -> None:
    """Of several batches in one run, only the one with the bad record fails."""
    with walked(make_recipe(FIELDS, failing(3))) as walk:
        await walk.make([SAMPLES[:2]])
        [walk.sizes.misfit() for _ in range(misfits)]

        await walk.make([SAMPLES[:2], SAMPLES[2:4], SAMPLES[4:]], number=1, first_step=1)

        assert [type(walk.items[step]) for step in (1, 2, 3)] == [dict, SampleError, dict]
        assert walk.items[3]["n"].tolist() == [4, 5, 6, 7]


async def test_damage_is_a_shard_error() -> None:
    """A record that does not have its sum is named with shard and record."""
    with walked(make_recipe(FIELDS)) as walk:
        original = walk._records

        def damaged(samples: Any) -> Any:
            table, data = original(samples)
            data[int(table["start"][2])] ^= 1
            return table, data

        walk._records = damaged  # type: ignore[method-assign]  # damage between writing and reading
        await walk.make([SAMPLES])

        assert type(walk.items[0]) is ShardError
        assert (walk.items[0].record, walk.items[0].shard) == (2, "shard-0")


@pytest.mark.parametrize("workers", [1, 3])
async def test_a_collate_of_the_users_gets_all_samples_in_order(workers: int) -> None:
    """A collate runs once per batch, on all its samples, also when several jobs made them."""
    recipe = make_recipe(FIELDS, collate=lambda samples: [sample["t"] for sample in samples])
    with walked(recipe, workers=workers) as walk:
        await walk.make([SAMPLES])

        assert walk.items[0] == [f"text {row}" for row in range(8)]


async def test_texts_longer_than_ever_find_room() -> None:
    """Texts that grow from batch to batch are packed when their place is too small."""
    longer = [{**sample, "t": sample["t"] * 500} for sample in SAMPLES]
    with walked(make_recipe(FIELDS)) as walk:
        for number, samples in enumerate([SAMPLES, SAMPLES, longer, longer]):
            await walk.make([samples], number=number, first_step=number)

        assert [len(walk.items[step]["t"][7]) for step in range(4)] == [6, 6, 3000, 3000]


async def test_without_texts_no_room_is_taken_for_them() -> None:
    """A batch of arrays and numbers takes its own bytes and no more."""
    samples = [{"x": np.zeros(100_000, "u1"), "n": row} for row in range(8)]
    with walked(make_recipe({"x": "ndarray", "n": "int"}), limit=8 << 20) as walk:
        await walk.make([samples])
        walk.items.clear()
        walk.memory.move_head((1, 1))
        walk.memory.peak = 0

        await walk.make([samples], number=1, first_step=1)

        assert walk.memory.peak < 2.1 * 800_000
