"""Kinds: for each foreign format, which scanner looks through its shards, and what cuts its records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..errors import ConfigError, ShardError
from ..shard import tar, tfrecord
from ..shard.kinds import KEY_NAME, Fields, check_fields
from ..shard.mds import scan as scan_mds
from ..shard.mdsindex import MdsFile, MdsIndex
from ..storage import Packed, read
from .build import ASKED_AT_ONCE, look_at_all
from .contents import Contents
from .detect import HEAD_BYTES, refuse_compressed_tar, tell

if TYPE_CHECKING:
    from ..shard.format import RecordFormat
    from ..shard.scan import Scanner
    from ..shard.sidecar import Sidecar
    from ..storage import Storage

__all__ = ["Shards", "contents_of", "mds_shards", "tell_shards"]

_log = logging.getLogger("aioload.index")

Wanted = Mapping[str, str] | None
"""Fields that the user asks for, with their kinds; None: those that are there."""


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """Shards that are to be looked through."""

    kind: str
    """Their format."""
    names: tuple[str, ...]
    """Theirs, as they are called once they are unpacked."""
    begin: Callable[[int, int], Scanner]
    """Returns the scanner of a shard, by its number and size."""
    packed: Mapping[str, Packed] = field(default_factory=dict)
    """What is known of those that are compressed as a whole."""
    hashes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Sums of whole shards that are not compressed, by name and algorithm."""


async def tell_shards(
    storage: Storage, names: tuple[str, ...], sizes: list[int], path_of: Callable[[str], str] = str
) -> Shards:
    """Tell by their first bytes what shards are.

    Args:
        storage: where they lie.
        names: theirs.
        sizes: theirs, in bytes.
        path_of: tells where one lies, for messages.

    Raises:
        ShardError: one is nothing that is read here, or they are not all of a kind.
        ConfigError: they can only be read from front to back.
    """
    told: list[tuple[str, str | None]] = [("", None)] * len(names)

    async def look(number: int) -> None:
        head = await read(storage, names[number], 0, min(HEAD_BYTES, sizes[number]))
        told[number] = tell(head, names[number])

    await look_at_all(len(names), look, ASKED_AT_ONCE)
    kinds = {kind: name for (kind, _), name, size in zip(told, names, sizes, strict=True) if size}
    if len(kinds) > 1:
        one, other = list(kinds.items())[:2]
        raise ShardError(
            f"the shards are of several formats: {one[1]} is {one[0]}, {other[1]} is {other[0]}; make a set "
            "of each",
            shard=other[1],
        )
    kind = next(iter(kinds), told[0][0])  # empty files are of any
    packed = {name: Packed(codec) for name, (_, codec) in zip(names, told, strict=True) if codec is not None}
    if kind == "tar" and packed:
        name, how = next(iter(packed.items()))
        raise refuse_compressed_tar(name, how.codec, path_of(name))
    scan = tar.scan if kind == "tar" else tfrecord.scan
    return Shards(kind, names, lambda number, size: scan(size, names[number]), packed)


def mds_shards(index: MdsIndex) -> Shards:
    """Return the shards of an MDS folder."""
    names = tuple(shard.raw.name for shard in index.shards)
    packed = {
        shard.raw.name: _packed(shard.compression, shard.packed, shard.raw)
        for shard in index.shards
        if shard.packed is not None and shard.compression is not None
    }
    hashes = {
        shard.raw.name: dict(shard.raw.hashes)
        for shard in index.shards
        if shard.raw.hashes and shard.raw.name not in packed
    }
    samples = [shard.samples for shard in index.shards]
    return Shards(
        "mds", names, lambda number, size: scan_mds(size, names[number], samples[number]), packed, hashes
    )


def _packed(codec: str, stored: MdsFile, raw: MdsFile) -> Packed:
    return Packed(codec, stored.name, stored.size, raw.size, dict(stored.hashes), dict(raw.hashes))


def contents_of(
    sidecar: Sidecar, packed: Mapping[str, Packed], wanted: Wanted, mds: MdsIndex | None
) -> Contents:
    """Return what is in a set whose index is known.

    Args:
        sidecar: the index, and what the scanners found besides.
        packed: what is known of shards that are compressed as a whole.
        wanted: fields.
        mds: of an MDS folder.

    Raises:
        ConfigError: a field is wanted that there is not, or a kind that the format cannot give.
    """
    cut = _record_format(_without_key(sidecar), wanted, mds)
    fields, encodings = dict(cut.fields), dict(cut.encodings)
    fields.pop(KEY_NAME, None)  # of an MDS folder
    if mds is not None and wanted is not None:
        fields, encodings = _chosen(cut, wanted)
    index = replace(sidecar.index, fields=tuple(fields.items()))
    return Contents(sidecar.format, cut, fields, encodings, index, packed=packed, damage=sidecar.damage)


def _without_key(sidecar: Sidecar) -> Sidecar:
    """Leave out a field whose name samples have for the record's key."""
    if KEY_NAME not in dict(sidecar.index.fields):
        return sidecar
    _log.warning("the field %s is left out: samples have the record's key under that name", KEY_NAME)
    facts = dict(sidecar.facts)
    if "encodings" in facts:
        facts["encodings"] = {name: how for name, how in facts["encodings"].items() if name != KEY_NAME}
    fields = tuple(pair for pair in sidecar.index.fields if pair[0] != KEY_NAME)
    return replace(sidecar, index=replace(sidecar.index, fields=fields), facts=facts)


def _record_format(sidecar: Sidecar, wanted: Wanted, mds: MdsIndex | None) -> RecordFormat:
    if mds is not None:
        return mds.record_format()
    if sidecar.format == "tar":
        check_fields(wanted or {"any": "bytes"})
        return tar.TarFormat(sidecar.index.fields if wanted is None else tuple(wanted.items()))
    whole = tfrecord.TFRecordFormat(sidecar.index.fields, **sidecar.facts)
    if wanted is None:
        return whole
    known = whole.with_kinds(wanted)
    kinds = dict(known.fields)
    return replace(
        known,
        fields=tuple((name, kinds[name]) for name in wanted),
        encodings={name: known.encodings[name] for name in wanted if name in known.encodings},
    )


def _chosen(cut: RecordFormat, wanted: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the wanted columns, and how they are encoded where their kind is that of the column."""
    there: Fields = cut.fields
    kinds = dict(there)
    missing = sorted(set(wanted) - set(kinds))
    if missing:
        raise ConfigError(f"there are no columns {missing}; there are {', '.join(kinds)}")
    same = [name for name, kind in wanted.items() if kinds[name] == kind]
    changed = {name: kinds[name] for name in wanted if name not in same}
    odd = sorted(name for name, kind in changed.items() if kind != "bytes" or name in cut.encodings)
    if odd:
        raise ConfigError(
            f"the columns {odd} are encoded as {[kinds[name] for name in odd]}, and cannot be read as other "
            "kinds; give a decoder of your own in decode="
        )
    return dict(wanted), {name: cut.encodings[name] for name in same if name in cut.encodings}
