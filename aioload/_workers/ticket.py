"""Ticket: a job on its way through the pool, and whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from .jobs import Answer, Job

__all__ = ["Order", "Ticket"]

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

    def accept(self, answer: Answer) -> None:
        """Let the job succeed."""
        self.done()
        if self.wanted:
            self.answer.set_result(answer)

    def refuse(self, error: Exception) -> None:
        """Let the job fail."""
        self.done()
        if self.wanted:
            self.answer.set_exception(error)
            self.answer.exception()  # looked at: whoever waits may be cancelled at this very moment
