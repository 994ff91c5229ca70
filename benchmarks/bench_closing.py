"""How long does closing take, whatever the loader is busy with?

    python benchmarks/bench_closing.py

Each row begins an epoch, waits until all workers are up and busy as the row says, and closes. "idle": batches
wait for the user. "decode": every worker is in a transform that lasts 60 s. "read": reads never answer (a
shard is a named pipe that nobody writes to). Promise M3: 5 s in all, and no process left.
"""

from __future__ import annotations

import logging
import os
import platform
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np

import aioload
from aioload.shard.format import shard_name

PROMISE_SECONDS = 5.0


def pack(folder: Path) -> Path:
    """Write some hundred records into several shards."""
    fields = {"n": "int", "x": "ndarray"}
    with aioload.Writer(folder / "set", fields=fields, shard_bytes=64 << 10) as writer:
        for record in range(512):
            writer.write({"n": record, "x": np.full(1000, record % 251, np.uint8)})
    return folder / "set"


def busy(sample: dict[str, int]) -> dict[str, int]:
    """Take a minute for each sample."""
    time.sleep(60)
    return sample


def measure(path: Path, state: str, num_workers: int) -> tuple[float, int]:
    """Return the seconds that closing took, and how many processes were left."""
    transform = busy if state == "decode" else None
    with aioload.Loader(path, batch_size=8, num_workers=num_workers, transform=transform).sync() as loader:
        iterator = iter(loader)
        if state == "idle":
            next(iterator)
        workers = workers_of(num_workers)
        time.sleep(0.5)
        began = time.perf_counter()
        loader.close()
        seconds = time.perf_counter() - began
    return seconds, sum(Path(f"/proc/{pid}").exists() for pid in workers)


def workers_of(num_workers: int) -> list[int]:
    """Return the processes of this loader, once all have started."""
    from aioload._workers.context import _server

    server = _server._forkserver_pid
    while True:
        found = [int(pid) for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split()]
        if len(found) >= num_workers:
            return found
        time.sleep(0.01)


def main() -> None:
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {date.today()}\n"
    )
    print("| busy in | workers | seconds to close | processes left |\n|---|---|---|---|")
    worst = 0.0
    logging.disable()  # of reads that are left behind
    with tempfile.TemporaryDirectory() as name:
        path = pack(Path(name))
        for state in ("idle", "decode", "read"):
            if state == "read":
                replaced = path / shard_name(0)
                replaced.unlink()
                os.mkfifo(replaced)
            for num_workers in (1, 2, 8):
                seconds, left = measure(path, state, num_workers)
                worst = max(worst, seconds)
                print(f"| {state} | {num_workers} | {seconds:.2f} | {left} |", flush=True)
    print(f"\nworst: {worst:.2f} s of {PROMISE_SECONDS:.0f} s promised")


if __name__ == "__main__":
    main()
