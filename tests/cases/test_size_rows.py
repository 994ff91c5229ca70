"""Case row S04: a batch larger than the set."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batches import FACES, counted

from aioload import Loader


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three records."""
    return counted(tmp_path_factory.mktemp("three") / "set", 3)


@pytest.mark.parametrize("take", FACES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_s04_one_short_batch(three: Path, num_workers: int, take: Callable[[Loader], list[Any]]) -> None:
    """S04: without drop_last three records and batch_size=8 are one batch of three, and `len` is 1."""
    loader = Loader(three, batch_size=8, num_workers=num_workers)

    found = take(loader)

    assert [batch["n"].tolist() for batch in found] == [[0, 1, 2]]
    assert len(loader) == 1


@pytest.mark.parametrize("take", FACES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_s04_no_batch_and_one_warning(
    three: Path, num_workers: int, take: Callable[[Loader], list[Any]]
) -> None:
    """S04: with drop_last there is no batch, `len` is 0, and one warning in all gives both numbers."""
    loader = Loader(three, batch_size=8, num_workers=num_workers, drop_last=True)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        length = len(loader)
        found = take(loader)
        length_again = len(loader)

    assert (found, length, length_again) == ([], 0, 0)
    assert len(caught) == 1
    assert "3 records" in str(caught[0].message)
    assert "batch_size=8" in str(caught[0].message)
