"""Adapt: on machines made of arithmetic the numbers settle where they serve, and stay there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload._pipeline.adapt import Change, Controller, Knob, Range, Seen, depth

KNOBS: tuple[Knob, ...] = ("workers", "ahead", "reads")


@dataclass
class Machine:
    """A loader in steady state: what it delivers follows from the scarcest of what it has."""

    cpus: int = 2
    compute: float = 0.02
    """Seconds of CPU for a batch."""
    block: float = 0.0
    """Seconds a batch's jobs wait for something else."""
    consumer: float = 0.0
    """Seconds the user needs for a batch."""
    latency: float = 0.0001
    """Seconds of a read."""
    batch_reads: int = 8
    read_bytes: int = 100_000
    bandwidth: float = math.inf
    """Bytes a second that storage gives, however many reads."""
    needed_ahead: int = 1
    """Runs ahead below which workers idle now and then."""

    def window(self, controller: Controller, seconds: float = 0.25) -> Seen:
        """Return what is seen in a window."""
        workers, reads, ahead = controller["workers"], controller["reads"], controller["ahead"]
        by_cpu = self.cpus / self.compute if self.compute else math.inf
        made = min(workers / (self.compute + self.block), by_cpu) * min(1, ahead / self.needed_ahead)
        batch_bytes = self.batch_reads * self.read_bytes
        read = min(reads / self.latency / self.batch_reads, self.bandwidth / batch_bytes)
        taken = 1 / self.consumer if self.consumer else math.inf
        rate = min(made, read, taken)
        batches = max(int(rate * seconds), 1)
        seconds = batches / rate
        # those that want a CPU and get none are at work, but not blocked
        job = workers / made * min(1, ahead / self.needed_ahead) if made < math.inf else 0.0
        waits_for_reads = read < min(made, taken)
        read_seconds = reads * seconds if waits_for_reads else batches * self.batch_reads * self.latency
        return Seen(
            seconds=seconds,
            batches=batches,
            wait_seconds=max(seconds - batches * self.consumer, 0.0),
            consumer_seconds=batches * self.consumer,
            busy=rate * job,
            blocked=self.block / job if job else 0.0,
            reads=batches * self.batch_reads,
            read_bytes=batches * batch_bytes,
            read_seconds=read_seconds,
            held=1.0 if not waits_for_reads else 0.0,
        )


def auto(cpus: int = 2, most_reads: int = 64) -> Controller:
    """Return a controller that may change everything."""
    return Controller(
        workers=Range(cpus, 1, 4 * cpus), ahead=Range(2, 1, 16), reads=Range(4, 1, most_reads), cpus=cpus
    )


def run(machine: Machine, controller: Controller, windows: int, now: float = 0.0) -> list[Change]:
    """Let a machine run; return what was changed."""
    changes = []
    for _ in range(windows):
        seen = machine.window(controller)
        now += seen.seconds
        change = controller.observe(now, seen)
        if change is not None:
            changes.append(change)
            assert controller[change.knob] == change.value
    return changes


def values(controller: Controller) -> dict[str, int]:
    """Return all numbers."""
    return {knob: controller[knob] for knob in KNOBS}


def test_jobs_that_wait_get_more_workers_until_the_cpus_compute() -> None:
    """Three quarters of each job are waits: 4 workers for a CPU, found within the first seconds, and kept."""
    machine, controller = Machine(cpus=2, compute=0.01, block=0.03), auto(2)

    first = run(machine, controller, 12)
    later = run(machine, controller, 400, now=100)

    assert controller["workers"] == 8
    assert [change.knob for change in first] == ["workers"]
    assert "75% of their time waiting" in first[0].reason
    assert later == []


def test_workers_never_exceed_what_the_cpus_can_serve() -> None:
    """A third of each job is a wait: half as many again would be as many as compute at once."""
    machine, controller = Machine(cpus=4, compute=0.02, block=0.01), auto(4)

    run(machine, controller, 100)

    assert controller["workers"] == 6


@pytest.mark.parametrize("cpus", [1, 2, 16])
def test_where_cpus_are_the_limit_nothing_changes(cpus: int) -> None:
    """Jobs that compute all the time are not made faster by anything here."""
    machine, controller = Machine(cpus=cpus, compute=0.05, needed_ahead=2), auto(cpus)

    assert run(machine, controller, 500) == []


def test_a_crowded_machine_is_given_no_more_workers() -> None:
    """Jobs take long since they wait for CPUs that others use: that is not waiting for something else."""
    machine, controller = Machine(cpus=1, compute=0.05), auto(4)

    assert run(machine, controller, 500) == []


def test_slow_storage_gets_more_reads_at_once() -> None:
    """20 ms a read: as many at once as may be come near to the ideal within the first seconds."""
    machine, controller = Machine(compute=0.001, latency=0.02), auto()

    changes = run(machine, controller, 20)

    assert [change.value for change in changes if change.knob == "reads"] == [8, 16, 32, 64]
    assert "a read took 20.0 ms" in changes[0].reason
    assert run(machine, controller, 400, now=1000) == []


def test_reads_that_bring_nothing_are_taken_back() -> None:
    """Storage that gives only so many bytes a second, with 8 reads or more: there it stays."""
    machine, controller = Machine(compute=0.001, latency=0.02, bandwidth=8 * 100_000 / 0.02), auto()

    changes = run(machine, controller, 2000)

    assert controller["reads"] == 8
    assert changes[-1].reason == "16 brought nothing"
    assert len(changes) <= 11


