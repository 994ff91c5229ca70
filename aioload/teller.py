"""Teller: tells recorders what one loader does, in words that a timeline is made of.

What is told are numbers and short texts, once for each read, run, job and batch, and never for a record.

All times are `time.perf_counter`'s. On Linux, macOS and Windows it counts from the machine's start, so that
workers have the same. Where they have not, a job seems to have been done when it cannot have been, and is put
at the end of the time in which it was away.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from .recorder import Recorder
from .timeline import Batch, Entry, Level, Mark, Span

__all__ = ["Teller"]

_SHORTEST = 1e-4  # seconds; a wait of the engine's below it is none that anybody would look for


class Teller:
    """Tells recorders what one loader does.

    Args:
        sinks: the recorders, each with the loader's number there.
    """

    # hot while a trace runs: once or twice for each read, job and batch; guarded by benchmarks/bench_trace.py

    def __init__(self, sinks: Sequence[tuple[Recorder, int]]) -> None:
        self.sinks = tuple(sinks)
        self._process = os.getpid()
        self._workers: dict[int, str] = {}
        self._left: tuple[Any, int, float] | None = None  # which batch was taken last, and when

    def read(self, shard: str, began: float, size: int, run: Batch) -> None:
        """Tell of a read that has just ended, and the pass and run whose records are in it."""
        self._tell(Span("read", shard, began, time.perf_counter(), {"bytes": size}, run=run))

    def planned(self, began: float, run: Batch, steps: range, records: int) -> None:
        """Tell of a run that has just been planned."""
        facts = {"pass": run[0], "run": run[1], "records": records}
        batches = tuple((run[0], step) for step in steps)
        self._tell(Span("order", _named(steps), began, time.perf_counter(), facts, batches, run=run))

    def held(self, began: float, why: str) -> None:
        """Tell what has held up planning until now."""
        now = time.perf_counter()
        if now - began > _SHORTEST:
            self._tell(Span("order", why, began, now))

    def started(self, process: int, began: float) -> None:
        """Tell of a worker that is up."""
        self._tell(Span(self._worker(process), "starts", began, time.perf_counter()))

    def job(
        self,
        what: str,
        batches: tuple[Batch, ...],
        asked: float,
        place: tuple[int, float, float],
        parts: tuple[tuple[str, float], ...],
    ) -> None:
        """Tell of a job that has come back.

        Args:
            what: it did, if it did not make them whole.
            batches: of which something was made.
            asked: when it was asked for.
            place: the process that did it, and from when to when.
            parts: what took how long there.
        """
        process, began, stopped = place
        now = time.perf_counter()
        if not asked <= began <= stopped <= now:  # another clock
            began, stopped = max(asked, now - (stopped - began)), now
        facts = {"waited_ms": round((began - asked) * 1e3, 3)}
        name = _named([step for _, step in batches])
        self._tell(
            Span(
                self._worker(process),
                f"{what} {name}" if what else name,
                began,
                stopped,
                facts,
                batches,
                parts,
            )
        )

    def died(self, how: str, batches: tuple[Batch, ...]) -> None:
        """Tell of a worker that died over a job."""
        steps = [step for _, step in batches]
        self._tell(Mark("worker", "a worker died", time.perf_counter(), {"how": how, "batches": steps}))

    def ready(self, began: float, batches: tuple[Batch, ...]) -> None:
        """Tell of batches that are about to be handed over."""
        name, now = _named([step for _, step in batches]), time.perf_counter()
        self._tell(Span("hand-over", name, began, now, batches=batches))

    def failed(self, name: str, step: int | None) -> None:
        """Tell of an error that the user meets."""
        self._tell(Mark("consumer", name, time.perf_counter(), {} if step is None else {"batch": step}))

    def waiting(self, count: int) -> None:
        """Tell how many batches wait at the hand-over."""
        self._tell(Level("batches ready", time.perf_counter(), count))

    def taken(self, arrived: float, batch: Batch | None, at: tuple[Any, int], rows: int) -> None:
        """Tell of a batch that the user has just got, and of what the user did before asking for it.

        Args:
            arrived: when it was asked for.
            batch: which one it is, if it is known from before.
            at: its epoch and step.
            rows: in it.
        """
        now, (epoch, step) = time.perf_counter(), at
        if self._left is not None and self._left[:2] == (epoch, step - 1):
            self._tell(Span("consumer", "your code", self._left[2], arrived))
        self._left = epoch, step, now
        facts = {"epoch": epoch, "rows": rows}
        batches = () if batch is None else (batch,)
        self._tell(Span("consumer", f"wait for batch {step}", arrived, now, facts, batches))

    def sent(self, began: float, batch: Batch | None, step: int, size: int) -> None:
        """Tell of a batch whose copies have just been asked for."""
        batches = () if batch is None else (batch,)
        now = time.perf_counter()
        self._tell(Span("copy thread", f"batch {step}", began, now, {"bytes": size}, batches))

    def copied(self, began: float, seconds: float, batch: Batch | None, step: int) -> None:
        """Tell of a batch that a device has copied."""
        batches = () if batch is None else (batch,)
        self._tell(Span("copy stream", f"batch {step}", began, began + seconds, batches=batches))

    def _worker(self, process: int) -> str:
        """Return the lane of a process that does jobs."""
        name = self._workers.get(process)
        if name is None:
            here = process == self._process
            name = "worker: this process" if here else f"worker process {process}"
            self._workers[process] = name
        return name

    def _tell(self, entry: Entry) -> None:
        for recorder, loader in self.sinks:
            recorder.add(loader, entry)


def _named(steps: Sequence[int]) -> str:
    """Return what batches are called."""
    if not steps:
        return "no batch"
    return f"batch {steps[0]}" if len(steps) == 1 else f"batches {steps[0]} to {steps[-1]}"
