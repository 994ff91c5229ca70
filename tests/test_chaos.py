"""Chaos: whatever is killed, damaged, left and resumed, every batch is right and nothing stays behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent


def soak(seconds: float, seed: int) -> tuple[str, int]:
    """Run the soak of `benchmarks/` for a while; return what it printed, and how many workers it killed."""
    command = [sys.executable, "benchmarks/soak.py", "--minutes", str(seconds / 60), "--seed", str(seed)]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    deaths = re.search(r"(\d+) deaths", done.stdout)
    return done.stdout or done.stderr, int(deaths[1]) if deaths else 0


def test_chaos_in_short() -> None:
    """Twenty seconds of killed workers, damaged records, breaks, timeouts and resumed states."""
    told, deaths = soak(20, seed=4)

    assert told.endswith("wrong = 0, leaks = 0\n")
    assert deaths > 20


@pytest.mark.full
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_chaos(seed: int) -> None:
    """A minute of it, with several seeds."""
    told, deaths = soak(60, seed)

    assert told.endswith("wrong = 0, leaks = 0\n")
    assert deaths > 60
