"""Groups: samples that are kept are made several at a time, and nobody can tell by what comes of it."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from worker_jobs import Bench, make_recipe

from aioload._workers import task
from aioload._workers.jobs import MARK, TABLE, Answer, Decode, Failure, Segment
from aioload._workers.own import bytes_owned
from aioload._workers.space import Span
from aioload._workers.task import Worker
from aioload.cache.memory import MemoryStore
from aioload.cache.stock import IN_MEMORY, TO_KEEP, StockPlan

ROWS = 20
Prepare = Callable[[dict[str, Any]], dict[str, Any]]
Transform = Callable[..., Any]


def bench(prepare: Prepare, transform: Transform, rows: int = ROWS, width: int = 16) -> Bench:
    """Make memory with records, all of which are to be kept where anything is."""
    recipe = replace(make_recipe({"x": "ndarray", "n": "int"}, transform=transform), prepare=prepare)
    samples = [{"x": np.full(width, row, np.float32), "n": row} for row in range(rows)]
    laid = Bench(recipe, samples, size=4096 + rows * (width * 24 + 1024))
    table_of(laid)["tier"] = TO_KEEP
    return laid


def table_of(laid: Bench) -> np.ndarray:
    """Return the rows of its table, to write to."""
    assert laid.array is not None
    return laid.array[laid.table.start : laid.table.stop].view(TABLE)


@contextmanager
def keeping(laid: Bench, mark: np.ndarray | None = None) -> Iterator[Worker]:
    """Make a worker over this memory that keeps what it makes."""
    assert laid.array is not None
    memory = MemoryStore.create(len(laid.samples), 16 << 20)
    worker = Worker(laid.array, replace(laid.recipe, stock=StockPlan((0,))), memory=memory, mark=mark)
    try:
        yield worker
    finally:
        worker.close()
        memory.close()


def batch_of(laid: Bench, worker: Worker) -> dict[str, Any]:
    """Return the values of the whole batch, as lists."""
    return {name: values.tolist() for name, values in laid.batch(worker).items()}


def grown(sample: dict[str, Any]) -> dict[str, Any]:
    """Give fresh memory."""
    return {"x": sample["x"] + 1, "n": sample["n"]}


def changing(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Write to what was given, and draw from all generators."""
    sample["x"][:4] += rng.random()
    sample["x"][4:] += random.random() + np.random.random() + torch.rand(()).item()
    return {"x": sample["x"].copy(), "n": sample["n"]}


