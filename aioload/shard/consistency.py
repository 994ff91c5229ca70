"""Consistency: whether the places that the index of a foreign set gives can be; pure.

Its own sum says that it is as it was written, and not by whom: an index may come with the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .index import Index

__all__ = ["misplaced"]


def misplaced(index: Index) -> Iterator[str]:
    """Yield what cannot be of the places of records, which may be of any shape."""
    records, count = len(index.positions) - 1, len(index.shards)
    if len(index.shard_records) != count + 1 or not _ascend(index.shard_records, records):
        yield "numbers of records that do not ascend"
        return
    if len(index.shard_starts) != count + 1 or not _ascend(index.positions, None):
        yield "places of records that do not ascend"
        return
    if not (index.positions[index.shard_records] == index.shard_starts).all():
        yield "shards that do not begin with a record"
    sizes = np.diff(index.shard_starts)
    if (sizes > index.shard_bytes).any() or (index.shard_data > index.shard_bytes - sizes).any():
        yield "records beyond the end of a shard"
    if index.sums is not None and len(index.sums) != records:
        yield "more or fewer sums than records"
    if index.far is not None and not _are_far(index.far, records):
        yield "links of records that are not there"


def _ascend(numbers: npt.NDArray[Any], last: int | None) -> bool:
    """Tell whether numbers begin with 0 and never decrease, and end as they should."""
    if not len(numbers) or numbers[0] != 0 or (last is not None and numbers[-1] != last):
        return False
    return bool((numbers[1:] >= numbers[:-1]).all())


def _are_far(far: npt.NDArray[np.int64], records: int) -> bool:
    if far.ndim != 2 or far.shape[1] != 2:
        return False
    return bool(((far >= 0).all(axis=1) & (far[:, 0] < records)).all())
