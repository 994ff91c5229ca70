"""Matrix: how fast are tiny records in every order, with 0 to 4 workers, in batches of 1 to 1,024?

    python benchmarks/matrix.py
    python benchmarks/matrix.py --against ../older-checkout

One table, so that nothing gets slower where nobody looks. Each cell is the rate of one loader in a process of
its own, for `--seconds`, once it has run for half a second. With `--against`, each cell is measured with the
aioload of that folder too, right after, and shown as a ratio to it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _data
import tiny
from _cases import Run, Unavailable, run_case

import aioload

__all__ = ["BATCHES", "SHUFFLES", "WORKERS", "measure"]

SHUFFLES: dict[str, Any] = {"sequential": False, "block": True, "full": "full"}
WORKERS = (0, 1, 2, 3, 4)
BATCHES = (1, 8, 64, 256, 1024)
WARM_SECONDS = 0.5


def measure(places: _data.Places, name: str, seconds: float) -> float:
    """Return samples a second of a cell, named like `block-2-64`."""
    shuffle, workers, batch_size = name.split("-")
    loader = aioload.Loader(
        places.packed, batch_size=int(batch_size), shuffle=SHUFFLES[shuffle], num_workers=int(workers)
    )
    with loader.sync() as batches:
        counts = _endless(batches)
        next(counts)
        until = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < until:
            next(counts)
        samples, began = 0, time.perf_counter()
        while (now := time.perf_counter()) < began + seconds:
            samples += next(counts)
    return samples / (now - began)


def _endless(batches: Any) -> Iterator[int]:
    """Touch batch after batch, epoch after epoch."""
    while True:
        for batch in batches:
            yield tiny.touch(batch)


def rates(cells: list[str], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure all cells, each with this aioload and the other one; return medians by cell."""
    result = {}
    common = ("--data", options.data, "--scale", options.scale, "--seconds", options.seconds)
    checkouts = {"rate": None, "against": options.against} if options.against else {"rate": None}
    for cell in cells:
        runs = {which: Run(cell, Path(__file__), cell, common, path) for which, path in checkouts.items()}
        found = [{which: run_case(run) for which, run in runs.items()} for _ in range(options.rounds)]
        for figures in found:
            for figure in figures.values():
                if "unavailable" in figure:
                    raise Unavailable(f"{cell}: {figure['unavailable']}")
        result[cell] = {which: statistics.median(each[which]["rate"] for each in found) for which in runs}
        print(f"  {cell}: {result[cell]}", file=sys.stderr)
    return result


def render(found: dict[str, dict[str, float]]) -> str:
    """Return a Markdown table: a row for each order and number of workers, a column for each batch size."""
    rows = ["| order | workers | " + " | ".join(f"batch {size:,}" for size in BATCHES) + " |"]
    rows.append("|---" * (2 + len(BATCHES)) + "|")
    for shuffle in SHUFFLES:
        for workers in WORKERS:
            cells = [found.get(f"{shuffle}-{workers}-{size}") for size in BATCHES]
            if any(cells):
                shown = " | ".join(_cell(cell) if cell else "" for cell in cells)
                rows.append(f"| {shuffle} | {workers} | {shown} |")
    return "\n".join(rows)


def _cell(figures: dict[str, float]) -> str:
    rate = figures["rate"]
    return f"{rate:,.0f} (x {rate / figures['against']:.2f})" if "against" in figures else f"{rate:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=_data.DEFAULT_FOLDER, help="folder to keep the data in")
    parser.add_argument("--scale", type=float, default=0.1, help="share of the tiny records to take")
    parser.add_argument("--seconds", type=float, default=0.7, help="for each cell")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--against", type=Path, help="a checkout of aioload to compare with")
    parser.add_argument("--only", help="begin of the cells' names, such as block-2", default="")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--case", help="run one cell here and print one line of JSON")
    options = parser.parse_args()
    places = _data.tiny(options.data, options.scale)
    if options.case:
        print(json.dumps({"case": options.case, "rate": measure(places, options.case, options.seconds)}))
        return
    names = [f"{shuffle}-{workers}-{size}" for shuffle in SHUFFLES for workers in WORKERS for size in BATCHES]
    found = rates([name for name in names if name.startswith(options.only)], options)
    print(f"samples/s of {places.records:,} records of {_data.TINY_BYTES:,} bytes\n\n{render(found)}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
