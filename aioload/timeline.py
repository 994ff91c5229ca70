"""Timeline: what loaders did, and when, as events of Chrome's trace format; pure.

A trace holds entries: spans, marks and levels, each on a lane of one loader. Whoever recorded them knew only
its own part, so what connects them is found here, at the end: spans of a lane that overlap are laid on rows
side by side, and each batch gets a chain of arrows through all spans that had to do with it, from the read
that its run waited for last to the moment in which the user took it.

Times come as seconds of one clock and leave as microseconds from the start of the trace. In between they are
whole nanoseconds: what followed each other must not overlap because of a rounding.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["LANES", "Batch", "Entry", "Level", "Mark", "Span", "events"]

LANES = ("order", "read", "worker", "hand-over", "copy thread", "copy stream", "consumer")
"""Kinds of lanes, in the order in which a batch passes them; so they lie below each other."""

Batch = tuple[int, int]
"""A batch of a loader: the number of the pass, and the step in it."""

_MOST_LANES = 1000  # of one loader, in the numbers that threads get


@dataclass(slots=True)  # never changed; but to make a frozen one takes four times as long
class Span:
    """Something that took time."""

    lane: str
    """A name of `LANES`, or one of them with more behind it."""
    name: str
    start: float
    stop: float
    facts: Mapping[str, Any] | None = None
    """What is shown of it when it is clicked on."""
    batches: tuple[Batch, ...] = ()
    """Those it had to do with."""
    parts: tuple[tuple[str, float], ...] = ()
    """What the time went into, in seconds: shown end to end, as such sums have no places of their own."""
    run: Batch | None = None
    """The pass and the run that it belongs to, where batches walk together."""

    @property
    def weight(self) -> int:
        """The events that become of it, at most: a plan counts its run's read, a job a way of its own."""
        arrows = 2 if self.run is not None else 3 if self.lane.startswith("worker") else 1
        return 1 + len(self.parts) + arrows * len(self.batches)


@dataclass(slots=True)  # never changed; but to make a frozen one takes four times as long
class Mark:
    """Something that happened at a moment."""

    lane: str
    name: str
    at: float
    facts: Mapping[str, Any] | None = None

    weight = 1


@dataclass(slots=True)  # never changed; but to make a frozen one takes four times as long
class Level:
    """How many there were of something from a moment on."""

    name: str
    at: float
    count: int

    weight = 1


Entry = Span | Mark | Level


def events(
    entries: Iterable[tuple[int, Entry]], loaders: Sequence[str], start: float
) -> Iterator[dict[str, Any]]:
    """Return the events of a trace: those that name things first, then all others in the order of time.

    Args:
        entries: each with the number of its loader.
        loaders: their names.
        start: of the trace; what lies before it is cut off.
    """
    by_loader: dict[int, list[Entry]] = defaultdict(list)
    for number, entry in entries:
        by_loader[number].append(entry)
    named: list[dict[str, Any]] = []
    timed: list[tuple[int, int, dict[str, Any]]] = []
    arrows = 1
    for process, number in enumerate(sorted(by_loader), 1):
        drawing = _Drawing(process, f"loader {process}: {loaders[number]}", start, arrows)
        drawing.add(by_loader[number])
        named += drawing.named
        timed += drawing.timed
        arrows = drawing.arrows
    yield from named
    # at the same moment the longest first: what lies inside of another comes behind it
    for _, _, event in sorted(timed, key=lambda one: one[:2]):
        yield event


@dataclass(slots=True)
class _Placed:
    """A span on its row."""

    span: Span
    start: int
    stop: int
    thread: int = 0

    @property
    def end(self) -> int:
        """The last moment at which nothing else is open there: where arrows come and go."""
        return self.stop - 1


