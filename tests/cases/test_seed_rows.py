"""Case row D01: every worker drew the same "random" augmentation, again each epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
from batches import counted
from draws import from_numpy, from_random, from_rng, from_torch

from aioload import Loader

RECORDS = 64


@pytest.fixture(scope="module")
def sixty_four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 records."""
    return counted(tmp_path_factory.mktemp("sixty-four") / "set", RECORDS)


@pytest.mark.parametrize("transform", [from_numpy, from_random, from_torch, from_rng])
def test_d01_no_draw_comes_twice(sixty_four: Path, transform: object) -> None:
    """D01: 64 samples, 4 workers, 2 epochs: 128 distinct numbers from each source."""
    with Loader(sixty_four, batch_size=4, num_workers=4, transform=transform).sync() as loader:
        epochs = [[number for batch in loader for number in batch["drawn"].tolist()] for _ in range(2)]

    assert [len(set(epoch)) for epoch in epochs] == [RECORDS, RECORDS]
    assert not set(epochs[0]) & set(epochs[1])
