"""Check: every record of a foreign set, as far as its format has sums.

Each record is read where the index has it, and cut into its fields, which compares all sums that are in it.
What no sum protects is told, not passed over. What lies behind damage, to the end of a shard, is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import anyio.to_thread
import numpy as np

from ..errors import AioloadError
from ..shard.check import MAX_PROBLEMS, Problem, VerifyReport
from ..shard.format import crc32c
from .build import Progress, look_at_all, pieces, read_piece
from .contents import damage_of
from .lost import error_of

if TYPE_CHECKING:
    from ..storage import Storage
    from .contents import Contents

__all__ = ["UNPROTECTED", "check_records"]

UNPROTECTED = {
    "tar": "no sum protects the members' bytes, only their headers; `aioload index --checksums` sums them",
    "mds": "no sum protects the rows, only their places; `aioload index --checksums` sums them",
}
"""By format: what cannot be told from the files alone."""

_AT_ONCE = 4  # pieces: some are read while one is checked


async def check_records(contents: Contents, storage: Storage, progress: Progress = int) -> VerifyReport:
    """Cut every record of a set, and compare it with its sum where the index has one.

    A few pieces are read while others are checked; what is found is told in the order of the records.

    Args:
        contents: of the set.
        storage: where its shards lie, as they are unpacked.
        progress: told of bytes.

    Raises:
        StorageError: the storage failed, which says nothing about the data.
    """
    index = contents.index
    work = list(_work(contents))
    problems = _InOrder()

    async def look(number: int) -> None:
        shard, begin, end = work[number]
        if begin == end:
            problems.add(number, _of_shard(contents, shard, progress))
            return
        problems.add(number, await _check_piece(contents, storage, index.shards[shard], begin, end))
        progress(int(index.positions[end] - index.positions[begin]))

    await look_at_all(len(work), look, _AT_ONCE)
    kept, omitted = tuple(problems.kept), problems.omitted
    return VerifyReport(len(index), int(index.positions[-1]), len(index.shards), kept, omitted)


def _work(contents: Contents) -> Iterator[tuple[int, int, int]]:
    """Yield shard, first record and the one after the last of each piece; without records, a shard's end."""
    index = contents.index
    for shard, name in enumerate(index.shards):
        first, stop = index.shard_records[shard : shard + 2].tolist()
        if name not in contents.lost:
            for begin, end in pieces(index, first, stop - (damage_of(contents, shard) is not None)):
                yield shard, begin, end
        yield shard, stop, stop


def _of_shard(contents: Contents, shard: int, progress: Progress) -> list[Problem]:
    """Return what is known to be wrong with a shard since it was looked through."""
    name = contents.index.shards[shard]
    if name in contents.lost:
        lost = error_of(contents.lost[name], name)
        return [Problem(name, None, "file", lost.offset, str(lost))]
    why = damage_of(contents, shard)
    if why is None:
        return []
    last = int(contents.index.shard_records[shard + 1])
    progress(int(contents.index.positions[last] - contents.index.positions[last - 1]))
    return [Problem(name, why.record, "records", why.offset, str(why))]


class _InOrder:
    """Keeps the first problems, though they come in another order than that of their pieces."""

    def __init__(self) -> None:
        self.kept: list[Problem] = []
        self.omitted = 0
        self._waiting: dict[int, list[Problem]] = {}
        self._next = 0

    def add(self, number: int, found: list[Problem]) -> None:
        """Take what was found in a piece, by its number."""
        self._waiting[number] = found
        while self._next in self._waiting:
            following = self._waiting.pop(self._next)
            room = max(MAX_PROBLEMS - len(self.kept), 0)
            self.kept += following[:room]
            self.omitted += len(following[room:])
            self._next += 1


async def _check_piece(
    contents: Contents, storage: Storage, name: str, first: int, stop: int
) -> list[Problem]:
    records = await read_piece(storage, contents.index, name, first, stop)
    return await anyio.to_thread.run_sync(_problems, contents, name, first, records)


def _problems(
    contents: Contents, name: str, first: int, records: list[tuple[int, memoryview]]
) -> list[Problem]:
    located = contents.index.locate(np.arange(first, first + len(records), dtype=np.int64))
    problems = []
    for place, (record, raw) in enumerate(records):
        sum_is_wrong = located.sums is not None and crc32c(raw) != int(located.sums[place])
        message = "failed its checksum" if sum_is_wrong else _attempt(contents, raw)
        if message is not None:
            start = int(located.start[place])
            problems.append(Problem(name, record, "records", start, f"{name}: record {record}: {message}"))
    return problems


def _attempt(contents: Contents, raw: memoryview) -> str | None:
    """Cut a record; return what is wrong with it."""
    try:
        contents.format.split(raw)
    except AioloadError as error:
        return str(error.facts.get("what", error))  # whoever checks a set is not about to load it
    return None
