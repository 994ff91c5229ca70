"""The limit: loops that do the same work and nothing else, in bare processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import Any

__all__ = ["Bare"]


class Bare:
    """Processes that take batches from a shared counter and only say how many samples each had.

    Args:
        start: called once in each process; returns `make(batch) -> samples`, which makes a batch and throws
            it away.
        batches: in an epoch.
        workers: processes.
    """

    def __init__(self, start: Callable[[], Callable[[int], int]], batches: int, workers: int) -> None:
        context = get_context("fork")
        self._taken = context.Value("q", 0)
        self._batches = batches
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process: Any = context.Process(target=self._run, args=(start, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def epoch(self) -> Iterator[int]:
        """Let all begin; yield the size of each batch when it is made."""
        self._taken.value = 0
        for pipe in self._pipes:
            pipe.send(None)
        at_work = list(self._pipes)
        while at_work:
            ready: list[Any] = wait(at_work)
            for pipe in ready:
                samples = pipe.recv()
                if samples is None:
                    at_work.remove(pipe)
                else:
                    yield samples

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()

    def _run(self, start: Callable[[], Callable[[int], int]], pipe: Any) -> None:
        make = start()
        while True:
            pipe.recv()
            while (batch := self._next()) < self._batches:
                pipe.send(make(batch))
            pipe.send(None)

    def _next(self) -> int:
        with self._taken.get_lock():
            self._taken.value += 1
            return int(self._taken.value) - 1
