"""Opening: from files that others have written to an index and a record format.

The index is looked for beside the data and in the user's cache folder, and made where it is not there or is
of other versions of the files. Meanwhile other processes of the machine wait, and then find it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from ..errors import NotFoundError
from ..shard.mdsindex import MdsIndex, MdsShard, parse_mds_index
from ..storage import Packed, close
from .build import ASKED_AT_ONCE, look_at_all
from .contents import Contents
from .keep import Kept
from .kinds import Shards, contents_of, mds_shards, tell_shards
from .looking import missing
from .lost import Losses, error_of
from .making import Bar, Known, Making, make, no_bar, take_over
from .names import MDS_INDEX

if TYPE_CHECKING:
    from ..shard.sidecar import Sidecar
    from ..storage import Storage

__all__ = ["Foreign", "Opening", "open_foreign"]

_log = logging.getLogger("aioload.index")

_NOTHING_KNOWN = Known({}, {}, wants_sums=False)

Unpack = Callable[["Storage", Mapping[str, Packed]], "Storage"]
"""Puts a storage around another, which unpacks shards that are compressed as a whole."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A set of foreign shards."""

    names: tuple[str, ...]
    """Shards, relative to the storage."""
    label: str
    """What messages call the set; nothing secret is in it."""
    root: str | None
    """What tells its folder from all others, without secrets; None: nothing does in another process."""
    folder: Path | None = None
    """The storage's folder, where it is on this machine."""
    mds: bytes | None = None
    """The `index.json` of an MDS folder, which names the shards."""

    def path_of(self, name: str) -> str:
        """Return the path or address of a shard, for messages: nothing secret is in it."""
        if self.folder is not None:
            return str(self.folder / name)
        return (self.label.rpartition(self.names[0])[0] or f"{self.label}/") + name


