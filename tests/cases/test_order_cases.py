"""Cases S01, S02, D01, R01, R03 and R05: ranks, randomness and resuming."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import counted, take_sync
from resuming import rows, run, take

from aioload import Loader


@pytest.mark.parametrize("shuffle", [False, True, "full"])
@pytest.mark.parametrize(("shard_bytes", "count"), [(1 << 20, 1), (1000, 3)])
def test_s01_fewer_shards_than_ranks_and_workers(
    tmp_path: Path, shard_bytes: int, count: int, shuffle: Any
) -> None:
    """S01: 1 and 3 shards of 10 samples for 4 ranks: each once beside the padding, equal counts."""
    path = counted(tmp_path / "set", 10, shard_bytes=shard_bytes)
    options = {"batch_size": 2, "shuffle": shuffle, "world_size": 4}
    workers = [4, 0, 0, 1]

    loaders = [Loader(path, rank=rank, num_workers=number, **options) for rank, number in enumerate(workers)]
    padded = [loader.padded for loader in loaders]
    shards = {len(loader.dataset.index.shards) for loader in loaders}
    found = [[rows(batch) for batch in take_sync(loader)] for loader in loaders]

    own = [n for one, pad in zip(found, padded, strict=True) for n in list(itertools.chain(*one))[: 3 - pad]]
    assert shards == {count}
    assert [[len(batch) for batch in one] for one in found] == [[2, 1]] * 4
    assert sorted(own) == list(range(10))
    assert sum(padded) == 2


@pytest.mark.parametrize(
    ("records", "world_size", "batch_size", "options", "lengths", "padded"),
    [
        (10, 4, 2, {}, [2, 2, 2, 2], [0, 0, 1, 1]),
        (10, 4, 2, {"drop_last": True}, [1, 1, 1, 1], [0, 0, 0, 0]),
        (10, 4, 2, {"pad": False}, [2, 2, 1, 1], [0, 0, 0, 0]),
        (145, 3, 16, {}, [4, 4, 4], [0, 1, 1]),
        (145, 3, 16, {"drop_last": True}, [3, 3, 3], [0, 0, 0]),
        (145, 3, 16, {"pad": False}, [4, 3, 3], [0, 0, 0]),
    ],
)
def test_s02_equal_numbers_of_batches(
    tmp_path: Path,
    records: int,
    world_size: int,
    batch_size: int,
    options: dict[str, bool],
    lengths: list[int],
    padded: list[int],
) -> None:
    """S02: `len` is the true count on every rank, equal by default; padding is told."""
    path = counted(tmp_path / "set", records)
    loaders = [
        Loader(path, batch_size=batch_size, num_workers=0, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    told = [(len(loader), loader.remaining, loader.padded) for loader in loaders]

    found = [take_sync(loader) for loader in loaders]

    assert told == [(length, length, pad) for length, pad in zip(lengths, padded, strict=True)]
    assert [len(one) for one in found] == lengths


@pytest.mark.parametrize("num_workers", [0, 4])
def test_d01_every_sample_draws_for_itself(tmp_path: Path, num_workers: int) -> None:
    """D01: three sources of randomness, 64 samples, 2 epochs: all differ, nowhere does a draw come again."""
    path = counted(tmp_path / "set", 64)

    def draw(sample: dict[str, Any]) -> dict[str, Any]:
        return {
            "numpy": np.random.randint(2**31),
            "python": random.random(),
            "torch": float(torch.rand(1, dtype=torch.float64)),
        }

    loader = Loader(path, batch_size=16, num_workers=num_workers, transform=draw)
    with loader.sync() as source:
        epochs = [list(source) for _ in range(2)]

    first, second = ({name: torch.cat([b[name] for b in one]) for name in one[0]} for one in epochs)
    assert [len(torch.unique(values)) for values in first.values()] == [64, 64, 64]
    assert [len(torch.unique(values)) for values in second.values()] == [64, 64, 64]
    assert [int((first[name] == second[name]).sum()) for name in first] == [0, 0, 0]


@pytest.mark.parametrize("shuffle", [False, True])
def test_r01_twice_resumed_inside_an_epoch(tmp_path: Path, shuffle: bool) -> None:
    """R01: 30 batches, saved; 10 more, saved; the rest: together the run that nobody stopped."""
    path = counted(tmp_path / "set", 300)
    options = {"batch_size": 5, "num_workers": 1, "shuffle": shuffle, "prefetch": 20}
    expected, _ = run(path, None, None, **options)

    first, state = run(path, None, 30, **options)
    second, again = run(path, state, 10, **options)
    third, _ = run(path, again, None, **options)

    assert [*first, *second, *third] == expected
    assert (state["position"], again["position"]) == (150, 200)


def test_r03_epochs_after_a_resume_are_whole(tmp_path: Path) -> None:
    """R03: resumed with 3 batches left, then 2 epochs: lengths 3, full, full; `len` is a whole epoch."""
    path = counted(tmp_path / "set", 48)
    _, state = run(path, None, 9, batch_size=4, num_workers=0, shuffle=True)

    with Loader(path, batch_size=4, num_workers=1, shuffle=True).sync() as loader:
        loader.load_state_dict(state)
        told = (loader.remaining, len(loader))
        found = [take(loader) for _ in range(3)]

    assert told == (3, 12)
    assert [len(epoch) for epoch in found] == [3, 12, 12]
    assert sorted(itertools.chain(*found[1])) == list(range(48))


@pytest.mark.parametrize(("workers", "workers_after"), [(4, 0), (0, 4), (2, 8)])
def test_r05_other_workers(tmp_path: Path, workers: int, workers_after: int) -> None:
    """R05: with any other number of workers the same batches follow."""
    path = counted(tmp_path / "set", 80)
    expected, _ = run(path, None, None, batch_size=8, num_workers=0, shuffle=True)

    first, state = run(path, None, 4, batch_size=8, num_workers=workers, shuffle=True)
    rest, _ = run(path, state, None, batch_size=8, num_workers=workers_after, shuffle=True)

    assert first + rest == expected


def test_r05_another_batch_size(tmp_path: Path) -> None:
    """R05: from batches of 8 to batches of 5, the very next sample comes first."""
    path = counted(tmp_path / "set", 80)
    expected, _ = run(path, None, None, batch_size=8, num_workers=0, shuffle=True)

    _, state = run(path, None, 3, batch_size=8, num_workers=0, shuffle=True)
    rest, _ = run(path, state, None, batch_size=5, num_workers=0, shuffle=True)

    assert list(itertools.chain(*rest)) == list(itertools.chain(*expected))[24:]
    assert [len(batch) for batch in rest] == [5] * 11 + [1]
