"""The fixed structures of the own format, and its record (FORMAT.md, sections 1 to 3)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt

from ..errors import SampleError, ShardError
from .kinds import Fields, check_fields

__all__ = [
    "DATA_START",
    "FORMAT_VERSION",
    "INDEX_HEADER",
    "INDEX_NAME",
    "MANIFEST_NAME",
    "MAX_PAYLOAD_BYTES",
    "SHARD_HEADER",
    "SHARD_TRAILER",
    "Layout",
    "NativeFormat",
    "RecordFormat",
    "check_sum",
    "check_version",
    "crc32c",
    "shard_name",
]

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
INDEX_NAME = "index.aioi"
MAX_PAYLOAD_BYTES = 2**32 - 1  # key and values of one record: their ends are 32-bit numbers

Chunk = bytes | bytearray | memoryview


def shard_name(number: int) -> str:
    """Return the file name of a shard (section 1)."""
    return f"shard-{number:05d}.aio"


def crc32c(*chunks: Chunk | npt.NDArray[Any], value: int = 0) -> int:
    """Return the CRC-32C of the chunks laid end to end, behind bytes whose sum is `value` (section 1.2)."""
    for chunk in chunks:
        # the library takes read-only buffers and arrays; an array over the memory is free of copies
        value = google_crc32c.extend(
            value, chunk if isinstance(chunk, bytes) else np.frombuffer(chunk, np.uint8)
        )
    return int(value)


def check_sum(record: memoryview, expected: int, *, shard: str, record_id: int, start: int) -> None:
    """Compare the bytes of a record with its sum.

    Raises:
        ShardError: they differ; names shard, record and offset.
    """
    if crc32c(record) != expected:
        raise ShardError(
            f"record {record_id} (byte {start} of {shard}) failed its checksum: the file was damaged after "
            "it was written; restore or repack it, or skip the record with on_error='skip'",
            shard=shard,
            record=record_id,
            offset=start,
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """A structure of fixed size: little-endian, without gaps, closed by a CRC-32C of the bytes before it."""

    name: str
    """What messages call it."""
    magic: bytes
    """The value of its member `magic`."""
    members: tuple[tuple[str, str], ...]
    """Names and `struct` codes."""

    @property
    def struct(self) -> struct.Struct:
        """The members as one `struct`."""
        return struct.Struct("<" + "".join(code for _, code in self.members))

    @property
    def size(self) -> int:
        """Bytes it takes."""
        return self.struct.size

    def pack(self, **values: int) -> bytes:
        """Return its bytes for these values; magic and sum are filled in."""
        known = {**values, "magic": self.magic, "crc32c": 0}
        data = self.struct.pack(*(known[name] for name, _ in self.members))[:-4]
        return data + struct.pack("<I", crc32c(data))

    def unpack(self, data: Chunk, where: str, start: int = 0) -> dict[str, int]:
        """Return its numbers, having checked magic, sum and version.

        Args:
            data: exactly its bytes.
            where: the file, for the error.
            start: the place of the bytes in the file, for the error.

        Raises:
            ShardError: the bytes are something else, damaged, or of a version that is not known here.
        """
        numbers = self.struct.unpack(data) if len(data) == self.size else ()
        values = dict(zip((name for name, _ in self.members), numbers, strict=False))

        if values.pop("magic", None) != self.magic:
            raise ShardError(
                f"{where} has no {self.name} at byte {start}: cut, damaged, or another format",
                shard=where,
                offset=start,
            )

        if values.pop("crc32c") != crc32c(memoryview(data)[:-4]):
            raise ShardError(
                f"{where}: the {self.name} at byte {start} failed its checksum", shard=where, offset=start
            )

        check_version(values.get("version", FORMAT_VERSION), where)
        return values


def check_version(version: int, where: str) -> None:
    """Refuse what another version of the format wrote (section 6)."""
    if version != FORMAT_VERSION:
        raise ShardError(
            f"{where} is of format version {version}, this aioload reads version {FORMAT_VERSION}; "
            "upgrade aioload, or pack the data again",
            shard=where,
            version=version,
        )


SHARD_HEADER = Layout(  # section 3.1
    "shard header",
    b"\x89AIO\r\n\x1a\n",
    (("magic", "8s"), ("version", "I"), ("shard", "I"), ("fields", "I"), ("crc32c", "I")),
)
SHARD_TRAILER = Layout(  # section 3.4
    "shard trailer",
    b"\x89AIE\r\n\x1a\n",
    (
        ("footer_start", "Q"),
        ("records", "Q"),
        ("description_bytes", "I"),
        ("footer_crc32c", "I"),
        ("shard", "I"),
        ("magic", "8s"),
        ("crc32c", "I"),
    ),
)
INDEX_HEADER = Layout(  # section 4.1
    "index header",
    b"\x89AIX\r\n\x1a\n",
    (
        ("magic", "8s"),
        ("version", "I"),
        ("fields", "I"),
        ("records", "Q"),
        ("shards", "Q"),
        ("columns", "I"),
        ("crc32c", "I"),
    ),
)
DATA_START = SHARD_HEADER.size


class RecordFormat(Protocol):
    """How a record is cut into fields; a small picklable object."""

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Names and kinds."""

    @property
    def encodings(self) -> Mapping[str, str]:
        """By field, what its bytes are where they are not as in the own format; see `decode.for_encoding`."""

    def split(self, record: memoryview) -> tuple[str | None, dict[str, memoryview]]:
        """Return the key and the payload of each field."""


