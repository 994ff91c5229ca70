"""Case row P03: workers that are replaced after some jobs never stop the pool."""

from __future__ import annotations

from pathlib import Path

import pytest
from batches import counted, plain, take_sync

from aioload import Loader


@pytest.mark.parametrize("num_workers", [1, 2])
def test_recycling_changes_nothing(tmp_path: Path, num_workers: int) -> None:
    """One worker that is replaced after two jobs brings ten samples, each a batch, as no worker would."""
    path = counted(tmp_path / "set", 10)
    options = {"batch_size": 1, "prefetch": 1}

    expected = take_sync(Loader(path, num_workers=0, **options))
    found = take_sync(Loader(path, num_workers=num_workers, max_jobs_per_worker=2, **options))

    assert plain(found) == plain(expected)
    assert len(found) == 10
