"""Ranks: two processes share an epoch, are killed in its middle, and three go on with the rest.

Shows that a loader finds its rank by itself under torchrun, that ranks see different records, and that a
state serves any number of processes. Starts `torch.distributed.run` with gloo twice; each rank notes the
records it trained on. Reads what 01_pack.py wrote.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import aioload

BATCH_SIZE = 8
KILLED_AFTER = 6  # steps


def keep_key(sample: dict[str, Any]) -> dict[str, Any]:
    """Keep what tells records apart, in place of the picture."""
    return {"key": sample["__key__"]}


def train(data: Path, folder: Path, *, is_killed: bool) -> None:
    """Be one rank: run what is left of the epoch, and note each record and, on rank 0, the state."""
    dist.init_process_group("gloo")
    rank, checkpoint = dist.get_rank(), folder / "checkpoint.json"
    loader = aioload.Loader(data / "train", batch_size=BATCH_SIZE, shuffle=True, seed=3, transform=keep_key)
    with loader.sync() as batches, (folder / f"{dist.get_world_size()}-{rank}.txt").open("w") as notes:
        if checkpoint.exists():
            batches.load_state_dict(json.loads(checkpoint.read_text()))
        steps, padded = batches.remaining, batches.padded

        for step, batch in enumerate(batches, 1):
            rows = len(batch["key"])
            # where gradients meet: every rank has as many steps, so nobody waits
            dist.all_reduce(torch.ones(1))
            own = batch["key"][: rows - padded] if step == steps else batch["key"]
            print(*own, sep="\n", file=notes, flush=True)

            if is_killed and step == KILLED_AFTER:
                if rank == 0:
                    checkpoint.write_text(json.dumps(batches.state_dict()))
                dist.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


def launch(data: Path, folder: Path, processes: int, *more: str) -> int:
    """Run this file under torchrun; return its exit status."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
    ]
    arguments = [__file__, "--data", str(data), "--folder", str(folder), *more]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*torchrun, *arguments], env=quiet, capture_output=True, check=False).returncode


def seen(folder: Path, processes: int) -> list[set[str]]:
    """Return the records that each rank noted."""
    return [
        set((folder / f"{processes}-{rank}.txt").read_text().split("\n")[:-1]) for rank in range(processes)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("example-data"), help="where 01_pack.py wrote")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--killed", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    data = arguments.data

    if not (data / "train").exists():
        parser.exit(2, f"{data / 'train'} is not there; run 01_pack.py first\n")
    if arguments.folder is not None:
        train(data, arguments.folder, is_killed=arguments.killed)
        return

    folder = data / "ddp"
    folder.mkdir(exist_ok=True)
    (folder / "checkpoint.json").unlink(missing_ok=True)
    killed = launch(data, folder, 2, "--killed")
    finished = launch(data, folder, 3)

    parts = seen(folder, 2) + seen(folder, 3)
    records = len(aioload.Dataset(data / "train"))
    assert killed != 0, "the first job was to be killed"
    assert finished == 0, "the second job failed"
    assert sum(map(len, parts)) == len(set.union(*parts)), "two ranks saw the same record"
    assert len(set.union(*parts)) == records, "records are missing"
    assert [len(part) for part in parts[:2]] == [BATCH_SIZE * KILLED_AFTER] * 2
    print(f"2 processes saw {[len(part) for part in parts[:2]]} records and were killed")
    print(f"3 processes saw {[len(part) for part in parts[2:]]}: all {records}, each once")


main()
