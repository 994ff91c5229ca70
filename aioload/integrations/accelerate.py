"""Accelerate: tells it which batch of an epoch is the last.

`accelerator.prepare()` leaves a loader as it is, so a plain `loader.sync()` does, with
`register_for_checkpointing` for its state. What it takes from the loaders that it wraps, and reads a batch
ahead for, is where an epoch ends: there `accelerator.accumulate()` makes the last update, of however many
batches. `Feed` knows that by counting; nothing is read ahead, so the state stays what was trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._plain import missing, plain

try:
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.state import GradientState
except ImportError as error:
    raise missing("accelerate") from error

if TYPE_CHECKING:
    from ..loader import Loader
    from ..sync import SyncLoader

__all__ = ["Feed"]


class Feed(DataLoaderStateMixin):
    """The batches of a loader, in the sight of `accelerator.accumulate()`.

    ::

        feed = Feed(aioload.Loader("data/train", batch_size=64, shuffle=True, device=accelerator.device))
        accelerator.register_for_checkpointing(feed)

    Args:
        loader: whose batches they are; yours to close.

    Raises:
        ConfigError: it is no loader.
    """

    def __init__(self, loader: Loader | SyncLoader) -> None:
        self.loader = plain(loader)
        self.gradient_state = GradientState()

    def __iter__(self) -> Iterator[Any]:
        left = self.loader.remaining
        self.begin()
        try:
            for batch in self.loader:
                left -= 1
                self.end_of_dataloader = left == 0
                yield batch
        finally:
            self.end()

    def __len__(self) -> int:
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands: what was handed out."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was taken."""
        self.loader.load_state_dict(state_dict)
