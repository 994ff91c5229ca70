"""Trains with Accelerate: updates of four batches, its checkpoints, one process or two."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from trained import EPOCHS, Net, arguments, loader, tell

from aioload.integrations.accelerate import Feed

folder, dies_at, _ = arguments()
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
net = Net(dies_at)
model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
steps, updates = 0, []
with loader(folder, device=accelerator.device).sync() as batches:
    feed = accelerator.prepare(Feed(batches))
    accelerator.register_for_checkpointing(feed)
    checkpoint = folder / "checkpoint"
    if checkpoint.exists():
        accelerator.load_state(checkpoint)
    for _ in range(batches.epoch, EPOCHS):
        for batch in feed:
            steps += 1
            with accelerator.accumulate(model):
                accelerator.backward(model(batch["n"])["loss"])
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                updates.append(steps)
                accelerator.save_state(checkpoint)
    del batch
tell(net, given=type(feed).__name__, updates=updates)
accelerator.end_training()
