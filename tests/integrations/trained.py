"""What the training scripts of this folder share: a set, and a model that keeps what it was trained on.

The record goes into the model's own checkpoint. So after a kill it goes back with the model to where the
checkpoint was written, and what stands in it at the end is what the final weights have really seen.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import leaks
import torch
import torch.distributed as dist

import aioload

RECORDS, BATCH, EPOCHS = 44, 4, 2  # 11 batches: updates of two batches leave one over
before: list[leaks.Traces] = []


class Net(torch.nn.Module):
    """Notes its inputs, and kills its process when it has seen a number of them."""

    def __init__(self, dies_at: int | None) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.steps = 0
        self.dies_at = RECORDS * EPOCHS * 2 if dies_at is None else dies_at
        self.register_buffer("trained", torch.full((RECORDS * EPOCHS * 2,), -1))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, n: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.count >= self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1
        seen = [n]
        if dist.is_initialized() and dist.get_world_size() > 1:
            seen = [torch.empty_like(n) for _ in range(dist.get_world_size())]
            dist.all_gather(seen, n)
        for part in seen:
            self.trained[self.count : self.count + len(part)] = part
            self.count += len(part)
        return {"loss": self.linear(n[:, None].float()).mean()}


def arguments() -> tuple[Path, int | None, set[str]]:
    """Return the folder, the count of records to die at if this run shall, and further words."""
    return Path(sys.argv[1]), int(sys.argv[2]) or None, set(sys.argv[3:])


def loader(folder: Path, **options: Any) -> aioload.Loader:
    """Return a loader over the set of the test."""
    before.append(leaks.observe())
    return aioload.Loader(folder / "set", batch_size=BATCH, shuffle=True, num_workers=1, **options)


def tell(net: Net, **more: Any) -> None:
    """Print what the model was trained on and, of a single process, what the loader has left behind."""
    left = [] if dist.is_initialized() else leaks.leftovers(before[0])
    trained = net.trained[: int(net.count)].tolist()
    print(json.dumps({"trained": trained, "left": left, "steps": net.steps, **more}))  # noqa: T201 - for the test
