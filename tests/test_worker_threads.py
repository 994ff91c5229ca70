"""Threads of workers: each computes with one, since the other cores have workers of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TinySet

import aioload

CODE = """
import sys
from aioload import Loader

def count(sample):
    import numpy, threadpoolctl
    numpy.eye(2) @ numpy.eye(2)
    pools = threadpoolctl.threadpool_info()
    found = [pool["num_threads"] for pool in pools if pool["internal_api"] == "openblas"]
    return {"threads": max(found, default=0)}

with Loader(sys.argv[1], batch_size=8, transform=count, num_workers=1).sync() as batches:
    print(next(iter(batches))["threads"].max().item())
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="on one core there is one thread anyway")
@pytest.mark.parametrize(("asked", "expected"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")])
def test_linear_algebra_uses_one_thread(tiny_set: TinySet, asked: dict[str, str], expected: str) -> None:
    """Unless the user has asked for more."""
    usual = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    place = {"PYTHONPATH": str(Path(aioload.__file__).parent.parent)}

    found = subprocess.run(
        [sys.executable, "-c", CODE, str(tiny_set.path)],
        env=usual | place | asked,
        capture_output=True,
        text=True,
        check=True,
    )

    assert found.stdout.strip() in (expected, "0")  # 0: numpy comes with another library
