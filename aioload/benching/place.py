"""Place: where the files of a set lie, as far as that decides how they are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .._pipeline.mapped import choose
from ..blocking import run_blocking
from ..storage import LocalStorage, Storage, Unpacked, close

if TYPE_CHECKING:
    from ..collection import Source

__all__ = ["is_local", "is_mapped", "opened", "path_of"]


@contextmanager
def opened(source: Source) -> Iterator[Storage]:
    """Open the storage of a set for a look at it, outside of any event loop; nothing is to be read."""
    storage = source.open_storage()
    try:
        yield storage
    finally:
        run_blocking(close(storage))


def is_local(source: Source) -> bool:
    """Tell whether the files of a set lie where this machine finds them by a path."""
    with opened(source) as storage:
        return type(storage) is LocalStorage or (type(storage) is Unpacked and not source.traffic())


def is_mapped(source: Source, *, num_workers: int) -> bool:
    """Tell whether workers would map the shards of a set, rather than have them read."""
    index = source.index
    with opened(source) as storage:
        found = choose(
            "auto",
            [storage],
            index.shards,
            (0,) * len(index.shards),
            data_bytes=int(index.positions[-1]),
            num_workers=num_workers,
            checked=index.sums is not None,
        )
    return found is not None


def path_of(source: Source) -> str:
    """Return the path of a set's first shard, or its address."""
    with opened(source) as storage:
        if isinstance(storage, LocalStorage) and source.index.shards:
            return storage.path(source.index.shards[0])
        return source.source