@dataclass(frozen=True, slots=True)
class Opening:
    """How a set is to be opened."""

    fields: Mapping[str, str] | None = None
    """Fields that the user asks for."""
    checksums: bool = False
    """Have a sum of each record in the index, for formats that have none."""
    bar: Bar = no_bar
    """Shows progress."""
    is_tolerant: bool = False
    """Go on where nothing can be had of some shards; whoever reads their records is told."""
    is_renewal: bool = False
    """Look again at shards that are known to be lost."""


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a set, as they are stored now."""

    mds: MdsIndex | None
    """What describes them in an MDS folder."""
    names: tuple[str, ...]
    """Theirs, as they are stored."""
    sizes: tuple[int, ...]
    """Theirs; of one that is missing, -1."""
    versions: tuple[str | None, ...]
    """What tells the content of each from another of that size."""
    losses: Losses
    """Told of those that cannot be had."""

    @property
    def shards(self) -> tuple[str, ...]:
        """Names of the shards, as they are called once they are unpacked."""
        return self.names if self.mds is None else tuple(shard.raw.name for shard in self.mds.shards)

    @property
    def marks(self) -> tuple[str, ...]:
        """Of each, what tells this content from another, and how it is read; whatever it is called."""
        said = [None] * len(self.names) if self.mds is None else [_said(shard) for shard in self.mds.shards]
        return tuple(_digest(facts) for facts in zip(self.sizes, self.versions, said, strict=True))

    def key(self, document: bytes | None) -> str:
        """Return a text for all of them together, in their order."""
        return _digest([hashlib.sha256(document or b"").hexdigest(), self.names, self.marks])


async def open_foreign(foreign: Foreign, storage: Storage, unpack: Unpack, opening: Opening) -> Contents:
    """Return what is in a set, from the index that is kept or from one that is made now.

    Args:
        foreign: the set.
        storage: where its shards lie.
        unpack: for those that are compressed as a whole.
        opening: what is wanted.

    Raises:
        ShardError: a shard is nothing that is read here, or meaningless, or fails its sum.
        NotFoundError: a shard is not there.
        ConfigError: a shard can only be read from front to back.
    """
    files = await _look_up(foreign, storage, is_tolerant=opening.is_tolerant)
    sidecar = await _kept_or_made(foreign, files, storage, unpack, opening)
    _warn(sidecar, foreign.label)
    packed = {name: Packed(codec) for name, codec in sidecar.codecs.items()}
    if files.mds is not None:
        packed = dict(mds_shards(files.mds).packed)
    told = zip(files.names, files.sizes, files.versions, strict=True)
    versions = {name: f"{size} {version}" for name, size, version in told}
    return replace(contents_of(sidecar, packed, opening.fields, files.mds), versions=versions)


async def _look_up(foreign: Foreign, storage: Storage, *, is_tolerant: bool) -> _Files:
    """Return which files there are, with size and version of each."""
    mds, names = None, foreign.names
    if foreign.mds is not None:
        mds = _as_it_lies(parse_mds_index(foreign.mds, f"{foreign.label}/{MDS_INDEX}"), foreign.folder)
        names = tuple(_stored(mds))
    sizes, versions = [-1] * len(names), [None] * len(names)
    losses = Losses(names, is_tolerant=is_tolerant)
    version = getattr(storage, "version", None)

    async def look(number: int) -> None:
        with losses.noted(number):
            size = await storage.size(names[number])
            versions[number] = None if version is None else await version(names[number])
            sizes[number] = size

    try:
        await look_at_all(len(names), look, ASKED_AT_ONCE)
        losses.check()
    except NotFoundError as error:
        raise await missing(storage, error) from error
    return _Files(mds, names, tuple(sizes), tuple(versions), losses)


async def _kept_or_made(
    foreign: Foreign, files: _Files, storage: Storage, unpack: Unpack, opening: Opening
) -> Sidecar:
    """Return the index that is kept, or make it while others wait."""
    if foreign.root is None:
        return await _make(foreign, files, storage, unpack, opening, _NOTHING_KNOWN)
    kept = Kept(foreign.label, foreign.root, files.names, foreign.folder)
    key = files.key(foreign.mds)
    found = await anyio.to_thread.run_sync(kept.load, key)
    if found is not None and _is_enough(found, opening):
        return found
    async with kept.alone():
        again = await anyio.to_thread.run_sync(kept.load, key)
        if again is not None and _is_enough(again, opening):
            return again
        known = await anyio.to_thread.run_sync(lambda: take_over(files.shards, files.marks, kept.others()))
        made = await _make(foreign, files, storage, unpack, opening, known)
        made = replace(made, key=key, marks=files.marks)
        await anyio.to_thread.run_sync(kept.save, made)
        return made


def _is_enough(found: Sidecar, opening: Opening) -> bool:
    """Tell whether an index has all that is asked for; who cannot do without what was lost looks again."""
    if any(found.losses) and (opening.is_renewal or not opening.is_tolerant):
        return False
    return found.is_summed or not opening.checksums


async def _make(
    foreign: Foreign, files: _Files, storage: Storage, unpack: Unpack, opening: Opening, known: Known
) -> Sidecar:
    shards: Shards
    if files.mds is not None:
        shards = mds_shards(files.mds)
    else:
        shards = await tell_shards(
            storage, files.names, files.sizes, known.told, files.losses, foreign.path_of
        )
    source = unpack(storage, shards.packed) if shards.packed else storage
    root = None if shards.packed else foreign.folder
    making = Making(foreign.label, shards, source, files.sizes, files.losses, opening.bar, root)
    try:
        return await make(making, known, checksums=opening.checksums)
    finally:
        if source is not storage:
            await close(source)


def _warn(sidecar: Sidecar, label: str) -> None:
    """Say what is wrong with shards, and that sums are missing which somebody thinks are there."""
    for name, damage, loss in zip(sidecar.index.shards, sidecar.damage, sidecar.losses, strict=True):
        if damage is not None:
            _log.warning("%s cannot be read to its end: %s", name, damage)
        if loss is not None:
            _log.warning("all records of a shard are lost: %s", error_of(loss, name))
    if sidecar.wants_sums and not sidecar.is_summed:
        without = sidecar.summed.count(False) - sum(loss is not None for loss in sidecar.losses)
        _log.warning(
            "the sums of records in %s are used no more: %d of its %d shards are new or have changed since. "
            "Sum these too with `aioload index --checksums`, or damage goes unnoticed",
            label,
            without,
            len(sidecar.summed),
        )


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


def _said(shard: MdsShard) -> str:
    """Return all that an index of MDS says of a shard."""
    return repr((shard.raw, shard.packed, shard.compression, shard.samples))


def _digest(facts: Sequence[Any]) -> str:
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
