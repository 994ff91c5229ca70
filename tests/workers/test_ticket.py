"""Tickets: the most urgent job first, and nobody waits for what nobody will do."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_jobs import Bench, make_recipe

from aioload._workers.ticket import Order, Ticket, Tickets
from aioload.errors import ClosedError, WorkerError

JOB = Bench(make_recipe({"n": "int"}), [{"n": 1}], size=1 << 12).whole()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=12))
def test_jobs_come_by_urgency_then_as_they_were_added(orders: list[Order]) -> None:
    """Whatever the order in which they were added."""

    async def taken() -> list[tuple[Order, int]]:
        tickets = Tickets()
        for order in orders:
            tickets.add(JOB, order, int)
        return [(ticket.order, ticket.number) for ticket in (tickets.pop() for _ in orders)]

    assert asyncio.run(taken()) == sorted((order, number) for number, order in enumerate(orders))


async def test_all_fail_for_the_first_reason() -> None:
    """Those that wait, those to come and those that come back, each with an error of its own."""
    tickets, done = Tickets(), list[int]()
    taken, waiting = (tickets.add(JOB, (0, run), lambda run=run: done.append(run)) for run in range(2))
    assert tickets.pop() is taken

    tickets.refuse_all(WorkerError("the first reason"))
    tickets.refuse_all(ClosedError("the second"))
    tickets.put_back(taken)
    with pytest.raises(WorkerError, match="the first reason") as late:
        tickets.add(JOB, (0, 2), lambda: done.append(2))

    errors = {late.value, taken.answer.exception(), waiting.answer.exception()}
    assert {str(error) for error in errors} == {"the first reason"}
    assert (len(errors), done) == (3, [1, 0, 2])


async def test_what_nobody_waits_for_lets_go_once() -> None:
    """A job that waits here is done with at once; one that was taken is left to whoever has it."""
    tickets, done = Tickets(), list[int]()
    made: list[Ticket] = [tickets.add(JOB, (0, run), lambda run=run: done.append(run)) for run in range(3)]
    taken = tickets.pop()

    dropped = [tickets.drop(ticket) for ticket in made]

    assert (taken, dropped, done, len(tickets)) == (made[0], [False, True, True], [1, 2], 0)
