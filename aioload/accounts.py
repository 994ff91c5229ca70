"""Accounts: what was counted in all, and epoch by epoch as the user went through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .errors import ConfigError
from .stats import Counters, LoaderStats

__all__ = ["Accounts"]

_KEPT = 100  # epochs


class Accounts:
    """The numbers of a loader.

    Args:
        counters: what was counted in all.
        traffic: counts that are kept elsewhere: what went over the network.
    """

    def __init__(self, counters: Counters, traffic: Callable[[], Mapping[str, float]]) -> None:
        self.levels: Callable[[], Mapping[str, float]] = dict  # how things are just now
        self._counters = counters
        self._traffic = traffic
        self._epochs: dict[int, LoaderStats] = {}
        self._began: tuple[int, LoaderStats] | None = None

    def look(self) -> LoaderStats:
        """Return all that was counted so far."""
        return self._counters.snapshot(**self._traffic(), **self.levels())

    def begin(self, epoch: int) -> None:
        """Note that an iteration begins."""
        self.end()
        self._began = epoch, self.look()

    def end(self) -> None:
        """Note that the iteration that is under way has ended: at its end, or for being left."""
        self._counters.pause()
        began, self._began = self._began, None
        if began is not None:
            epoch, before = began
            self._epochs.pop(epoch, None)  # the last to be looked at is the last to go
            self._epochs[epoch] = self.look().since(before)
            if len(self._epochs) > _KEPT:
                del self._epochs[next(iter(self._epochs))]

    def left(self, iterator: object) -> None:
        """Note that nobody has the iterator any more, and so the user is no longer in its loop."""
        self._counters.pause()

    def of(self, epoch: int | None) -> LoaderStats:
        """Return what was counted in an epoch, or in all.

        Raises:
            ConfigError: there are no numbers of that epoch.
        """
        if epoch is None:
            return self.look()
        began = self._began
        if began is not None and began[0] == epoch:
            return self.look().since(began[1])
        if epoch not in self._epochs:
            kept = sorted({*self._epochs, *(() if began is None else (began[0],))})
            told = f"there are numbers of the epochs {_ranges(kept)}" if kept else "no epoch has begun yet"
            raise ConfigError(f"there are no numbers of epoch {epoch!r}: {told}")
        return self._epochs[epoch]


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers in short: 0 to 3, 7."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(str(one[0]) if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in found)
