"""Transformers: batches for the `Trainer` of Hugging Face, and their state in its checkpoints.

That trainer makes a `DataLoader` of its data set unless `get_train_dataloader` says otherwise, and goes on in
the middle of an epoch by reading all batches up to there again: it makes a new `DataLoader` over
`dataloader.dataset` and throws the first batches away. Here this data set begins with as many placeholders
as batches were trained on, so that what is thrown away was never read.

The state is a callback's, in the `trainer_state.json` of each checkpoint. Checkpoints are written after
updates, when all batches that were taken have been trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ._plain import missing, plain

try:
    from transformers.trainer_callback import ExportableState, TrainerCallback
except ImportError as error:
    raise missing("transformers") from error

from torch.utils.data import IterableDataset

if TYPE_CHECKING:
    from ..loader import Loader
    from ..sync import SyncLoader

__all__ = ["attach"]


def attach(trainer: Any, loader: Loader | SyncLoader) -> None:
    """Have a trainer train on the batches of a loader, and keep their state in its checkpoints.

    Args:
        trainer: a `transformers.Trainer`, or of a class made from it.
        loader: whose batches they are; yours to close. Its batches are dicts of what the model takes.

    Raises:
        ConfigError: it is no loader.
    """
    feed = _Feed(plain(loader))
    trainer.get_train_dataloader = lambda: feed
    trainer.remove_callback(LoaderState)
    trainer.add_callback(LoaderState())


class _Feed:
    """The batches, with what `skip_first_batches` of Accelerate asks a data loader for."""

    batch_size = None  # what comes out of the data set is a batch already
    drop_last = False
    num_workers = 0
    prefetch_factor = None

    def __init__(self, loader: SyncLoader) -> None:
        self.loader = loader
        self.dataset = _Ahead(loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Make the trainer's epoch the loader's."""
        self.loader.set_epoch(epoch)

    @staticmethod
    def collate_fn(batch: Any) -> Any:
        """Leave a batch as it is."""
        return batch


class _Ahead(IterableDataset[Any]):
    """Batches of an epoch from its beginning: those that were trained on, as None, and the rest."""

    def __init__(self, loader: SyncLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        for _ in range(_trained(self._loader)):
            yield None
        yield from self._loader

    def __len__(self) -> int:
        return len(self._loader.dataset)  # the trainer tells how many examples there are


class LoaderState(TrainerCallback, ExportableState):
    """Keeps the state of the loader in the trainer's; made by `attach`."""

    def __init__(self) -> None:
        self._loader: SyncLoader | None = None

    def state(self) -> dict[str, Any]:
        """Return what goes into a checkpoint."""
        return {"args": {}, "attributes": {"saved": self._loader and self._loader.state_dict()}}

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        """Go on where the checkpoint was written, if training begins with one."""
        if not isinstance(train_dataloader, _Feed):
            raise ConfigError("the trainer has another get_train_dataloader than the one of attach()")
        self._loader = train_dataloader.loader
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        if not state.global_step:
            return
        if saved["attributes"]["saved"] is None:
            raise ConfigError("the checkpoint holds no state of a loader; it was written without attach()")
        self._loader.load_state_dict(saved["attributes"]["saved"])
        self._compare(self._loader, state.global_step, args.gradient_accumulation_steps)

    @staticmethod
    def _compare(loader: SyncLoader, updates: int, accumulated: int) -> None:
        """Refuse to go on where the trainer, which counts updates, means another batch than the loader."""
        epoch, update = divmod(updates, -(-len(loader) // accumulated))
        own, theirs = (loader.epoch, _trained(loader)), (epoch, update * accumulated)
        if own != theirs:
            raise ConfigError(
                f"the loader goes on at epoch {own[0]}, step {own[1]}, the trainer at epoch {theirs[0]}, "
                f"step {theirs[1]}: it counts updates, so it can go on only with the batch size, world "
                "size and gradient_accumulation_steps of before"
            )


def _trained(loader: SyncLoader) -> int:
    """Return how many batches of the epoch have been handed out before the next iteration."""
    return len(loader) - loader.remaining
