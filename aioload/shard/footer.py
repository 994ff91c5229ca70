"""The footer of a shard: what it knows about its records and its set (FORMAT.md, section 3.3)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, ShardError
from .format import DATA_START, MAX_PAYLOAD_BYTES, SHARD_TRAILER, crc32c
from .kinds import Fields, check_columns, check_fields

__all__ = ["Footer", "footer_bytes", "parse_footer"]

_COLUMN_TYPES = {"int": "<i8", "float": "<f8"}


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """What a shard knows about its records (section 3.3)."""

    fields: Fields
    """Names and kinds."""
    ends: npt.NDArray[np.uint64]
    """Where each record ends, counted from the first byte of the first."""
    sums: npt.NDArray[np.uint32]
    """The CRC-32C of each record."""
    columns: dict[str, npt.NDArray[Any]]
    """Values of the index fields."""
    last: bool = False
    """Whether no shard follows."""
    metadata: Any = None
    """The set's metadata, in its last shard only."""

    @classmethod
    def empty(cls, fields: Fields, columns: Iterable[str]) -> Footer:
        """Return the footer of a shard without records."""
        kinds = dict(fields)
        no_values = {name: np.empty(0, _COLUMN_TYPES[kinds[name]]) for name in columns}
        return cls(fields, np.empty(0, np.uint64), np.empty(0, np.uint32), no_values)

    @property
    def data_bytes(self) -> int:
        """Bytes of all records."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def describe(self) -> bytes:
        """Return the description: what a lost manifest is made from."""
        values = {
            "fields": [list(pair) for pair in self.fields],
            "columns": list(self.columns),
            "last": self.last,
            "metadata": self.metadata,
        }
        return json.dumps(values, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    def render(self, shard: int) -> bytes:
        """Return footer and trailer."""
        description = self.describe()
        footer = b"".join(
            [
                self.ends.astype("<u8").tobytes(),
                *(column.tobytes() for column in self.columns.values()),
                self.sums.astype("<u4").tobytes(),
                bytes(-4 * len(self.sums) % 8),
                description,
            ]
        )
        trailer = SHARD_TRAILER.pack(
            footer_start=DATA_START + self.data_bytes,
            records=len(self.ends),
            description_bytes=len(description),
            footer_crc32c=crc32c(footer),
            shard=shard,
        )
        return footer + trailer


def footer_bytes(records: int, columns: int, description_bytes: int) -> int:
    """Return the size of a footer (section 3.3)."""
    return 8 * records * (1 + columns) + (4 * records + 7) // 8 * 8 + description_bytes


def parse_footer(data: bytes, trailer: Mapping[str, int], where: str) -> Footer:
    """Return the footer of a shard, having checked every byte of it.

    Args:
        data: the bytes from the footer's start to the trailer's.
        trailer: what `SHARD_TRAILER` says.
        where: the file, for the error.

    Raises:
        ShardError: sum, sizes, padding, ends or description are wrong.
    """
    start, records = trailer["footer_start"], trailer["records"]
    if crc32c(data) != trailer["footer_crc32c"]:
        raise _wrong(where, start, "failed its checksum")

    split = len(data) - trailer["description_bytes"]
    try:
        footer = _describe(data[split:])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        raise _wrong(where, start, f"does not describe its fields: {error}") from error

    if footer_bytes(records, len(footer.columns), len(data) - split) != len(data):
        raise _wrong(where, start, f"has not the size of {records} records")

    footer, stop = _fill(footer, data, records)
    if any(data[stop:split]) or not _fits(footer) or footer.data_bytes != start - DATA_START:
        raise _wrong(where, start, "names places that cannot be")

    return footer


def _describe(description: bytes) -> Footer:
    """Return the footer without its records."""
    values = json.loads(description)
    fields = check_fields(values["fields"])
    empty = Footer.empty(fields, check_columns(values["columns"], fields))
    return replace(empty, last=values["last"] is True, metadata=values["metadata"])


def _fill(footer: Footer, data: bytes, records: int) -> tuple[Footer, int]:
    """Return the footer with views of its arrays, and where these stop."""
    place = 8 * records
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, empty in footer.columns.items():
        columns[name] = np.frombuffer(data, empty.dtype, records, place)
        place += 8 * records

    ends, sums = np.frombuffer(data, "<u8", records), np.frombuffer(data, "<u4", records, place)
    return replace(footer, ends=ends, sums=sums, columns=columns), place + 4 * records


def _fits(footer: Footer) -> bool:
    """Tell whether each record has a size that a record can have."""
    # an end that goes backwards wraps around to a huge size
    sizes = np.diff(footer.ends, prepend=np.uint64(0))
    least = 4 * (len(footer.fields) + 1)
    return not len(sizes) or (int(sizes.min()) >= least and int(sizes.max()) <= least + MAX_PAYLOAD_BYTES)


def _wrong(where: str, start: int, message: str) -> ShardError:
    return ShardError(f"{where}: the footer at byte {start} {message}", shard=where, offset=start)
