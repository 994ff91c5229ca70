"""Tuner: windows of what was counted, decisions carried out, and what users are told of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from aioload._pipeline import tuner as module
from aioload._pipeline.adapt import Change, Seen
from aioload._pipeline.memory import Memory
from aioload._pipeline.sizes import Sizes
from aioload._pipeline.slots import Slots
from aioload._pipeline.tuner import Tuner
from aioload._workers.arena import Arena
from aioload._workers.layout import learn
from aioload._workers.pool import PoolOptions
from aioload.report import render
from aioload.stats import Counters

AUTO = PoolOptions(2, most_workers=8)


class FakePool:
    """Workers that come and go at once, or not at all."""

    def __init__(self, workers: int = 2) -> None:
        self.num_workers = workers
        self.most = 99
        self.settled = True
        self.worker_bytes = 1 << 20

    def resize(self, count: int) -> None:
        self.num_workers = min(count, self.most)


class Scripted:
    """A controller that notes what it sees and decides what it is told to."""

    def __init__(self, real: Any, *changes: Change | None) -> None:
        self.real = real
        self.changes = list(changes)
        self.seen: list[Seen] = []

    def __getitem__(self, knob: Any) -> int:
        return self.real[knob]

    def observe(self, now: float, seen: Seen) -> Change | None:
        self.seen.append(seen)
        change = self.changes.pop(0) if self.changes else None
        if change is not None:
            self.real._values[change.knob] = change.value
        return change

    def refuse(self, knob: Any, value: int) -> None:
        self.real.refuse(knob, value)


class Bench:
    """A tuner with all that it measures, and a clock that the test turns."""

    def __init__(self, memory: Memory, options: PoolOptions, prefetch: int | None, *changes: Change) -> None:
        self.now = 100.0
        self.counters = Counters()
        self.sizes = Sizes(options.num_workers, 1000, 1 << 20)
        self.slots = Slots(4)
        self.tuner = Tuner(
            options, prefetch, 64, self.counters, self.sizes, memory, self.slots, clock=lambda: self.now
        )
        self.pool = FakePool(options.num_workers)
        self.tuner.pool = self.pool if options.num_workers else None  # type: ignore[assignment]  # as far as it is used
        self.controller = Scripted(self.tuner._controller, *changes)
        self.tuner._controller = self.controller  # type: ignore[assignment]  # as far as it is used

    def pass_by(self, seconds: float, **counts: float) -> None:
        """Let time go by in which something is counted, and look."""
        self.now += seconds
        self.counters.add(**counts)
        self.tuner.look()


@pytest.fixture
async def memory() -> AsyncIterator[Memory]:
    """Some megabytes."""
    with Arena(64 << 20) as arena:
        yield Memory(arena, int)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A machine with as much memory as the test says."""
    found = {"memory": 1 << 40}
    monkeypatch.setattr(module, "available_memory", lambda: found["memory"])
    monkeypatch.setattr(module, "local_world_size", lambda: 1)
    return found


async def test_a_window_tells_what_happened_in_it(memory: Memory) -> None:
    """Counts and times since the last look, shares of the window's length."""
    bench = Bench(memory, AUTO, None)
    bench.pass_by(1, batches=5, wait_seconds=3, work_seconds=50, reads=70)

    bench.pass_by(
        2.0,
        batches=10,
        wait_seconds=0.5,
        consumer_seconds=1.5,
        work_seconds=3,
        blocked_seconds=1.5,
        reads=20,
        read_bytes=1000,
        read_seconds=0.25,
    )

    assert bench.controller.seen == [
        Seen(
            seconds=2.0,
            batches=10,
            wait_seconds=0.5,
            consumer_seconds=1.5,
            busy=1.5,
            blocked=0.5,
            reads=20,
            read_bytes=1000,
            read_seconds=0.25,
            held=0.0,
        )
    ]


async def test_without_workers_the_users_wait_is_what_can_be_busy(memory: Memory) -> None:
    """Samples are made while the user waits: half of that in decoding is half a worker."""
    bench = Bench(memory, PoolOptions(0), None)
    bench.pass_by(1, batches=1)

    bench.pass_by(1, batches=8, wait_seconds=0.5, decode_seconds=0.125, transform_seconds=0.125)

    assert bench.controller.seen[0].busy == 0.5


async def test_the_start_is_no_window_and_short_ones_go_on(memory: Memory) -> None:
    """Nothing is decided before the first batch, nor by a moment, nor by a single batch."""
    bench = Bench(memory, AUTO, None)

    bench.pass_by(5, reads=100)
    bench.pass_by(5, batches=1)
    bench.pass_by(0.1, batches=50)
    bench.pass_by(0.3)
    short = len(bench.controller.seen)
    bench.pass_by(0.3, batches=1)
    bench.pass_by(2)

    assert short == 1
    assert [seen.seconds for seen in bench.controller.seen] == pytest.approx([0.4, 2.3])


async def test_reads_alone_make_a_window(memory: Memory) -> None:
    """While the user waits for a batch of many slow reads, those are enough to see what is wrong."""
    bench = Bench(memory, AUTO, None)
    bench.pass_by(1, batches=1)
    bench.counters.arrive()

    bench.pass_by(0.3, reads=16, read_seconds=1.2)

    (seen,) = bench.controller.seen
    assert seen.batches == 0
    assert seen.wait_seconds > 0


