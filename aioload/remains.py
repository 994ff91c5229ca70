"""Remains: what a loader hands out of batches that lack samples, and how many may."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ._pipeline.deliver import without_rows
from .policy import Limit, Skipped, Tally, ask

if TYPE_CHECKING:
    from ._pipeline.deliver import Delivery
    from .errors import AioloadError

__all__ = ["Remains"]


class Remains:
    """What became of samples that cannot be made.

    Args:
        policy: as `policy.choose` returns it.
    """

    def __init__(self, policy: Limit | Callable[[AioloadError], Any] | None) -> None:
        self._policy = policy
        self._tally = Tally(None if policy is None or callable(policy) else policy.allowed)
        self._no_rows: Any = None  # what a batch is of which nothing is left, once that is known

    @property
    def decide(self) -> Callable[[AioloadError], Any] | None:
        """What the engine asks about a record that fails; None: its error takes the batch's place."""
        if self._policy is None:
            return None
        return partial(ask, self._policy) if callable(self._policy) else _leave_out

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What was left out, the last thousand of it."""
        return tuple(self._tally.kept)

    def begin(self) -> None:
        """Begin an epoch."""
        self._tally.begin()

    def received(self, item: Delivery, epoch: int, records: int) -> Any:
        """Return the batch of a delivery, having counted what it lacks.

        One without rows is made like the first that had some: what is known here does not depend on which
        worker was faster.

        Raises:
            AioloadError: more was left out of this epoch than may be.
        """
        if item.skipped:
            self._tally.add(item.skipped, epoch, records)
        if not item.rows:
            return {} if self._no_rows is None else copy.deepcopy(self._no_rows)
        if self._no_rows is None and self._policy is not None:
            self._no_rows = without_rows(item.batch, item.rows)
        return item.batch


def _leave_out(error: AioloadError) -> None:
    """Leave a record out."""
