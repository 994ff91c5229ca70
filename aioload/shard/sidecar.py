"""Sidecar: the index of a foreign set as a file, which knows by what it was made; pure.

    magic, 8 bytes · length of the head, u64 · head, JSON · padding to 8 · arrays, little-endian, each padded
    to 8 · CRC-32C of all before, u32

The head says which files the index is of (`key`), what must be known of their format, and name, dtype and
shape of each array.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from .format import crc32c
from .index import Index

__all__ = ["Sidecar", "parse_sidecar", "render_sidecar"]

_MAGIC = b"\x89AIS\r\n\x1a\n"
_VERSION = 1
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


@dataclass(frozen=True, slots=True, eq=False)
class Sidecar:
    """An index, and what goes with it."""

    index: Index
    """Where each record lies."""
    format: str
    """Which format the shards have."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the record format must know, as JSON has it."""
    damage: tuple[str | None, ...] = ()
    """Of each shard, why its last record cannot be read; None: all can."""
    key: str = ""
    """Names, sizes and versions of the files it was made of, as a text that is compared."""


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
            "damage": list(sidecar.damage),
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
    fields = tuple((str(name), str(kind)) for name, kind in head["fields"])
    index = Index(shards=tuple(head["shards"]), fields=fields, is_foreign=True, **arrays)
    return Sidecar(index, head["format"], head["facts"], tuple(head["damage"]), head["key"])
