"""Reorder: whatever order steps are finished in, they come out in theirs, and nobody waits for nothing."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload._pipeline.reorder import Handover, ReorderBuffer
from aioload.errors import AioloadError, ClosedError, SampleError


def taken(handover: Handover[Any]) -> list[Any]:
    """Take all that is ready."""
    items = []
    while True:
        try:
            items.append(handover.take_nowait())
        except (anyio.WouldBlock, anyio.EndOfStream):
            return items


@given(st.integers(0, 5), st.permutations(range(12)))
def test_any_order_of_arrival_comes_out_sorted(first: int, arrival: list[int]) -> None:
    """Each step comes out once, when it is due and no earlier."""
    buffer: ReorderBuffer[int] = ReorderBuffer(first)
    out = []
    for step in arrival:
        buffer.push(first + step, first + step)
        assert buffer.ready == (first + step == buffer.due) or step > 0
        while buffer.ready:
            out.append(buffer.pop())

    assert out == list(range(first, first + 12))
    assert len(buffer) == 0


@pytest.mark.parametrize("again", [0, 1, 3])
def test_a_step_that_comes_twice_is_a_mistake(again: int) -> None:
    """A step that was handed out, or is waiting, is not replaced in silence."""
    buffer: ReorderBuffer[str] = ReorderBuffer()
    for step in (0, 1, 3):
        buffer.push(step, "first")
    assert buffer.pop() == "first"

    with pytest.raises(ValueError, match=f"step {again} came twice"):
        buffer.push(again, "second")


def test_a_step_that_is_not_here_cannot_be_popped() -> None:
    """A buffer whose due step has not come gives nothing else instead."""
    buffer: ReorderBuffer[str] = ReorderBuffer()
    buffer.push(1, "later")

    with pytest.raises(LookupError):
        buffer.pop()

    assert (buffer.due, len(buffer)) == (0, 1)


@given(st.permutations(range(8)))
def test_steps_put_in_any_order_are_taken_in_theirs(arrival: list[int]) -> None:
    """The hand-over gives all steps in order, tells of each, and then ends."""
    told: list[int] = []
    handover: Handover[int] = Handover(0, 8, told.append)
    out = []
    for step in arrival:
        handover.put(step, step)
        out += taken(handover)

    assert out == told == list(range(8))
    with pytest.raises(anyio.EndOfStream):
        handover.take_nowait()


def test_a_pass_without_steps_has_ended() -> None:
    """Nothing to hand over is an end, not a wait."""
    handover: Handover[int] = Handover(0, 0, lambda item: None)

    handover.wait(60)

    with pytest.raises(anyio.EndOfStream):
        handover.take_nowait()


def test_closing_drops_what_waits_and_gives_the_first_reason() -> None:
    """After closing every take fails alike, and nothing that comes later is kept."""
    handover: Handover[int] = Handover(0, 4, lambda item: None)
    handover.put(0, 0)

    handover.close(SampleError("the first reason"))
    handover.close()
    handover.put(1, 1)
    handover.ask(int)

    assert handover.ready == 0
    assert handover.errand() is None
    with pytest.raises(SampleError, match="the first reason"):
        handover.take_nowait()


def test_closing_without_a_reason_is_a_closed_error() -> None:
    """Who still takes learns that the loader was closed."""
    handover: Handover[int] = Handover(0, 4, lambda item: None)

    handover.close()

    with pytest.raises(ClosedError):
        handover.take_nowait()


@pytest.mark.parametrize(
    "news",
    [
        lambda handover: handover.put(0, 0),
        lambda handover: handover.ask(int),
        lambda handover: handover.close(AioloadError("end")),
    ],
    ids=["step", "errand", "close"],
)
def test_news_wake_whoever_waits(news: Any) -> None:
    """A thread that waits goes on with a step, an errand or the end; so does a callable."""
    handover: Handover[int] = Handover(0, 4, lambda item: None)
    woken: list[str] = []
    handover.call_when_ready(lambda: woken.append("callable"))
    waiting = threading.Thread(target=lambda: (handover.wait(30), woken.append("thread")))
    waiting.start()

    news(handover)
    waiting.join(10)

    assert sorted(woken) == ["callable", "thread"]


def test_a_step_that_is_not_due_wakes_nobody() -> None:
    """Steps ahead of their time are kept without a word."""
    handover: Handover[int] = Handover(0, 4, lambda item: None)
    woken: list[str] = []
    handover.call_when_ready(lambda: woken.append("now"))

    handover.put(2, 2)
    before = list(woken)
    handover.put(0, 0)

    assert (before, woken) == ([], ["now"])


def test_what_is_ready_is_told_at_once() -> None:
    """A callable that comes after the news is called on the spot."""
    handover: Handover[int] = Handover(0, 4, lambda item: None)
    handover.put(0, 0)
    woken: list[str] = []

    handover.call_when_ready(lambda: woken.append("now"))

    assert woken == ["now"]


def test_a_callable_that_was_taken_back_is_not_called() -> None:
    """Who waits no more is not woken, and taking back twice is free."""
    handover: Handover[int] = Handover(0, 4, lambda item: None)
    woken: list[str] = []
    waker = lambda: woken.append("late")  # noqa: E731 - one object, to be taken back
    handover.call_when_ready(waker)

    handover.forget(waker)
    handover.forget(waker)
    handover.put(0, 0)

    assert woken == []


def test_errands_are_done_in_the_order_they_were_asked() -> None:
    """First asked, first done, but for one that comes back."""
    handover: Handover[int] = Handover(0, 4, lambda item: None)
    done: list[str] = []
    handover.ask(lambda: done.append("first"))
    handover.ask(lambda: done.append("second"))
    handover.ask(lambda: done.append("again"), first=True)

    errands = [handover.errand() for _ in range(3)]
    [errand() for errand in errands if errand is not None]

    assert done == ["again", "first", "second"]
    assert handover.errand() is None


def test_a_step_that_is_late_is_told_from_one_that_is_ready() -> None:
    """Late is one that others wait behind."""
    handover: Handover[str] = Handover(0, 3, lambda item: None)
    seen = [(handover.late, handover.is_ready)]

    handover.put(1, "b")
    seen.append((handover.late, handover.is_ready))
    handover.put(0, "a")
    seen.append((handover.late, handover.is_ready))
    handover.take_nowait()
    handover.take_nowait()
    seen.append((handover.late, handover.is_ready))

    assert seen == [(False, False), (True, False), (False, True), (False, False)]