def test_fast_reads_are_never_multiplied() -> None:
    """From the page cache a read takes as long as its bytes need: no latency that others could hide."""
    machine = Machine(compute=0.0001, latency=0.0008, read_bytes=1 << 20)
    controller = auto()

    run(machine, controller, 200)

    assert controller["reads"] == 4


@pytest.mark.parametrize("needed", [2, 3, 8])
def test_costs_that_vary_get_more_batches_ahead(needed: int) -> None:
    """Workers that idle while batches are held back: as many more as it takes, and no more."""
    machine, controller = Machine(compute=0.02, needed_ahead=needed), auto()
    machine.compute = 0.02 / 0.7  # with too few ahead, workers are not busy all the time

    changes = run(machine, controller, 200)

    assert needed <= controller["ahead"] <= 2 * needed
    assert all(change.knob == "ahead" for change in changes)


def test_idle_workers_leave_where_nobody_waits() -> None:
    """A slow user: workers go step by step, and those that stay are enough."""
    machine, controller = Machine(cpus=16, compute=0.02, consumer=0.02), auto(16)

    changes = run(machine, controller, 2000)

    assert [change.value for change in changes] == [8, 4, 2]
    assert machine.window(controller).waiting == 0


def test_workers_come_back_when_the_user_becomes_fast() -> None:
    """What was let go returns when it is needed; after that, letting go waits for longer each time."""
    calm = Machine(cpus=4, compute=0.02, consumer=0.02)
    busy = replace(calm, consumer=0.0)
    controller, found = auto(4), []

    for round_ in range(20):
        run(calm, controller, 60, now=60 * round_)
        found.append(controller["workers"])
        run(busy, controller, 60, now=60 * round_ + 30)
        assert controller["workers"] == 4

    assert found[0] == 2
    assert found.count(2) <= 4


def test_a_user_who_goes_away_says_nothing_about_the_pace() -> None:
    """An hour at something else is no hour in which all workers were too many."""
    machine, controller = Machine(cpus=4, compute=0.02, consumer=0.02), auto(4)
    away = replace(machine.window(controller), seconds=3600.0, consumer_seconds=3600.0, busy=0.0)

    assert controller.observe(3600.0, away) is None
    assert run(machine, controller, 10, now=3600) == []


def test_a_number_that_cannot_be_had_is_not_asked_for_again() -> None:
    """Where further workers do not start, the loader goes on with those there are."""
    machine, controller = Machine(cpus=2, compute=0.01, block=0.03), auto(2)
    run(machine, controller, 4)

    controller.refuse("workers", 3)

    assert run(machine, controller, 500) == []
    assert controller["workers"] == 3


SEEN = st.builds(
    Seen,
    seconds=st.floats(0.25, 30),
    batches=st.integers(0, 1000),
    wait_seconds=st.floats(0, 30),
    consumer_seconds=st.floats(0, 30),
    busy=st.floats(0, 20),
    blocked=st.floats(0, 1),
    reads=st.integers(0, 1000),
    read_bytes=st.integers(0, 1 << 34),
    read_seconds=st.floats(0, 2000),
    held=st.floats(0, 1),
)


@given(
    pattern=st.lists(st.tuples(SEEN, st.integers(1, 40)), min_size=1, max_size=8),
    rounds=st.integers(1, 60),
    cpus=st.integers(1, 4),
)
def test_whatever_is_measured_numbers_stay_within_bounds_and_changes_become_rare(
    pattern: list[tuple[Seen, int]], rounds: int, cpus: int
) -> None:
    """Any measures, repeated in any pattern: in the logarithm of time, not in its length."""
    controller, now, changes = auto(cpus), 0.0, 0
    for seen, times in pattern * rounds:
        for _ in range(times):
            now += seen.seconds
            changes += controller.observe(now, seen) is not None
            assert 1 <= controller["workers"] <= 4 * cpus
            assert 1 <= controller["ahead"] <= 16
            assert 1 <= controller["reads"] <= 64

    failures = 2 + math.log(now / 10 + 1, 4)  # of one number in one direction: each rest is 4 times the last
    upward = 4 * cpus  # steps between two downward ones
    assert changes <= 2 * 4 * failures + upward * failures + 16


@given(pattern=st.lists(SEEN, min_size=1, max_size=60))
def test_given_numbers_are_never_changed(pattern: list[Seen]) -> None:
    """What the user has asked for stays, whatever is measured."""
    controller = Controller(workers=Range.only(3), ahead=Range.only(1), reads=Range.only(4), cpus=3)

    changes = [controller.observe(30.0 * number, seen) for number, seen in enumerate(pattern)]

    assert changes == [None] * len(pattern)
    assert values(controller) == {"workers": 3, "ahead": 1, "reads": 4}


@given(
    workers=st.integers(1, 256),
    jobs=st.integers(1, 4),
    steps=st.integers(1, 256),
    ahead=st.integers(1, 16),
    spare=st.booleans(),
)
def test_the_depth_keeps_all_workers_busy(
    workers: int, jobs: int, steps: int, ahead: int, spare: bool
) -> None:
    """There are jobs for all workers, and at least one run more."""
    found = depth(workers=workers, jobs=jobs, steps=steps, ahead=ahead, spare=spare)

    assert found % steps == 0
    assert (found // steps - ahead) * jobs >= workers
    assert found // steps * jobs <= 2 * workers + (ahead + 1) * jobs
