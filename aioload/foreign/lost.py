"""Lost: shards of which nothing can be had, and the error of each that tries to read one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from ..errors import NotFoundError, ShardError, StorageError
from ..shard.scan import Scanned
from ..shard.sidecar import Loss, Part
from ..storage import Storage
from ..storage.wrapping import Wrapping

__all__ = ["Losses", "Lost", "error_of", "lost_part"]


def error_of(loss: Loss, name: str) -> NotFoundError | ShardError:
    """Make the error of a shard that is lost."""
    if loss.is_missing:
        return NotFoundError(loss.text, shard=name)
    return ShardError(loss.text, shard=name, offset=loss.offset, whole_shard=True)


def lost_part(loss: Loss, records: int) -> Part:
    """Return what stands for a shard that is lost: records of a byte each, so that each is asked for."""
    ends = np.arange(1, records + 1, dtype=np.uint64)
    return Part(records, Scanned(0, ends), loss=loss)


class Losses:
    """Notes which shards are lost while a set is looked through.

    Args:
        names: of all shards.
        is_tolerant: go on without; else the first loss is an error.
    """

    def __init__(self, names: Sequence[str], *, is_tolerant: bool) -> None:
        self._names = names
        self._is_tolerant = is_tolerant
        self._errors: dict[int, NotFoundError | ShardError] = {}

    @contextmanager
    def noted(self, number: int) -> Iterator[None]:
        """Note what happens within as the loss of a shard."""
        try:
            yield
        except (NotFoundError, ShardError) as error:
            if not self._is_tolerant:
                raise
            self._errors.setdefault(number, error)

    def __contains__(self, number: int) -> bool:
        return number in self._errors

    def check(self) -> None:
        """Raise the first loss where nothing else is left."""
        if self._errors and len(self._errors) == len(self._names):
            raise self._errors[min(self._errors)]

    def of(self, number: int) -> Loss | None:
        """Return why a shard is lost; None: it is not."""
        error = self._errors.get(number)
        if error is None:
            return None
        is_missing = isinstance(error, StorageError)
        return Loss(str(error), is_missing, None if is_missing else error.offset)


class Lost(Wrapping):
    """Passes on all but what would be read of lost shards, which is an error whatever lies there by now.

    Args:
        storage: of the shards.
        losses: by name of the shard.
    """

    def __init__(self, storage: Storage, losses: Mapping[str, Loss]) -> None:
        super().__init__(storage)
        self._losses = losses
        self.max_read_bytes = getattr(storage, "max_read_bytes", self.max_read_bytes)
        self.first_reads = getattr(storage, "first_reads", self.first_reads)

    async def size(self, name: str) -> int:
        """Return the bytes of a file."""
        self._check(name)
        return await super().size(name)

    async def get(self, name: str) -> bytes:
        """Return all of a small file."""
        self._check(name)
        return await super().get(name)

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on."""
        self._check(name)
        await super().read_into(name, start, out)

    def _check(self, name: str) -> None:
        if name in self._losses:
            raise error_of(self._losses[name], name)
