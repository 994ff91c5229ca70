"""Opening: from files that others have written to an index and a record format.

The index is looked for beside the data and in the user's cache folder, and made where it is not there or is
of other versions of the files. Meanwhile other processes of the machine wait, and then find it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ..errors import ConfigError, ShardError
from ..shard.format import MANIFEST_NAME
from ..shard.mdsindex import MdsIndex, parse_mds_index
from ..shard.scan import Scanned
from ..shard.sidecar import Sidecar
from ..storage import Packed, close, listing
from .build import ASKED_AT_ONCE, Progress, join, look_at_all, scan_shards, sum_records
from .contents import Contents
from .keep import Kept
from .kinds import Shards, contents_of, mds_shards, tell_shards

if TYPE_CHECKING:
    from ..storage import Storage

__all__ = ["MDS_INDEX", "Bar", "Foreign", "Version", "list_shards", "no_bar", "open_foreign"]

_log = logging.getLogger("aioload.index")

MDS_INDEX = "index.json"

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
    root: str | None
    """What tells its folder from all others, without secrets; None: nothing does in another process."""
    folder: Path | None = None
    """The storage's folder, where it is on this machine."""
    fields: Mapping[str, str] | None = None
    """Fields that the user asks for."""
    mds: bytes | None = None
    """The `index.json` of an MDS folder, which names the shards."""
    bar: Bar = no_bar
    """Shows progress."""

    def path_of(self, name: str) -> str:
        """Return the path or address of a shard, for messages: nothing secret is in it."""
        if self.folder is not None:
            return str(self.folder / name)
        return (self.label.rpartition(self.names[0])[0] or f"{self.label}/") + name


async def open_foreign(
    foreign: Foreign,
    storage: Storage,
    unpacked: Callable[[Storage, Mapping[str, Packed]], Storage],
    *,
    checksums: bool = False,
) -> Contents:
    """Return what is in a set, from the index that is kept or from one that is made now.

    Args:
        foreign: the set.
        storage: where its shards lie.
        unpacked: puts a storage around it that unpacks shards which are compressed as a whole.
        checksums: have a sum of each record in the index, for formats that have none.

    Raises:
        ShardError: a shard is nothing that is read here, or meaningless, or fails its sum.
        NotFoundError: a shard is not there.
        ConfigError: a shard can only be read from front to back.
    """
    mds, names = None, foreign.names
    if foreign.mds is not None:
        mds = _as_it_lies(parse_mds_index(foreign.mds, f"{foreign.label}/{MDS_INDEX}"), foreign.folder)
        names = tuple(_stored(mds))
    versions = await look_up(storage, names)
    sizes = [size for size, _ in versions]
    key = _key([hashlib.sha256(foreign.mds or b"").hexdigest(), *zip(names, versions, strict=True)])

    async def make(known: Sidecar | None) -> Sidecar:
        shards = (
            await tell_shards(storage, foreign.names, sizes, foreign.path_of)
            if mds is None
            else mds_shards(mds)
        )
        source = unpacked(storage, shards.packed) if shards.packed else storage
        sums = checksums or bool(shards.hashes)
        try:
            return await _build(foreign, shards, source, sizes, known, checksums=sums)
        finally:
            if source is not storage:
                await close(source)

    if foreign.root is None:
        sidecar = replace(await make(None), key=key)
    else:
        sidecar = await _kept(Kept(foreign.label, foreign.root, names, foreign.folder), key, make, checksums)
    _warn_of_damage(sidecar)
    facts = dict(sidecar.facts)
    codecs = {name: Packed(codec) for name, codec in facts.pop("codecs", {}).items()}
    packed = codecs if mds is None else mds_shards(mds).packed
    told = {name: f"{size} {version}" for name, (size, version) in zip(names, versions, strict=True)}
    return replace(contents_of(replace(sidecar, facts=facts), packed, foreign.fields, mds), versions=told)


async def _kept(
    kept: Kept, key: str, make: Callable[[Sidecar | None], Awaitable[Sidecar]], checksums: bool
) -> Sidecar:
    """Return the index that is kept, or make it while others wait."""

    def is_enough(found: Sidecar | None) -> TypeGuard[Sidecar]:
        return found is not None and not (checksums and found.index.sums is None)

    found = kept.load(key)
    if is_enough(found):
        return found
    with kept.alone():
        found = kept.load(key)
        if is_enough(found):
            return found
        made = replace(await make(found), key=key)
        kept.save(made)
        return made


