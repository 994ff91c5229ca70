"""Held: some records of a set in a file of this machine, so that reading them costs nearly nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._pipeline.plan import stretches
from ..blocking import run_blocking
from ..compose import RecordSet
from ..shard.index import Index
from ..storage import LocalStorage, Storage, close
from ..table import IndexTable
from .reading import side_by_side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..dataset import Dataset
    from ..shard.format import RecordFormat

__all__ = ["Held", "hold", "some_records"]

_NAME = "held"
_MOST_BYTES, _LEAST, _MOST = 96 << 20, 256, 16_384
_PLACES = 64  # of the set that records are taken from
_AT_ONCE = 16  # of these, read at once: a network answers late


class Held(RecordSet):
    """Records that lie in one file of their own; whatever else there is to know is their set's.

    Args:
        dataset: they are of.
        index: where in the file they lie.
        folder: of the file.
    """

    def __init__(self, dataset: Dataset, index: Index, folder: Path) -> None:
        self._dataset = dataset
        self._folder = folder
        self._table = IndexTable(index)
        self.index = index
        self.source = f"{len(index)} records of {dataset.source}"

    def __len__(self) -> int:
        return len(self.index)

    @property
    def table(self) -> IndexTable:
        """The records, as a loader sees them."""
        return self._table

    @property
    def sources(self) -> tuple[Held, ...]:
        """This one."""
        return (self,)

    @property
    def fields(self) -> dict[str, str]:
        """Names and kinds of the fields."""
        return self._dataset.fields

    @property
    def encodings(self) -> dict[str, str]:
        """By field, what its bytes are where they are not as in a set of aioload's own."""
        return self._dataset.encodings

    @property
    def metadata(self) -> Any:
        """What the writer was told to keep."""
        return self._dataset.metadata

    @property
    def defaults(self) -> Mapping[str, Any]:
        """By field, what samples have where a record lacks it."""
        return self._dataset.defaults

    @property
    def format(self) -> RecordFormat:
        """How a record is cut into fields."""
        return self._dataset.format

    @property
    def content(self) -> None:
        """Nothing that would last: the file is gone at the end."""

    def open_storage(self) -> Storage:
        """Return a storage of the file."""
        return LocalStorage(self._folder)

    def tolerate(self) -> None:
        """Do nothing: all of it is there."""

    def traffic(self) -> dict[str, int]:
        """Return nothing: no network is asked."""
        return {}


@contextmanager
def hold(dataset: Dataset, *, seed: int = 0) -> Iterator[Held]:
    """Copy some records of a set into a folder that goes at the end of the block.

    Args:
        dataset: whose records.
        seed: of the draw.

    Raises:
        ShardError: a record cannot be read.
        StorageError: the storage failed.
    """
    index = dataset.index
    records = some_records(len(index), int(index.positions[-1]), seed=seed)
    with tempfile.TemporaryDirectory(prefix="aioload-held-") as folder:
        sizes = run_blocking(_copy(dataset, records, Path(folder, _NAME)))
        yield Held(dataset, _index_of(index, records, sizes), Path(folder))


def some_records(records: int, data_bytes: int, *, seed: int = 0) -> NDArray[np.int64]:
    """Return which records stand for a set: neighbours from distant places of it, ascending; pure.

    Args:
        records: of the set.
        data_bytes: of all of them.
        seed: of the draw.
    """
    fitting = int(_MOST_BYTES / max(data_bytes / max(records, 1), 1))
    wanted = min(records, max(min(fitting, _MOST), _LEAST))
    if wanted == records:
        return np.arange(records, dtype=np.int64)
    places = min(_PLACES, wanted)
    edges = np.linspace(0, records, places + 1).astype(np.int64)
    each = np.diff(np.linspace(0, wanted, places + 1).astype(np.int64))
    room = np.diff(edges) - each
    starts = edges[:-1] + (np.random.default_rng(seed).random(places) * (room + 1)).astype(np.int64)
    return np.concatenate(
        [np.arange(start, start + count) for start, count in zip(starts, each, strict=True)]
    )


async def _copy(dataset: Dataset, records: NDArray[np.int64], path: Path) -> list[int]:
    """Copy records into a file, one behind the other; return the bytes of each."""
    located = dataset.index.locate(records)
    shard, start, stop = located.shard, located.start.astype(np.int64), located.stop.astype(np.int64)
    storage, parts = dataset.open_storage(), dict[int, memoryview]()
    groups = iter(stretches(shard, start, stop, 0))

    async def read_some() -> None:
        for members in groups:
            first, last = int(start[members].min()), int(stop[members].max())
            buffer = memoryview(bytearray(last - first))
            await storage.read_into(dataset.index.shards[int(shard[members[0]])], first, buffer)
            for member in members.tolist():
                parts[member] = buffer[start[member] - first : stop[member] - first]

    try:
        await side_by_side(_AT_ONCE, read_some)
    finally:
        await close(storage)
    with path.open("wb") as file:  # small, and nothing else runs in this loop
        for member in range(len(records)):
            file.write(parts[member])
    return [len(parts[member]) for member in range(len(records))]


def _index_of(index: Index, records: NDArray[np.int64], sizes: list[int]) -> Index:
    positions = np.cumsum([0, *sizes]).astype(np.uint64)
    total = positions[-1:]
    return Index(
        shards=(_NAME,),
        shard_records=np.array([0, len(records)], np.int64),
        shard_starts=np.concatenate([np.zeros(1, np.uint64), total]),
        shard_data=np.zeros(1, np.uint64),
        shard_bytes=total,
        positions=positions,
        sums=None if index.sums is None else index.sums[records],
        fields=index.fields,
        is_foreign=index.is_foreign,
    )
