"""Trains with Lightning: its checkpoints, a learning rate schedule, one process or two."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from trained import BATCH, EPOCHS, Net, arguments, loader, tell

from aioload.integrations.lightning import Feed


class Module(lightning.LightningModule):
    def __init__(self, net: Net, schedule: bool) -> None:
        super().__init__()
        self.net, self.schedule = net, schedule

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        if "raises" in words and dies_at and self.net.count >= dies_at - BATCH:
            raise RuntimeError("on purpose")
        return self.net(batch["n"])["loss"]

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        if not self.schedule:
            return optimizer
        steps = int(
            self.trainer.estimated_stepping_batches
        )  # asks for the batches before the checkpoint is read
        return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)]


class Plain(lightning.LightningDataModule):
    """A loader without any adapter."""

    def train_dataloader(self) -> Any:
        self.loader = loader(folder)
        return self.loader.sync()

    def teardown(self, stage: str) -> None:
        self.loader.close()


folder, dies_at, words = arguments()
net = Net(dies_at)
module = Module(net, schedule="plain" not in words)
feed = Feed(loader(folder) if "made" in words else lambda: loader(folder))
checkpoint = folder / "last.ckpt"
trainer = lightning.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    devices=2 if "ranks" in words else 1,
    strategy="ddp" if "ranks" in words else "auto",
    callbacks=[
        OnExceptionCheckpoint(folder, "last")
        if "raises" in words
        else ModelCheckpoint(folder, "last", every_n_train_steps=3, enable_version_counter=False),
        *([] if {"plain", "forgotten"} & words else [feed]),
    ],
    limit_train_batches=5 if "limited" in words else None,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(
    module,
    Plain() if "plain" in words else feed,
    ckpt_path=checkpoint if checkpoint.exists() else None,
)
# a checkpoint may be written after the last step, too
state = {"state": feed.state_dict()} if "limited" in words else {}
tell(net, given=type(trainer.train_dataloader).__name__, **state)
