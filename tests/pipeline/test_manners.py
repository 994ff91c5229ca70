"""The engine lets the user's thread have the interpreter, where that has something to do."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from aioload._pipeline.manners import Manners
from aioload.stats import Counters


@dataclass
class Scene:
    """An engine whose computing and sleeping are counted, and a user of some pace."""

    seconds: float = 0.0
    slept: int = 0
    ready: int = 3
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.manners = Manners(self.counters, clock=lambda: self.seconds, sleep=self.sleep)
        self.manners.ready = lambda: self.ready

    def sleep(self, seconds: float) -> None:
        """Count a sleep."""
        assert seconds > 0
        self.slept += 1

    def user(self, batches: int, seconds: float) -> None:
        """Have the user take batches and be away for so long in all."""
        self.counters.add(batches=batches, consumer_seconds=seconds)
        self.manners.look()

    def compute(self, seconds: float, pieces: int) -> None:
        """Compute for so long, asking after each piece whether to step back."""
        for _ in range(pieces):
            self.seconds += seconds / pieces
            self.manners.give_way()


def test_a_long_piece_of_work_is_broken_off_for_a_user_who_has_something_to_do() -> None:
    """Five milliseconds of planning are five stretches or more, while the user trains."""
    scene = Scene()
    scene.user(10, 0.2)

    scene.compute(0.005, pieces=50)

    assert scene.slept >= 5


@pytest.mark.parametrize(("batches", "seconds", "ready"), [(10, 0.2, 0), (10, 0.0001, 3), (0, 0.0, 3)])
def test_nobody_sleeps_where_somebody_waits_or_nobody_trains(
    batches: int, seconds: float, ready: int
) -> None:
    """A user who waits for a batch, who only takes batches, or has not yet taken one, is not kept waiting."""
    scene = Scene(ready=ready)
    scene.user(batches, seconds)

    scene.compute(0.005, pieces=50)

    assert scene.slept == 0


def test_short_work_is_not_broken_off() -> None:
    """What takes less than anybody notices is done in one go."""
    scene = Scene()
    scene.user(10, 0.2)
    scene.manners.give_way()

    scene.compute(0.0003, pieces=30)

    assert scene.slept == 0


def test_a_user_who_takes_nothing_for_a_while_stays_who_they_were() -> None:
    """Without news of the user's pace, the last that was seen of it counts."""
    scene = Scene()
    scene.user(10, 0.2)
    scene.user(0, 0.0)

    scene.compute(0.005, pieces=50)

    assert scene.slept >= 5
