"""Loops in which it is known what limits them, through whole loaders: the report names that very stage."""

from __future__ import annotations

from pathlib import Path

import constructed
import pytest
from constructed import CASES, Case

from aioload.diagnosis import diagnose


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack what all of them go through."""
    return constructed.packed(tmp_path_factory.mktemp("constructed") / "set")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_stage_that_limits(path: Path, case: Case) -> None:
    """The one that was made slow."""
    stats, report = constructed.run(case, path)

    assert diagnose(stats).stage == case.stage, report
    assert f"limit:   {case.stage}: " in report


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_stage_that_limits_each_time(path: Path, case: Case) -> None:
    """Ten times out of ten."""
    found = [diagnose(constructed.run(case, path)[0]).stage for _ in range(10)]

    assert found == [case.stage] * 10
