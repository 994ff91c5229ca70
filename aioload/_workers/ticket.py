"""Ticket: a job on its way to whoever does it, whoever waits for it, and the row of those that wait."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field

from ..errors import AioloadError
from .jobs import Answer, Decode, Job

__all__ = ["ANOTHER_SECONDS", "Order", "Ticket", "Tickets"]

ANOTHER_SECONDS = 0.001
"""For a batch's collate to be asked for, before the next run's job takes the worker."""

Order = tuple[int, int]
"""Urgency: (pass, run); the lower is needed first."""


@dataclass(order=True)
class Ticket:
    """A job that waits or runs."""

    order: Order
    number: int
    job: Job = field(compare=False)
    answer: asyncio.Future[Answer] = field(compare=False)
    done: Callable[[], None] = field(compare=False)
    began: float = field(default=0.0, compare=False)

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for the answer."""
        return not self.answer.done()

    @property
    def brings_another(self) -> bool:
        """Whether the job is a part of a batch that will have to be collated, at best before later runs."""
        return isinstance(self.job, Decode) and any(
            not part.whole and part.layout is None for part in self.job.segments
        )

    def accept(self, answer: Answer) -> None:
        """Let the job succeed."""
        self.done()
        if self.wanted:
            self.answer.set_result(answer)

    def refuse(self, error: Exception) -> None:
        """Let the job fail."""
        self.done()
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """Tell whoever waits that the job has failed; it may still touch the arena."""
        if self.wanted:
            self.answer.set_exception(error)
            self.answer.exception()  # looked at: whoever waits may be cancelled at this very moment


class Tickets:
    """Jobs that wait, the most urgent first, for as long as there is anybody who does them."""

    def __init__(self) -> None:
        self.broken: AioloadError | None = None
        """Why no job will ever be done any more, once that is so."""
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Ticket] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: Job, order: Order, done: Callable[[], None]) -> Ticket:
        """Have a job wait.

        Args:
            job: to be done.
            order: how urgent it is.
            done: called once the job no longer touches the arena.

        Raises:
            AioloadError: nobody does jobs any more; `done` was called.
        """
        if self.broken is not None:
            done()
            raise copy(self.broken)  # one reason for many jobs
        ticket = Ticket(order, next(self._numbers), job, self._loop.create_future(), done)
        heapq.heappush(self._waiting, ticket)
        return ticket

    def pop(self) -> Ticket:
        """Take the most urgent one."""
        return heapq.heappop(self._waiting)

    def put_back(self, ticket: Ticket) -> None:
        """Have a job wait again that was taken and not done, if there is anyone to do it, and for."""
        if self.broken is not None:
            ticket.refuse(copy(self.broken))
        elif ticket.wanted:
            heapq.heappush(self._waiting, ticket)
        else:
            ticket.done()

    def drop(self, ticket: Ticket) -> bool:
        """Let go of a job that nobody waits for any more; False if it was taken."""
        if ticket not in self._waiting:
            return False
        self._waiting.remove(ticket)
        heapq.heapify(self._waiting)
        ticket.done()
        return True

    def refuse_all(self, error: AioloadError) -> AioloadError:
        """Let every job fail from now on; return the reason, which is the first that was given."""
        if self.broken is None:
            self.broken = error
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            ticket.refuse(copy(self.broken))
        return self.broken