@dataclass(slots=True)
class _Drawing:
    """The events of one loader."""

    process: int
    name: str
    zero: float
    arrows: int
    """The number of the next chain."""
    named: list[dict[str, Any]] = field(default_factory=list)
    timed: list[tuple[int, int, dict[str, Any]]] = field(default_factory=list)
    threads: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, entries: Sequence[Entry]) -> None:
        """Draw all entries of the loader."""
        placed = self._placed([entry for entry in entries if isinstance(entry, Span)])
        marks = [entry for entry in entries if isinstance(entry, Mark) and entry.at >= self.zero]
        self._name_threads({(one.lane, 0) for one in marks} | self.threads.keys())
        for one in placed:
            one.thread = self.threads[one.span.lane, one.thread]
            self._draw_span(one)
        for mark in marks:
            self._draw_mark(mark)
        for level in entries:
            if isinstance(level, Level) and level.at >= self.zero:
                facts = {level.name: level.count}
                self._event("C", self._at(level.at), 0, name=level.name, args=facts)
        self._draw_arrows(placed)

    def _at(self, seconds: float) -> int:
        return round((seconds - self.zero) * 1e9)

    def _placed(self, spans: list[Span]) -> list[_Placed]:
        """Lay spans on rows, so that none of a row begins before the one before it has ended."""
        # since when each is free again, and its number
        rows: dict[str, list[tuple[int, int]]] = defaultdict(list)
        free: dict[str, list[int]] = defaultdict(list)
        placed: list[_Placed] = []
        for span in sorted(spans, key=lambda one: (one.start, one.stop)):
            start, stop = max(self._at(span.start), 0), self._at(span.stop)
            if stop < 0:
                continue
            one = _Placed(span, start, max(stop, start + 2))  # an arrow has its moment also in the shortest
            busy, idle = rows[span.lane], free[span.lane]
            while busy and busy[0][0] <= start:
                heapq.heappush(idle, heapq.heappop(busy)[1])
            one.thread = heapq.heappop(idle) if idle else len(busy)
            heapq.heappush(busy, (one.stop, one.thread))
            self.threads[span.lane, one.thread] = 0
            placed.append(one)
        return placed

    def _name_threads(self, lanes: Iterable[tuple[str, int]]) -> None:
        """Give lanes their numbers, from above to below, and names."""
        self.named.append(_named("process_name", self.process, 0, name=self.name))
        self.named.append(_named("process_sort_index", self.process, 0, sort_index=self.process))
        for place, (lane, row) in enumerate(sorted(lanes, key=_height), 1):
            # never the number of the process: viewers would take it for the main thread
            thread = self.threads[lane, row] = _MOST_LANES * self.process + place
            shown = lane if not row else f"{lane} {row + 1}" if lane in LANES else f"{lane} ({row + 1})"
            self.named.append(_named("thread_name", self.process, thread, name=shown))
            self.named.append(_named("thread_sort_index", self.process, thread, sort_index=place))

    def _draw_span(self, placed: _Placed) -> None:
        span = placed.span
        kind = _kind(span.lane)
        self._slice(placed.thread, placed.start, placed.stop, span.name, kind, span.facts)
        at = placed.start
        for name, seconds in span.parts:
            stop = min(at + round(seconds * 1e9), placed.end - 1)
            if stop > at:
                self._slice(placed.thread, at, stop, name, kind, None)
                at = stop

    def _slice(
        self, thread: int, start: int, stop: int, name: str, kind: str, facts: Mapping[str, Any] | None
    ) -> None:
        more: dict[str, Any] = {"args": dict(facts)} if facts else {}
        self._event("X", start, thread, -stop, name=name, cat=kind, dur=(stop - start) / 1000, **more)

    def _draw_mark(self, mark: Mark) -> None:
        more: dict[str, Any] = {"args": dict(mark.facts)} if mark.facts else {}
        thread = self.threads[mark.lane, 0]
        self._event("i", self._at(mark.at), thread, name=mark.name, cat=_kind(mark.lane), s="t", **more)

    def _draw_arrows(self, placed: Sequence[_Placed]) -> None:
        """Draw the way of each batch, where more than one place of it is known."""
        ways: dict[Batch, list[_Placed]] = defaultdict(list)
        for one in _with_reads(placed):
            for batch in one.span.batches:
                ways[batch].append(one)
        for _, way in sorted(ways.items()):
            for chain in _chains(way):
                self._draw_chain(chain)

    def _draw_chain(self, chain: Sequence[_Placed]) -> None:
        if len(chain) < 2:
            return
        for number, one in enumerate(chain):
            kind = "s" if not number else "f" if number == len(chain) - 1 else "t"
            more: dict[str, Any] = {"bp": "e"} if kind == "f" else {}
            self._event(kind, one.end, one.thread, name="batch", cat="batch", id=self.arrows, **more)
        self.arrows += 1

    def _event(self, kind: str, at: int, thread: int, order: int = 0, **more: Any) -> None:
        event = {"ph": kind, "pid": self.process, "tid": thread, "ts": at / 1000, **more}
        self.timed.append((at, order, event))


def _with_reads(placed: Sequence[_Placed]) -> Iterator[_Placed]:
    """Return spans with the batches they are for; of a run's reads only the last, which it waited for."""
    batches_of = {
        one.span.run: one.span.batches for one in placed if one.span.run is not None and one.span.batches
    }
    last: dict[Batch, _Placed] = {}
    for one in placed:
        run = one.span.run
        if run is None or one.span.batches:
            yield one
        elif run in batches_of and (run not in last or last[run].stop < one.stop):
            last[run] = one
    for run, one in last.items():
        yield replace(one, span=replace(one.span, batches=batches_of[run]))


def _chains(way: list[_Placed]) -> Iterator[list[_Placed]]:
    """Return the way of a batch, and the side ways of jobs that were done beside the one that ended last."""
    way.sort(key=lambda one: one.end)
    kinds = [_kind(one.span.lane) for one in way]
    jobs = [place for place, kind in enumerate(kinds) if kind == "worker"]
    yield [one for place, one in enumerate(way) if place not in jobs[:-1]]
    for job in jobs[:-1]:
        before = [one for one, kind in zip(way[:job], kinds, strict=False) if kind in ("order", "read")]
        after = [one for one, kind in zip(way[job:], kinds[job:], strict=True) if kind == "hand-over"]
        yield [*before[-1:], way[job], *after[:1]]


def _named(what: str, process: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "ts": 0, "args": args}


def _kind(lane: str) -> str:
    """Return the kind of a lane."""
    return next(kind for kind in LANES if lane.startswith(kind))


def _height(lane: tuple[str, int]) -> tuple[int, int, str, int]:
    """Return where a lane stands; those of a kind by their length first, so that 10 follows 9."""
    name, row = lane
    return LANES.index(_kind(name)), len(name), name, row
