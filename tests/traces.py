"""A strict reader of Chrome's trace event format: what viewers forgive is a problem here."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["chains", "lanes", "problems", "read", "slices"]

_NAMING = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index"}
_NAMING["thread_sort_index"] = "sort_index"
_ALWAYS = {"ph", "pid", "tid", "ts", "name"}
_MORE = {
    "X": ({"dur", "cat"}, {"args"}),
    "M": ({"args"}, set()),
    "i": ({"cat", "s"}, {"args"}),
    "C": ({"args"}, set()),
    "s": ({"cat", "id"}, set()),
    "t": ({"cat", "id"}, set()),
    "f": ({"cat", "id", "bp"}, set()),
}
"""By kind of event: what it must have beside what all have, and what it may."""


def read(path: Path) -> dict[str, Any]:
    """Return a trace, in which no number is one that JSON does not know."""
    opened = gzip.open if path.suffix == ".gz" else open

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    with opened(path, "rt", encoding="utf-8") as file:
        return json.load(file, parse_constant=refuse)


def problems(document: dict[str, Any]) -> list[str]:
    """Return all that is wrong with a trace."""
    found = [*_head(document)]
    events = document["traceEvents"]
    found += [f"{problem} in {event}" for event in events for problem in _shape(event)]
    if found:
        return found
    return [*_names(events), *_times(events), *_nesting(events), *_flows(events)]


def lanes(document: dict[str, Any]) -> dict[int, str]:
    """Return the names of the lanes."""
    return {
        event["tid"]: event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name"
    }


def slices(document: dict[str, Any], lane: str) -> list[dict[str, Any]]:
    """Return the slices of all lanes whose names begin so."""
    named = lanes(document)
    return [
        event
        for event in document["traceEvents"]
        if event["ph"] == "X" and named[event["tid"]].startswith(lane)
    ]


def chains(document: dict[str, Any]) -> list[list[str]]:
    """Return the lanes that each chain of arrows goes through."""
    named, found = lanes(document), defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] in "stf":
            found[event["id"]].append(named[event["tid"]])
    return list(found.values())


def _head(document: dict[str, Any]) -> Iterator[str]:
    if set(document) != {"traceEvents", "displayTimeUnit", "otherData"}:
        yield f"its keys are {sorted(document)}"
    if document["displayTimeUnit"] not in ("ms", "ns"):
        yield "it names no unit of time that there is"


def _shape(event: dict[str, Any]) -> Iterator[str]:
    """Look at one event by itself."""
    if event.get("ph") not in _MORE:
        yield "no known kind"
        return
    must, may = _MORE[event["ph"]]
    must = must | _ALWAYS
    if not must <= set(event) <= must | may:
        yield f"keys {sorted(set(event) ^ must)}"
        return
    numbers = [event[key] for key in ("ts", "dur") if key in event]
    if any(type(one) not in (int, float) or not math.isfinite(one) or one < 0 for one in numbers):
        yield "no time"
    if type(event["pid"]) is not int or type(event["tid"]) is not int or event["pid"] < 1:
        yield "no place"
    if not isinstance(event["name"], str) or not event["name"]:
        yield "no name"
    if "args" in event and not isinstance(event["args"], dict):
        yield "no facts"
    if event["ph"] == "C" and [type(one) for one in event["args"].values()] != [int]:
        yield "no level"
    if event.get("s", "t") not in ("t", "p", "g") or event.get("bp", "e") != "e":
        yield "no scope"
    if event["ph"] == "M" and set(event["args"]) != {_NAMING.get(event["name"])}:
        yield "names nothing"


def _names(events: list[dict[str, Any]]) -> Iterator[str]:
    """Names come first, once, and for all that there is."""
    naming = [event for event in events if event["ph"] == "M"]
    if events[: len(naming)] != naming:
        yield "names come late"
    threads = [(event["pid"], event["tid"]) for event in naming if event["name"] == "thread_name"]
    processes = [event["pid"] for event in naming if event["name"] == "process_name"]
    shown = [
        (event["pid"], event["args"]["name"]) for event in naming if event["name"].endswith("thread_name")
    ]
    for found in (threads, processes, shown):
        if len(set(found)) != len(found):
            yield f"something is named twice: {found}"
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] in "Xistf"}
    if not used <= set(threads) or not {event["pid"] for event in events} <= set(processes):
        yield f"without a name: {used - set(threads)}"


def _times(events: list[dict[str, Any]]) -> Iterator[str]:
    times = [event["ts"] for event in events if event["ph"] != "M"]
    if times != sorted(times):
        yield "not in the order of time"


def _nesting(events: list[dict[str, Any]]) -> Iterator[str]:
    """Of two slices of a thread one holds the other, or they do not touch; the outer one comes first."""
    open_until: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in events:
        if event["ph"] != "X":
            continue
        stack = open_until[event["pid"], event["tid"]]
        start, stop = _extent(event)
        while stack and stack[-1] <= start:
            stack.pop()
        if stack and stop > stack[-1]:
            yield f"half in another: {event}"
        stack.append(stop)


def _flows(events: list[dict[str, Any]]) -> Iterator[str]:
    """Each chain begins once, ends once and last, and each of its ends is in a slice."""
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    held: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            found[event["id"]].append(event)
        elif event["ph"] == "X":
            held[event["pid"], event["tid"]].append(_extent(event))
    for number, chain in found.items():
        kinds = "".join(event["ph"] for event in chain)
        if kinds != "s" + "t" * (len(chain) - 2) + "f":
            yield f"chain {number} goes {kinds}"
        for event in chain:
            at = round(event["ts"] * 1000)
            if not any(start <= at < stop for start, stop in held[event["pid"], event["tid"]]):
                yield f"in no slice: {event}"


def _extent(event: dict[str, Any]) -> tuple[int, int]:
    """Return where a slice begins and ends, in nanoseconds."""
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)
