"""Case row P02: a worker that is killed at record 7 breaks nothing, and the record is named."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from batches import counted, plain, take_sync
from deaths import DEATHS, Dying, Traced

from aioload import Loader, WorkerError


@pytest.mark.parametrize("way", DEATHS)
def test_the_record_is_named(tmp_path: Path, way: str) -> None:
    """Within 10 s the error tells signal or exit code and the record."""
    path = counted(tmp_path / "set", 20)
    die, told, exit_code = DEATHS[way]
    dying = Dying(Traced(tmp_path / "calls"), 7, die)
    began = time.monotonic()

    with pytest.raises(WorkerError) as error:
        take_sync(Loader(path, batch_size=4, transform=dying, num_workers=2))

    assert time.monotonic() - began < 10
    assert (error.value.record, error.value.exit_code) == (7, exit_code)
    assert told in str(error.value)


@pytest.mark.parametrize("way", DEATHS)
def test_the_restart_keeps_the_order(tmp_path: Path, way: str) -> None:
    """After one death all is the same, and no record was run a third time."""
    path = counted(tmp_path / "set", 20)
    traced = Traced(tmp_path / "calls")
    dying = Dying(traced, 7, DEATHS[way][0], times=1)

    found = take_sync(Loader(path, batch_size=20, transform=dying, num_workers=1))
    calls = traced.calls
    expected = take_sync(Loader(path, batch_size=20, transform=traced, num_workers=0))

    assert plain(found) == plain(expected)
    assert calls[7] - (calls[19] - 1) == 2  # the next epoch may have begun ahead
