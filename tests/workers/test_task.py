"""Task: what a worker makes of records, and that nothing user code raises comes out of it as an exception."""

from __future__ import annotations

import dataclasses
import functools
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from worker_jobs import Bench, make_recipe

from aioload._workers import making
from aioload._workers.jobs import TABLE, Collate, Decode, Outcome, Recipe, Segment
from aioload._workers.leaf import view
from aioload._workers.signature import wants_rng
from aioload._workers.space import Span
from aioload._workers.task import Worker
from aioload.errors import ConfigError, SampleError, ShardError
from aioload.shard.format import NativeFormat

FIELDS = {"x": "ndarray", "label": "int", "name": "str"}
SAMPLES = [{"x": np.full(3, row, "f4"), "label": row, "name": f"ü{row}"} for row in range(6)]
KEYS = [f"key/{row}" for row in range(6)]


class WithFacts(Exception):
    """An exception whose attribute has the name of ours, and another class."""

    facts = ("not", "a", "dict")


class Unprintable(Exception):
    """An exception that fails when it is shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Keyless(NativeFormat):
    """A format whose records have no keys."""

    def split(self, record: memoryview) -> tuple[None, dict[str, memoryview]]:
        return None, super().split(record)[1]


def bench(samples: list[dict[str, Any]] = SAMPLES, **recipe: Any) -> Bench:
    """Lay the samples down before a worker."""
    return Bench(make_recipe(FIELDS, **recipe), samples, KEYS[: len(samples)])


def failure_of(laid: Bench, **options: Any) -> Any:
    """Return what went wrong with the batch of all rows."""
    return laid.worker().run(laid.whole(**options)).outcomes[0].failure


def halved(sample: dict[str, Any]) -> dict[str, Any]:
    """Change the decoded array in place."""
    sample["x"] /= 2
    return sample


def subtracted(samples: list[Any]) -> Any:
    """Change the samples in place, in a collate."""
    for sample in samples:
        sample["x"] -= 1
    return np.stack([sample["x"] for sample in samples])


def drawn(sample: dict[str, Any]) -> Any:
    """Draw from all global generators."""
    return {"a": random.random(), "b": np.random.random(), "c": torch.rand(())}


def drawn_from(sample: dict[str, Any], rng: np.random.Generator) -> Any:
    """Draw from the generator that is given."""
    return rng.random()


def raising(error: type[BaseException]) -> Any:
    """Make a transform that raises at one record."""

    def transform(sample: dict[str, Any]) -> Any:
        if sample["label"] == 4:
            raise error("at four")
        return sample

    return transform


def test_a_whole_batch_is_stacked() -> None:
    """All rows of a batch come back as one tree: arrays stacked, texts as a list."""
    batch = bench().batch()

    assert batch["x"].tolist() == [[row] * 3 for row in range(6)]
    assert batch["label"].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch["name"] == ["ü0", "ü1", "ü2", "ü3", "ü4", "ü5"]


def test_a_batch_of_one_record_is_a_batch() -> None:
    """One record is stacked like many."""
    batch = bench(SAMPLES[:1]).batch()

    assert batch["x"].shape == (1, 3)
    assert batch["name"] == ["ü0"]


def test_parts_make_the_same_batch_as_the_whole() -> None:
    """A batch cut into parts, whose samples are packed and collated by another job, is the same."""
    laid = bench()
    worker = laid.worker()
    places = [Span(65536 * part, 65536 * (part + 1)) for part in (1, 2, 3)]
    first = worker.run(laid.job(0, 4, places[0])).outcomes[0]
    second = worker.run(laid.job(4, 6, places[1])).outcomes[0]
    parts = ((places[0], first.descriptor), (places[1], second.descriptor))

    outcome = worker.run(Collate(7, parts, places[2], laid.table)).outcomes[0]  # type: ignore[arg-type]  # both are there

    batch, whole = laid.read(outcome, places[2]), laid.batch()
    assert [batch["x"].tolist(), batch["label"].tolist(), batch["name"]] == [
        *(whole["x"].tolist(), whole["label"].tolist(), whole["name"]),
    ]


def test_rows_go_to_their_place_and_texts_beside() -> None:
    """With a layout, arrays are written into the batch's place and texts into one of their own."""
    laid = bench()
    layout = laid.worker().run(laid.whole(learn=True)).outcomes[0].layout
    assert layout is not None
    size = layout.starts(6)[-1]
    place, beside = Span(1 << 18, (1 << 18) + size), Span(1 << 19, (1 << 19) + 4096)
    segment = Segment(7, 0, 6, 6, beside, layout, place)

    outcome = laid.worker().run(Decode(laid.table, (segment,))).outcomes[0]

    assert laid.array is not None
    there = laid.array[place.start : place.stop]
    x, labels, _ = [view(there, leaf) for leaf in layout.leaves(6)[:2]] + [None]
    assert x.tolist() == [[row] * 3 for row in range(6)]
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert view(laid.array[beside.start : beside.stop], outcome.texts[0]) == [f"ü{row}" for row in range(6)]


