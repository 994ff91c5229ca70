"""Careful: a batch in which something went wrong, made once more in pieces.

Whatever made the first try fail (a sample that raised, a record that could not be read, a worker that died at
a record) is found by working on the batch in ever smaller pieces. A record at which a worker died is tried
alone the second time; if that kills again, the record is to blame. What then becomes of failed records is the
policy's to say; the rest is collated as ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._workers.layout import NoRoom, pack
from .._workers.pool import WorkerDied
from ..errors import AioloadError, NotFoundError
from ..policy import Skipped

if TYPE_CHECKING:
    from .._workers.space import Span
    from .decode import Part, Walk
    from .deliver import Made
    from .memory import Lease

__all__ = ["Careful", "Piece", "Skips", "Suspects"]

Skips = list[tuple[Skipped, AioloadError, bool]]
"""What a batch lacks: each record with its error, and whether its whole shard is missing."""

_MAX_DEATHS = 6  # of workers, over one record or between records, whoever is to blame


class Suspects:
    """Records at which workers died, over all passes of a loader."""

    def __init__(self) -> None:
        self._deaths: dict[tuple[int, int], int] = {}

    def note(self, record: tuple[int, int]) -> int:
        """Count a death; return how many there were at this record."""
        self._deaths[record] = self._deaths.get(record, 0) + 1
        return self._deaths[record]

    def clear(self, record: tuple[int, int]) -> None:
        """Forget a record that was done well."""
        self._deaths.pop(record, None)

    def among(self, records: list[tuple[int, int]]) -> list[int]:
        """Return which of these are under suspicion."""
        return [place for place, record in enumerate(records) if record in self._deaths] if self._deaths else []


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of the batch as packed samples."""

    first: int
    rows: int  # samples that it holds
    lease: Lease
    descriptor: Span
    used: int


class Careful:
    """Makes one batch.

    Args:
        walk: the run's.
        whole: all rows of the batch.
        known: rows that are known to fail, with their errors.
        decide: says what becomes of a failed record: None leaves it out, an error is raised, and anything
            else is the
            sample to take in its place, in a tuple of one.
    """

    def __init__(
        self,
        walk: Walk,
        whole: Part,
        known: dict[int, AioloadError],
        decide: Callable[[AioloadError], Any],
    ) -> None:
        self._walk = walk
        self._whole = whole
        self._failed = dict(known)
        self._decide = decide
        self._pieces: list[Piece] = []

    async def make(self) -> Made | AioloadError:
        """Make the batch of what can be made."""
        try:
            return await self._make()
        except AioloadError as error:
            return error

    async def _make(self) -> Made | AioloadError:
        with contextlib.ExitStack() as stack:
            for part in self._whole.without(set(self._failed)):
                await self._try(part, stack)
            skipped: Skips = []
            for row in sorted(self._failed):
                outcome = await self._settle(row, skipped, stack)
                if outcome is not None:
                    return outcome
            pieces = sorted((piece for piece in self._pieces if piece.rows), key=lambda piece: piece.first)
            return await self._walk.finish(self._whole, pieces, skipped)

    async def _try(self, part: Part, stack: contextlib.ExitStack) -> None:
        """Have some rows made, in pieces where workers die over them."""
        suspects = self._walk.suspects.among(self._walk.records(part))
        if suspects and part.rows > 1:
            for smaller in part.around(suspects[0]):
                await self._try(smaller, stack)
            return

        deaths = 0
        while True:
            try:
                outcome, lease = await self._walk.collect(part, stack)
            except WorkerDied as died:
                deaths += 1
                if self._blame(part, died, deaths):
                    return
                if part.rows > 1 and died.row is not None:
                    await self._try(part, stack)  # it has a suspect now
                    return
                continue
            break
        for failure in outcome.failures:
            assert failure.row is not None
            self._failed[failure.row] = self._walk.error(failure, part.step)
        assert outcome.descriptor is not None
        rows = part.rows - len(outcome.failures)
        self._pieces.append(Piece(part.first, rows, lease, outcome.descriptor, outcome.used))
        if part.rows == 1:
            self._walk.suspects.clear(self._walk.records(part)[0])

    def _blame(self, part: Part, died: WorkerDied, deaths: int) -> bool:
        """Count a death; tell whether a record is now found to be its cause."""
        records = self._walk.records(part)
        row = died.row if died.row is not None and died.row < part.rows else None
        count = self._walk.suspects.note(records[row]) if row is not None else 0
        if part.rows == 1 and count >= 2:
            self._failed[part.first] = self._walk.killed(part, died)
            return True
        if deaths >= _MAX_DEATHS:
            for place in range(part.rows):
                self._failed[part.first + place] = self._walk.killed(part, died)
            return True
        return False

    async def _settle(
        self, row: int, skipped: Skips, stack: contextlib.ExitStack
    ) -> AioloadError | None:
        """Decide what becomes of a failed row; return the error if that is to be raised."""
        error = self._failed[row]
        try:
            decision = self._decide(error)
            if isinstance(decision, Exception):
                raise decision
        except Exception as raised:
            return raised if isinstance(raised, AioloadError) else _policy_failed(raised, error)
        if decision is None:
            one = self._whole.around(row)[min(row, 1)]
            shard, (_, record) = self._walk.shard_of(one), self._walk.records(one)[0]
            gone = Skipped(self._walk.epoch, shard, record, error.key, str(error))
            skipped.append((gone, error, isinstance(error, NotFoundError)))
        else:
            await self._insert(row, decision[0], stack)
        return None

    async def _insert(self, row: int, sample: Any, stack: contextlib.ExitStack) -> None:
        """Pack the sample that the policy gave in a record's place."""
        size = 1 << 16
        while True:
            lease = await self._walk.lease(stack, size)
            array = self._walk.array(lease)
            try:
                where, used = pack(([sample], [row], np.array([row])), array)
            except NoRoom as small:
                size = small.need
                continue
            self._pieces.append(Piece(row, 1, lease, where, used))
            return


def _policy_failed(raised: Exception, error: AioloadError) -> AioloadError:
    """Return the error of an `on_error` that itself failed."""
    failed = AioloadError(
        f"on_error raised {type(raised).__name__} ({raised}) for: {error}", record=error.record, shard=error.shard
    )
    failed.__cause__ = raised
    return failed

