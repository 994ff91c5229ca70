"""Files: pictures that are not packed, as a subject of a plan; what reading them one by one costs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..benching.pattern import Access, Pattern, pattern_of
from ..benching.setup import Setup
from ..benching.shape import plan_of_table
from ..dataset import Dataset
from ..errors import ConfigError
from ..foreign import MDS_INDEX
from ..packing import Item, Source, find_source, pack
from ..packing.folders import list_folder
from ..packing.sources import is_shard
from ..shard.format import MANIFEST_NAME
from ..shard.index import Index
from ..table import IndexTable
from .media import PRESETS, Medium

__all__ = ["Files", "find_files", "packed_pattern", "packed_sample", "packing_seconds", "pattern_of_files"]

_MOST_STATS = 50_000  # files whose sizes are looked up; more are told by these
_MOST_SAMPLED, _MOST_BYTES = 512, 48 << 20
_SHARD_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Files:
    """Pictures in a folder."""

    root: str
    """The folder."""
    source: Source
    """As packing finds them; its items can be gone through once."""
    items: tuple[Item, ...]
    """Each file."""
    sizes: NDArray[np.int64]
    """Bytes of each, or of some that stand for all."""

    @property
    def fields(self) -> dict[str, str]:
        """Names and kinds of the fields that they would be packed with."""
        return self.source.fields

    @property
    def data_bytes(self) -> int:
        """Bytes of all."""
        return round(float(self.sizes.mean()) * len(self.items)) if len(self.sizes) else 0


@dataclass(frozen=True, slots=True)
class PackedSample:
    """Some of the files, packed."""

    dataset: Dataset
    """The set."""
    seconds_per_record: float
    """What packing took, with these files in memory."""


def find_files(path: str) -> Files | None:
    """Return the pictures of a folder that is no set and holds no shards; None where there are none."""
    root = Path(path)
    if "://" in path or not root.is_dir() or (root / MANIFEST_NAME).exists() or (root / MDS_INDEX).exists():
        return None
    listing = list_folder(root)
    if not listing.images or any(is_shard(name) for name in listing.others if os.sep not in name):
        return None
    source = find_source([path], kind="flat" if listing.loose else "folder")
    items = tuple(item for item in source.items if isinstance(item, Item))
    some = items[:: max(len(items) // _MOST_STATS, 1)]
    sizes = np.array([os.stat(_path_of(item)).st_size for item in some], np.int64)  # noqa: PTH116 - many
    return Files(path, source, items, sizes)


@contextmanager
def packed_sample(files: Files) -> Iterator[PackedSample]:
    """Pack some of the files into a folder that goes at the end of the block.

    Raises:
        SampleError: none of them is a picture.
    """
    mean = max(float(files.sizes.mean()), 1.0)
    count = max(min(int(_MOST_BYTES / mean), _MOST_SAMPLED, len(files.items)), 1)
    places = np.unique(np.linspace(0, len(files.items) - 1, count).astype(np.int64)).tolist()
    items = [files.items[place] for place in places]
    for item in items:
        Path(_path_of(item)).read_bytes()  # into the page cache, so that packing is timed without the disk
    with tempfile.TemporaryDirectory(prefix="aioload-plan-") as folder:
        began = time.perf_counter()
        part = replace(files.source, items=items, cost=len(items))
        report = pack(part, Path(folder, "set"), skip_bad=True)
        took = (time.perf_counter() - began) / max(report.records, 1)
        yield PackedSample(Dataset(Path(folder, "set")), took)


def pattern_of_files(files: Files, medium: Medium) -> Pattern:
    """Return what an epoch over the files themselves asks of their storage: each opened, each read whole."""
    count, size = len(files.items), files.data_bytes
    has_head = medium.seek_seconds >= PRESETS["hdd"].seek_seconds / 2
    seeks = 2 * count if has_head else count  # the inode, then the bytes; else the first hardly counts
    return Pattern(
        records=count, record_bytes=size, reads=count, seeks=seeks, requests=count, read_bytes=size
    )


def packed_pattern(files: Files, setup: Setup, *, with_pieces: bool = True) -> Pattern:
    """Return what an epoch would ask for if the files were packed."""
    index = _index_of(files)
    return pattern_of(plan_of_table(IndexTable(index), setup), Access(with_pieces))


def packing_seconds(files: Files, seconds_per_record: float, medium: Medium) -> float:
    """Return what packing costs: each file is read in the order of the folders, and all is written once.

    Args:
        files: to be packed.
        seconds_per_record: of the work, without the disk.
        medium: where they lie, and where the set will.
    """
    pattern = pattern_of_files(files, medium)
    overlap = max(min(medium.at_once, 4), 1)
    reading = max(
        (pattern.seeks * medium.seek_seconds + pattern.read_bytes / medium.stream_bytes) / overlap,
        pattern.read_bytes / medium.total_bytes,
    )
    writing = files.data_bytes / medium.stream_bytes
    return reading + writing + len(files.items) * seconds_per_record


def _index_of(files: Files) -> Index:
    """Return the index that a packed set would have, more or less."""
    repeats = -(-len(files.items) // max(len(files.sizes), 1))
    sizes = np.tile(files.sizes, repeats)[: len(files.items)]
    positions = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    borders = np.arange(_SHARD_BYTES, int(positions[-1]), _SHARD_BYTES)
    firsts = np.unique(np.concatenate([[0], np.searchsorted(positions, borders), [len(sizes)]]))
    starts = positions[firsts].astype(np.uint64)
    return Index(
        shards=tuple(f"shard-{number:05}" for number in range(len(firsts) - 1)),
        shard_records=firsts.astype(np.int64),
        shard_starts=starts,
        shard_data=np.zeros(len(firsts) - 1, np.uint64),
        shard_bytes=starts[1:] - starts[:-1],
        positions=positions.astype(np.uint64),
    )


def _path_of(item: Item) -> str:
    """Return the file that an item is read from."""
    for value in item.raw.values():
        if isinstance(value, str):
            return value
    raise ConfigError(f"{item.name} is no file")
