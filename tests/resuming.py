"""Runs that are stopped and gone on with: what all ranks get, and cases in which all options meet."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fakes import FaultyStorage

from aioload import Dataset, Loader
from aioload.storage import LocalStorage, Storage

__all__ = ["RecordingDataset", "pairwise", "rows", "run", "steps", "take"]


class RecordingDataset(Dataset):
    """A set that keeps the storages it opened, each of which keeps its reads."""

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.opened: list[FaultyStorage] = []

    def open_storage(self) -> Storage:
        """Return a storage that notes reads."""
        self.opened.append(FaultyStorage(LocalStorage(self.source), {}))
        return self.opened[-1]

    @property
    def records_read(self) -> list[int]:
        """The records of which some byte was read, in the order of the reads, as often as they were."""
        index = self.index
        found: list[int] = []
        for read in (read for storage in self.opened for read in storage.reads):
            if read.name not in index.shards:
                continue
            number = index.shards.index(read.name)
            shift = int(index.shard_starts[number]) - int(index.shard_data[number])
            first = int(index.positions.searchsorted(read.start + shift, "right")) - 1
            found += range(first, int(index.positions.searchsorted(read.stop + shift, "left")))
        return found


def rows(batch: Mapping[str, Any]) -> list[int]:
    """Return the numbers of a batch's records."""
    return [int(number) for number in batch["n"]]


def take(source: Iterable[Any], batches: int | None = None) -> list[list[int]]:
    """Take some batches of the next iteration, or all; leave it there."""
    return [rows(batch) for batch in itertools.islice(source, batches)]


def run(
    path: Path, state: Mapping[str, Any] | None, batches: int | None, **options: Any
) -> tuple[list[list[int]], dict[str, Any]]:
    """Take some batches on one rank, from a state on; return them and the state after them."""
    with Loader(path, **options).sync() as source:
        if state is not None:
            source.load_state_dict(state)
        found = take(source, batches)
        return found, source.state_dict()


def steps(path: Path, state: Mapping[str, Any] | None, world_size: int, **options: Any) -> list[list[int]]:
    """Return the global batches from a state to its epoch's end: a step's records over all ranks, sorted.

    Padding is left out. Only rank 0 has the workers that were asked for.
    """
    found: list[list[list[int]]] = []
    for rank in range(world_size):
        with Loader(path, rank=rank, world_size=world_size, **options).sync() as source:
            if state is not None:
                source.load_state_dict(state)
            of_rank = [rows(batch) for batch in source]
            if source.padded:
                of_rank[-1].pop()
            found.append(of_rank)
        options = {**options, "num_workers": 0}
    return [sorted(itertools.chain(*step)) for step in itertools.zip_longest(*found, fillvalue=[])]


def pairwise(factors: Mapping[str, Sequence[Any]], *, times: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return cases in which any values of two factors meet at least `times` times; always the same ones."""
    names, draw = list(factors), random.Random(seed)
    covered: Counter[tuple[Any, ...]] = Counter()
    wanted = {pair: times for two in itertools.combinations(names, 2) for pair in _meetings(factors, two)}
    cases: list[dict[str, Any]] = []
    while wanted:
        drawn = [{name: draw.choice(factors[name]) for name in names} for _ in range(60)]
        best = max(drawn, key=lambda case: sum(pair in wanted for pair in _pairs(case)))
        cases.append(best)
        covered.update(_pairs(best))
        wanted = {pair: times for pair in wanted if covered[pair] < times}
    return cases


def _meetings(factors: Mapping[str, Sequence[Any]], two: tuple[str, str]) -> list[tuple[Any, ...]]:
    return [(*two, *values) for values in itertools.product(*(factors[name] for name in two))]


def _pairs(case: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [(*two, *(case[name] for name in two)) for two in itertools.combinations(case, 2)]
