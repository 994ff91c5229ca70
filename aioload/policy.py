"""Policy: what becomes of a sample that cannot be made.

What a limit allows is counted in the order in which the user gets batches, so that the same run ends at the
same place every time, however many workers found the bad records in whatever order. A function is asked when
a bad record is met, ahead of the user.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .errors import AioloadError, ConfigError

__all__ = ["Limit", "OnError", "Skip", "Skipped", "Skips", "Tally", "ask", "choose"]

_KEPT = 1000  # skipped records that are remembered by name
_DEFAULT_LEAST, _DEFAULT_SHARE = 10, 0.01


@dataclass(frozen=True, slots=True)
class Skip:
    """Leave bad samples out, up to a limit per epoch and rank; batches become smaller, never fewer.

    Args:
        limit: how many, or as a float the share of the epoch's records on this rank.

    Raises:
        ConfigError: the limit cannot be.
    """

    limit: int | float = 100

    def __post_init__(self) -> None:
        whole = isinstance(self.limit, int) and not isinstance(self.limit, bool)
        if not (whole and self.limit >= 0) and not (isinstance(self.limit, float) and 0 <= self.limit <= 1):
            raise ConfigError(
                f"Skip(limit=...) must be a count, or a share from 0.0 to 1.0, got {self.limit!r}"
            )

    def allowed(self, records: int) -> int:
        """Return how many of so many records may be left out."""
        return self.limit if isinstance(self.limit, int) else int(self.limit * records)


@dataclass(frozen=True, slots=True)
class _Default:
    """What the word "skip" means: ten records, or one in a hundred if that is more."""

    def allowed(self, records: int) -> int:
        return max(_DEFAULT_LEAST, int(_DEFAULT_SHARE * records))


Limit = Skip | _Default
"""How many samples may be left out."""

OnError = Literal["raise", "skip"] | Skip | Callable[[AioloadError], Any]
"""What users may give."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that was left out."""

    epoch: int
    """In which it was met."""
    shard: str | None
    """Where it lies."""
    record: int | None
    """Its number in its set."""
    key: str | None
    """Its key, as far as it could be read."""
    error: str
    """What was wrong with it."""


Skips = list[tuple[Skipped, AioloadError, bool]]
"""What a batch lacks: each record with its error, and whether its whole shard is missing."""


def choose(on_error: OnError) -> Limit | Callable[[AioloadError], Any] | None:
    """Return what an option means; None: raise.

    Raises:
        ConfigError: it is none of the options.
    """
    if isinstance(on_error, Skip):
        return on_error
    if callable(on_error) and not isinstance(on_error, type) and not inspect.iscoroutinefunction(on_error):
        return on_error
    if on_error == "raise":
        return None
    if on_error == "skip":
        return _Default()
    raise ConfigError(
        'on_error must be "raise", "skip", aioload.Skip(limit=...) or a plain function of the error, '
        f"got {on_error!r}"
    )


def ask(policy: Callable[[AioloadError], Any], error: AioloadError) -> tuple[Any] | None:
    """Ask a function of the user what becomes of a record.

    Returns:
        None to leave it out; else, in a tuple of one, the sample to take in its place.

    Raises:
        AioloadError: the error, if the function says so; another one if it failed itself.
    """
    try:
        answer = policy(error)
    except AioloadError:
        raise
    except BaseException as raised:  # user code: it must not end the engine's loop that it runs in
        told = f"on_error raised {type(raised).__name__} ({raised})"
        raise AioloadError(f"{told} for: {error}", record=error.record, shard=error.shard) from raised
    if answer is None:
        told = 'on_error returned None, which is neither "raise" nor "skip" nor a sample'
        raise AioloadError(f"{told}, for: {error}", record=error.record, shard=error.shard)
    if isinstance(answer, str) and answer == "raise":
        raise error
    return None if isinstance(answer, str) and answer == "skip" else (answer,)


class Tally:
    """What was left out, in the order of the epoch.

    Args:
        allowed: records that may be left out in an epoch; None: any number.
    """

    def __init__(self, allowed: Callable[[int], int] | None) -> None:
        self._allowed = allowed
        self._count = 0
        self._shards: set[str] = set()
        self.total = 0
        self.kept: deque[Skipped] = deque(maxlen=_KEPT)

    def begin(self) -> None:
        """Count from nothing again: an iteration begins."""
        self._count = 0
        self._shards.clear()

    def add(self, skipped: Skips, epoch: int, records: int) -> None:
        """Note what a batch lacks.

        Args:
            skipped: each with its error, and whether its whole shard is missing, which counts once.
            epoch: of the batch.
            records: of the epoch on this rank, which a share is taken of.

        Raises:
            AioloadError: the limit is exceeded: the error of the record that did it, with a note.
        """
        for one, error, whole_shard in skipped:
            counts = not (whole_shard and one.shard in self._shards)
            if whole_shard and one.shard is not None:
                self._shards.add(one.shard)
            self._count += counts
            self.total += 1
            self.kept.append(one)
            limit = None if self._allowed is None else self._allowed(records)
            if limit is not None and self._count > limit:
                error.add_note(
                    f"{self._count} records of epoch {epoch} could not be used on this rank, and on_error "
                    f"allows {limit}; loader.skipped lists them"
                )
                raise error
