"""Draws a stretch of a trace as a picture, for a page that cannot show the trace itself.

    python benchmarks/draw_trace.py run.json picture.png --start 0.5 --seconds 0.4

A row for each lane, from above to below as a batch passes them, with arrows for the batches that were taken
in the stretch. Perfetto shows more; this needs matplotlib alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch

COLOURS = {
    "order": "#b8b8c8",
    "read": "#5b8db8",
    "decode": "#e0a030",
    "transform": "#c8702c",
    "collate": "#8f6bb0",
    "worker": "#e8d8b0",
    "hand-over": "#3f9f7f",
    "copy thread": "#4fb0c0",
    "copy stream": "#2f7f9f",
    "your code": "#9fc06f",
    "wait": "#c84040",
}
PLAIN = {"your code": "your code (a training step)", "wait": "your loop waits", "worker": "rest of a job"}
LETTER = 0.0064  # of the picture's width


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--start", type=float, default=0.0, help="seconds from the start of the trace")
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    draw(read(options.trace), options.picture, options.start, options.seconds)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the events of a trace."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
        return found


def draw(events: list[dict[str, Any]], picture: Path, start: float, seconds: float) -> None:
    """Draw a stretch of a trace."""
    first, last = start * 1e6, (start + seconds) * 1e6
    slices = [
        one for one in events if one["ph"] == "X" and first < one["ts"] + one["dur"] and one["ts"] < last
    ]
    used = {one["tid"] for one in slices}
    names = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    lanes = [thread for thread in names if thread in used]
    height = {thread: -place for place, thread in enumerate(lanes)}

    figure, axes = plt.subplots(figsize=(10, 0.45 * len(lanes) + 1.2), dpi=110)
    for one in slices:
        _bar(axes, one, height[one["tid"]], first, last)
    _arrows(axes, events, slices, height, first, last)
    _label(axes, [names[thread] for thread in lanes], seconds)
    figure.tight_layout()
    figure.savefig(picture)


def _bar(axes: Any, one: dict[str, Any], height: float, first: float, last: float) -> None:
    """Draw a slice; what lies in another is lower."""
    begin, stop = max(one["ts"], first), min(one["ts"] + one["dur"], last)
    inner = one["name"] in ("decode", "transform", "collate")
    low, high = (height - 0.36, 0.36) if inner else (height - 0.36, 0.72)
    colour = COLOURS[_kind(one)]
    place = (begin - first) / 1000, (stop - begin) / 1000
    axes.barh(low + high / 2, place[1], high, left=place[0], color=colour, zorder=2 + inner, linewidth=0)
    name = one["name"].replace("wait for ", "waits for ")
    if (stop - begin) / (last - first) > LETTER * (len(name) + 1) and one["cat"] != "read":
        middle = height + 0.18 if one["cat"] == "worker" and not inner else low + high / 2
        axes.text(place[0] + place[1] / 2, middle, name, ha="center", va="center", fontsize=7, zorder=5)


def _kind(one: dict[str, Any]) -> str:
    """Return the kind of a slice, by which it is coloured."""
    name = one["name"]
    return "wait" if name.startswith("wait for") else name if name in COLOURS else one["cat"]


def _arrows(
    axes: Any,
    events: list[dict[str, Any]],
    slices: list[dict[str, Any]],
    height: dict[int, float],
    first: float,
    last: float,
) -> None:
    """Draw the way of each batch that arrives in the stretch, as far as it lies in there."""
    ways = defaultdict(list)
    for one in events:
        if one["ph"] in "stf":
            ways[one["id"]].append(one)
    for way in ways.values():
        if not first <= way[-1]["ts"] <= last:
            continue
        inside = [one for one in way if one["ts"] >= first and one["tid"] in height]
        for one, other in pairwise(inside):
            goes, comes = one["ts"], max(one["ts"], _begin(slices, other))
            if height[other["tid"]] == min(height.values()):
                comes = other["ts"]  # a wait has begun before what it is for
            ends = [
                ((goes - first) / 1000, height[one["tid"]]),
                ((comes - first) / 1000, height[other["tid"]]),
            ]
            arrow = FancyArrowPatch(
                *ends,
                arrowstyle="->",
                mutation_scale=8,
                connectionstyle="arc3,rad=-0.12",
                lw=0.7,
                color="#404040",
            )
            axes.add_patch(arrow).set_zorder(6)


def _begin(slices: list[dict[str, Any]], end: dict[str, Any]) -> float:
    """Return where the slice begins that an end of an arrow is in."""
    held = [
        one["ts"] for one in slices if one["tid"] == end["tid"] and 0 <= end["ts"] - one["ts"] < one["dur"]
    ]
    return float(min(held, default=end["ts"]))


def _label(axes: Any, names: list[str], seconds: float) -> None:
    axes.set_yticks([-place for place in range(len(names))], names, fontsize=8)
    axes.set_xlim(0, seconds * 1000)
    axes.set_ylim(-len(names) + 0.4, 0.6)
    axes.set_xlabel("milliseconds", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color="#e8e8e8", zorder=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=COLOURS[kind])
        for kind in ("decode", "transform", "collate", *PLAIN)
    ]
    labels = ["decode", "transform", "collate", *PLAIN.values()]
    axes.legend(
        handles,
        labels,
        loc="upper center",
        bbox_to_anchor=(0.5, 1.0 + 0.9 / len(names)),
        ncol=6,
        fontsize=7,
        frameon=False,
    )


if __name__ == "__main__":
    main()
