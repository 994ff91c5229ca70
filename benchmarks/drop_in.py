"""Drop-in: what does each step from torch's DataLoader to aioload gain, on photos in class folders?

    python benchmarks/drop_in.py
    python benchmarks/drop_in.py --scale 0.2 --rounds 3 --seconds 4

The photos of `photos.py` in batches of 64, in random order, by two workers, as someone has them who has
written a `Dataset` with Pillow:

- torch: that data set in a `DataLoader`.
- swapped: the same data set in `aioload.from_dataset`.
- packed: the photos in a packed set, decoded and transformed by the same calls of Pillow in a transform.
- tuned: the built-in decoder instead, antialiased as Pillow's; tuned-fast: without.

Ratios are taken within a round. The exit status is 1 where the swap is slower than torch. Measured as
`_cases.py` says.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import _data
import photos
import torch
from _cases import Contender, Loops, Run, Workload, parser, tabulate, take_turns, throughput, warm
from _data import Places
from _goals import Goal, by_round, judge, machine, over, verdict_table
from _usual import usual

import aioload

__all__ = ["GOALS", "WORKLOAD", "Photos"]


class Photos(torch.utils.data.Dataset[Any]):
    """A user's data set over class folders."""

    def __init__(self, places: Places) -> None:
        self.files = photos.files(places)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[number]
        with Path(path).open("rb") as file:
            return torch.from_numpy(usual(file, random.random)), label


def _torch(places: Places, workers: int) -> Contender:
    options = {"shuffle": True, "num_workers": workers, "persistent_workers": workers > 0}
    return Loops(torch.utils.data.DataLoader(Photos(places), photos.BATCH, **options))


def _swapped(places: Places, workers: int) -> Contender:
    loader = aioload.from_dataset(Photos(places), batch_size=photos.BATCH, shuffle=True, num_workers=workers)
    return Loops(loader.sync(), loader.close)


WORKLOAD = Workload(
    "drop-in",
    _data.photos,
    photos.touch,
    {
        "torch": _torch,
        "swapped": _swapped,
        "packed": photos.WORKLOAD.cases["aioload-pillow"],
        "tuned": photos.WORKLOAD.cases["aioload"],
        "tuned-fast": photos.WORKLOAD.cases["aioload-fast"],
    },
)

GOALS = [
    Goal("drop-in", "swapped / torch", over("swapped", "torch"), 1.0),
    *(Goal("drop-in", f"{case} / torch", over(case, "torch"), 0.0) for case in list(WORKLOAD.cases)[2:]),
]


def main() -> int:
    options = parser(WORKLOAD, __doc__ or "").parse_args()
    places = WORKLOAD.places(options.data, options.scale)
    if options.case:
        make = WORKLOAD.cases[options.case]
        figures = throughput(WORKLOAD, lambda: make(places, options.workers), places, options.seconds)
        print(json.dumps({"case": options.case, **figures}), flush=True)
        return 0
    warm(places)
    names = options.only.split(",") if options.only else list(WORKLOAD.cases)
    common = ("--data", options.data, "--scale", options.scale, "--seconds", options.seconds)
    script = Path(__file__)
    runs = [Run(name, script, name, (*common, "--workers", options.workers)) for name in names]
    found = take_turns(runs, options.rounds)
    verdicts = judge(by_round(found, options.rounds), GOALS)
    about = machine()
    print(f"{about['cpu']}, {about['cpus']} CPUs, Python {about['python']}, {about['date']}\n")
    print(tabulate(found, WORKLOAD.columns), verdict_table(verdicts), sep="\n\n")
    return int(any(verdict.met is False for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
