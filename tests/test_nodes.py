"""Nodes: jobs on several machines, as torchrun starts them, go on with another number of processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import counted

import aioload

REPOSITORY = Path(__file__).parent.parent
RECORDS = 1000
BATCH_SIZE = 8

# Rank and world size come from torch.distributed where there is a process group, else from the environment.
JOB = """
    import json, os, signal, sys
    from pathlib import Path

    import aioload

    def main():
        path, folder = sys.argv[1], Path(sys.argv[2])
        grouped, saved_after, killed_after = map(int, sys.argv[3:])
        if grouped:
            import torch.distributed as dist

            dist.init_process_group("gloo")
        options = {"shuffle": True, "seed": 5, "output": "numpy", "num_workers": 0}
        loader = aioload.Loader(path, batch_size=8, **options)
        notes = {"rank": loader.rank, "world": loader.world_size, "node": os.environ["GROUP_RANK"]}
        with loader.sync() as batches:
            checkpoint = folder / "checkpoint.json"
            if checkpoint.exists():
                batches.load_state_dict(json.loads(checkpoint.read_text()))
            notes |= {"length": batches.remaining, "padded": batches.padded, "batches": []}
            for step, batch in enumerate(batches, 1):
                notes["batches"].append(batch["n"].tolist())
                if grouped:
                    dist.barrier()  # where gradients would meet
                if step == saved_after:
                    notes["state"] = batches.state_dict()
                if step == killed_after:
                    break
            (folder / f"{loader.world_size}-{loader.rank}.json").write_text(json.dumps(notes))
            if killed_after:
                if grouped:
                    dist.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
        if grouped:
            dist.destroy_process_group()

    if __name__ == "__main__":
        main()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A set of a thousand small records."""
    return counted(tmp_path / "set", RECORDS)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The script of a job."""
    file = tmp_path / "job.py"
    file.write_text(textwrap.dedent(JOB))
    return file


def start(job: Path, path: Path, nodes: list[int], **options: Any) -> list[subprocess.Popen[bytes]]:
    """Start so many processes on each node, in the environment that torchrun makes.

    Args:
        job: the script.
        path: of the set.
        nodes: processes of each.
        options: `grouped`, `saved_after`, `killed_after`.
    """
    arguments = [options.get(name, 0) for name in ("grouped", "saved_after", "killed_after")]
    world = {"WORLD_SIZE": sum(nodes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    processes = []
    for node, here in enumerate(nodes):
        for local in range(here):
            own = {"RANK": len(processes), "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": here, "GROUP_RANK": node}
            command = [sys.executable, job, path, job.parent, *arguments]
            processes.append(subprocess.Popen([*map(str, command)], env=environment(**world, **own)))
    return processes


def environment(**more: object) -> dict[str, str]:
    """Return this process's environment and more of it."""
    mine = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **mine, **{name: str(value) for name, value in more.items()}}


def free_port() -> int:
    """Return a port that nobody has just now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def ends(processes: list[subprocess.Popen[bytes]]) -> set[int]:
    """Wait for the ends of processes; return their statuses."""
    try:
        return {process.wait(timeout=50) for process in processes}
    finally:
        for process in processes:
            process.kill()
            process.wait()


def notes_of(folder: Path, world: int) -> list[dict[str, Any]]:
    """Return what each rank of a job noted."""
    return [json.loads((folder / f"{world}-{rank}.json").read_text()) for rank in range(world)]


def seen(notes: list[dict[str, Any]], steps: int | None = None) -> list[int]:
    """Return the records of all ranks, up to a step, or of all steps, padding left out."""
    found = []
    for note in notes:
        rows = [number for batch in note["batches"][:steps] for number in batch]
        found += rows[: len(rows) - note["padded"]] if steps is None else rows
    return found


def lanes(path: Path, numbers: list[int]) -> set[int]:
    """Return the lanes of the epoch that records are in."""
    dataset = aioload.Dataset(path)
    loader = aioload.Loader(dataset, batch_size=1, shuffle=True, seed=5, num_workers=0)
    order = dataset.table.order(loader.shuffle, epoch=0)
    places = np.argsort(order.records(np.arange(RECORDS, dtype=np.int64)))
    return {int(places[number]) % order.lanes for number in numbers}


def check_first(notes: list[dict[str, Any]], path: Path) -> None:
    """Check a job of two nodes with two processes each that was killed after five steps."""
    assert [(note["rank"], note["world"], note["node"]) for note in notes] == [
        (0, 4, "0"),
        (1, 4, "0"),
        (2, 4, "1"),
        (3, 4, "1"),
    ]
    assert {note["length"] for note in notes} == {-(-RECORDS // (4 * BATCH_SIZE))}
    assert {len(note["batches"]) for note in notes} == {5}
    assert all(one["state"] == other["state"] for one, other in pairwise(notes))
    own = [lanes(path, seen([note])) for note in notes]
    assert sum(map(len, own)) == len(set.union(*own))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("grouped", [0, pytest.param(1, marks=pytest.mark.full)])
def test_nodes_are_killed_and_others_go_on(path: Path, job: Path, tmp_path: Path, grouped: int) -> None:
    """Two nodes of two are killed after a checkpoint, three processes go on, or one: each record once."""
    first = ends(start(job, path, [2, 2], grouped=grouped, saved_after=3, killed_after=5))
    before = notes_of(tmp_path, 4)
    (tmp_path / "checkpoint.json").write_text(json.dumps(before[3]["state"]))
    second = ends(start(job, path, [2, 1], saved_after=4))
    three = notes_of(tmp_path, 3)
    (tmp_path / "checkpoint.json").write_text(json.dumps(three[0]["state"]))
    third = ends(start(job, path, [1]))
    alone = notes_of(tmp_path, 1)

    assert (first, second, third) == ({-signal.SIGKILL}, {0}, {0})
    check_first(before, path)
    assert len({note["length"] for note in three}) == 1
    assert sorted(seen(before, 3) + seen(three)) == [*range(RECORDS)]
    assert sorted(seen(before, 3) + seen(three, 4) + seen(alone)) == [*range(RECORDS)]


@pytest.mark.full
@pytest.mark.timeout(180)
def test_torchrun_on_two_nodes(path: Path, job: Path, tmp_path: Path) -> None:
    """Two agents of the real torchrun start two processes each, which find their ranks and share an epoch."""
    agents = []
    for node, port in enumerate([free_port()] * 2):
        where = ["--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2", f"--master-port={port}"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *where, "--master-addr=127.0.0.1"]
        agents.append(subprocess.Popen([*torchrun, job, path, tmp_path, "1", "3", "0"], env=environment()))

    statuses = ends(agents)

    notes = notes_of(tmp_path, 4)
    assert statuses == {0}
    assert [note["node"] for note in notes] == ["0", "0", "1", "1"]
    assert sorted(seen(notes)) == [*range(RECORDS)]
