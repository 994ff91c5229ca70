"""Evicting: ranges of local files out of the page cache, so that the next reads come from the disk."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import TYPE_CHECKING

import numpy as np

from ..storage import LocalStorage
from .place import opened

if TYPE_CHECKING:
    from ..dataset import Dataset
    from .pattern import Ranges

__all__ = ["evict"]


def evict(dataset: Dataset, ranges: Ranges) -> bool | None:
    """Ask the kernel to forget ranges of local files, so that the next reads come from the disk.

    Returns:
        Whether it did; None where there are no local files, or no way to ask.
    """
    with opened(dataset) as storage:
        if type(storage) is not LocalStorage or not hasattr(os, "posix_fadvise") or not len(ranges):
            return None
        kept = 0
        for shard in np.unique(ranges.shard).tolist():
            mine = ranges.shard == shard
            places = list(zip(ranges.start[mine].tolist(), ranges.stop[mine].tolist(), strict=True))
            kept += _forget(storage.path(dataset.index.shards[shard]), places)
    return kept * 2 < len(ranges)


def _forget(path: str, places: list[tuple[int, int]]) -> int:
    """Have ranges of a file forgotten; return how many are there still."""
    page, kept = mmap.PAGESIZE, 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, stop in places:
            first = start // page * page
            os.posix_fadvise(fd, first, -(-(stop - first) // page) * page, os.POSIX_FADV_DONTNEED)
        for start, stop in places:
            kept += _is_there(fd, (start + stop) // 2)
    finally:
        os.close(fd)
    return kept


def _is_there(fd: int, place: int) -> bool:
    """Tell whether a byte of a file is in the page cache."""
    if not hasattr(os, "RWF_NOWAIT"):
        return False
    with contextlib.suppress(OSError):  # EAGAIN: it is not
        return os.preadv(fd, [bytearray(1)], place, os.RWF_NOWAIT) == 1
    return False
