"""Counters: waits that go on are counted too, and looks are of one moment, and of epochs."""

from __future__ import annotations

import pytest
from conftest import TinySet

from aioload import ConfigError, Loader, stats
from aioload.accounts import Accounts
from aioload.stats import Counters


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test turns."""
    now = [100.0]
    monkeypatch.setattr(stats.time, "perf_counter", lambda: now[0])
    return now


def test_a_wait_that_goes_on_counts(clock: list[float]) -> None:
    """Before, during and after a wait; what the user does between two is none."""
    counters, waited = Counters(), []

    waited.append(counters.waited)
    arrived = counters.arrive()
    clock[0] += 2
    waited.append(counters.waited)
    counters.leave(arrived, samples=8, size=100)
    clock[0] += 5
    waited.append(counters.waited)
    counters.arrive()
    clock[0] += 1
    waited.append(counters.waited)
    counters.pause()
    waited.append(counters.waited)

    assert waited == [0, 2, 2, 3, 2]
    assert counters.snapshot().consumer_seconds == 5


def step(counters: Counters, clock: list[float], *, wait: float, work: float = 0.0) -> None:
    """Take a batch of eight, and work on it."""
    arrived = counters.arrive()
    clock[0] += wait
    counters.leave(arrived, samples=8, size=100)
    clock[0] += work


def test_the_loop_begins_with_its_first_batch(clock: list[float]) -> None:
    """Waits and all of the time since; what goes on is part of it, and a pause is not."""
    counters, seen = Counters(), []

    seen.append(counters.loop())
    step(counters, clock, wait=30, work=2)
    seen.append(counters.loop())
    step(counters, clock, wait=3)
    counters.arrive()
    clock[0] += 1
    seen.append(counters.loop())
    counters.pause()
    clock[0] += 50
    seen.append(counters.loop())

    assert seen == [(0, 0), (0, 2), (4, 6), (3, 5)]


def test_a_look_in_the_middle_of_a_wait_has_what_was_waited(clock: list[float]) -> None:
    """Whoever looks from another thread sees a loader that hangs."""
    counters = Counters()
    step(counters, clock, wait=1)

    counters.arrive()
    clock[0] += 9

    assert counters.snapshot().wait_seconds == 10


def test_what_follows_the_first_batch_is_told_apart(clock: list[float]) -> None:
    """`steady` is without the start: its wait, its work, its batch."""
    counters = Counters()
    counters.add(work_seconds=20.0, memory_limit=100)

    step(counters, clock, wait=30, work=2)
    counters.add(work_seconds=3.0)
    step(counters, clock, wait=4, work=1)
    steady = counters.snapshot().steady

    assert (steady.batches, steady.samples) == (1, 8)
    assert (steady.wait_seconds, steady.first_batch_seconds, steady.work_seconds) == (4, 0, 3)
    assert steady.memory_limit == 100


def test_the_difference_of_two_looks(clock: list[float]) -> None:
    """Counts are subtracted, levels are as of the later look, and a start is only in what has one."""
    counters = Counters()
    none = counters.snapshot()
    counters.add(work_seconds=1.0)
    step(counters, clock, wait=5)
    one = counters.snapshot(jobs_waiting=3)
    step(counters, clock, wait=1)
    two = counters.snapshot(jobs_waiting=1)

    assert one.since(none) == one
    assert (two.since(one).batches, two.since(one).wait_seconds) == (1, 1)
    assert two.since(one).jobs_waiting == 1
    assert two.since(one).start is None
    assert two.since(none).steady == two.steady


def accounts(counters: Counters) -> Accounts:
    """Return accounts that know of no traffic."""
    return Accounts(counters, lambda: {"requests": 7})


def test_numbers_of_an_epoch(clock: list[float]) -> None:
    """What was counted from its begin to its end, or so far; what is between two epochs is nobody's."""
    counters = Counters()
    own = accounts(counters)

    own.begin(4)
    step(counters, clock, wait=2, work=1)
    step(counters, clock, wait=2, work=1)
    own.end()
    clock[0] += 100
    own.begin(5)
    step(counters, clock, wait=3, work=1)
    during = own.of(5)
    step(counters, clock, wait=3, work=1)
    own.end()

    assert [own.of(epoch).batches for epoch in (4, 5, None)] == [2, 2, 4]
    assert [own.of(epoch).wait_seconds for epoch in (4, 5, None)] == [4, 6, 10]
    assert (during.batches, own.of(None).consumer_seconds) == (1, 2)
    assert own.of(None).requests == 7


def test_an_epoch_that_was_left_and_begun_again(clock: list[float]) -> None:
    """Its last iteration counts, and the time in between is not the user's."""
    counters = Counters()
    own = accounts(counters)

    own.begin(0)
    step(counters, clock, wait=2, work=100)
    own.begin(0)
    step(counters, clock, wait=2)
    step(counters, clock, wait=2)
    own.end()

    assert own.of(0).batches == 2
    assert own.of(None).consumer_seconds == 0


def test_a_hundred_epochs_are_kept(clock: list[float]) -> None:
    """Others are an error that lists those that are there."""
    own = accounts(Counters())
    with pytest.raises(ConfigError, match="no epoch has begun yet"):
        own.of(0)

    for epoch in (*range(101), 200):
        own.begin(epoch)
        own.end()

    assert own.of(100).batches == 0
    with pytest.raises(
        ConfigError, match="no numbers of epoch 1: there are numbers of the epochs 2 to 100, 200"
    ):
        own.of(1)


def test_a_loader_tells_of_epochs_and_levels(tiny_set: TinySet) -> None:
    """In all, of one epoch, and how things are; the plain face as well."""
    with Loader(tiny_set.path, batch_size=4, num_workers=0).sync() as loader:
        for _ in range(2):
            during = [loader.stats().batches_ready + loader.stats().runs_under_way for _ in loader]
        total, first, second = loader.stats(), loader.stats(epoch=0), loader.stats(1)

    assert (first.batches, second.batches, total.batches) == (6, 6, 12)
    assert (first.samples, total.samples) == (24, 48)
    assert first.start is not None
    assert second.start is None
    assert total.cpus >= 1
    assert total.decoded_bytes >= total.batch_bytes > 0
    assert total.plan_seconds > 0
    assert max(during) > 0
    with pytest.raises(ConfigError, match="epochs 0 to 1"):
        loader.stats(epoch=7)


def test_waits_that_are_broken_off_count_once(clock: list[float]) -> None:
    """Someone who waits for a second at a time, and does something else for two, has waited a third."""
    counters = Counters()
    step(counters, clock, wait=1)

    for _ in range(10):
        counters.arrive()
        clock[0] += 1
        counters.give_up()
        clock[0] += 2
    step(counters, clock, wait=0)
    found = counters.snapshot().steady

    assert (found.wait_seconds, found.consumer_seconds) == (10, 20)
    assert counters.loop() == (10, 30)


def test_what_is_before_the_first_batch_is_no_part_of_the_loop(clock: list[float]) -> None:
    """Waits for it that were broken off, and what was done between them, included."""
    counters = Counters()

    for _ in range(3):
        counters.arrive()
        clock[0] += 5
        counters.give_up()
        clock[0] += 2
    step(counters, clock, wait=1, work=4)
    found = counters.snapshot()

    assert (found.first_batch_seconds, found.wait_seconds, found.consumer_seconds) == (16, 16, 0)
    assert counters.loop() == (0, 4)