class Filling:
    """Fills the same memory each time."""

    def __init__(self) -> None:
        self._memory = np.zeros(16, np.float32)
        self._dict: dict[str, Any] = {}
        self._weak: Callable[[], np.ndarray | None] = lambda: None

    def same(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Give the array itself."""
        self._memory[:] = sample["x"] + 1
        return {"x": self._memory, "n": sample["n"]}

    def same_in_same_dict(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Give it in the same dict each time, where it is held as well."""
        self._dict.setdefault("x", np.zeros(16, np.float32))[:] = sample["x"] + 1
        self._dict["n"] = sample["n"]
        return self._dict

    def weakly_held(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Give memory that was given before if that still lives."""
        memory = self._weak()
        if memory is None:
            memory = np.zeros(16, np.float32)
            self._weak = weakref.ref(memory)
        np.add(sample["x"], 1, out=memory)
        return {"x": memory, "n": sample["n"]}

    def weakly_held_once(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Give memory once, and write to it for as long as it lives."""
        memory = self._weak()
        if memory is not None:
            memory[:] = -1
            return grown(sample)
        memory = grown(sample)["x"]
        self._weak = weakref.ref(memory)
        return {"x": memory[:], "n": sample["n"]}

    def at_times(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Give fresh memory to most."""
        return grown(sample) if sample["n"] % 3 else self.same(sample)

    def view(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Give a view of it."""
        return {**self.same(sample), "x": self._memory[:]}

    def tensor(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Give a tensor over it."""
        return {**self.same(sample), "x": torch.from_numpy(self._memory).numpy()}

    def foreign(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Give an array over memory that is no array's."""
        return {**self.same(sample), "x": np.frombuffer(memoryview(self._memory), np.float32)}

    def listed(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Give it in a list."""
        return {**self.same(sample), "in": [self._memory]}

    def same_dict(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Fill the same dict with fresh arrays."""
        self._dict.update(grown(sample))
        return self._dict


@lru_cache(maxsize=2)
def remembered(number: int) -> np.ndarray:
    """Give the same array to records that follow each other."""
    return np.full(16, number + 1, np.float32)


def of_cache(sample: dict[str, Any]) -> dict[str, Any]:
    """Give an array that others have as well."""
    return {"x": remembered(sample["n"] // 2).copy() if sample["n"] % 2 else remembered(sample["n"]), "n": 0}


PREPARES: dict[str, Callable[[], Prepare]] = {
    "fresh": lambda: grown,
    "as it came": lambda: dict,
    "cached": lambda: of_cache,
    **{
        name: lambda name=name: getattr(Filling(), name)  # type: ignore[misc]
        for name in (
            "same",
            "weakly_held",
            "weakly_held_once",
            "at_times",
            "view",
            "tensor",
            "foreign",
            "listed",
            "same_dict",
            "same_in_same_dict",
        )
    },
}


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 17])
@pytest.mark.parametrize("name", PREPARES)
def test_whatever_memory_prepare_gives_batches_are_those_without_a_cache(name: str, rows: int) -> None:
    """Also where it gives the same memory for each record, and the transform writes to it."""
    remembered.cache_clear()
    laid = bench(PREPARES[name](), changing, rows)
    expected = batch_of(laid, laid.worker())

    remembered.cache_clear()
    laid.recipe = replace(laid.recipe, prepare=PREPARES[name]())
    with keeping(laid) as worker:
        first, second = batch_of(laid, worker), batch_of(laid, worker)

    assert first == expected
    assert second == expected


def order_of(prepare: Prepare, rows: int, width: int = 16) -> str:
    """Return in which order user code is called for rows: p and t."""
    calls: list[str] = []

    def watched(sample: dict[str, Any]) -> dict[str, Any]:
        calls.append("p")
        return prepare(sample)

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        calls.append("t")
        return {"n": sample["n"]}

    laid = bench(watched, transform, rows, width)
    with keeping(laid) as worker:
        laid.batch(worker)
    return "".join(calls)


def test_groups_are_of_eight() -> None:
    """Eight are prepared, then these are transformed."""
    assert order_of(grown, 20) == "pppppppptttttttt" * 2 + "pppptttt"


def test_what_may_change_is_used_before_the_next_is_begun() -> None:
    """A sample that somebody else has hold of ends its group."""
    assert order_of(Filling().same, 4) == "pt" * 4
    assert order_of(Filling().listed, 3) == "pt" * 3
    assert order_of(Filling().same_in_same_dict, 3) == "pt" * 3


def test_what_may_change_is_begun_again_where_others_have_run_since() -> None:
    """Once in a worker: then it knows that made samples cannot wait."""
    filling = Filling()

    def prepare(sample: dict[str, Any]) -> dict[str, Any]:
        return grown(sample) if sample["n"] < 2 else filling.same(sample)

    assert order_of(prepare, 5) == "ppp" + "tt" + "pt" + "pt" * 2


def test_a_transform_that_shares_memory_with_prepare_never_comes_between() -> None:
    """No transform of another sample runs between preparing one in shared memory and its own transform."""
    scratch = np.zeros(16, np.float32)

    def prepare(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] % 4 < 3:
            return grown(sample)
        np.add(sample["x"], 1, out=scratch)
        return {"x": scratch, "n": sample["n"]}

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        np.multiply(sample["x"], 2, out=scratch)
        return {"x": scratch.copy()}

    laid = bench(prepare, transform)
    expected = batch_of(laid, laid.worker())
    with keeping(laid) as worker:
        assert [batch_of(laid, worker) for _ in range(2)] == [expected] * 2


def test_the_arrays_of_a_group_are_bounded() -> None:
    """Of large samples there are fewer in a group."""
    half = task._MOST_BYTES // 2 // 4

    assert order_of(grown, 4, half) == "pptt" * 2
    assert order_of(grown, 2, 3 * half) == "ptpt"


@pytest.mark.parametrize(
    "prepare",
    [
        grown,
        lambda sample: {**grown(sample), "y": sample["x"] * 2},
        lambda sample: {"x": torch.from_numpy(sample["x"]) + 1, "in": [sample["x"]], "n": sample["n"]},
    ],
)
def test_what_was_kept_is_found_in_groups(prepare: Prepare) -> None:
    """Eight are found, then these are transformed, whatever is in them."""
    calls: list[int] = []

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(finds))
        return {"n": sample["n"]}

    finds: list[int] = []
    laid = bench(prepare, transform, 10)
    with keeping(laid) as worker:
        laid.batch(worker)
        stock = worker._stock
        assert stock is not None
        assert stock._memory is not None
        table, index = table_of(laid), stock._memory.index
        table["start"], table["stop"] = index["place"], index["place"] + index["size"]
        table["sum"], table["tier"] = index["sum"], IN_MEMORY
        find = stock.find
        stock.find = lambda *where: (finds.append(0), find(*where))[1]  # type: ignore[method-assign]
        calls.clear()
        laid.batch(worker)

    assert calls == [8] * 8 + [10] * 2


@given(
    st.integers(0, ROWS),
    st.integers(0, ROWS),
    st.sampled_from(["decode", "prepare"]),
    st.sampled_from([0, 3]),
)
def test_errors_keep_their_order(begun: int, ended: int, where: str, reused: int) -> None:
    """The failure that is told is that of the first row that has one, with all that tells of it."""
    filling = Filling()

    def prepare(sample: dict[str, Any]) -> dict[str, Any]:
        if where == "prepare" and sample["n"] == begun:
            raise ValueError("prepare")
        return filling.same(sample) if reused and sample["n"] % reused == 0 else grown(sample)

    def transform(sample: dict[str, Any]) -> Any:
        if sample["n"] == ended:
            raise KeyError("transform")
        return {"n": sample["n"]}

    laid = bench(prepare, transform)
    if where == "decode" and begun < ROWS:
        assert laid.array is not None
        table = table_of(laid)
        laid.array[table["start"][begun] + 1] ^= 1
    alone = laid.worker().run(laid.whole())
    with keeping(laid) as worker:
        grouped = worker.run(laid.whole())

    assert told(grouped) == told(alone)
    failure = grouped.outcomes[0].failure
    assert failure is None or "another exception" not in failure.trace
    if min(begun, ended) < ROWS:
        assert grouped.kept is not None
        assert grouped.kept.stored >= min(begun, ended)


def told(answer: Answer) -> Any:
    """Return what an answer tells of a failure."""
    failure: Failure | None = answer.outcomes[0].failure
    return failure and (
        failure.name,
        failure.message,
        failure.row,
        failure.record,
        failure.key,
        failure.facts,
    )


def test_a_failure_before_does_not_show_while_a_transform_runs() -> None:
    """A transform that asks what is being handled is told of nothing."""
    handled: list[Any] = []

    def prepare(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] == 3:
            raise ValueError("prepare")
        return grown(sample)

    def transform(sample: dict[str, Any]) -> Any:
        handled.append(sys.exc_info()[0])
        return sample["n"]

    laid = bench(prepare, transform)
    with keeping(laid) as worker:
        worker.run(laid.whole())

    assert handled == [None] * 3


def test_results_are_let_go_as_they_are_taken() -> None:
    """Of a group whose results are large, none lives on because others are still to come."""
    living: list[weakref.ref[Any]] = []
    most = [0]

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        large = np.full(64, sample["n"], np.float64)
        living.append(weakref.ref(large))
        most[0] = max(most[0], sum(ref() is not None for ref in living))
        return {"large": large}

    laid = bench(grown, transform, 8)
    with keeping(laid) as worker:
        layout = worker.run(laid.whole(learn=True)).outcomes[0].layout
        assert layout is not None
        living.clear()
        most[0] = 0
        size = layout.starts(8)[-1]
        batch = Span(laid.room.start, laid.room.start + size)
        texts = Span(batch.stop, laid.room.stop)
        segment = Segment(0, 0, 8, 8, texts, layout, batch)
        outcome = worker.run(Decode(laid.table, (segment,))).outcomes[0]

    assert outcome.failure is None
    assert not outcome.misfit
    assert len(living) == 8
    assert most[0] <= 2


def test_the_mark_is_at_the_row_that_runs() -> None:
    """Whoever finds a worker dead or stuck knows which record it was at."""
    mark = np.zeros(1, MARK)
    seen: list[tuple[int, int]] = []

    def watched(sample: dict[str, Any]) -> dict[str, Any]:
        seen.append((sample["n"], int(mark["row"][0])))
        return grown(sample)

    laid = bench(watched, watched)
    with keeping(laid, mark) as worker:
        laid.batch(worker)

    assert len(seen) == 2 * ROWS
    assert [row for row, _ in seen] == [row for _, row in seen]


def test_the_mark_tells_how_long_a_worker_has_been_at_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """What preparing it took counts, what others took meanwhile does not."""
    clock = [100.0]
    monkeypatch.setattr(task.time, "perf_counter", lambda: clock[0])
    mark = np.zeros(1, MARK)
    been: list[float] = []

    def prepare(sample: dict[str, Any]) -> dict[str, Any]:
        been.append(clock[0] - float(mark["began"][0]))
        clock[0] += sample["n"]
        return grown(sample)

    def transform(sample: dict[str, Any]) -> Any:
        been.append(clock[0] - float(mark["began"][0]))
        clock[0] += 1000
        return sample["n"]

    laid = bench(prepare, transform, 5)
    with keeping(laid, mark) as worker:
        laid.batch(worker)

    assert been == [0] * 5 + [0, 1, 2, 3, 4]


def test_who_imports_torch_in_the_transform_gets_the_sample_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its generator is set before it draws, and what it has written to is forgotten."""
    found = sys.modules["torch"]

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        sys.modules["torch"] = found
        sample["x"] += torch.rand(()).item()
        return {"x": sample["x"]}

    laid = bench(grown, transform)
    expected = batch_of(laid, laid.worker())
    with keeping(laid) as worker:
        monkeypatch.delitem(sys.modules, "torch")
        assert batch_of(laid, worker) == expected


def test_who_may_change_a_sample_is_told_apart() -> None:
    """Values that cannot change and arrays that nobody else has are a sample's own."""
    array = np.zeros((4, 4), np.int16)

    assert bytes_owned({}) == 0
    assert (
        bytes_owned({"a": np.zeros(4, np.int16), "b": 1, "c": "text", "d": b"bytes", "e": None}) == 8 + 4 + 5
    )
    assert bytes_owned({"a": np.zeros((4, 4), np.int16)[1:, ::2].T, "b": np.float32(2), "c": np.True_}) == 32
    for other in (
        {"a": array},
        {"a": array[1:]},
        {"a": np.zeros(4)[:2], "b": [1]},
        {"a": np.array([[]], object)},
        {"a": np.frombuffer(bytearray(8), np.uint8)},
        {"a": torch.zeros(2)},
        {"a": torch.zeros(2).numpy()},
        {"a": np.zeros(1, [("x", "i4")])[0]},
        [array.copy()],
    ):
        assert bytes_owned(other) is None


def test_an_array_under_two_names_is_not_a_samples_own() -> None:
    """Nor are two views of one, as long as that cannot be told from what others have."""
    one = np.zeros(4)
    both = {"a": one, "b": one}
    views = {"a": one[:2], "b": one[2:]}
    del one

    assert bytes_owned(both) is None
    assert bytes_owned(views) is None
