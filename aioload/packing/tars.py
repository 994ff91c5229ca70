"""WebDataset archives as a source: files of the same key, side by side in a tar, make a record.

Each archive is scanned before its first record is read, so files of a key that do not lie side by side are
found before anything of it is packed. Unlike a loader, a packer takes only archives that say where they end:
of one that was cut between two files, nobody would miss the rest later.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO

from ..errors import ConfigError, ShardError
from ..foreign.detect import HEAD_BYTES, tell
from ..shard.kinds import check_fields, kind_of
from ..shard.scan import Scanned, run
from ..shard.tar import scan
from ..shard.tarsample import shown, split
from ..storage.codecs import BadData, check_codec, open_stream
from .items import Item, Source

__all__ = ["webdataset"]

_PART_BYTES = 4 << 20


def webdataset(paths: list[Path], wanted: Mapping[str, str] | None = None) -> Source:
    """Return the samples of some archives, in their order.

    Args:
        paths: of the archives.
        wanted: the fields that are packed, with their kinds; None: those of the first sample, which all have.

    Raises:
        ConfigError: a field or kind that is wanted cannot be.
        ShardError: the first sample cannot be read. The items raise it too: for an archive that is cut or
            damaged, files of a key that do not lie side by side, samples with other fields than the first.
    """
    samples = itertools.chain.from_iterable(_read(path) for path in paths)
    first = next(samples, None)
    if first is None:
        raise ShardError(
            f"{paths[0]} holds no sample: no file in it has a name like key.jpg", shard=str(paths[0])
        )

    every = itertools.chain([first], samples)
    if wanted is None:
        fields = {name: kind_of(name) for name in first.raw}
        items = (_checked(item, fields) for item in every)
    else:
        fields = dict(check_fields(wanted))
        items = (_chosen(item, fields) for item in every)
    return Source("webdataset", fields, items, sum(path.stat().st_size for path in paths))


def _read(path: Path) -> Iterator[Item]:
    """Yield the samples of an archive; a key is its own only within it."""
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        found = run(scan(size, str(path)), lambda start, stop: _bytes(file, path, start, stop))
        begins = dict(found.far.tolist())
        start = found.data_start
        for number, stop in enumerate(found.ends[: found.wholes].tolist()):
            yield _item(path, start, stop - start, _bytes(file, path, begins.get(number, start), stop))
            start = stop
    _check_end(path, found, start)


def _opened(path: Path) -> IO[bytes]:
    """Open an archive; one that is compressed as a whole is unpacked to a file without a name first.

    Raises:
        ConfigError: it is compressed in a way that cannot be unpacked here.
        ShardError: it cannot be unpacked.
    """
    with path.open("rb") as file:
        codec = tell(file.read(HEAD_BYTES), str(path))[1]
        if codec is not None:
            return _unpacked(file, path, codec)
    return path.open("rb")


def _unpacked(file: IO[bytes], path: Path, codec: str) -> IO[bytes]:
    stream = open_stream(check_codec(codec)) if codec in ("gzip", "bzip2") else None
    if stream is None:
        raise ConfigError(
            f"{path} is compressed ({codec}); unpack it, and pack the plain .tar", shard=str(path)
        )
    file.seek(0)
    with ExitStack() as unless_whole:
        plain = unless_whole.enter_context(tempfile.TemporaryFile())
        try:
            while data := file.read(_PART_BYTES):
                plain.writelines(stream.feed(data))
            stream.finish()
        except BadData as error:
            raise ShardError(
                f"{path} cannot be unpacked ({codec}): {error}; copy it again", shard=str(path)
            ) from error
        plain.flush()
        unless_whole.pop_all()  # the caller closes it
        return plain


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


def _chosen(item: Item, fields: dict[str, str]) -> Item:
    """Return an item of the wanted fields alone."""
    missing = [name for name in fields if name not in item.raw]
    if missing:
        raise ShardError(
            f"{item.name} has no field {', '.join(map(repr, missing))}: it has {', '.join(item.raw)}; choose "
            "fields that all samples have",
            key=item.key,
            fields=sorted(item.raw),
        )
    return replace(item, raw={name: item.raw[name] for name in fields})


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
