"""Check: every record of a foreign set, as far as its format has sums.

Each record is read where the index has it, and cut into its fields, which compares all sums that are in it.
What no sum protects is told, not passed over. What lies behind damage, to the end of a shard, is not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import AioloadError
from ..shard.check import MAX_PROBLEMS, Problem, VerifyReport
from ..shard.format import crc32c
from .build import Progress, pieces, read_piece
from .contents import damage_of

if TYPE_CHECKING:
    from ..storage import Storage
    from .contents import Contents

__all__ = ["UNPROTECTED", "check_records"]

UNPROTECTED = {
    "tar": "no sum protects the members' bytes, only their headers; `aioload index --checksums` sums them",
    "mds": "no sum protects the rows, only their places; `aioload index --checksums` sums them",
}
"""By format: what cannot be told from the files alone."""


async def check_records(contents: Contents, storage: Storage, progress: Progress = int) -> VerifyReport:
    """Cut every record of a set, and compare it with its sum where the index has one.

    Args:
        contents: of the set.
        storage: where its shards lie, as they are unpacked.
        progress: told of bytes.

    Raises:
        StorageError: the storage failed, which says nothing about the data.
    """
    index = contents.index
    problems: list[Problem] = []
    omitted = 0
    for shard, name in enumerate(index.shards):
        first, stop = int(index.shard_records[shard]), int(index.shard_records[shard + 1])
        why = damage_of(contents, shard)
        stop -= why is not None
        for begin, end in pieces(index, first, stop):
            found = await _check_piece(contents, storage, name, begin, end)
            room = max(MAX_PROBLEMS - len(problems), 0)
            problems += found[:room]
            omitted += len(found[room:])
            progress(int(index.positions[end] - index.positions[begin]))
        if why is not None:
            problems.append(Problem(name, why.record, "records", why.offset, str(why)))
            progress(int(index.positions[stop + 1] - index.positions[stop]))
    return VerifyReport(len(index), int(index.positions[-1]), len(index.shards), tuple(problems), omitted)


async def _check_piece(
    contents: Contents, storage: Storage, name: str, first: int, stop: int
) -> list[Problem]:
    located = contents.index.locate(np.arange(first, stop, dtype=np.int64))
    problems = []
    for place, (record, raw) in enumerate(await read_piece(storage, contents.index, name, first, stop)):
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
