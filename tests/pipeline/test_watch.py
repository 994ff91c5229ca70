"""Watch: the user's time is added up by what the engine was at, as it was before each change."""

from __future__ import annotations

from typing import Any

import pytest

from aioload import stats
from aioload._pipeline.watch import Watch
from aioload.stats import Counters


class Engine:
    """All that a watch looks at, as the test says, and a clock that it turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.counters = Counters()
        self.ready = self.busy = 2  # of the pool
        self.short = False  # of memory
        self.holds = self.short_of_room = False  # of the tuner
        self.watch = Watch(self.counters, self, self)  # type: ignore[arg-type]  # as far as it is used
        self.watch.pool = self  # type: ignore[assignment]  # likewise
        self._arrived = 0.0

    def change(self, **things: Any) -> None:
        """Change something; the watch looks before."""
        self.watch.look()
        for name, value in things.items():
            setattr(self, name, value)

    def arrive(self) -> None:
        """The user asks for a batch."""
        self._arrived = self.counters.arrive()

    def leave(self) -> None:
        """The user goes away with one."""
        self.counters.leave(self._arrived, 8, 100)

    def counted(self) -> dict[str, float]:
        """Return what was counted of all that a watch counts, without zeros."""
        self.watch.look()
        names = ("worker", "busy", "wait_read", "wait_work", "wait_memory", "wait_held", "wait_late")
        found = {name: self.counters[f"{name}_seconds"] for name in names}
        return {name: seconds for name, seconds in found.items() if seconds}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose user has had a first batch, and asks for the next."""
    found = Engine()
    monkeypatch.setattr(stats.time, "perf_counter", lambda: found.now)
    found.arrive()
    found.now += 30
    found.watch.look()
    found.leave()
    found.arrive()
    return found


def test_waits_are_counted_by_what_the_wanted_batch_needs(engine: Engine) -> None:
    """Reading, working, or neither; what is before the first batch, and the user's own time, are no waits."""
    for wanted, seconds in (("read", 1), ("work", 2), ("", 4)):
        engine.watch.wanted = lambda wanted=wanted: wanted  # type: ignore[misc]  # a default is no argument
        engine.now += seconds
        engine.watch.look()
    engine.leave()
    engine.now += 8
    engine.watch.wanted = lambda: "work"

    assert engine.counted() == {"worker": 30, "busy": 30, "wait_read": 1, "wait_work": 2}


def test_workers_are_counted_as_they_were_before_each_change(engine: Engine) -> None:
    """They come, go, and get jobs; time in which nobody iterates is not counted."""
    engine.now += 1
    engine.change(busy=1)
    engine.now += 2
    engine.change(ready=8, busy=8)
    engine.now += 1
    engine.counted()
    engine.counters.pause()
    engine.now += 100

    assert engine.counted() == {"worker": 2 + 4 + 8, "busy": 2 + 2 + 8}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"short": True}, {"wait_memory"}),
        ({"holds": True}, {"wait_held"}),
        ({"holds": True, "short_of_room": True}, {"wait_memory"}),
    ],
    ids=str,
)
def test_what_keeps_batches_from_being_begun(
    engine: Engine, change: dict[str, bool], expected: set[str]
) -> None:
    """Memory that is not there, at once or for more batches ahead; or that they are far ahead."""
    engine.change(**change)
    engine.now += 3

    assert engine.counted().keys() - {"worker", "busy"} == expected


def test_batches_that_are_ready_behind_one_that_is_late(engine: Engine) -> None:
    """While the user waits for that."""
    engine.watch.late = lambda: True
    engine.now += 3
    engine.counted()
    engine.leave()
    engine.now += 3

    assert engine.counted()["wait_late"] == 3


def test_a_look_from_another_thread_changes_nothing(engine: Engine) -> None:
    """It has what goes on, such as a read that hangs, and the engine counts it once more."""
    engine.watch.wanted = lambda: "read"
    engine.now += 5

    levels = engine.watch.levels()

    assert (levels["wait_read_seconds"], levels["worker_seconds"]) == (5, 10)
    assert engine.counters["wait_read_seconds"] == 0
    assert engine.counted()["wait_read"] == 5


def test_a_loop_that_was_left_counts_again_when_it_goes_on(engine: Engine) -> None:
    """What the watch took for the loop's time, while nobody knew that the loop was over, delays nothing."""
    engine.leave()
    engine.now += 100
    engine.watch.look()
    engine.counters.pause()
    engine.watch.look()
    before = engine.counted()["worker"]

    engine.arrive()
    engine.now += 3

    assert engine.counted()["worker"] == before + 2 * 3
