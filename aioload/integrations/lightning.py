"""Lightning: batches for `Trainer.fit`, and a state that says what it was trained on.

A plain `loader.sync()` in `train_dataloader` runs, is not wrapped, and its state goes into checkpoints. Four
things it cannot do by itself, and `Feed` does:

- Lightning loads the states of loaders when it first asks for `train_dataloader`. A schedule that reads
  `trainer.estimated_stepping_batches` makes it ask before it has read the checkpoint, and the state is then
  never loaded, without a word. So the state also travels as a callback's, which is loaded in any case.
- It calls `iter()` to see whether something can be iterated over, and again later. Here an iteration begins
  with its first batch.
- A checkpoint that is written on an exception in the middle of a step must not count the batch of that step.
- An epoch that `limit_train_batches` cuts short is over for the trainer, not for a loader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ._plain import missing, plain

try:
    # the same code under two names; whoever uses the older one has imported it by now
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning.callbacks import Callback
    else:
        from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise missing("lightning") from error

if TYPE_CHECKING:
    from ..loader import Loader
    from ..sync import SyncLoader

__all__ = ["Feed"]


class Feed(Callback):
    """Batches for training and the callback that keeps their state: give it to the trainer as both.

    ::

        feed = Feed(lambda: aioload.Loader("data/train", batch_size=64, shuffle=True))
        trainer = lightning.Trainer(max_epochs=2, callbacks=[feed])
        trainer.fit(model, feed, ckpt_path="last")

    Args:
        make: makes the loader. It is called when the trainer knows its ranks, once for each `fit`, at the end
            of which the loader is closed.

    Raises:
        ConfigError: `make` is no function.
    """

    def __init__(self, make: Callable[[], Loader | SyncLoader]) -> None:
        if not callable(make):
            raise ConfigError(
                "Feed takes a function that makes the loader, as ranks are not known yet: "
                f"Feed(lambda: aioload.Loader(...)); got a {type(make).__name__}"
            )
        self._make = make
        self._made: SyncLoader | None = None
        self._trained: dict[str, Any] | None = None
        self._is_callback = False

    def __iter__(self) -> Iterator[Any]:
        if not self._is_callback:
            raise ConfigError("a Feed is a callback, too: give it to the trainer with callbacks=[feed]")
        yield from self.loader  # in a generator, so that it begins with the first batch

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def loader(self) -> SyncLoader:
        """The loader, made when first needed."""
        if self._made is None:
            self._made = plain(self._make())
        return self._made

    def state_dict(self) -> dict[str, Any]:
        """Return where training stands: behind the last batch whose step has ended."""
        return self._trained or self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was taken."""
        self.loader.load_state_dict(state_dict)
        self._trained = dict(state_dict)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Note that the trainer knows the callback; a `fit` begins with a new loader."""
        self._is_callback = True
        if stage == "fit":
            self._trained = None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the trainer's epoch the loader's, also where the one before was cut short."""
        if trainer.current_epoch != self.loader.epoch:
            self.loader.set_epoch(trainer.current_epoch)
            self._trained = self.loader.state_dict()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Count a batch: its step has ended. Callbacks that write checkpoints come after all others."""
        self._trained = self.loader.state_dict()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the loader's processes and threads; the state stays."""
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the loader's processes and threads; the state stays, for checkpoints after the last step."""
        if stage == "fit":
            self._close()

    def _close(self) -> None:
        if self._made is not None:
            self._made.close()
            self._made = None
