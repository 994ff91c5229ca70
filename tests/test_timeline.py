"""Timeline: whatever was told becomes a trace that holds to the format."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import chains, lanes, problems, slices

from aioload.timeline import LANES, Entry, Level, Mark, Span, events

SECONDS = st.floats(-0.5, 2, allow_nan=False)
TOOK = st.one_of(st.just(0.0), st.floats(0, 1e-7), st.floats(0, 1))
BATCHES = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 5)), max_size=4, unique=True).map(tuple)
NAMES = st.sampled_from([*LANES, "worker process 9", "worker process 10", "worker: this process"])


@st.composite
def spans(draw: st.DrawFn) -> Span:
    """A span of any lane."""
    start, lane = draw(SECONDS), draw(NAMES)
    parts = draw(st.lists(st.tuples(st.just("decode"), TOOK), max_size=3).map(tuple))
    run = (1, draw(st.integers(0, 3))) if lane == "read" else None
    batches = () if run else draw(BATCHES)
    return Span(lane, "batch", start, start + draw(TOOK), {"rows": 3}, batches, parts, run)


ENTRIES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.one_of(
            spans(),
            st.builds(Mark, NAMES, st.just("died"), SECONDS),
            st.builds(Level, st.just("ready"), SECONDS, st.integers(0, 9)),
        ),
    ),
    max_size=30,
)


@given(ENTRIES)
def test_any_entries_make_a_trace(entries: list[tuple[int, Entry]]) -> None:
    """Slices nest, chains begin and end in slices, all has a name, and no more comes than was foreseen."""
    found = drawn(entries)

    assert problems(found) == []
    timed = [event for event in found["traceEvents"] if event["ph"] != "M"]
    assert len(timed) <= sum(entry.weight for _, entry in entries)


@given(ENTRIES)
def test_nothing_is_left_out(entries: list[tuple[int, Entry]]) -> None:
    """Every span that reaches into the trace is drawn once, with all of its length that lies in it."""
    spans = [entry for _, entry in entries if isinstance(entry, Span) and round(entry.stop * 1e9) >= 0]

    found = [event for event in drawn(entries)["traceEvents"] if event["ph"] == "X" and "args" in event]

    expected = sorted(round(max(span.start, 0) * 1e9) for span in spans)
    assert sorted(round(event["ts"] * 1000) for event in found) == expected


def test_a_batch_is_followed_from_its_last_read() -> None:
    """Of the reads of a run, that which ended last has the arrow; then come job, hand-over and user."""
    run, batch = (1, 0), ((1, 4),)
    entries = [
        Span("order", "plan", 0.0, 0.1, None, batch, run=run),
        Span("read", "early", 0.1, 0.2, run=run),
        Span("read", "late", 0.15, 0.3, run=run),
        Span("read", "another run's", 0.4, 0.9, run=(1, 1)),
        Span("worker process 7", "batch 4", 0.3, 0.5, None, batch),
        Span("hand-over", "batch 4", 0.5, 0.6, None, batch),
        Span("consumer", "wait", 0.2, 0.7, None, batch),
        Span("consumer", "wait", 0.8, 0.9, None, ((1, 5),)),
    ]

    found = drawn([(0, entry) for entry in entries])

    assert problems(found) == []
    # the late read overlaps the early one, and so has the second row
    assert chains(found) == [["order", "read 2", "worker process 7", "hand-over", "consumer"]]


def test_jobs_done_side_by_side_meet_at_the_hand_over() -> None:
    """A batch that was cut has one way to the user; its other parts have theirs as far as they meet it."""
    batch = ((1, 0),)
    entries = [
        Span("order", "plan", 0.0, 0.1, None, batch, run=(1, 0)),
        Span("worker process 7", "batch 0", 0.2, 0.5, None, batch),
        Span("worker process 8", "batch 0", 0.2, 0.6, None, batch),
        Span("hand-over", "batch 0", 0.7, 0.8, None, batch),
        Span("consumer", "wait", 0.7, 0.9, None, batch),
    ]

    found = drawn([(0, entry) for entry in entries])

    assert problems(found) == []
    assert sorted(chains(found)) == [
        ["order", "worker process 7", "hand-over"],
        ["order", "worker process 8", "hand-over", "consumer"],
    ]


def test_lanes_stand_in_the_order_of_the_way() -> None:
    """From above to below as a batch passes them, workers by number, and rows of one kind side by side."""
    names = ["consumer", "worker process 10", "read", "read", "worker process 9", "order"]

    found = drawn([(0, Span(name, "x", 0.0, 1.0)) for name in names])

    assert list(lanes(found).values()) == [
        "order",
        "read",
        "read 2",
        "worker process 9",
        "worker process 10",
        "consumer",
    ]


def test_parts_lie_in_their_span() -> None:
    """Sums of a clock that ticks otherwise are cut where the span ends."""
    parts = (("decode", 0.6), ("transform", 0.0), ("collate", 0.7))

    found = drawn([(0, Span("worker process 1", "batch 0", 0.0, 1.0, parts=parts))])

    assert problems(found) == []
    assert [event["name"] for event in slices(found, "worker")] == ["batch 0", "decode", "collate"]


def test_an_empty_trace_is_one() -> None:
    """Where nothing ran there is nothing to see, and no error either."""
    assert problems(drawn([])) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"dur": -1.0}, "no time"),
        ({"ts": float("nan")}, "no time"),
        ({"tid": 9}, "without a name"),
        ({"ph": "B"}, "no known kind"),
        ({"name": ""}, "no name"),
        ({"dur": 2e6}, "half in another"),
    ],
)
def test_the_checker_sees_what_is_wrong(change: dict[str, Any], problem: str) -> None:
    """What the other tests rely on finds a trace that was spoilt."""
    found = drawn([(0, Span("consumer", "wait", 0.0, 1.0, parts=(("part", 0.5),)))])
    found["traceEvents"][-1].update(change)

    assert any(problem in one for one in problems(found))


def drawn(entries: list[tuple[int, Entry]]) -> dict[str, Any]:
    """Return entries as a document."""
    named = events(entries, ["a", "b", "c"], 0.0)
    return {"traceEvents": list(named), "displayTimeUnit": "ms", "otherData": {}}
