"""Trainers of others, as they are installed: exactly once also after a kill, nothing wrapped, nothing left.

Each script trains two epochs and keeps in the model's own checkpoint what it was trained on. It is killed in
the middle of the second epoch and of an update, run again, and goes on from the trainer's last checkpoint.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import aioload
from aioload.integrations._plain import plain

pytestmark = pytest.mark.timeout(450)  # each starts two to four processes that import a trainer

TESTS = Path(__file__).parent.parent
RECORDS, BATCH = 44, 4  # as in trained.py
DIES_AT = 80  # records of the 88, some of which stand behind the last checkpoint
KILLED = -9


@dataclass(frozen=True, slots=True)
class Run:
    """How a script ended, on one rank."""

    status: int
    """Its exit status."""

    told: dict[str, Any]
    """What it printed as JSON at its end."""

    err: str
    """What stood on stderr."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a set of numbers."""
    with aioload.Writer(tmp_path / "set", fields={"n": "int"}) as writer:
        for number in range(RECORDS):
            writer.write({"n": number})
    return tmp_path


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ("lightning", []),  # with a schedule that asks for the batches before the checkpoint is read
        pytest.param("lightning", ["plain"], marks=pytest.mark.full),  # `loader.sync()`, no schedule
        pytest.param("lightning", ["raises"], marks=pytest.mark.full),  # a checkpoint in mid-step
        ("transformers", []),
        pytest.param("transformers", ["restore"], marks=pytest.mark.full),  # it makes callbacks anew
        pytest.param("accelerate", [], marks=pytest.mark.full),
        ("plain", []),
    ],
)
def test_a_killed_training_sees_every_record_once(trainer: str, words: list[str], folder: Path) -> None:
    """What is trained on, over a kill in mid-epoch, is what a loader gives: each record once an epoch."""
    killed = _run(trainer, folder, DIES_AT, *words)[0]

    resumed = _run(trainer, folder, 0, *words)[0]

    assert killed.status == (1 if "raises" in words else KILLED)
    assert (resumed.status, resumed.told["left"]) == (0, []), resumed.err
    assert resumed.told["trained"] == _epochs(folder, 2)


@pytest.mark.parametrize(
    ("trainer", "steps"),  # after the kill
    [
        ("accelerate", 2),
        pytest.param("lightning", 3, marks=pytest.mark.full),
        pytest.param("transformers", 2, marks=pytest.mark.full),
    ],
)
def test_ranks_share_the_records(trainer: str, steps: int, folder: Path) -> None:
    """Two ranks train on each record once between them, on equal counts each, over a kill of both."""
    ranks = 1 if trainer == "lightning" else 2  # which starts the other one itself
    killed = _run(trainer, folder, DIES_AT, "ranks", ranks=ranks)

    resumed = _run(trainer, folder, 0, "ranks", ranks=ranks)

    assert {run.status for run in killed} == {KILLED}
    trained = [run.told["trained"] for run in resumed]
    assert [sorted(trained[0][:RECORDS]), sorted(trained[0][RECORDS:])] == [list(range(RECORDS))] * 2
    assert trained[0][:RECORDS] != trained[0][RECORDS:]
    assert all(other == trained[0] for other in trained)
    assert {run.told["steps"] for run in resumed} == {steps}
    assert all(run.told["given"] == "Feed" for run in resumed)


@pytest.mark.full
def test_accelerate_ends_an_update_with_the_epoch(folder: Path) -> None:
    """The last update of an epoch is made of the batches that are left, and the loader is not wrapped."""
    run = _run("accelerate", folder, 0)[0]

    assert run.told["updates"] == [4, 8, 11, 15, 19, 22]
    assert run.told["given"] == "Feed"


@pytest.mark.full
def test_lightning_ends_epochs_early(folder: Path) -> None:
    """With `limit_train_batches` the trainer's epochs are the loader's, whose state outlives it."""
    run = _run("lightning", folder, 0, "limited")[0]

    first, second = _epochs(folder, 1), _epochs(folder, 2)[RECORDS:]
    assert run.told["trained"] == first[: 5 * BATCH] + second[: 5 * BATCH]
    assert (run.told["state"]["epoch"], run.told["state"]["position"]) == (1, 5 * BATCH)


@pytest.mark.full
@pytest.mark.parametrize(
    ("mistake", "told"),
    [("forgotten", "callbacks=[feed]"), ("made", "Feed(lambda: aioload.Loader(...)); got a Loader")],
)
def test_lightning_feeds_are_used_as_meant(mistake: str, told: str, folder: Path) -> None:
    """Without its callback a state is not exact, and a loader made early knows no ranks: both are refused."""
    run = _run("lightning", folder, 0, mistake)[0]

    assert told in run.err


def test_an_adapter_wants_a_loader() -> None:
    """What is none is named before training begins."""
    with pytest.raises(aioload.ConfigError, match=r"Loader, or its sync\(\); got a list"):
        plain([])  # type: ignore[arg-type]  # on purpose


@pytest.mark.full
def test_transformers_must_mean_the_same_batch(folder: Path) -> None:
    """Going on where trainer and loader mean different batches is refused."""
    _run("transformers", folder, DIES_AT)

    resumed = _run("transformers", folder, 0, "other")[0]

    assert "the trainer at epoch 0, step 10" in resumed.err


def _run(trainer: str, folder: Path, dies_at: int, *words: str, ranks: int = 1) -> list[Run]:
    """Run a script on each rank; skip the test where its trainer is not installed."""
    if trainer != "plain" and importlib.util.find_spec(trainer) is None:
        pytest.skip(f"{trainer} is not installed; it comes with the extra integrations")
    command = [sys.executable, str(Path(__file__).parent / f"{trainer}_script.py"), str(folder)]
    port = str(_free_port())
    processes = [
        subprocess.Popen(
            [*command, str(dies_at), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**_environment(), **(_rank(rank, ranks, port) if ranks > 1 else {})},
        )
        for rank in range(ranks)
    ]
    try:
        return [_ended(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _ended(process: subprocess.Popen[str]) -> Run:
    out, err = process.communicate(timeout=200)
    lines = [line for line in out.splitlines() if line.startswith('{"trained"')]
    return Run(process.returncode, json.loads(lines[0]) if lines else {}, err)


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def _rank(rank: int, ranks: int, port: str) -> dict[str, str]:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {**where, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _epochs(folder: Path, epochs: int) -> list[int]:
    """What a loader gives by itself."""
    options = {"batch_size": BATCH, "shuffle": True, "num_workers": 0, "output": "numpy"}
    with aioload.Loader(folder / "set", **options).sync() as batches:
        return [int(n) for _ in range(epochs) for batch in batches for n in batch["n"]]
