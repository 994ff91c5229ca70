"""Opening: from files that others have written to an index and a record format.

The index is looked for beside the data and in the user's cache folder, and made where it is not there or is
of other versions of the files. Meanwhile other processes of the machine wait, and then find it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError, NotFoundError, ShardError
from ..shard.sidecar import Sidecar
from ..storage import listing, read
from .build import Progress, join, look_at_all, scan_shards, sum_records
from .contents import Contents
from .detect import HEAD_BYTES, refuse_compressed_tar, tell
from .formats import begin_scan, record_format
from .keep import Kept

if TYPE_CHECKING:
    from ..storage import Storage

__all__ = ["Bar", "Foreign", "Version", "list_shards", "no_bar", "open_foreign"]

_log = logging.getLogger("aioload.index")

_ASKED_AT_ONCE = 64
_SUFFIXES = (".tar", ".tfrecord", ".tfrecords", ".tfrec")
_PACKED_SUFFIXES = (".gz", ".zst", ".zlib", ".z", ".bz2", ".xz", ".lz4")

Version = tuple[int, str | None]
"""Size of a file, and what tells its content from another of that size."""

Bar = Callable[[str, int], AbstractContextManager[Progress]]
"""Shows how far a work of so many bytes is."""


def no_bar(what: str, total: int) -> AbstractContextManager[Progress]:
    """Show nothing."""
    return nullcontext(int)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A set of foreign shards, as it is to be opened."""

    names: tuple[str, ...]
    """Shards, relative to the storage."""
    label: str
    """What messages call the set; nothing secret is in it."""
    folder: Path | None = None
    """The storage's folder, where it is on this machine."""
    fields: Mapping[str, str] | None = None
    """Fields that the user asks for."""
    bar: Bar = no_bar
    """Shows progress."""


async def open_foreign(
    foreign: Foreign,
    storage: Storage,
    unpacked: Callable[[Mapping[str, str]], Storage],
    *,
    checksums: bool = False,
) -> Contents:
    """Return what is in a set, from the index that is kept or from one that is made now.

    Args:
        foreign: the set.
        storage: where its shards lie.
        unpacked: returns a storage that unpacks shards that are compressed as a whole, by name and codec.
        checksums: have a sum of each record in the index, for formats that have none.

    Raises:
        ShardError: a shard is nothing that is read here, or meaningless.
        NotFoundError: a shard is not there.
        ConfigError: a shard can only be read from front to back.
    """
    versions = await look_up(storage, foreign.names)
    key = _key(foreign.names, versions)
    kept = Kept(f"{foreign.label} {json.dumps(foreign.names)}", foreign.folder)
    sidecar = kept.load(key)
    if sidecar is None or (checksums and sidecar.index.sums is None):
        with kept.alone():
            sidecar = kept.load(key)
            if sidecar is None or (checksums and sidecar.index.sums is None):
                sidecar = await _build(foreign, storage, unpacked, versions, sidecar, checksums=checksums)
                kept.save(replace(sidecar, key=key))
    facts = dict(sidecar.facts)
    codecs = facts.pop("codecs", {})
    cut = record_format(sidecar.format, sidecar.index.fields, facts, foreign.fields)
    _warn_of_damage(sidecar)
    index = replace(sidecar.index, fields=tuple(cut.fields))
    return Contents(sidecar.format, cut, index, codecs=codecs, damage=sidecar.damage)


async def look_up(storage: Storage, names: Sequence[str]) -> list[Version]:
    """Return size and version of each file."""
    found: list[Version] = [(0, None)] * len(names)
    version = getattr(storage, "version", None)

    async def look(number: int) -> None:
        size = await storage.size(names[number])
        found[number] = size, None if version is None else await version(names[number])

    await look_at_all(len(names), look, _ASKED_AT_ONCE)
    return found


