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
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .._workers.leaf import NoRoom
from .._workers.packed import pack
from .._workers.pool import WorkerDied
from ..errors import AioloadError, NotFoundError, SampleError
from ..policy import Skipped, Skips
from .memory import TooSmall

if TYPE_CHECKING:
    from .._workers.jobs import Failure, Outcome
    from .._workers.space import Span
    from ..errors import WorkerError
    from .deliver import Made
    from .memory import Lease
    from .parts import Part

__all__ = ["Careful", "Piece", "Suspects"]

_MAX_DEATHS = 2  # of workers over one record, the second with nothing else in work


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
        """Return the places of those under suspicion."""
        if not self._deaths:
            return []
        return [place for place, record in enumerate(records) if record in self._deaths]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of the batch as packed samples."""

    first: int
    rows: int  # samples that it holds
    lease: Lease
    descriptor: Span
    used: int


class Work(Protocol):
    """The run that the batch belongs to, and those who do its jobs."""

    suspects: Suspects

    @property
    def epoch(self) -> int: ...
    def records(self, part: Part) -> list[tuple[int, int]]: ...
    def place_of(self, part: Part, row: int) -> tuple[str, int]: ...
    def error(self, failure: Failure, step: int) -> AioloadError: ...
    def killed(self, part: Part, died: WorkerDied) -> WorkerError: ...
    def array(self, lease: Lease) -> NDArray[Any]: ...
    async def lease(self, stack: contextlib.ExitStack, size: int) -> Lease: ...
    async def collect(
        self, part: Part, whole: Part, stack: contextlib.ExitStack
    ) -> tuple[Outcome, Lease]: ...
    async def finish(self, whole: Part, pieces: list[Piece], skipped: Skips) -> Made | AioloadError: ...


class Careful:
    """Makes one batch.

    Args:
        walk: the run's.
        whole: all rows of the batch.
        known: rows that are known to fail, with their errors.
        decide: says what becomes of a failed record: None leaves it out, a tuple of one is the sample to take
            in its place; or it raises.
    """

    def __init__(
        self,
        walk: Work,
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
        except TooSmall:
            raise  # it may yet be made in less
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
            await self._try_each(part.around(suspects[0]), stack)
            return

        try:
            outcome, lease = await self._walk.collect(part, self._whole, stack)
        except WorkerDied as died:
            if not self._blame(part, died):
                await self._try_each(part.halves() if died.row is None else [part], stack)
            return
        for failure in outcome.failures:
            assert failure.row is not None
            self._failed[failure.row] = self._walk.error(failure, part.step)
        assert outcome.descriptor is not None
        rows = part.rows - len(outcome.failures)
        self._pieces.append(Piece(part.first, rows, lease, outcome.descriptor, outcome.used))
        if part.rows == 1:
            self._walk.suspects.clear(self._walk.records(part)[0])

    async def _try_each(self, parts: list[Part], stack: contextlib.ExitStack) -> None:
        for part in parts:
            await self._try(part, stack)

    def _blame(self, part: Part, died: WorkerDied) -> bool:
        """Count a death; tell whether a record is now found to be its cause."""
        row = 0 if part.rows == 1 else died.row  # a record may also kill while what it became is packed
        if row is None or row >= part.rows:
            return False
        deaths = self._walk.suspects.note(self._walk.records(part)[row])
        found = part.rows == 1 and deaths >= _MAX_DEATHS
        if found:
            self._failed[part.first] = self._walk.killed(part, died)
        return found

    async def _settle(self, row: int, skipped: Skips, stack: contextlib.ExitStack) -> AioloadError | None:
        """Decide what becomes of a failed row; return the error if that is to be raised."""
        error = self._failed[row]
        error.step, error.facts = self._whole.step, {**error.facts, "step": self._whole.step}
        try:
            decision = self._decide(error)
            if decision is not None:
                await self._insert(row, decision[0], stack)
        except TooSmall:
            raise
        except AioloadError as raised:
            return raised
        if decision is None:
            shard, record = self._walk.place_of(self._whole, row)
            gone = Skipped(self._walk.epoch, shard, record, error.key, str(error))
            is_whole = isinstance(error, NotFoundError) or bool(error.facts.get("whole_shard"))
            skipped.append((gone, error, is_whole))
        return None

    async def _insert(self, row: int, sample: Any, stack: contextlib.ExitStack) -> None:
        """Pack the sample that the policy gave in a record's place."""
        size = 1 << 16
        while True:
            lease = await self._walk.lease(stack, size)
            try:
                where, used = pack(([sample], [row], np.array([row])), self._walk.array(lease))
            except NoRoom as small:
                size = small.need
                continue
            except Exception as raised:
                raise _cannot_pack(raised, self._failed[row]) from raised
            self._pieces.append(Piece(row, 1, lease, where, used))
            return


def _cannot_pack(raised: Exception, error: AioloadError) -> SampleError:
    """Return the error of a sample from `on_error` that cannot stand in a batch."""
    what = f"{type(raised).__name__}: {raised}"
    message = f"the sample that on_error gave cannot be packed ({what}), for: {error}"
    return SampleError(message, record=error.record, shard=error.shard, cause=repr(raised))
