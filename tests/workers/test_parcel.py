"""Parcels: a job that travels comes to the same bytes as one that is done in place."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise
from typing import Any

import cloudpickle
import numpy as np
import pytest
from fakes import identity
from hypothesis import given
from hypothesis import strategies as st
from worker_jobs import Bench, make_recipe

from aioload._workers.jobs import TABLE, Collate, Decode, Job, Recipe, Segment
from aioload._workers.parcel import Blob, Kit, Parcel, Reply, covering, make_kit, place, wrap
from aioload._workers.space import Span
from aioload._workers.visitor import visit

FIELDS = {"x": "ndarray", "label": "int", "name": "str"}
SAMPLES = [{"x": np.full(3 + (row == 9), row, "f4"), "label": row, "name": f"ü{row}"} for row in range(6)]
PROTOCOLS = [4, 5]


class Marked(RuntimeError):
    """Raised by the transform below."""


def failing(sample: dict[str, Any]) -> Any:
    """Raise at the fifth record."""
    if sample["label"] == 4:
        raise Marked("at four")
    return sample


def counted(samples: list[Any]) -> Any:
    """Make a batch that shows which samples it got, and changes them."""
    for sample in samples:
        sample["x"] += 1
    return {"sum": np.stack([sample["x"] for sample in samples]), "n": len(samples)}


def bench(**recipe: Any) -> Bench:
    """Lay six samples down."""
    return Bench(make_recipe(FIELDS, **recipe), SAMPLES, [f"k{row}" for row in range(6)])


def kit_of(recipe: Recipe) -> Kit:
    """Pack what a visitor needs."""
    return make_kit(cloudpickle.dumps(recipe), b"")


def travelled(laid: Bench, job: Job, protocol: int = 5) -> tuple[Any, np.ndarray]:
    """Do a job by parcel, pickled on both ways; return the answer and the memory."""
    assert laid.array is not None
    array = laid.array.copy()
    parcel = wrap(job, array, kit_of(laid.recipe), with_kit=True)
    reply = visit(pickle.loads(pickle.dumps(parcel, protocol)))
    return place(job, pickle.loads(pickle.dumps(reply, protocol)), array), array


def done_here(laid: Bench, job: Job) -> tuple[Any, np.ndarray]:
    """Do a job in place; return the answer and the memory."""
    assert laid.array is not None
    before = laid.array
    laid.array = before.copy()
    try:
        return laid.worker().run(job), laid.array
    finally:
        laid.array = before


def layout_of(laid: Bench) -> Any:
    """Return the layout of the samples."""
    return laid.worker().run(laid.whole(learn=True)).outcomes[0].layout


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("options", [{}, {"learn": True}, {"collect": True}])
def test_a_packed_batch_comes_back_as_it_is_made_here(protocol: int, options: dict[str, Any]) -> None:
    """Outcome and memory are the same, whichever way the payload is pickled."""
    laid = bench()
    job = laid.whole(**options)

    answer, array = travelled(laid, job, protocol)

    here, expected = done_here(laid, job)
    assert answer.outcomes == here.outcomes
    assert array.tobytes() == expected.tobytes()


@pytest.mark.parametrize("first", [0, 2])
def test_rows_of_a_part_go_to_their_places_in_the_batch(first: int) -> None:
    """A part of a batch of rows leaves the rows of other parts alone."""
    laid = bench()
    layout = layout_of(laid)
    batch, beside = Span(1 << 18, (1 << 18) + layout.starts(6)[-1]), Span(1 << 19, (1 << 19) + 4096)
    table = Span(laid.table.start + first * TABLE.itemsize, laid.table.stop)
    job = Decode(table, (Segment(7, first, 6 - first, 6, beside, layout, batch),))

    answer, array = travelled(laid, job)

    here, expected = done_here(laid, job)
    assert answer.outcomes == here.outcomes
    assert array.tobytes() == expected.tobytes()


def test_samples_of_parts_are_collated_elsewhere() -> None:
    """Packed samples travel as they lie, and a collate may change them, as it may here."""
    laid = bench(collate=counted)
    worker, places = laid.worker(), [Span(65536 * part, 65536 * (part + 1)) for part in (1, 2, 3)]
    first, second = (
        worker.run(laid.job(*rows, where)).outcomes[0]
        for rows, where in zip(((0, 4), (4, 6)), places, strict=False)
    )
    parts = ((places[0], first.descriptor), (places[1], second.descriptor))
    job = Collate(7, parts, places[2], laid.table)  # type: ignore[arg-type]  # both are there

    answer, array = travelled(laid, job)

    here, expected = done_here(laid, job)
    assert answer.outcomes == here.outcomes
    assert array.tobytes() == expected.tobytes()


def test_a_failure_names_its_row_of_the_batch() -> None:
    """Also where the part travelled as a batch of its own."""
    good, laid = bench(transform=identity), bench(transform=failing)
    layout = layout_of(good)
    batch, beside = Span(1 << 18, (1 << 18) + layout.starts(6)[-1]), Span(1 << 19, (1 << 19) + 4096)
    table = Span(laid.table.start + 3 * TABLE.itemsize, laid.table.stop)
    job = Decode(table, (Segment(7, 3, 3, 6, beside, layout, batch),))

    answer, _ = travelled(laid, job)

    (outcome,) = answer.outcomes
    assert (outcome.failure.name, outcome.failure.row, outcome.failure.record) == ("Marked", 4, 4)


def test_too_little_room_is_told() -> None:
    """Nothing is written, and the answer says how much would be enough."""
    laid = bench()
    job = laid.job(0, 6, Span(1 << 18, (1 << 18) + 64))

    answer, array = travelled(laid, job)

    here, _ = done_here(laid, job)
    assert answer.outcomes == here.outcomes
    assert laid.array is not None
    assert array.tobytes() == laid.array.tobytes()


def test_payloads_go_beside_the_pickle() -> None:
    """By protocol 5, what is pickled holds neither records on the way there nor samples on the way back."""
    big = [{"x": np.random.default_rng(row).random(50_000), "label": row, "name": ""} for row in range(2)]
    laid = Bench(make_recipe(FIELDS), big, size=8 << 20)
    assert laid.array is not None
    parcel = wrap(laid.whole(), laid.array, kit_of(laid.recipe), with_kit=False)
    beside: list[pickle.PickleBuffer] = []

    pickled = pickle.dumps(parcel, 5, buffer_callback=beside.append)

    assert len(pickled) < 8000
    assert sum(len(buffer.raw()) for buffer in beside) > 800_000
    again = pickle.loads(pickled, buffers=[buffer.raw() for buffer in beside])
    reply = visit(replace(again, kit=kit_of(laid.recipe)))
    answered = pickle.dumps(reply, 5, buffer_callback=beside.append)
    assert len(answered) < 8000


def test_a_visitor_asks_for_what_it_lacks_and_keeps_what_it_gets() -> None:
    """The recipe travels once: before it has come nothing is done, and afterwards it is not needed again."""
    laid = bench(seed=int.from_bytes(b"never seen before"[:6]))
    assert laid.array is not None
    kit = kit_of(laid.recipe)
    without = wrap(laid.whole(), laid.array, kit, with_kit=False)
    lacking = visit(without)

    visit(wrap(laid.whole(), laid.array, kit, with_kit=True))
    reply = visit(without)

    assert (lacking.answer, lacking.trouble) == (None, "")
    assert reply.answer is not None


@pytest.mark.parametrize(
    ("kit", "told"),
    [
        (Kit(b"1", "another", b""), "has aioload"),
        (replace(make_kit(b"no pickle", b""), key=b"2"), "UnpicklingError"),
    ],
)
def test_what_cannot_be_loaded_is_told(kit: Kit, told: str) -> None:
    """Another version of the package, or a recipe that raises, is an answer and no exception."""
    empty = Blob(b"")

    reply = visit(Parcel(bench().whole(), kit.key, kit, empty, empty, empty, 0, 0))

    assert reply.answer is None
    assert told in reply.trouble
    assert reply.trace


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 50)), min_size=1), st.integers(0, 20))
def test_what_covers_ranges_holds_each(ranges: list[tuple[int, int]], gap: int) -> None:
    """Laid end to end, what each range moves to holds the same bytes."""
    memory = np.random.default_rng(0).integers(0, 256, 2100, np.uint8).tobytes()
    start = np.array([first for first, _ in ranges], np.int64)
    stop = start + np.array([size for _, size in ranges], np.int64)

    found, moves = covering(start, stop, gap)

    together = b"".join(memory[first:last] for first, last in found)
    moved = [together[a:b] for a, b in zip(start + moves, stop + moves, strict=True)]
    assert moved == [memory[a:b] for a, b in zip(start, stop, strict=True)]
    assert all(later > last + gap for (_, last), (later, _) in pairwise(found))


def test_an_empty_reply_is_small() -> None:
    """A blob of nothing can be pickled either way."""
    for protocol in PROTOCOLS:
        reply = pickle.loads(pickle.dumps(Reply("w", parts=((Blob(b""), Blob(b"")),)), protocol))
        assert len(reply.parts[0][0].array) == 0