async def look_up(storage: Storage, names: Sequence[str]) -> list[Version]:
    """Return size and version of each file."""
    found: list[Version] = [(0, None)] * len(names)
    version = getattr(storage, "version", None)

    async def look(number: int) -> None:
        size = await storage.size(names[number])
        found[number] = size, None if version is None else await version(names[number])

    await look_at_all(len(names), look, ASKED_AT_ONCE)
    return found


async def list_shards(storage: Storage, label: str) -> tuple[str, ...]:
    """Return the names of the shards in a folder, sorted.

    Raises:
        ShardError: the storage cannot list, or lists no shard.
    """
    missing = f"{label} holds no {MANIFEST_NAME} of a packed set and no {MDS_INDEX} of an MDS folder"
    try:
        names = sorted(await listing(storage))
    except ConfigError as error:
        raise ShardError(
            f"{missing}, and what else lies there cannot be listed; pack it again, or name the shards, as in "
            "'https://host/train-{000..099}.tar'",
            shard=MANIFEST_NAME,
        ) from error
    if any(name.endswith(".aio") for name in names):
        raise ShardError(
            f"{label} holds shards, but no {MANIFEST_NAME}: its writer did not finish; pack it again",
            shard=MANIFEST_NAME,
        )
    shards = [name for name in names if _is_shard(name)]
    if not shards:
        some = ", ".join(names[:5]) or "nothing"
        raise ShardError(
            f"{missing}, nor .tar or .tfrecord files, but {some}; pack it again, or name the shards",
            shard=MANIFEST_NAME,
        )
    return tuple(shards)


def _is_shard(name: str) -> bool:
    bare = name.lower()
    for suffix in _PACKED_SUFFIXES:
        bare = bare.removesuffix(suffix)
    return bare.endswith((*_SUFFIXES, ".tgz")) or ".tfrecord-" in bare


def _stored(mds: MdsIndex) -> Iterator[str]:
    """Yield the name under which each shard is stored."""
    for shard in mds.shards:
        yield shard.raw.name if shard.packed is None else shard.packed.name


def _as_it_lies(mds: MdsIndex, folder: Path | None) -> MdsIndex:
    """Take a shard as it is where its folder has it unpacked already, as after a run that streamed it."""
    if folder is None:
        return mds
    shards = (
        replace(shard, packed=None)
        if shard.packed is not None
        and not (folder / shard.packed.name).exists()
        and (folder / shard.raw.name).exists()
        else shard
        for shard in mds.shards
    )
    return replace(mds, shards=tuple(shards))


def _key(facts: Any) -> str:
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


async def _build(
    foreign: Foreign,
    shards: Shards,
    storage: Storage,
    sizes: Sequence[int],
    known: Sidecar | None,
    *,
    checksums: bool,
) -> Sidecar:
    """Look through all shards, and sum their records where that is asked for."""
    names = shards.names
    if known is None:
        if shards.packed:  # what was looked up is what is stored
            sizes = [size for size, _ in await look_up(storage, names)]
        with foreign.bar(f"indexing {foreign.label}", sum(sizes)) as progress:
            scanned = await scan_shards(
                storage, names, sizes, lambda number: shards.begin(number, sizes[number]), progress
            )
        _warn_of_holes(names, scanned)
        facts = next((each.facts for each in scanned if each.wholes and each.fields), {})
        if shards.packed and shards.kind != "mds":
            facts = {**facts, "codecs": {name: packed.codec for name, packed in shards.packed.items()}}
        damage = tuple(each.damage for each in scanned)
        known = Sidecar(join(names, sizes, scanned), shards.kind, facts, damage)
    if checksums:
        total = int(known.index.positions[-1])
        with foreign.bar(f"summing {foreign.label}", total) as progress:
            known = replace(known, index=await sum_records(storage, known.index, shards.hashes, progress))
    return known


def _warn_of_holes(names: Sequence[str], scanned: Sequence[Scanned]) -> None:
    for name, each in zip(names, scanned, strict=True):
        if each.holes:
            more = f"; and {len(each.holes) - 1} more such places" if len(each.holes) > 1 else ""
            _log.warning("%s is damaged, but can be read on: %s%s", name, each.holes[0], more)


def _warn_of_damage(sidecar: Sidecar) -> None:
    for name, damage in zip(sidecar.index.shards, sidecar.damage, strict=False):
        if damage is not None:
            _log.warning("%s cannot be read to its end: %s", name, damage)