def test_a_sample_of_another_make_is_a_misfit() -> None:
    """A sample that does not fit the layout is told, and no error."""
    layout = bench().worker().run(bench().whole(learn=True)).outcomes[0].layout
    other = bench([*SAMPLES[:2], {**SAMPLES[2], "x": np.zeros(9, "f8")}])
    segment = Segment(7, 0, 3, 3, Span(1 << 19, 1 << 20), layout, Span(1 << 18, 1 << 19))

    outcome = other.worker().run(Decode(other.table, (segment,))).outcomes[0]

    assert outcome == Outcome(misfit=True)


def test_several_batches_are_made_by_one_job() -> None:
    """Segments of a job each have their own rows and their own outcome, also when one of them fails."""
    laid = bench(transform=raising(ValueError))
    places = [Span(65536 * part, 65536 * (part + 1)) for part in (1, 2, 3)]
    segments = tuple(Segment(step, 0, 2, 2, place) for step, place in enumerate(places))

    first, second, third = laid.worker().run(Decode(laid.table, segments)).outcomes

    assert laid.read(first, places[0])["label"].tolist() == [0, 1]
    assert laid.read(second, places[1])["label"].tolist() == [2, 3]
    assert third.failure is not None
    assert third.failure.record == 4


def test_too_little_room_is_told() -> None:
    """A place that is too small is no error: the answer says how much is enough."""
    laid = bench()
    small = Span(laid.room.start, laid.room.start + 64)

    need = laid.worker().run(laid.whole(small)).outcomes[0].need

    enough = Span(laid.room.start, laid.room.start + need)
    assert laid.read(laid.worker().run(laid.whole(enough)).outcomes[0], enough)["label"].tolist() == [
        *range(6)
    ]


def test_a_job_can_be_done_twice_though_the_transform_writes_to_its_sample() -> None:
    """What a transform changes in place is its own: the raw bytes stay what they were."""
    laid = bench(transform=halved)
    small = Span(laid.room.start, laid.room.start + 64)

    first = laid.worker().run(laid.whole(small)).outcomes[0]
    batch = laid.batch()

    assert first.need > 0
    assert batch["x"].tolist() == [[row / 2] * 3 for row in range(6)]


def test_a_batch_can_be_collated_twice_though_collate_writes_to_its_samples() -> None:
    """What a collate changes in place is its own, also when its samples come from other jobs."""
    laid = bench(collate=subtracted)
    worker = laid.worker()
    places = [Span(65536 * part, 65536 * (part + 1)) for part in (1, 2)]
    descriptors = [
        worker.run(laid.job(*rows, place)).outcomes[0].descriptor
        for rows, place in zip([(0, 3), (3, 6)], places, strict=True)
    ]
    parts: Any = tuple(zip(places, descriptors, strict=True))

    need = worker.run(Collate(7, parts, Span(1 << 19, (1 << 19) + 64), laid.table)).outcomes[0].need
    enough = Span(1 << 19, (1 << 19) + need)
    outcome = worker.run(Collate(7, parts, enough, laid.table)).outcomes[0]

    assert laid.read(outcome, enough).tolist() == [[row - 1] * 3 for row in range(6)]


def test_raw_bytes_cannot_be_written_to() -> None:
    """A decoder that tries to change stored bytes fails, instead of changing what a second try would read."""
    writing = bench(decoders={"x": lambda data: data.__setitem__(0, 1)})

    failure = failure_of(writing)

    assert failure.name == "TypeError"
    assert "read-only" in failure.message


