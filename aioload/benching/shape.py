"""Shape: the plan of a set's epoch and the way its reads go, for a setup, without starting anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._pipeline.house import MAX_READ_BYTES
from .._pipeline.plan import Plan
from ..course import Batching, Course
from ..options import byte_limit
from ..order import Shuffle
from ..part import Part
from ..storage.flow import PART_BYTES
from ..storage.wrapping import Wrapping
from .pattern import Access
from .place import is_local, opened

if TYPE_CHECKING:
    from ..collection import Collection
    from ..table import RecordTable
    from .setup import Setup

__all__ = ["access_of", "plan_of", "plan_of_table"]


def plan_of(dataset: Collection, setup: Setup, *, world_size: int = 1) -> Plan:
    """Return the plan of a set's first epoch.

    Args:
        dataset: whose records.
        setup: how they are loaded.
        world_size: ranks that share the epoch; the plan is the first one's.
    """
    return _course(dataset, setup, world_size).begin()


def plan_of_table(table: RecordTable, setup: Setup) -> Plan:
    """Return the plan of an epoch over records of which nothing is there but their sizes."""
    mode: Any = setup.shuffle
    shuffle = Shuffle.choose(
        mode, seed=0, lanes=None, block_bytes=None, records=len(table), data_bytes=table.data_bytes
    )
    part = Part(len(table), setup.batch_size, interleaved=shuffle.mode == "block")
    return Plan(table, table.order(shuffle, 0), part, 0, ())


def access_of(dataset: Collection, setup: Setup, *, world_size: int = 1) -> Access:
    """Return how a loader reads a set of this make, with the memory that it takes by itself."""
    room = _course(dataset, setup, world_size).window_bytes(byte_limit("auto"))
    first = dataset.sources[0]
    with opened(first) as storage:
        in_parts = isinstance(storage, Wrapping) and not is_local(first)
        most = getattr(storage, "max_read_bytes", MAX_READ_BYTES)
    return Access(room > 0, most, PART_BYTES if in_parts else None)


def _course(dataset: Collection, setup: Setup, world_size: int) -> Course:
    batching = Batching(setup.batch_size, 0, world_size, drop_last=False, pad=True)
    return Course(dataset, batching, (setup.shuffle, None, None), seed=0)
