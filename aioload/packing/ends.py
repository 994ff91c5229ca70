"""Ends: whether archives say where they end.

Unlike a loader, a packer takes only those that do: of one that was cut between two files, nobody would miss
the rest later.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from anyio.from_thread import start_blocking_portal

from ..ahead import Ahead, Read
from ..shard.tar import is_ended
from ..storage import close, read

if TYPE_CHECKING:
    from ..dataset import Dataset
    from ..storage import Storage

__all__ = ["unmarked"]

T = TypeVar("T")

_BYTES = 64 << 10  # that looking behind the last record asks for


def unmarked(dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield the name of each archive of a set that ends without a mark, and what is wrong.

    What is known to be damaged is left out: that is told anyway.
    """
    stops = _stops(dataset)
    with start_blocking_portal() as portal:
        storage = dataset.open_storage()
        try:
            reads = _reads(storage, stops)
            with portal.wrap_async_context_manager(Ahead(reads)) as answers:
                for name, stop, _ in stops:
                    if not portal.call(answers.take):
                        yield (
                            name,
                            f"it ends behind byte {stop} without an end mark: it is cut short or damaged",
                        )
        finally:
            portal.call(close, storage)


def _stops(dataset: Dataset) -> list[tuple[str, int, int]]:
    """Return name, end of the last record, and size of each archive that was read to its end."""
    index = dataset.index
    lengths = index.shard_starts[1:] - index.shard_starts[:-1]
    stops = (index.shard_data + lengths).tolist()
    damage = dataset.contents.damage or [None] * len(stops)
    return [
        (name, stop, size)
        for name, stop, size, why in zip(index.shards, stops, index.shard_bytes.tolist(), damage, strict=True)
        if why is None
    ]


def _reads(storage: Storage, stops: list[tuple[str, int, int]]) -> Iterator[Read[bool]]:
    for name, stop, size in stops:
        yield _BYTES, partial(_drive, storage, name, is_ended(stop, size))


async def _drive(storage: Storage, name: str, asking: Generator[tuple[int, int], memoryview, T]) -> T:
    try:
        start, stop = next(asking)
        while True:
            start, stop = asking.send(memoryview(await read(storage, name, start, stop)))
    except StopIteration as end:
        found: T = end.value
        return found
