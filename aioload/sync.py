"""SyncLoader: the same loader behind a plain `for`, with the habits of a torch `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from .collection import Collection
from .errors import ConfigError
from .policy import Skipped
from .stats import LoaderStats

__all__ = ["SyncLoader", "no_numbers"]


class Face(Protocol):
    """What a plain `for` needs of a loader."""

    batch_size: int | None
    dataset: Collection
    drop_last: bool
    num_workers: int
    rank: int

    @property
    def padded(self) -> int: ...
    @property
    def remaining(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    def __len__(self) -> int: ...
    def batches(self) -> Iterator[Any]: ...
    def check_open(self) -> None: ...
    def close(self) -> None: ...
    def load_state_dict(self, state: Mapping[str, Any], *, adopt: bool = False) -> None: ...
    def report(self) -> str: ...
    def set_epoch(self, epoch: int) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    @property
    def skipped(self) -> tuple[Skipped, ...]: ...
    def stats(self, epoch: int | None = None) -> LoaderStats: ...
    def pause(self) -> AbstractContextManager[None]: ...


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

    if not TYPE_CHECKING:  # checkers know that there is none

        def __getitem__(self, number: object) -> NoReturn:
            raise no_numbers("iterate over the loader")

    def __enter__(self) -> SyncLoader:
        self._loader.check_open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SyncLoader of {self._loader!r}>"

    @property
    def loader(self) -> Face:
        """The loader behind this face."""
        return self._loader

    @property
    def dataset(self) -> Collection:
        """The data set."""
        return self._loader.dataset

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None where a budget cuts them."""
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
        """Choose the epoch that the next iteration runs; see `Loader.set_epoch`."""
        self._loader.set_epoch(epoch)

    @property
    def remaining(self) -> int:
        """Batches that the next iteration yields on this rank."""
        return self._loader.remaining

    @property
    def padded(self) -> int:
        """Rows of this rank that repeat the epoch's first records; see `Loader.padded`."""
        return self._loader.padded

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands, as plain JSON; see `Loader.state_dict`."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, adopt: bool = False) -> None:
        """Let the next iteration go on where a state was taken; see `Loader.load_state_dict`.

        Args:
            state: what `state_dict` returned.
            adopt: take seed and order from the state, rather than refuse it where they differ.

        Raises:
            ConfigError: it is no state, or was made with other data, or with another seed or order.
        """
        self._loader.load_state_dict(state, adopt=adopt)

    def pause(self) -> AbstractContextManager[None]:
        """Return a context in which nothing is done to the device; see `Loader.pause`."""
        return self._loader.pause()

    def close(self) -> None:
        """End all processes and threads of the loader, within 5 s; twice is free."""
        self._loader.close()

    def stats(self, epoch: int | None = None) -> LoaderStats:
        """Return what was counted so far, or in one epoch; see `Loader.stats`.

        Args:
            epoch: whose numbers are wanted; None: all.

        Raises:
            ConfigError: there are none of this epoch.
        """
        return self._loader.stats(epoch)

    def report(self) -> str:
        """Return where the time went, as text."""
        return self._loader.report()


def no_numbers(instead: str) -> ConfigError:
    """Return the error of a loader that is taken for a sequence, as a `DataLoader` around it does.

    Args:
        instead: what gives its batches.
    """
    return ConfigError(
        f"batches cannot be asked for by number: {instead}. No DataLoader belongs around a loader, which has "
        "workers, order and ranks of its own; for trainers see aioload.integrations"
    )