async def test_time_in_which_runs_are_held_back_counts_once(memory: Memory) -> None:
    """Of two passes that are held back at once, of one over the border of windows, and of none."""
    bench = Bench(memory, AUTO, None)
    bench.pass_by(1, batches=1)

    with bench.tuner.holding():
        bench.now += 0.5
        with bench.tuner.holding():
            bench.now += 0.25
        bench.pass_by(0.25, batches=9)
        bench.now += 0.5
    bench.pass_by(0.5, batches=9)
    bench.pass_by(1, batches=9)

    assert [seen.held for seen in bench.controller.seen] == [1.0, 0.5, 0.0]


async def test_decisions_are_carried_out_and_told(memory: Memory, limits: dict[str, int]) -> None:
    """Workers, reads and batches ahead change; stats have the numbers, the report the reasons."""
    changes = [
        Change("workers", 5, "reason A"),
        Change("reads", 16, "reason B"),
        Change("ahead", 8, "reason C"),
    ]
    bench = Bench(memory, AUTO, None, *changes)
    told: list[int] = []
    bench.tuner.on_change = lambda: told.append(bench.counters.snapshot().adaptations)
    before = bench.tuner.depth(8, 1)

    for _ in range(5):
        bench.pass_by(1, batches=10)
    after = bench.tuner.depth(8, 1)
    stats = bench.counters.snapshot()
    report = render(stats, bench.counters.reasons)

    assert (bench.pool.num_workers, bench.slots.total) == (5, 16)
    assert after > before
    assert (stats.num_workers, stats.prefetch, stats.reads_in_flight) == (5, after, 16)
    assert told == [1, 2, 3]
    assert "workers: 5 (reason A)" in report
    assert f"batches ahead: {after} (reason C)" in report
    assert "reads at once: 16 (reason B)" in report


async def test_workers_on_their_way_are_waited_for(memory: Memory, limits: dict[str, int]) -> None:
    """What is measured while they start decides nothing."""
    bench = Bench(memory, AUTO, None)
    bench.pass_by(1, batches=10)

    bench.pool.settled = False
    bench.pass_by(1, batches=10)
    bench.pool.settled = True
    bench.pass_by(1, batches=20)

    assert [seen.batches for seen in bench.controller.seen] == [20]


async def test_workers_that_do_not_start_are_not_asked_for_again(
    memory: Memory, limits: dict[str, int]
) -> None:
    """The numbers are those of the workers there are, and the report says why."""
    bench = Bench(memory, AUTO, None, Change("workers", 8, "more"))
    bench.pool.most = 3
    bench.pass_by(1, batches=10)

    bench.pass_by(1, batches=10)
    bench.pass_by(1, batches=10)

    assert bench.controller["workers"] == 3
    assert bench.counters.snapshot().num_workers == 3
    assert "did not start" in bench.counters.reasons["num_workers"]


async def test_workers_that_memory_has_no_room_for_are_not_started(
    memory: Memory, limits: dict[str, int]
) -> None:
    """Six more of 1 MiB each may take a quarter of what is left, and no more."""
    bench = Bench(memory, AUTO, None, Change("workers", 8, "more"), Change("workers", 8, "more"))
    bench.pass_by(1, batches=10)

    limits["memory"] = 23 << 20
    bench.pass_by(1, batches=10)
    refused = bench.pool.num_workers, bench.controller["workers"], bench.counters.reasons["num_workers"]
    limits["memory"] = 25 << 20
    bench.pass_by(1, batches=10)

    assert refused == (2, 2, "there is no memory for more")
    assert bench.pool.num_workers == 8


async def test_a_given_prefetch_is_the_depth(memory: Memory) -> None:
    """Whatever batches cost."""
    bench = Bench(memory, AUTO, 5)

    assert bench.tuner.depth(8, 1) == 5
    assert bench.tuner.depth(8192, 256) == 5
    assert bench.counters.snapshot().prefetch == 5


async def test_the_depth_stays_within_the_memory_for_batches(memory: Memory) -> None:
    """Batches of 4 MB are fewer than small ones, but one more than there are workers; the report says why."""
    bench = Bench(memory, AUTO, None)
    small = bench.tuner.depth(100, 16)
    layout = learn([{"x": np.zeros(1000, np.float64)}])
    assert layout is not None
    bench.sizes.learn(layout)

    large = bench.tuner.depth(4000, 16)

    assert small > 16
    assert large == 3
    assert bench.counters.reasons["prefetch"] == "what memory_limit has room for"


async def test_the_depth_does_not_follow_every_measure(memory: Memory) -> None:
    """It grows at once, and shrinks when costs have clearly changed."""
    bench = Bench(memory, AUTO, None)

    depths = [bench.tuner.depth(8, steps) for steps in (10, 9, 7, 11, 2, 3)]

    assert depths == [60, 60, 60, 66, 12, 18]


async def test_more_reads_have_something_to_read(memory: Memory) -> None:
    """Where a batch takes two reads, 16 more reads at once take 8 more batches."""
    bench = Bench(memory, AUTO, None, *[None] * 8, Change("reads", 20, "slow"))  # type: ignore[arg-type]  # decides nothing at first
    before = bench.tuner.depth(8, 1)
    bench.pass_by(1, batches=1)

    for _ in range(9):
        bench.pass_by(1, batches=10, reads=20)

    assert bench.tuner.depth(8, 1) == before + 9  # the mean comes near to 2 from below
