"""Adapting, end to end: numbers change under way, and batches never do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batches import counted
from fakes import PATIENCE_SECONDS, Gate
from resuming import take

from aioload import Loader, SyncLoader, options
from aioload._pipeline import tuner
from aioload._pipeline.adapt import Change, Controller, Seen

RECORDS = 96

Script = dict[int, Change]
"""What is decided in which window."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 records."""
    return counted(tmp_path_factory.mktemp("adapting") / "set", RECORDS)


@pytest.fixture
def decide(monkeypatch: pytest.MonkeyPatch) -> Callable[[Script], list[Seen]]:
    """Have every batch make a window, and a script decide; returns what was seen."""

    def install(script: Script) -> list[Seen]:
        seen: list[Seen] = []

        class Scripted(Controller):
            def observe(self, now: float, window: Seen) -> Change | None:
                seen.append(window)
                change = script.get(len(seen))
                if change is not None:
                    self._values[change.knob] = change.value
                return change

        monkeypatch.setattr(tuner, "Controller", Scripted)
        return seen

    monkeypatch.setattr(tuner, "_WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(tuner, "_WINDOW_BATCHES", 1)
    monkeypatch.setattr(options, "usable_cpus", lambda: 1)
    monkeypatch.setattr(options, "local_world_size", lambda: 1)
    return install


def drawing() -> Callable[..., Any]:
    """Return a transform that gives each sample a number of its own."""

    def drawn(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {**sample, "drawn": float(rng.random())}

    return drawn  # not importable, so that workers need not import this module: many are started here


def take_until(loader: SyncLoader, happened: Callable[[], bool], before: Callable[[], object] = int) -> None:
    """Go through epochs until something has happened."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        before()
        take(loader)


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_batches_are_the_same_while_everything_changes(
    path: Path, decide: Callable[[Script], list[Seen]], shuffle: Any
) -> None:
    """Workers come and go, reads and batches ahead change, over epochs: batches are those of no worker."""
    with Loader(path, batch_size=8, shuffle=shuffle, transform=drawing(), num_workers=0).sync() as loader:
        expected = [[batch["drawn"].tolist() for batch in loader] for _ in range(4)]
    seen = decide(
        {
            2: Change("workers", 3, "up"),
            3: Change("reads", 32, "up"),
            4: Change("ahead", 8, "up"),
            5: Change("workers", 1, "down"),
            6: Change("reads", 2, "down"),
            7: Change("workers", 4, "up"),
            8: Change("ahead", 1, "down"),
            9: Change("workers", 2, "down"),
        }
    )

    with Loader(path, batch_size=8, shuffle=shuffle, transform=drawing()).sync() as loader:
        found = [[batch["drawn"].tolist() for batch in loader] for _ in range(4)]
        take_until(loader, lambda: len(seen) > 9)
        stats = loader.stats()

    assert found == expected
    assert stats.adaptations == 8
    assert (stats.num_workers, stats.reads_in_flight, stats.restarts) == (2, 2, 0)


def test_given_numbers_are_as_given(path: Path, decide: Callable[[Script], list[Seen]]) -> None:
    """The report says so."""
    with Loader(path, batch_size=8, num_workers=1, prefetch=3).sync() as loader:
        take(loader)
        stats, report = loader.stats(), loader.report()

    assert (stats.num_workers, stats.prefetch, stats.adaptations) == (1, 3, 0)
    assert "workers: 1 (as asked for)" in report
    assert "batches ahead: 3 (as asked for)" in report


def test_what_is_chosen_at_first_is_told(path: Path, decide: Callable[[Script], list[Seen]]) -> None:
    """The usable CPUs, batches enough to keep them busy, and as many reads as keep a disk busy."""
    decide({})

    with Loader(path, batch_size=8).sync() as loader:
        take(loader)
        stats, report = loader.stats(), loader.report()

    assert (stats.num_workers, stats.reads_in_flight) == (1, 4)
    assert stats.prefetch >= 2
    assert "workers: 1 (the CPUs that this process may use)" in report


@pytest.mark.parametrize("count", [4, 1])
def test_closing_while_workers_come_or_go(
    path: Path, tmp_path: Path, decide: Callable[[Script], list[Seen]], count: int
) -> None:
    """In the middle of growing, or of letting go, with jobs that wait at a gate: closing ends it all."""
    seen = decide({1: Change("workers", 2, "up"), 2: Change("workers", count, "then")})

    with Gate(tmp_path) as gate, Loader(path, batch_size=1, transform=gate, prefetch=2).sync() as loader:
        # the next epoch begins ahead of the end, so that its calls may take some of this one's permits
        take_until(loader, lambda: len(seen) >= 2, before=lambda: gate.open(2 * RECORDS))
        gate.shut()


def test_memory_of_marks_is_set_aside_for_all_workers_there_may_be(path: Path) -> None:
    """A small limit holds them, whatever the machine: growing never needs memory of the arena."""
    with Loader(path, batch_size=8, memory_limit="1MiB").sync() as loader:
        found = take(loader)

    assert len(found) == 12
