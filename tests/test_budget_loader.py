"""Batches by size, end to end: what the index says a record costs decides how many share a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aioload
from aioload.batching import Budget

LENGTHS = [(7 * record) % 23 + 1 for record in range(90)]


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 sequences of 1 to 23 tokens, their length in the index."""
    path = tmp_path_factory.mktemp("tokens") / "set"
    fields = {"tokens": "ndarray", "length": "int", "n": "int"}
    with aioload.Writer(path, fields, index_fields=["length"]) as writer:
        for record, length in enumerate(LENGTHS):
            writer.write({"tokens": np.full(length, record), "length": length, "n": record})
    return path


def load(path: Path, **options: object) -> aioload.Loader:
    """Return a loader of padded sequences, at most 60 tokens a batch."""
    budget = Budget(60, cost="length", padded=True)
    return aioload.Loader(path, batch_size=budget, collate=aioload.collate.pad(), **options)  # type: ignore[arg-type]  # options by name


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_no_batch_exceeds_its_budget(tokens: Path, num_workers: int, shuffle: object) -> None:
    """Every record comes once, in batches whose padded size is within the budget; `len` is exact."""
    with load(tokens, num_workers=num_workers, shuffle=shuffle).sync() as loader:
        count = len(loader)  # of this epoch: the next is cut anew
        batches = list(loader)

    assert sorted(n for batch in batches for n in batch["n"].tolist()) == list(range(90))
    assert max(batch["tokens"].numel() for batch in batches) <= 60
    assert len(batches) == count


def test_ranks_have_equally_many_and_share_the_epoch(tokens: Path) -> None:
    """Three ranks: the same number of batches, every record on one of them, padding aside."""
    loaders = [load(tokens, num_workers=0, shuffle=True, rank=rank, world_size=3) for rank in range(3)]

    taken = [[batch["n"].tolist() for batch in loader.sync()] for loader in loaders]
    padded = [loader.padded for loader in loaders]
    for loader in loaders:
        loader.close()

    assert len({len(batches) for batches in taken}) == 1
    rows = sorted(n for batches in taken for batch in batches for n in batch)
    assert len(rows) == 90 + sum(padded)
    assert set(rows) == set(range(90))


def test_a_resumed_run_goes_on_at_the_next_record(tokens: Path) -> None:
    """A state taken after four steps of two ranks serves one rank: the rest of the epoch, in its order."""
    first = [load(tokens, num_workers=0, shuffle=True, rank=rank, world_size=2) for rank in range(2)]
    done: list[int] = []
    for loader in first:
        batches = iter(loader.sync())
        done += [n for _ in range(4) for n in next(batches)["n"].tolist()]
    state = first[0].state_dict()
    for loader in first:
        loader.close()

    with load(tokens, num_workers=2, shuffle=True).sync() as source:
        source.load_state_dict(state)
        rest = [n for batch in source for n in batch["n"].tolist()]

    assert sorted(done + rest) == list(range(90))


def test_a_cost_that_is_not_in_the_index_is_refused(tokens: Path) -> None:
    """The error names the index fields there are."""
    with (
        aioload.Loader(tokens, batch_size=Budget(60, cost="n"), num_workers=0).sync() as loader,
        pytest.raises(aioload.ConfigError, match=r"index fields \['length'\]"),
    ):
        len(loader)
