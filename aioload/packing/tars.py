"""WebDataset archives as a source: files of the same key, side by side in a tar, make a record.

Each archive is scanned before its first record is read, so files of a key that do not lie side by side are
found before anything of it is packed. Unlike a loader, a packer takes only archives that say where they end:
of one that was cut between two files, nobody would miss the rest later.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import ShardError
from ..shard.kinds import kind_of
from ..shard.scan import Scanned, run
from ..shard.tar import scan
from ..shard.tarsample import shown, split
from .items import Item, Source

__all__ = ["expand", "webdataset"]

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def webdataset(paths: list[Path]) -> Source:
    """Return the samples of some archives, in their order.

    Raises:
        ShardError: the first sample cannot be read. The items raise it too: for an archive that is cut or
            damaged, files of a key that do not lie side by side, samples with other fields than the first.
    """
    samples = itertools.chain.from_iterable(_read(path) for path in paths)
    first = next(samples, None)
    if first is None:
        raise ShardError(
            f"{paths[0]} holds no sample: no file in it has a name like key.jpg", shard=str(paths[0])
        )

    fields = {name: kind_of(name) for name in first.raw}
    items = (_checked(item, fields) for item in itertools.chain([first], samples))
    return Source("webdataset", fields, items, sum(path.stat().st_size for path in paths))


def expand(pattern: str) -> list[str]:
    """Return the names that a pattern like `train-{000..009}.tar` stands for; others stand for themselves."""
    match = _RANGE.search(pattern)
    if match is None:
        return [pattern]

    first, last = match.groups()
    width = len(first) if first.startswith("0") or len(first) == len(last) else 0
    names = [f"{pattern[: match.start()]}{number:0{width}}" for number in range(int(first), int(last) + 1)]
    return [name + rest for name in names for rest in expand(pattern[match.end() :])]


def _read(path: Path) -> Iterator[Item]:
    """Yield the samples of an archive; a key is its own only within it."""
    with path.open("rb") as file:
        found = run(scan(path.stat().st_size, str(path)), lambda start, stop: _bytes(file, path, start, stop))
        begins = dict(found.far.tolist())
        start = found.data_start
        for number, stop in enumerate(found.ends[: found.wholes].tolist()):
            yield _item(path, start, stop - start, _bytes(file, path, begins.get(number, start), stop))
            start = stop
    _check_end(path, found, start)


def _bytes(file: IO[bytes], path: Path, start: int, stop: int) -> bytes:
    file.seek(start)
    data = file.read(stop - start)
    if len(data) != stop - start:
        raise ShardError(f"{path} has become shorter while it was read", shard=str(path), offset=start)
    return data


def _item(path: Path, start: int, cost: int, record: bytes) -> Item:
    try:
        sample = split(memoryview(record))
    except ShardError as error:
        raise ShardError(
            f"{path} (byte {start}): {error}", shard=str(path), offset=start, key=error.key
        ) from error
    key = shown(sample.key)
    return Item(f"{path}: {key}", key, {}, {name: bytes(view) for name, view in sample.views.items()}, cost)


def _check_end(path: Path, found: Scanned, stop: int) -> None:
    """Make sure that an archive ends as archives do."""
    if found.damage is not None:
        raise ShardError(f"{path} cannot be read on from {found.damage}", shard=str(path), offset=stop)
    if not found.facts["end_mark"]:
        raise ShardError(
            f"{path} ends at byte {stop} without an archive's end mark: it is cut short or damaged",
            shard=str(path),
            offset=stop,
        )


def _checked(item: Item, fields: dict[str, str]) -> Item:
    """Return an item that has all fields and no other."""
    if item.raw.keys() != fields.keys():
        raise ShardError(
            f"{item.name} has the fields {', '.join(item.raw)}, the first sample has {', '.join(fields)}; "
            "all must have the same",
            key=item.key,
            fields=sorted(item.raw),
        )
    return item
