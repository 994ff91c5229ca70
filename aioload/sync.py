"""SyncLoader: the same loader behind a plain `for`, with the habits of a torch `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from .dataset import Dataset
from .policy import Skipped
from .stats import LoaderStats

__all__ = ["SyncLoader"]


class Face(Protocol):
    """What a plain `for` needs of a loader."""

    batch_size: int
    dataset: Dataset
    drop_last: bool
    epoch: int
    num_workers: int

    def __len__(self) -> int: ...
    def batches(self) -> Iterator[Any]: ...
    def check_open(self) -> None: ...
    def close(self) -> None: ...
    def report(self) -> str: ...
    def set_epoch(self, epoch: int) -> None: ...
    @property
    def skipped(self) -> tuple[Skipped, ...]: ...
    def stats(self) -> LoaderStats: ...


class SyncLoader:
    """A face of a `Loader` for plain code, also inside a running event loop; made by `loader.sync()`.

    Args:
        loader: the loader whose batches it gives.
    """

    def __init__(self, loader: Face) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return self._loader.batches()

    def __len__(self) -> int:
        return len(self._loader)

    def __enter__(self) -> SyncLoader:
        self._loader.check_open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SyncLoader of {self._loader!r}>"

    @property
    def dataset(self) -> Dataset:
        """The data set."""
        return self._loader.dataset

    @property
    def batch_size(self) -> int:
        """Samples in a batch."""
        return self._loader.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is not full is left out."""
        return self._loader.drop_last

    @property
    def num_workers(self) -> int:
        """Processes that decode."""
        return self._loader.num_workers

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration runs."""
        return self._loader.epoch

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What was left out under `on_error`."""
        return self._loader.skipped

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs."""
        self._loader.set_epoch(epoch)

    def close(self) -> None:
        """End all processes and threads of the loader, within 5 s; twice is free."""
        self._loader.close()

    def stats(self) -> LoaderStats:
        """Return what was counted so far."""
        return self._loader.stats()

    def report(self) -> str:
        """Return where the time went, as text."""
        return self._loader.report()
