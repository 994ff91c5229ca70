"""Kinds: for each foreign format, which scanner looks through its shards, and what cuts its records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
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
from .detect import HEAD_BYTES, Told, refuse_compressed_tar, tell
from .names import in_short

if TYPE_CHECKING:
    from ..shard.format import RecordFormat
    from ..shard.scan import Scanner
    from ..shard.sidecar import Sidecar
    from ..storage import Storage
    from .lost import Losses

__all__ = ["Shards", "contents_of", "mds_shards", "scanner_of", "tell_shards"]

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
    packed: Mapping[str, Packed] = field(default_factory=dict)
    """What is known of those that are compressed as a whole."""
    hashes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Sums of whole shards that are not compressed, by name and algorithm."""
    records: tuple[int, ...] = ()
    """How many each is said to have; none where only looking tells."""

    def records_of(self, number: int) -> int:
        """Return how many records stand for a shard of which nothing can be had."""
        return self.records[number] if self.records else 1


def scanner_of(kind: str, name: str, size: int, records: int) -> Scanner:
    """Return what looks through a shard.

    Args:
        kind: its format.
        name: its.
        size: its, in bytes.
        records: how many it is said to have, of an MDS folder.
    """
    if kind == "mds":
        return scan_mds(size, name, records)
    return tar.scan(size, name) if kind == "tar" else tfrecord.scan(size, name)


async def tell_shards(
    storage: Storage,
    names: tuple[str, ...],
    sizes: Sequence[int],
    known: Mapping[int, Told],
    losses: Losses,
    path_of: Callable[[str], str] = str,
) -> Shards:
    """Tell by their first bytes what shards are.

    Args:
        storage: where they lie.
        names: theirs.
        sizes: theirs, in bytes.
        known: what some are, by number.
        losses: told of those that are nothing.
        path_of: tells where one lies, for messages.

    Raises:
        ShardError: one is nothing that is read here, or they are not all of a kind.
        ConfigError: they can only be read from front to back.
    """
    told = dict(known)

    async def look(number: int) -> None:
        if number not in told and number not in losses:
            with losses.noted(number):
                head = await read(storage, names[number], 0, min(HEAD_BYTES, sizes[number]))
                told[number] = tell(head, names[number])

    await look_at_all(len(names), look, ASKED_AT_ONCE)
    losses.check()
    kind = _one_kind({names[number]: told[number][0] for number in sorted(told) if sizes[number]})
    kind = kind or next(iter(told.values()))[0]  # empty files are of any
    packed = {
        names[number]: Packed(codec) for number, (_, codec) in sorted(told.items()) if codec is not None
    }
    if kind == "tar" and packed:
        name, how = next(iter(packed.items()))
        raise refuse_compressed_tar(name, how.codec, path_of(name))
    return Shards(kind, names, packed)


def _one_kind(kinds: Mapping[str, str]) -> str | None:
    """Return what all shards are; None: there is none.

    Raises:
        ShardError: they are of several kinds; says which is which.
    """
    by_kind: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        by_kind.setdefault(kind, []).append(name)
    if len(by_kind) > 1:
        shown = "; ".join(f"{kind}: {in_short(names)}" for kind, names in by_kind.items())
        raise ShardError(
            f"the shards are of several formats. {shown}. Make a set of each, by a list or a pattern such as "
            "'data/*.tar'",
            shard=by_kind[min(by_kind, key=lambda kind: len(by_kind[kind]))][0],
        )
    return next(iter(by_kind), None)


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
    return Shards("mds", names, packed, hashes, tuple(shard.samples for shard in index.shards))


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
    sums = sidecar.index.sums if sidecar.is_summed else None
    index = replace(sidecar.index, fields=tuple(fields.items()), sums=sums)
    lost = {
        name: loss
        for name, loss in zip(sidecar.index.shards, sidecar.losses, strict=True)
        if loss is not None
    }
    return Contents(
        sidecar.format, cut, fields, encodings, index, packed=packed, damage=sidecar.damage, lost=lost
    )


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