def test_a_flipped_bit_is_a_shard_error_that_names_its_record() -> None:
    """Bytes that do not have their sum are never decoded."""
    laid = bench()
    assert laid.array is not None
    laid.array[laid.table.start // 2] ^= 1

    failure = failure_of(laid)

    assert failure.kind == "ShardError"
    assert "checksum" in failure.message
    assert (failure.record, failure.shard, failure.row) == (3, 0, 3)


def test_a_decoder_that_fails_names_field_and_record() -> None:
    """Whatever a decoder raises comes back as texts, with the key of its record."""
    failure = failure_of(bench(decoders={"label": lambda data: 1 // 0}))

    assert (failure.kind, failure.name) == ("SampleError", "ZeroDivisionError")
    assert (failure.record, failure.key, failure.row) == (0, "key/0", 0)
    assert "while decoding field 'label'" in failure.trace


@pytest.mark.parametrize(
    "error", [ValueError, SystemExit, KeyboardInterrupt, WithFacts, Unprintable, RecursionError]
)
def test_whatever_a_transform_raises_is_a_failure(error: type[BaseException]) -> None:
    """No exception of the user's leaves a worker, however odd it is."""
    failure = failure_of(bench(transform=raising(error)))

    assert (failure.kind, failure.name, failure.record) == ("SampleError", error.__name__, 4)
    assert failure.trace


def test_in_the_users_thread_ctrl_c_stays_ctrl_c() -> None:
    """A worker that is told to catch exceptions only lets an interruption through."""
    laid = bench(transform=raising(KeyboardInterrupt))

    with pytest.raises(KeyboardInterrupt):
        laid.worker(Exception).run(laid.whole())


def test_facts_of_our_errors_travel() -> None:
    """An error of ours keeps the facts that are plain, and its kind."""

    def transform(sample: Any) -> Any:
        raise ShardError("broken", offset=17, odd=object())

    failure = failure_of(bench(transform=transform))

    assert failure.kind == "ShardError"
    assert failure.facts == {"offset": 17}


def test_a_subclass_of_our_errors_is_told_by_its_parent() -> None:
    """A user's class of error need not exist in the parent."""

    class Mine(SampleError):
        pass

    failure = failure_of(bench(transform=raising(Mine)))

    assert (failure.kind, failure.name) == ("SampleError", "Mine")


def test_a_collate_that_fails_names_its_records() -> None:
    """An error of the whole batch says which batch and which records it was."""
    failure = failure_of(bench(collate=lambda samples: samples[99]))

    assert failure.name == "IndexError"
    assert failure.message.startswith("batch 7 (records 0, 1, 2, 3, … 5): IndexError")
    assert failure.record is None


def test_what_cannot_be_pickled_is_a_failure() -> None:
    """An object that cannot leave the process is the transform's error, not the pool's end."""
    failure = failure_of(bench(transform=lambda sample: threading.Lock(), collate=list))

    assert failure.kind == "SampleError"
    assert "pickle" in failure.message


def test_an_integer_too_large_is_told_by_collate() -> None:
    """An integer of more than 64 bits falls out of the layout, and then collate names its record."""

    def grown(sample: dict[str, Any]) -> dict[str, Any]:
        return {"n": 1 << 70 if sample["label"] == 2 else 1}

    layout = bench(SAMPLES[:1], transform=grown)
    learnt = layout.worker().run(layout.whole(learn=True)).outcomes[0].layout
    laid = bench(transform=grown)
    segment = Segment(7, 0, 6, 6, Span(1 << 19, 1 << 20), learnt, Span(1 << 18, 1 << 19))

    rows = laid.worker().run(Decode(laid.table, (segment,))).outcomes[0]
    failure = failure_of(laid)

    assert rows.misfit
    assert "does not fit 64 bits" in failure.message
    assert "key/2" in failure.message


def test_keys_are_told_to_the_transform() -> None:
    """A sample carries the key of its record, and the number where it has none."""
    keyed = bench(transform=lambda sample: sample["__key__"]).batch()
    unkeyed = Bench(make_recipe(FIELDS, transform=lambda sample: sample["__key__"]), SAMPLES, first_record=40)

    assert keyed == KEYS
    assert unkeyed.batch() == ["40", "41", "42", "43", "44", "45"]


@pytest.mark.parametrize("transform", [drawn, drawn_from])
def test_randomness_depends_on_seed_epoch_record_and_set_alone(transform: Any) -> None:
    """The same record draws the same numbers in any batch and any process, and others in another epoch."""

    def draws(samples: list[Any], first: int, epoch: int, seed: int, source: int = 0) -> list[str]:
        recipe = make_recipe(FIELDS, transform=transform, collate=list, seed=seed, sources=2)
        laid = Bench(recipe, samples, first_record=first, epoch=epoch, source=source)
        return [repr(drawing) for drawing in laid.batch()]

    whole = draws(SAMPLES, 0, 0, 5)

    assert draws(SAMPLES[:3], 3, 0, 5) == whole[3:]
    assert not set(draws(SAMPLES, 0, 1, 5)) & set(whole)
    assert not set(draws(SAMPLES, 0, 0, 6)) & set(whole)
    assert not set(draws(SAMPLES, 0, 0, 5, source=1)) & set(whole)
    assert len(set(whole)) == 6


def test_global_generators_are_left_alone_without_user_code() -> None:
    """Where only our decoders run, nothing is seeded."""
    random.seed(1)
    expected = random.Random(1).random()

    bench().batch()

    assert random.random() == expected


def test_each_record_is_read_as_its_own_set_is() -> None:
    """Format and sums are those of the record's set: another may have no keys, and no sums to check."""
    recipe = make_recipe(FIELDS, transform=lambda s: (s["__key__"], s["__source__"]), collate=list, sources=2)
    formats = (recipe.formats[0], Keyless(tuple(FIELDS.items())))
    mixed = dataclasses.replace(recipe, formats=formats, checked=(True, False))
    keyed, keyless = (Bench(mixed, SAMPLES, KEYS, source=source) for source in (0, 1))
    whole = keyed.batch()
    for laid in (keyed, keyless):
        laid.array[laid.table.start : laid.table.stop].view(TABLE)["sum"] = 0  # type: ignore[index]  # it is there

    damaged, unchecked = failure_of(keyed), keyless.batch()

    assert whole == [(key, 0) for key in KEYS]
    assert unchecked == [(str(record), 1) for record in range(6)]
    assert damaged.kind == "ShardError"


def test_a_record_without_fields_that_matter_is_a_sample() -> None:
    """Empty texts, empty arrays and arrays without axes are values like any other."""
    samples = [
        {"x": np.zeros((0, 2)), "label": 0, "name": ""},
        {"x": np.zeros((0, 2)), "label": -1, "name": ""},
    ]

    batch = bench(samples).batch()

    assert batch["x"].shape == (2, 0, 2)
    assert batch["name"] == ["", ""]


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (lambda sample: sample, False),
        (lambda sample, rng: sample, True),
        (lambda sample, *, rng: sample, True),
        (lambda sample, rng=None: sample, True),
        (lambda sample, scale=2, **options: sample, False),
        (lambda *samples: samples, False),
        (lambda sample, /, *rest, rng=None: sample, True),
        (functools.partial(lambda sample, scale: sample, scale=2), False),
        (dict, False),
        (repr, False),
    ],
)
def test_a_generator_is_passed_to_those_that_name_it(transform: Any, expected: bool) -> None:
    """`rng` is given if, and only if, a parameter has this name."""
    assert wants_rng(transform) is expected


@pytest.mark.parametrize(
    "transform",
    [
        lambda: None,
        lambda rng: None,
        lambda *, rng: None,
        lambda rng, sample: None,
        lambda sample, label: None,
        lambda sample, *, label: None,
        lambda *samples, label: None,
        lambda **fields: None,
    ],
)
def test_a_transform_that_wants_something_else_is_refused(transform: Any) -> None:
    """A required parameter that nobody would pass is a ConfigError before anything starts."""
    with pytest.raises(ConfigError, match="must take a sample"):
        wants_rng(transform)


def test_an_answer_tells_the_time_of_each_stage() -> None:
    """Decoding, transforming and collating are timed apart."""
    laid = bench(transform=lambda sample: sample["label"])

    answer = laid.worker().run(laid.whole())

    assert min(answer.decode_seconds, answer.transform_seconds, answer.collate_seconds) > 0


def test_an_answer_tells_of_sums_and_of_its_longest_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are where a mapped file is waited for; a worker's first job, which imports, has no longest."""
    clock = [0.0]
    monkeypatch.setattr(making.time, "perf_counter", lambda: clock[0])
    right = making.google_crc32c.value

    def checked(data: Any) -> int:
        clock[0] += 1
        return int(right(data))

    def transform(sample: dict[str, Any]) -> Any:
        clock[0] += 30 if sample["label"] == 3 else 2
        return sample["label"]

    monkeypatch.setattr(making.google_crc32c, "value", checked)
    laid = bench(transform=transform)
    worker = laid.worker()

    first, second = worker.run(laid.whole()), worker.run(laid.whole())

    assert (second.check_seconds, second.decode_seconds, second.transform_seconds) == (6, 6, 40)
    assert (first.check_seconds, first.decode_seconds, first.transform_seconds) == (6, 6, 40)
    assert (first.longest_seconds, second.longest_seconds) == (0, 31)


def test_a_recipe_is_a_value() -> None:
    """Workers of one recipe over the same memory make the same batch."""
    recipe: Recipe = make_recipe(FIELDS)
    laid = Bench(recipe, SAMPLES, KEYS)
    assert laid.array is not None

    batches = [laid.batch(Worker(laid.array, recipe))["label"].tolist() for _ in range(2)]

    assert batches == [[*range(6)]] * 2
