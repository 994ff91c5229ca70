"""Sidecar: the index of a foreign set as a file, which knows by what it was made, shard by shard; pure.

    magic, 8 bytes · length of the head, u64 · head, JSON · padding to 8 · arrays, little-endian, each padded
    to 8 · CRC-32C of all before, u32

The head says which files the index is of (`key`), what must be known of their format, and name, dtype and
shape of each array. What it knows of one shard (`part`) is good for any other set with that shard in it, as
long as its mark is the same.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from .format import crc32c
from .index import Index
from .kinds import Fields
from .scan import Scanned

__all__ = ["Learnt", "Loss", "Part", "Sidecar", "join", "parse_sidecar", "render_sidecar"]

_MAGIC = b"\x89AIS\r\n\x1a\n"
_VERSION = 2
_HEAD = struct.Struct("<8sQ")
_DTYPES = {
    "shard_records": "<i8",
    "shard_starts": "<u8",
    "shard_data": "<u8",
    "shard_bytes": "<u8",
    "positions": "<u8",
    "sums": "<u4",
    "far": "<i8",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """Why nothing of a shard can be had."""

    text: str
    """A sentence."""
    is_missing: bool
    """Whether there is no such file; else what is there is damaged."""
    offset: int | None = None
    """Byte of the file, where one is to blame."""


Learnt = tuple[Fields, dict[str, Any], bool]
"""Fields and facts, as the records of a shard tell them, and whether they only guess (see `Scanned`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What is known of one shard."""

    size: int
    """Bytes of the file, as it is read."""
    scanned: Scanned
    """What was found in it; of a shard that is lost, records of a byte each, which nobody can read."""
    sums: npt.NDArray[np.uint32] | None = None
    """[records] CRC-32C of each; None: it was not summed."""
    loss: Loss | None = None
    """Why nothing of it can be had; None: it is there."""


@dataclass(frozen=True, slots=True, eq=False)
class Sidecar:
    """An index, and what goes with it."""

    index: Index
    """Where each record lies; with all sums that are known, and zeros for others."""
    format: str
    """Which format the shards have."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the record format must know, as JSON has it."""
    damage: tuple[str | None, ...] = ()
    """Of each shard, why its last record cannot be read; None: all can."""
    losses: tuple[Loss | None, ...] = ()
    """Of each shard, why nothing of it can be had; None: it is there."""
    summed: tuple[bool, ...] = ()
    """Of each shard, whether its records have sums."""
    wants_sums: bool = False
    """Whether somebody has asked for sums of these shards, or of some of them."""
    learnt: tuple[Learnt, ...] = ()
    """All that shards told of their fields."""
    learnt_of: tuple[int, ...] = ()
    """Of each shard, which of these it told."""
    marks: tuple[str, ...] = ()
    """Of each shard, what tells this content of its file from another."""
    codecs: dict[str, str] = field(default_factory=dict)
    """How shards are compressed as a whole, by name, where only looking tells."""
    key: str = ""
    """Names, sizes and versions of the files it was made of, as a text that is compared."""

    @property
    def is_summed(self) -> bool:
        """Whether all records have sums, but for those that nobody can read."""
        return self.index.sums is not None and all(
            summed or loss is not None for summed, loss in zip(self.summed, self.losses, strict=True)
        )

    def part(self, shard: int) -> Part:
        """Return what is known of one shard, by its number."""
        index = self.index
        first, stop = index.shard_records[shard : shard + 2].tolist()
        fields, facts, is_guess = self.learnt[self.learnt_of[shard]]
        far = np.empty((0, 2), np.int64) if index.far is None else index.far
        far = far[(far[:, 0] >= first) & (far[:, 0] < stop)]
        here = slice(shard, shard + 1)  # arrays, which wrap around in silence, as will the sum
        shift = index.shard_data[here] - index.shard_starts[here]
        scanned = Scanned(
            data_start=int(index.shard_data[shard]),
            ends=index.positions[first + 1 : stop + 1] + shift,
            far=far - [first, 0],
            damage=self.damage[shard],
            fields=fields,
            facts=facts,
            is_guess=is_guess,
        )
        sums = index.sums[first:stop] if index.sums is not None and self.summed[shard] else None
        return Part(int(index.shard_bytes[shard]), scanned, sums, self.losses[shard])


def join(names: Sequence[str], parts: Sequence[Part], format: str) -> Sidecar:
    """Return the index of a set from what is known of its shards.

    Fields and facts are those of the first shard with a record that tells them.

    Args:
        names: of the shards.
        parts: one a shard.
        format: theirs.
    """
    scanned = [part.scanned for part in parts]
    telling = [each for each in scanned if each.wholes and each.fields]
    telling.sort(key=lambda each: each.is_guess)  # what is sure comes first, else all stay in order
    fields, facts = (telling[0].fields, telling[0].facts) if telling else ((), {})
    learnt, learnt_of = _distinct([(each.fields, each.facts, each.is_guess) for each in scanned])
    return Sidecar(
        _end_to_end(names, parts, fields),
        format,
        facts,
        damage=tuple(each.damage for each in scanned),
        losses=tuple(part.loss for part in parts),
        summed=tuple(part.sums is not None for part in parts),
        learnt=learnt,
        learnt_of=learnt_of,
    )


def _end_to_end(names: Sequence[str], parts: Sequence[Part], fields: Fields) -> Index:
    """Lay the records of all shards on one line."""
    scanned = [part.scanned for part in parts]
    counts = [len(each.ends) for each in scanned]
    starts = [np.uint64(each.data_start) for each in scanned]
    line = np.cumsum([0, *(each.data_bytes for each in scanned)], dtype=np.int64).astype(np.uint64)
    first = np.cumsum([0, *counts], dtype=np.int64)
    placed = [each.ends - start + begin for each, start, begin in zip(scanned, starts, line, strict=False)]
    far = [
        np.column_stack([each.far[:, 0] + number, each.far[:, 1]])
        for each, number in zip(scanned, first.tolist(), strict=False)
        if len(each.far)
    ]
    return Index(
        shards=tuple(names),
        shard_records=first,
        shard_starts=line,
        shard_data=np.array(starts, np.uint64),
        shard_bytes=np.array([part.size for part in parts], np.uint64),
        positions=np.concatenate([np.zeros(1, np.uint64), *placed]),
        sums=_filled([part.sums for part in parts], counts),
        fields=fields,
        far=np.concatenate(far).astype(np.int64) if far else None,
        is_foreign=True,
    )


def _distinct(told: Sequence[Learnt]) -> tuple[tuple[Learnt, ...], tuple[int, ...]]:
    """Return what shards told, each once, and of each shard the number of its own."""
    texts = [json.dumps(each) for each in told]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    learnt = dict(zip(texts, told, strict=True))
    return tuple(learnt[text] for text in numbers), tuple(numbers[text] for text in texts)


def _filled(
    sums: Sequence[npt.NDArray[np.uint32] | None], counts: Sequence[int]
) -> npt.NDArray[np.uint32] | None:
    """Return the sums of all records, zeros where there are none; None: there are none at all."""
    if all(each is None for each in sums):
        return None
    known = zip(sums, counts, strict=True)
    return np.concatenate([np.zeros(count, np.uint32) if each is None else each for each, count in known])


def render_sidecar(sidecar: Sidecar) -> bytes:
    """Return the file of an index of foreign shards."""
    index = sidecar.index
    arrays = {name: getattr(index, name) for name in _DTYPES if getattr(index, name) is not None}
    head = json.dumps(
        {
            "version": _VERSION,
            "format": sidecar.format,
            "key": sidecar.key,
            "shards": list(index.shards),
            "fields": list(index.fields),
            "facts": sidecar.facts,
            "damage": sidecar.damage,
            "losses": [loss and [loss.text, loss.is_missing, loss.offset] for loss in sidecar.losses],
            "summed": sidecar.summed,
            "wants_sums": sidecar.wants_sums,
            "learnt": sidecar.learnt,
            "learnt_of": sidecar.learnt_of,
            "marks": sidecar.marks,
            "codecs": sidecar.codecs,
            "arrays": {name: list(array.shape) for name, array in arrays.items()},
        },
        separators=(",", ":"),
    ).encode()
    parts = [_HEAD.pack(_MAGIC, len(head)), head, bytes(-len(head) % 8)]
    for name, array in arrays.items():
        data = np.ascontiguousarray(array, _DTYPES[name]).tobytes()
        parts += [data, bytes(-len(data) % 8)]
    whole = b"".join(parts)
    return whole + struct.pack("<I", crc32c(whole))


def parse_sidecar(buffer: bytes, where: str) -> Sidecar:
    """Return the index that a file holds, as views of the buffer.

    Raises:
        ShardError: it is damaged, or of another version.
    """
    raw = np.frombuffer(buffer, np.uint8)
    if len(raw) < _HEAD.size + 4 or crc32c(raw[:-4]) != struct.unpack("<I", buffer[-4:])[0]:
        raise ShardError(f"{where} is cut short or damaged", shard=where)
    magic, length = _HEAD.unpack(buffer[: _HEAD.size])
    if magic != _MAGIC or _HEAD.size + length > len(raw):
        raise ShardError(f"{where} is no index of foreign shards", shard=where)
    try:
        return _parsed(raw, json.loads(buffer[_HEAD.size : _HEAD.size + length]), _HEAD.size + length)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ShardError(f"{where} is of another version of aioload: {error!r}", shard=where) from error


def _parsed(raw: npt.NDArray[np.uint8], head: dict[str, Any], place: int) -> Sidecar:
    if head["version"] != _VERSION:
        raise ValueError(f"version {head['version']}")
    arrays: dict[str, Any] = {}
    place += -place % 8
    for name, shape in head["arrays"].items():
        dtype = np.dtype(_DTYPES[name])
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays[name] = raw[place : place + size].view(dtype).reshape(shape)
        place += size + -size % 8
    index = Index(shards=tuple(head["shards"]), fields=_fields(head["fields"]), is_foreign=True, **arrays)
    return Sidecar(
        index,
        head["format"],
        head["facts"],
        tuple(head["damage"]),
        losses=tuple(loss and Loss(*loss) for loss in head["losses"]),
        summed=tuple(head["summed"]),
        wants_sums=head["wants_sums"],
        learnt=tuple((_fields(fields), facts, is_guess) for fields, facts, is_guess in head["learnt"]),
        learnt_of=tuple(head["learnt_of"]),
        marks=tuple(head["marks"]),
        codecs=head["codecs"],
        key=head["key"],
    )


def _fields(pairs: Any) -> Fields:
    return tuple((str(name), str(kind)) for name, kind in pairs)