@dataclass(frozen=True, slots=True)
class NativeFormat:
    """How one record is cut into key and values (section 3.2)."""

    fields: Fields
    """Names and kinds, in the order of the record."""
    _header: struct.Struct = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", check_fields(self.fields))
        object.__setattr__(self, "_header", struct.Struct(f"<{len(self.fields) + 1}I"))

    def __reduce__(self) -> tuple[type[NativeFormat], tuple[Fields]]:
        return NativeFormat, (self.fields,)

    @property
    def header_bytes(self) -> int:
        """Bytes of a record before its key: the smallest record there is."""
        return self._header.size

    @property
    def encodings(self) -> Mapping[str, str]:
        """None: all kinds are as FORMAT.md says."""
        return {}

    def ends(self, head: Chunk, record_bytes: int) -> tuple[int, ...]:
        """Return where key and values end, counted from the end of the header, having checked each.

        Args:
            head: the record, or at least its header.
            record_bytes: the size of the whole record, from the index.

        Raises:
            ShardError: the ends go backwards, or the last is not the record's.
        """
        size = self._header.size
        if record_bytes < size or len(head) < size:
            raise ShardError(f"a record of {record_bytes} bytes cannot hold its header of {size} bytes")

        ends: tuple[int, ...] = self._header.unpack_from(head)
        if ends[-1] != record_bytes - size or list(ends) != sorted(ends):
            raise ShardError(
                f"a record of {record_bytes} bytes says that its values end at {ends} after its header"
            )

        return ends

    # hot: once per record in a worker
    def split(self, record: memoryview) -> tuple[str | None, dict[str, memoryview]]:
        """Return key and values of a record, as views of it.

        Raises:
            ShardError: a length does not fit, or the key is not UTF-8.
        """
        ends = self.ends(record, len(record))
        payload = record[self._header.size :]
        start, values = ends[0], {}

        for (name, _), stop in zip(self.fields, ends[1:], strict=True):
            values[name] = payload[start:stop]
            start = stop

        try:
            return str(payload[: ends[0]], "utf-8") or None, values
        except UnicodeDecodeError as error:
            raise ShardError(f"the key of a record is not UTF-8: {error}") from error

    def join(self, key: str | None, values: Mapping[str, Chunk]) -> list[Chunk]:
        """Return the pieces that make a record, to be written one after the other: the inverse of `split`.

        Raises:
            SampleError: the key cannot be written as UTF-8, or the record is too large.
        """
        try:
            chunks: list[Chunk] = [(key or "").encode(), *(values[name] for name, _ in self.fields)]
        except UnicodeEncodeError as error:
            raise SampleError(
                f"the key {key!r} cannot be written as UTF-8: {error}", key=repr(key)
            ) from error

        ends, stop = [], 0
        for chunk in chunks:
            stop += len(chunk)
            ends.append(stop)

        if stop > MAX_PAYLOAD_BYTES:
            raise SampleError(
                f"a record holds at most {MAX_PAYLOAD_BYTES} bytes, got {stop}; split the sample", key=key
            )

        return [self._header.pack(*ends), *chunks]
