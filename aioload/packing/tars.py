"""WebDataset archives as a source: files of the same key, side by side in a tar, make a record.

The key is everything up to the first dot after the last slash; the rest, in lower case, is the field. Names
without a dot there, or that begin with one, are passed over. `tarfile` ends quietly where a header is cut or
damaged, so the end of each archive is looked at again: a whole one has a block of zeros where the next header
would be.
"""

from __future__ import annotations

import itertools
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ..errors import ShardError
from ..shard.kinds import kind_of
from .items import Item, Source, printable

__all__ = ["webdataset"]


@dataclass(slots=True)
class _Sample:
    """Files of one key, as far as the archive has been read."""

    key: str
    """The key."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Their bytes, by field."""
    cost: int = 0
    """Bytes of the archive that they take."""


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


def _read(path: Path) -> Iterator[Item]:
    """Yield the samples of an archive; a key is its own only within it."""
    seen: set[str] = set()
    sample: _Sample | None = None

    with path.open("rb") as file:
        for archive, member in _members(file, path):
            parts = _split(member.name)
            if parts is None:
                continue

            key, name = parts
            if sample is None or key != sample.key:
                if sample is not None:
                    yield _item(path, sample)
                sample = _Sample(key)
                _check_new(key, seen, member, path)

            if name in sample.files:
                raise _broken(path, member, f"the sample {printable(key)!r} has its field {name!r} twice")
            sample.files[name] = _content(archive, member, path)
            sample.cost += archive.offset - member.offset

    if sample is not None:
        yield _item(path, sample)


def _members(file: IO[bytes], path: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield the regular files of an archive, and make sure that it ends as archives do."""
    start = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while (member := archive.next()) is not None:
                start = archive.offset
                archive.members = []  # type: ignore[attr-defined]  # it would keep all; not in the stubs
                if member.isreg():
                    yield archive, member
            start = archive.offset
    except tarfile.TarError as error:
        raise ShardError(f"{path} cannot be read on from byte {start}: {error}; it is cut short or damaged",
                         shard=str(path), offset=start) from error  # fmt: skip

    file.seek(start)
    block = file.read(tarfile.BLOCKSIZE)
    if block != bytes(tarfile.BLOCKSIZE):
        what = (
            "a damaged header"
            if len(block) == tarfile.BLOCKSIZE
            else "the file ends without an archive's end mark"
        )
        raise ShardError(f"{path} cannot be read on from byte {start}: {what}; it is cut short or damaged",
                         shard=str(path), offset=start)  # fmt: skip


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    try:
        file = archive.extractfile(member)
        data = b"" if file is None else file.read()
    except (tarfile.TarError, EOFError) as error:
        raise _broken(path, member, f"its bytes cannot be read: {error}; the archive is cut short") from error

    if len(data) != member.size:
        raise _broken(path, member, f"it has {len(data)} of {member.size} bytes; the archive is cut short")
    return data


def _split(name: str) -> tuple[str, str] | None:
    """Return key and field of a file, or None for a name that belongs to no sample."""
    folder, slash, base = name.rpartition("/")
    stem, dot, field_name = base.partition(".")
    return (folder + slash + stem, field_name.lower()) if stem and dot and field_name else None


def _check_new(key: str, seen: set[str], member: tarfile.TarInfo, path: Path) -> None:
    if key in seen:
        what = f"its sample {printable(key)!r} has ended before: files of a key must lie side by side"
        raise _broken(path, member, f"{what}; sort the archive by name")
    seen.add(key)


def _item(path: Path, sample: _Sample) -> Item:
    return Item(
        f"{path}: {printable(sample.key)}", printable(sample.key), {}, dict(sample.files), sample.cost
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


def _broken(path: Path, member: tarfile.TarInfo, what: str) -> ShardError:
    return ShardError(f"{printable(member.name)} in {path} (byte {member.offset}): {what}",
                      shard=str(path), offset=member.offset, member=printable(member.name))  # fmt: skip
