"""Trains as torchtitan does: a plain loop, all that has a state in one `torch.distributed.checkpoint`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from trained import EPOCHS, Net, arguments, loader, tell


class Training:
    """Model, optimizer and step, as the protocol of stateful things has it."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer_state = get_state_dict(net, optimizer)
        return {"model": model, "optimizer": optimizer_state, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


folder, dies_at, _ = arguments()
net = Net(dies_at)
optimizer, training = torch.optim.SGD(net.parameters(), lr=0.1), Training()
with loader(folder).sync() as batches:
    states = {"training": training, "loader": batches}
    checkpoints = sorted(folder.glob("step-*/.metadata"))
    if checkpoints:
        dcp.load(states, checkpoint_id=checkpoints[-1].parent)
    for _ in range(batches.epoch, EPOCHS):
        for batch in batches:
            net(batch["n"])["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            training.step += 1
            if training.step % 3 == 0:
                dcp.save(states, checkpoint_id=folder / f"step-{training.step:04}")
    del batch
tell(net)
