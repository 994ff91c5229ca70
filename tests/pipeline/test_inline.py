"""Inline: jobs done where the user waits, with nothing lost by an interruption and nothing left by an end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from aioload._pipeline.inline import InlineRunner
from aioload._pipeline.reorder import Handover


class Work:
    """Stands for a worker, and does what it is told."""

    def __init__(self, do: Callable[[Any], Any] = lambda job: f"answer to {job}") -> None:
        self.do = do

    def run(self, job: Any) -> Any:
        return self.do(job)


class Desk:
    """A runner, its hand-over, and a count of jobs that were told to have ended."""

    def __init__(self, do: Callable[[Any], Any] | None = None, *, seeded: bool = False) -> None:
        self.handover: Handover[Any] = Handover(0, 9, lambda item: None)
        work: Any = Work(do) if do else Work()
        self.runner = InlineRunner(work, self.handover, seeded=seeded)
        self.done = 0

    def start(self, job: str = "job") -> asyncio.Task[Any]:
        """Give a job, as the engine does."""
        job_: Any = job
        return asyncio.create_task(self.runner.run(job_, (0, 0), self._count))

    def work(self) -> bool:
        """Do one errand, as the user does; tell whether there was one."""
        errand = self.handover.errand()
        if errand is not None:
            errand()
        return errand is not None

    def _count(self) -> None:
        self.done += 1


def interrupted_once() -> Callable[[Any], Any]:
    """Make what is interrupted the first time."""
    times: list[int] = []

    def do(job: Any) -> Any:
        times.append(1)
        if len(times) == 1:
            raise KeyboardInterrupt
        return "answer"

    return do


async def blocked() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_job_is_done_when_the_user_does_it() -> None:
    """Nothing happens before the user waits for a batch; then the answer comes."""
    desk = Desk()
    task = desk.start()
    await blocked()
    before = (desk.done, task.done())

    worked = desk.work()

    assert (await task, before, worked, desk.done) == ("answer to job", (0, False), True, 1)


async def test_an_interrupted_job_is_still_to_be_done() -> None:
    """Ctrl-C goes to the user, who may go on iterating: the job is done then."""
    desk = Desk(interrupted_once())
    task = desk.start()
    await blocked()

    with pytest.raises(KeyboardInterrupt):
        desk.work()
    await blocked()
    before = (desk.done, task.done())
    worked = desk.work()

    assert (await task, before, worked, desk.done) == ("answer", (0, False), True, 1)


async def test_a_job_that_nobody_will_do_gives_its_memory_back() -> None:
    """A wait that is cancelled before the user came is done with at once, and the errand does nothing."""
    desk = Desk(lambda job: pytest.fail("nobody wants this any more"))
    task = desk.start()
    await blocked()

    task.cancel()
    await asyncio.wait([task])

    assert (desk.work(), desk.done) == (True, 1)


async def test_an_iteration_that_ends_gives_its_memory_back() -> None:
    """After the hand-over was closed, cancelled waits are done with, before and after."""
    desk = Desk()
    early = desk.start()
    await blocked()
    desk.handover.close()
    late = desk.start()
    await blocked()

    [task.cancel() for task in (early, late)]
    await asyncio.wait([early, late])

    assert (desk.work(), desk.done) == (False, 2)


async def test_a_wait_cancelled_in_the_middle_of_a_job_keeps_its_memory_until_the_end() -> None:
    """While the user's thread works on the arena, its memory is not given to others."""
    counts: list[int] = []

    def do(job: Any) -> Any:
        task.cancel()
        loop.call_soon(lambda: counts.append(desk.done))
        return "answer"

    loop = asyncio.get_running_loop()
    desk = Desk(do)
    task = desk.start()
    await blocked()

    desk.work()
    await blocked()

    assert (task.cancelled(), counts, desk.done) == (True, [0], 1)


def test_a_job_that_ends_after_its_loop_is_no_error() -> None:
    """A loader closed while the user's thread works leaves that thread alone."""
    loops: list[asyncio.AbstractEventLoop] = []

    def do(job: Any) -> Any:
        loops[0].close()
        return "answer"

    async def ask() -> None:
        loops.append(asyncio.get_running_loop())
        tasks.append(desk.start())
        await blocked()

    tasks: list[asyncio.Task[Any]] = []
    desk = Desk(do)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(ask())

    worked = desk.work()

    assert (worked, desk.done) == (True, 0)
    tasks[0]._log_destroy_pending = False  # type: ignore[attr-defined]  # its loop was closed under it


async def test_the_users_generators_are_put_back() -> None:
    """What seeds each record in the user's own process leaves no trace there."""

    def do(job: Any) -> Any:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        return "answer"

    desk = Desk(do, seeded=True)
    task = desk.start()
    await blocked()
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())

    desk.work()

    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert before == after
    await task
