"""Case row O01 from the outside: a damaged set, read by the loader and shown by `aioload verify`.

That each of the 200 damages of a kind is found is in shard/test_check.py; here is how it reaches the user.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import pack, plain
from typer.testing import CliRunner

import aioload
from aioload import AioloadError, Loader
from aioload.cli._app import app

RECORDS = 50
DAMAGES = 200
SHARD = "shard-00000.aio"


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 records in one shard."""
    random = np.random.default_rng(7)
    samples = [{"blob": random.bytes(record * 7 % 90), "n": record} for record in range(RECORDS)]
    return pack(tmp_path_factory.mktemp("fifty") / "set", {"blob": "bytes", "n": "int"}, samples)


@pytest.fixture
def victim(fifty: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(fifty, tmp_path / "victim"))


@pytest.mark.parametrize("damage", ["cut", "flip"])
@pytest.mark.parametrize("name", [SHARD, "index.aioi", "manifest.json"])
def test_o01_a_loader_gives_an_error_or_the_same_data(victim: Path, name: str, damage: str) -> None:
    """O01: for 200 cuts and 200 flipped bits of each file: a typed error or *same*, never other data."""
    whole = (victim / name).read_bytes()
    expected = _load(victim)

    outcomes = {_outcome(victim, name, data, expected) for data in _damaged(whole, damage)}

    assert outcomes <= {"same", "error"}
    assert "error" in outcomes


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_o01_workers_see_the_same(victim: Path, damage: str) -> None:
    """O01: with two workers too, for every tenth of the damages of the shard."""
    whole = (victim / SHARD).read_bytes()
    expected = _load(victim)

    outcomes = {
        _outcome(victim, SHARD, data, expected, num_workers=2) for data in list(_damaged(whole, damage))[::10]
    }

    assert outcomes <= {"same", "error"}


@pytest.mark.parametrize("damage", ["cut", "flip"])
@pytest.mark.parametrize("name", [SHARD, "index.aioi", "manifest.json"])
def test_o01_verify_names_what_is_damaged(victim: Path, name: str, damage: str) -> None:
    """O01: `verify` ends with status 1, names the file, and shows no traceback (a quarter of them here)."""
    whole = (victim / name).read_bytes()

    results = [_verify(victim, name, data) for data in list(_damaged(whole, damage))[::4]]

    assert {result.exit_code for result in results} == {1}
    assert all(name in result.output for result in results)
    assert not any("Traceback" in result.output for result in results)


def _damaged(data: bytes, damage: str) -> Iterator[bytes]:
    """Cut at evenly spread lengths, or flip evenly spread bits."""
    if damage == "cut":
        for length in np.linspace(0, len(data) - 1, DAMAGES).astype(int):
            yield data[:length]
    else:
        for bit in np.linspace(0, 8 * len(data) - 1, DAMAGES).astype(int):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            yield bytes(flipped)


def _load(path: Path, num_workers: int = 0) -> list[Any]:
    loader = Loader(path, batch_size=8, num_workers=num_workers, collate=aioload.collate.as_list)
    with loader.sync() as batches:
        return [plain(batch) for batch in batches]


def _outcome(path: Path, name: str, data: bytes, expected: list[Any], num_workers: int = 0) -> str:
    (path / name).write_bytes(data)
    try:
        return "same" if _load(path, num_workers) == expected else "other data"
    except AioloadError:
        return "error"


def _verify(path: Path, name: str, data: bytes) -> Any:
    (path / name).write_bytes(data)
    return CliRunner().invoke(app, ["verify", str(path)])
