"""Bounded: does the pipeline ever hold more memory than `memory_limit` allows?

    python benchmarks/bounded.py

Sets of records of very different sizes, from 10 bytes to 1 KB, to 1 MB and to 100 MB, are read under limits
from the least that works, as the error of a smaller one names it, to 1 GiB: shuffled, with two workers,
mapped and read, by a loop that is sometimes slow, so that most is ready then. What counts is shared-anonymous
memory of the process tree (Pss_Shmem, see `_measure.py`), where raw records and batches are, looked at from
outside every 10 ms. Private memory is told as well, what the tree had before and at most: decoded values on
their way to a batch are in there, texts that wait for the loop, and what is handed over as private copies.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import _data
import numpy as np
from _cases import Run, run_case
from _measure import MIB, tree_memory, watching

import aioload

__all__ = ["LIMITS", "SETS", "measure"]

SETS = {"10B-1KB": (1000, 20_000, 64), "10B-1MB": (1_000_000, 1_500, 16), "10B-100MB": (100_000_000, 60, 1)}
"""By name: the largest record, how many there are, and the batch size."""

LIMITS = ("least", "1MiB", "8MiB", "32MiB", "64MiB", "256MiB", "1GiB")
READS = ("mmap", "file")
SEED, ALLOWED = 3, 1.10


def mixed(folder: Path, name: str) -> Path:
    """Make a set whose records' sizes are spread evenly over the orders of magnitude, or find it."""
    largest, records, _ = SETS[name]

    def make(fresh: Path) -> None:
        rng = np.random.default_rng(SEED)
        sizes = np.exp(rng.uniform(np.log(10), np.log(largest), records)).astype(int)
        sizes[rng.integers(records, size=2)] = largest
        with aioload.Writer(fresh / "packed", fields={"data": "bytes"}) as writer:
            for size in sizes.tolist():
                writer.write({"data": rng.bytes(size)})

    return _data.Places(folder, records).kept(f"mixed-{name}-{SEED}", make) / "packed"


def measure(path: Path, name: str, limit: str, reads: str, seconds: float) -> dict[str, Any]:
    """Read for some seconds under a limit; return the most memory that was seen."""
    batch_size = SETS[name][2]
    loader = _loader(path, batch_size, limit, reads)
    before = tree_memory(os.getpid()).anonymous
    with watching(0.01) as watch, loader.sync() as batches:
        until = time.perf_counter() + seconds
        taken = 0
        while time.perf_counter() < until:
            for batch in batches:
                assert len(batch["data"]) <= batch_size
                taken += 1
                if taken % 16 == 1:
                    time.sleep(0.05)  # now all that may be made ahead is made
                if time.perf_counter() > until:
                    break
    loader.close()
    return {
        "limit_mib": loader.stats().memory_limit / MIB,
        "shared_mib": watch.shared / MIB,
        "usual_mib": watch.usual / MIB,
        "private_before_mib": before / MIB,
        "private_mib": watch.peak.anonymous / MIB,
        "looks": watch.samples,
        "batches": taken,
    }


def _loader(path: Path, batch_size: int, limit: str, reads: Any) -> aioload.Loader:
    """Return a loader that has been through an epoch: a limit may turn out too small at a later batch."""
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "num_workers": 2, "reads": reads}
    allowed: int | str = _least(path, options) if limit == "least" else limit
    loader = aioload.Loader(path, memory_limit=allowed, **options)
    for _ in loader.sync():
        pass
    return loader


def _least(path: Path, options: dict[str, Any]) -> int:
    """Return the least limit that works, by what the error of a smaller one says."""
    loader = aioload.Loader(path, memory_limit=1, **options)
    try:
        next(iter(loader.sync()))
    except aioload.ConfigError as error:
        return int(getattr(error, "needed", 0))
    finally:
        loader.close()
    raise AssertionError("a limit of one byte was not refused")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=_data.DEFAULT_FOLDER, help="folder to keep the data in")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row")
    parser.add_argument("--only", help="one of the sets", choices=SETS)
    parser.add_argument(
        "--case", help="run one row here and print one line of JSON, such as 10B-1KB@8MiB@mmap"
    )
    options = parser.parse_args()
    if options.case:
        name, limit, reads = options.case.split("@")
        try:
            figures = measure(mixed(options.data, name), name, limit, reads, options.seconds)
        except aioload.ConfigError as error:
            figures = {"unavailable": f"refused: needs {int(getattr(error, 'needed', 0)) / MIB:,.1f} MiB"}
        print(json.dumps(figures))
        return 0

    print(
        "| records | reads | limit MiB | shared MiB, median | most | of the limit | private, before | most |"
    )
    print("|---|---|---|---|---|---|---|---|")
    worst = 0.0
    for name in [options.only] if options.only else SETS:
        for limit, reads in product(LIMITS, READS):
            common = ("--data", options.data, "--seconds", options.seconds)
            found = run_case(Run(name, Path(__file__), f"{name}@{limit}@{reads}", common))
            if "unavailable" in found:
                print(f"| {name} | {reads} | {limit} | {found['unavailable']} | | | | |", flush=True)
                continue
            share = found["shared_mib"] / found["limit_mib"]
            worst = max(worst, share)
            print(
                f"| {name} | {reads} | {found['limit_mib']:.2f} | {found['usual_mib']:.2f}"
                f" | {found['shared_mib']:.2f} | {share:.0%}"
                f" | {found['private_before_mib']:.0f} | {found['private_mib']:.0f} |",
                flush=True,
            )
    print(f"\nat most {worst:.0%} of the limit, {ALLOWED:.0%} allowed")
    return worst > ALLOWED


if __name__ == "__main__":
    sys.exit(main())
