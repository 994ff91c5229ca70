"""Careful: in a batch in which something went wrong, exactly what is to blame is found."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload._pipeline.careful import Careful, Piece, Suspects
from aioload._pipeline.parts import Part
from aioload._workers.jobs import TABLE, Failure, Outcome
from aioload._workers.pool import WorkerDied
from aioload._workers.space import Span
from aioload.errors import AioloadError, SampleError, WorkerError

FOR_EVER = 1 << 30


class FakeLease:
    """Memory that is only counted."""

    span = Span(0, 1 << 16)


class FakeWalk:
    """Workers over one batch whose records do as they are told.

    Args:
        raising: rows that raise.
        killing: how often a row kills its worker.
        silent: rows whose deaths leave no trace of the record.
    """

    epoch = 0

    def __init__(
        self, raising: set[int], killing: dict[int, int], silent: frozenset[int] = frozenset()
    ) -> None:
        self.suspects = Suspects()
        self.runs: Counter[int] = Counter()
        self.leases = 0
        self.asked: list[list[int]] = []
        self._raising, self._killing, self._silent = raising, Counter(killing), silent

    def records(self, part: Part) -> list[tuple[int, int]]:
        first = part.table.start // TABLE.itemsize
        return [(0, 100 + row) for row in range(first, first + part.rows)]

    def place_of(self, part: Part, row: int) -> tuple[str, int]:
        return "shard", self.records(part)[row][1]

    def error(self, failure: Failure, step: int) -> AioloadError:
        return SampleError(failure.message, record=failure.record)

    def killed(self, part: Part, died: WorkerDied) -> WorkerError:
        return WorkerError("killed", record=self.records(part)[0][1])

    async def lease(self, stack: contextlib.ExitStack, size: int) -> FakeLease:
        self.leases += 1
        stack.callback(self._release)
        return FakeLease()

    def array(self, lease: FakeLease) -> np.ndarray:
        return np.zeros(len(range(lease.span.start, lease.span.stop)), np.uint8)

    async def collect(
        self, part: Part, whole: Part, stack: contextlib.ExitStack
    ) -> tuple[Outcome, FakeLease]:
        rows = list(range(part.first, part.first + part.rows))
        self.asked.append(rows)
        self.run(rows)
        lease = await self.lease(stack, 1)
        failures = [
            Failure("SampleError", "E", "bad", "", row, 0, 100 + row, None, {})
            for row in rows
            if row in self._raising
        ]
        return Outcome(used=1, descriptor=Span(0, 1), failures=tuple(failures)), lease

    async def finish(self, whole: Part, pieces: list[Piece], skipped: Any) -> Any:
        return [(piece.first, piece.rows) for piece in pieces], [one.record for one, _, _ in skipped]

    def run(self, rows: list[int]) -> None:
        """Work on rows as one job, up to the first that kills."""
        for place, row in enumerate(rows):
            self.runs[row] += 1
            if self._killing[row] > 0:
                self._killing[row] -= 1
                raise WorkerDied("died", None if row in self._silent else place, -9, None)

    def _release(self) -> None:
        self.leases -= 1


def whole(rows: int) -> Part:
    """All rows of a batch."""
    return Part(5, 0, rows, rows, Span(0, rows * TABLE.itemsize), 100 * rows)


def make(walk: FakeWalk, rows: int, decide: Any = lambda error: None, known: Any = None) -> Any:
    """Make a batch as after a first try that failed."""
    with contextlib.suppress(WorkerDied):
        try:
            walk.run(list(range(rows)))
        except WorkerDied as died:
            if died.row is not None:
                walk.suspects.note((0, 100 + died.row))
            raise
    fake: Any = walk
    return asyncio.run(Careful(fake, whole(rows), known or {}, decide).make())


def left(pieces: list[tuple[int, int]]) -> int:
    """How many samples pieces hold."""
    return sum(rows for _, rows in pieces)


# Blame -----------------------------------------------------------------------------------------------


def test_one_death_blames_nobody() -> None:
    """A record at which a worker died once is tried alone, and all is there."""
    walk = FakeWalk(set(), {3: 1})

    pieces, skipped = make(walk, 8)

    assert walk.asked == [[0, 1, 2], [3], [4, 5, 6, 7]]
    assert (left(pieces), skipped) == (8, [])
    assert walk.suspects.among([(0, 103)]) == []


def test_the_second_death_alone_is_the_records() -> None:
    """A record that kills again with nothing else in work is left out, and no other."""
    walk = FakeWalk(set(), {3: FOR_EVER})

    pieces, skipped = make(walk, 8)

    assert (left(pieces), skipped) == (7, [103])
    assert walk.runs[3] == 2


def test_a_record_that_kills_without_a_trace_is_found_by_halves() -> None:
    """Where nobody knows at which record a worker died, the batch is halved until one is left."""
    walk = FakeWalk(set(), {5: FOR_EVER}, silent=frozenset({5}))

    pieces, skipped = make(walk, 8)

    assert (left(pieces), skipped) == (7, [105])
    assert walk.asked[:4] == [list(range(8)), [0, 1, 2, 3], [4, 5, 6, 7], [4, 5]]


@given(
    st.integers(1, 12),
    st.sets(st.integers(0, 11)),
    st.dictionaries(st.integers(0, 11), st.sampled_from([1, FOR_EVER])),
)
def test_exactly_those_to_blame_are_left_out(rows: int, raising: set[int], killing: dict[int, int]) -> None:
    """Those that raise or kill for ever are missing, nothing is run a third time, no memory is lost."""
    walk = FakeWalk(raising, killing)
    bad = {row for row in range(rows) if row in raising or killing.get(row) == FOR_EVER}

    pieces, skipped = make(walk, rows)

    assert skipped == [100 + row for row in sorted(bad)]
    assert left(pieces) == rows - len(bad)
    assert pieces == sorted(pieces)
    assert max(walk.runs.values()) <= 2
    assert walk.leases == 0


@given(st.integers(1, 12), st.dictionaries(st.integers(0, 11), st.sampled_from([1, FOR_EVER])))
def test_deaths_without_a_trace_come_to_an_end(rows: int, killing: dict[int, int]) -> None:
    """Also where no death tells its record, only those that kill for ever are missing."""
    walk = FakeWalk(set(), killing, silent=frozenset(range(12)))

    pieces, skipped = make(walk, rows)

    assert skipped == [100 + row for row in range(rows) if killing.get(row) == FOR_EVER]
    assert left(pieces) == rows - len(skipped)
    assert walk.leases == 0


# Decisions -------------------------------------------------------------------------------------------


def test_what_could_not_be_read_is_not_tried() -> None:
    """Rows known to fail are cut out before any work is done."""
    walk = FakeWalk(set(), {})

    pieces, skipped = asyncio.run(
        Careful(walk, whole(6), {0: SampleError("gone"), 3: SampleError("gone")}, lambda error: None).make()  # type: ignore[arg-type]  # a fake walk
    )

    assert walk.asked == [[1, 2], [4, 5]]
    assert (left(pieces), skipped) == (4, [100, 103])


def test_errors_are_decided_in_the_order_of_the_rows() -> None:
    """The first that is raised ends the batch, with its step; none after it is asked about."""
    asked: list[int] = []

    def decide(error: AioloadError) -> None:
        asked.append(error.record or 0)
        if error.record == 104:
            raise error

    walk = FakeWalk({1, 4, 6}, {})

    error = make(walk, 8, decide)

    assert asked == [101, 104]
    assert (error.record, error.step, error.facts["step"]) == (104, 5, 5)
    assert walk.leases == 0


def test_a_replacement_takes_the_place_of_its_row() -> None:
    """The sample that the policy gives is a piece of its own."""
    walk = FakeWalk({2}, {})

    pieces, skipped = make(walk, 4, lambda error: ({"n": 1},))

    assert pieces == [(0, 3), (2, 1)]
    assert skipped == []


def test_a_replacement_of_any_size_is_packed() -> None:
    """A sample larger than the room that was guessed gets as much as it needs."""
    FakeLease.span = Span(0, 1 << 10)
    walk = FakeWalk({2}, {})
    sizes: list[int] = []

    async def lease(stack: contextlib.ExitStack, size: int) -> FakeLease:
        sizes.append(size)
        FakeLease.span = Span(0, 1 << 10 if len(sizes) < 3 else size)
        return FakeLease()

    walk.lease = lease  # type: ignore[method-assign]  # notes what is asked for

    pieces, _ = make(walk, 4, lambda error: (np.zeros(100_000, np.uint8),))

    assert pieces == [(0, 3), (2, 1)]
    assert sizes[-1] > 100_000


def test_a_replacement_that_cannot_be_packed_is_told() -> None:
    """A sample that no worker could get is the policy's fault, and says so."""
    walk = FakeWalk({2}, {})

    error = make(walk, 4, lambda error: ((i for i in ()),))

    assert "the sample that on_error gave cannot be packed (TypeError" in str(error)
    assert error.record == 102


@pytest.mark.parametrize(("rows", "place"), [(1, 0), (4, 0), (4, 2), (4, 3)])
def test_parts_are_cut_without_loss(rows: int, place: int) -> None:
    """Around a row, in halves and without some rows, every other row stays, with its table."""
    part = whole(rows)

    around = [(one.first, one.rows) for one in part.around(place)]
    halves = [(one.first, one.rows) for one in part.halves()]
    without = [row for one in part.without({place}) for row in range(one.first, one.first + one.rows)]

    assert sum(count for _, count in around) == sum(count for _, count in halves) == rows
    assert (place, 1) in around
    assert without == [row for row in range(rows) if row != place]
    assert all(one.table.start == one.first * TABLE.itemsize for one in [*part.around(place), *part.halves()])