async def list_shards(storage: Storage, label: str) -> tuple[str, ...]:
    """Return the names of the shards in a folder, sorted.

    Raises:
        ConfigError: the storage cannot list, or lists no shard.
    """
    try:
        names = sorted(await listing(storage))
    except ConfigError as error:
        raise ConfigError(
            f"{label} holds neither a manifest.json nor an index.json, and what else lies there cannot be "
            "listed; name the shards, as in 'https://host/train-{000..099}.tar'"
        ) from error
    shards = [name for name in names if _is_shard(name)]
    if not shards:
        some = ", ".join(names[:5]) or "nothing"
        raise ConfigError(
            f"{label} holds no manifest.json, no index.json and no .tar or .tfrecord files, but {some}; "
            "pack it with `aioload pack`, or name the shards"
        )
    return tuple(shards)


def _is_shard(name: str) -> bool:
    bare = name.lower()
    for suffix in _PACKED_SUFFIXES:
        bare = bare.removesuffix(suffix)
    return bare.endswith((*_SUFFIXES, ".tgz")) or ".tfrecord-" in bare


def _key(names: Sequence[str], versions: Sequence[Version]) -> str:
    text = json.dumps([*zip(names, versions, strict=True)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


async def _build(
    foreign: Foreign,
    storage: Storage,
    unpacked: Callable[[Mapping[str, str]], Storage],
    versions: Sequence[Version],
    known: Sidecar | None,
    *,
    checksums: bool,
) -> Sidecar:
    """Look through all shards, and sum their records where that is asked for."""
    names = foreign.names
    if known is None:
        kind, codecs = await _tell_all(storage, names, [size for size, _ in versions])
    else:
        kind, codecs = known.format, known.facts.get("codecs", {})
    source = unpacked(codecs) if codecs else storage
    sizes = [size for size, _ in (await look_up(source, names) if codecs else versions)]
    if known is None:
        with foreign.bar(f"indexing {foreign.label}", sum(sizes)) as progress:
            scanned = await scan_shards(
                source, names, sizes, lambda number: begin_scan(kind, sizes[number], names[number]), progress
            )
        facts = next((each.facts for each in scanned if each.wholes), {})
        known = Sidecar(
            join(names, sizes, scanned),
            kind,
            {**facts, "codecs": codecs} if codecs else facts,
            tuple(each.damage for each in scanned),
        )
    if checksums:
        with foreign.bar(f"summing {foreign.label}", int(known.index.positions[-1])) as progress:
            known = replace(known, index=await sum_records(source, known.index, progress))
    return known


async def _tell_all(
    storage: Storage, names: Sequence[str], sizes: Sequence[int]
) -> tuple[str, dict[str, str]]:
    """Return the format of all shards, and how those are compressed that are."""
    told: list[tuple[str, str | None]] = [("", None)] * len(names)

    async def look(number: int) -> None:
        head = await read(storage, names[number], 0, min(HEAD_BYTES, sizes[number]))
        told[number] = tell(head, names[number])

    await look_at_all(len(names), look, _ASKED_AT_ONCE)
    kinds = dict(zip((kind for kind, _ in told), names, strict=True))
    if len(kinds) > 1:
        one, other = list(kinds.items())[:2]
        raise ShardError(
            f"the shards are of several formats: {one[1]} is {one[0]}, {other[1]} is {other[0]}; make a set "
            "of each",
            shard=other[1],
        )
    kind = next(iter(kinds))
    codecs = {name: codec for name, (_, codec) in zip(names, told, strict=True) if codec is not None}
    if kind == "tar" and codecs:
        raise refuse_compressed_tar(*next(iter(codecs.items())))
    return kind, codecs


def _warn_of_damage(sidecar: Sidecar) -> None:
    for name, damage in zip(sidecar.index.shards, sidecar.damage, strict=False):
        if damage is not None:
            _log.warning("%s cannot be read to its end: %s", name, damage)


async def find_index_json(storage: Storage) -> bytes | None:
    """Return the `index.json` of a folder, if there is one."""
    try:
        return await read(storage, "index.json")
    except NotFoundError:
        return None
