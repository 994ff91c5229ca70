"""Trains with the Trainer of transformers: updates of two batches, and its checkpoints."""

from __future__ import annotations

from pathlib import Path

from trained import BATCH, EPOCHS, Net, arguments, loader, tell
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from aioload.integrations.transformers import attach

folder, dies_at, words = arguments()
net = Net(dies_at)
trainer = Trainer(
    net,
    TrainingArguments(
        folder / "run",
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=1 if "other" in words and not dies_at else 2,
        save_steps=1,
        save_total_limit=1,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        restore_callback_states_from_checkpoint="restore" in words,
    ),
)
given = Path(folder / "run").exists()
with loader(folder).sync() as batches:
    attach(trainer, batches)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder / "run") if given else None)
tell(
    net, epoch=trainer.state.epoch, given=type(trainer.callback_handler.train_dataloader).__name__.strip("_")
)
