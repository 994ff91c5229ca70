"""Back-off: how long to wait before a request is sent again; pure.

The waits are drawn anew each time from 0 up to a bound that doubles (full jitter), so that clients which
failed together do not come back together. Where the server says that it has too much to do, only the upper
half is drawn from: such waits grow from one to the next, whatever is drawn.
"""

from __future__ import annotations

from random import Random

__all__ = ["Backoff"]


class Backoff:
    """The waits between the attempts of one read.

    Args:
        rng: draws; not the global generator, which users seed alike on all ranks.
        base: seconds that bound the first wait.
        cap: seconds that bound all waits.
    """

    def __init__(self, rng: Random, *, base: float = 0.1, cap: float = 15.0) -> None:
        self._rng = rng
        self._base = base
        self._cap = cap
        self._bound = base

    def next(
        self, *, retry_after: float | None = None, throttled: bool = False, cap: float | None = None
    ) -> float:
        """Draw the next wait, in seconds.

        Args:
            retry_after: what the server asked for; never waited less.
            throttled: the server has too much to do.
            cap: seconds that bound this wait, where that is less; later ones grow from there.
        """
        bound = min(self._bound, self._cap if cap is None else cap)
        self._bound = min(2 * bound, self._cap)
        wait = self._rng.uniform(bound / 2 if throttled else 0.0, bound)
        return wait + (retry_after or 0.0)

    def reset(self) -> None:
        """Begin again with the first bound: something got through."""
        self._bound = self._base
