"""The manifest of a set: what it holds, and which index belongs to it (FORMAT.md, section 5).

It stays small however many shards there are: the table of shards stands in the index. It is written last,
so its presence says that the set is complete, and its last line holds the sum of all its bytes, so that no
flipped bit is taken for another class name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError, ShardError
from .format import FORMAT_VERSION, INDEX_NAME, NativeFormat, check_version, crc32c
from .kinds import Fields, check_columns, check_fields

__all__ = ["Manifest", "to_json"]

_FORMAT = "aioload"
_LAST_LINE = re.compile(rb'  "crc32c": "([0-9a-f]{8})"\n}\n\Z')
_NO_SUM = b'  "crc32c": "00000000"\n}\n'
_MEMBERS = {"format", "version", "fields", "records", "shards", "data_bytes", "index", "index_fields"}
_MEMBERS |= {"metadata", "crc32c"}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a set holds."""

    fields: dict[str, str]
    """Names and kinds of the fields, in the order of the record."""
    records: int
    """How many records there are."""
    shards: int
    """How many shards there are."""
    data_bytes: int
    """Bytes of all records, the rest of the shards not counted."""
    index_bytes: int
    """Size of the index file."""
    index_crc32c: int
    """CRC-32C of the index file."""
    index_fields: dict[str, str] = field(default_factory=dict)
    """Names and kinds of the fields whose values stand in the index."""
    metadata: Any = field(default_factory=dict)
    """What the writer was told to keep: anything that JSON can say."""
    index_name: str = INDEX_NAME
    """Name of the index file."""
    version: int = FORMAT_VERSION
    """Version of the format."""

    @property
    def format(self) -> NativeFormat:
        """How a record is cut."""
        return NativeFormat(tuple(self.fields.items()))

    def render(self) -> bytes:
        """Return the file: one line a member, the sum of all bytes in the last.

        Raises:
            ConfigError: the metadata is not what JSON can say.
        """
        index = {"name": self.index_name, "bytes": self.index_bytes, "crc32c": f"{self.index_crc32c:08x}"}
        members = {
            "format": _FORMAT,
            "version": self.version,
            "fields": [list(pair) for pair in self.fields.items()],
            "records": self.records,
            "shards": self.shards,
            "data_bytes": self.data_bytes,
            "index": index,
            "index_fields": list(self.index_fields),
            "metadata": self.metadata,
        }
        body = "{\n" + "".join(f'  "{name}": {to_json(value)},\n' for name, value in members.items())
        unsigned = body.encode() + _NO_SUM
        return body.encode() + _NO_SUM.replace(b"00000000", b"%08x" % crc32c(unsigned))

    @classmethod
    def parse(cls, data: bytes, where: str) -> Manifest:
        """Return the manifest that the file holds, having checked its sum and every member.

        Args:
            data: the whole file.
            where: its name, for the error.

        Raises:
            ShardError: it is damaged, cut short, another file, or of another version.
        """
        members = _load(data, where)
        try:
            return cls._from_members(members)
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise ShardError(
                f"{where} has a member that cannot be: {error}; pack the data again", shard=where
            ) from error

    @classmethod
    def _from_members(cls, members: dict[str, Any]) -> Manifest:
        if set(members) != _MEMBERS or set(members["index"]) != {"name", "bytes", "crc32c"}:
            raise ValueError(f"members are {sorted(members)}")

        fields: Fields = check_fields(members["fields"])
        columns = check_columns(members["index_fields"], fields)
        index = members["index"]
        if index["name"] != INDEX_NAME:  # also keeps a hostile manifest from naming files elsewhere
            raise ValueError(f"index is named {index['name']!r}, not {INDEX_NAME!r}")

        return cls(
            fields=dict(fields),
            records=_count(members, "records"),
            shards=_count(members, "shards"),
            data_bytes=_count(members, "data_bytes"),
            index_bytes=_count(index, "bytes"),
            index_crc32c=int(index["crc32c"], 16),
            index_fields={name: dict(fields)[name] for name in columns},
            metadata=members["metadata"],
        )


def _load(data: bytes, where: str) -> dict[str, Any]:
    """Return the members of a manifest whose sum and version are right."""
    match = _LAST_LINE.search(data)
    if match is None:
        raise ShardError(
            f"{where} is cut, damaged, or no manifest of aioload: its last line has no checksum",
            shard=where,
            offset=len(data),
        )

    if b"%08x" % crc32c(data[: match.start()] + _NO_SUM) != match[1]:
        raise ShardError(
            f"{where} failed its checksum: restore it, or rebuild it from the shards", shard=where
        )

    try:
        members = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ShardError(f"{where} is not JSON: {error}", shard=where) from error

    if not isinstance(members, dict) or members.get("format") != _FORMAT:
        raise ShardError(f"{where} is no manifest of aioload", shard=where)
    if type(members.get("version")) is not int:
        raise ShardError(f"{where} is no manifest of aioload: it has no version", shard=where)

    check_version(members["version"], where)
    return members


def _count(members: dict[str, Any], name: str) -> int:
    value = members[name]
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{name} is {value!r}")
    return value


def to_json(value: Any) -> str:
    """Return a member's value as it stands in the manifest.

    Raises:
        ConfigError: it is not what JSON can say.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(", ", ": "), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"metadata must be what JSON can say: {error}", field="metadata") from error
