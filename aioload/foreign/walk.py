"""Walk: records of a set in their order, some read ahead; what is wrong stands in its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..ahead import Ahead, Read
from ..errors import AioloadError, NotFoundError, ShardError
from ..shard.format import check_sum
from .build import pieces, read_piece
from .contents import damage_of

if TYPE_CHECKING:
    from ..shard.index import Index
    from ..storage import Storage
    from .contents import Contents

__all__ = ["Outcome", "walk"]

Outcome = tuple[int, "memoryview | AioloadError"]
"""Number of a record, and its bytes, compared with their sum where the index has one, or what is wrong."""


def walk(
    contents: Contents, storage: Storage, ranges: Iterable[tuple[int, int]] | None = None
) -> Ahead[list[Outcome]]:
    """Return what reads records of a set, piece by piece.

    Args:
        contents: of the set.
        storage: where its shards lie, as they are unpacked.
        ranges: of records, which come in this order; all where none are given.
    """
    return Ahead(_reads(contents, storage, [(0, len(contents.index))] if ranges is None else ranges))


def _reads(
    contents: Contents, storage: Storage, ranges: Iterable[tuple[int, int]]
) -> Iterator[Read[list[Outcome]]]:
    index = contents.index
    for shard, first, stop in _by_shard(index, ranges):
        name = index.shards[shard]
        # what is behind the damage counts as one record, the shard's last
        damage = damage_of(contents, shard) if stop == int(index.shard_records[shard + 1]) else None
        for begin, end in pieces(index, first, stop - (damage is not None)):
            cost = int(index.positions[end] - index.positions[begin])
            yield cost, partial(_outcomes, storage, index, name, begin, end)
        if damage is not None:
            yield 0, partial(_known, [(stop - 1, damage)])


def _by_shard(index: Index, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield what each range has in each shard: the shard, the first record, and the one after the last."""
    for first, stop in ranges:
        while first < stop:
            # the last shard that begins at or before the record: passes over empty shards
            shard = int(np.searchsorted(index.shard_records, first, side="right")) - 1
            end = min(stop, int(index.shard_records[shard + 1]))
            yield shard, first, end
            first = end


async def _known(outcomes: list[Outcome]) -> list[Outcome]:
    return outcomes


async def _outcomes(storage: Storage, index: Index, name: str, first: int, stop: int) -> list[Outcome]:
    """Return the records of a piece; one that cannot be read does not take its neighbours along."""
    try:
        found = await read_piece(storage, index, name, first, stop)
    except NotFoundError as error:
        return [(record, error) for record in range(first, stop)]
    except ShardError as error:
        if stop - first == 1:
            return [(first, error)]
        return [
            outcome
            for record in range(first, stop)
            for outcome in await _outcomes(storage, index, name, record, record + 1)
        ]
    located = index.locate(np.arange(first, stop, dtype=np.int64))
    if located.sums is None:
        return list(found)
    checks = zip(found, located.sums.tolist(), located.start.tolist(), strict=True)
    return [_compared(name, record, raw, expected, start) for (record, raw), expected, start in checks]


def _compared(name: str, record: int, raw: memoryview, expected: int, start: int) -> Outcome:
    try:
        check_sum(raw, expected, shard=name, record_id=record, start=start)
    except ShardError as error:
        return record, error
    return record, raw
