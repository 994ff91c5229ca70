"""The `index.json` of an MDS folder: its shards, their columns, and the sums of their files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import ConfigError, ShardError
from .kinds import Fields, check_fields
from .mds import MdsFormat, encoded_size, kind_of_encoding, own_decoder

__all__ = ["MdsFile", "MdsIndex", "MdsShard", "parse_mds_index"]

T = TypeVar("T")

_VERSION = 2
_MOST = 1 << 32  # offsets in a shard have 32 bits


@dataclass(frozen=True, slots=True)
class MdsFile:
    """A file of the folder."""

    name: str
    """Relative to the folder, and never outside of it."""
    size: int
    """Bytes that it should have."""
    hashes: tuple[tuple[str, str], ...]
    """Algorithm and hexadecimal sum, as many as the writer was asked for."""


@dataclass(frozen=True, slots=True)
class MdsShard:
    """A shard: rows, and the files that hold them."""

    raw: MdsFile
    """The shard itself; where it is compressed, the folder need not hold it."""
    packed: MdsFile | None
    """The shard compressed whole, if it is."""
    compression: str | None
    """How: `br`, `bz2`, `gz`, `snappy` or `zstd`, without the level."""
    samples: int
    """Rows."""


@dataclass(frozen=True, slots=True)
class MdsIndex:
    """What an `index.json` says."""

    shards: tuple[MdsShard, ...]
    """In the order of their rows."""
    column_names: tuple[str, ...]
    """In the order in which a row holds them."""
    column_encodings: tuple[str, ...]
    """How each is encoded, as in `ndarray:float32:2,3`."""
    column_sizes: tuple[int | None, ...]
    """Bytes of each; None where they differ from row to row."""

    @property
    def fields(self) -> Fields:
        """Names and kinds."""
        return tuple(zip(self.column_names, map(kind_of_encoding, self.column_encodings), strict=True))

    @property
    def encodings(self) -> dict[str, str]:
        """By name, the columns that need a decoder of their own, for `aioload.decode.for_encoding`."""
        columns = zip(self.column_names, self.column_encodings, strict=True)
        return {name: f"mds:{encoding}" for name, encoding in columns if own_decoder(encoding)}

    def record_format(self) -> MdsFormat:
        """Return what splits its rows."""
        return MdsFormat(self.fields, self.encodings, self.column_sizes)


def parse_mds_index(text: bytes | memoryview, where: str) -> MdsIndex:
    """Read an `index.json`.

    Args:
        text: the file.
        where: its name, for errors.

    Raises:
        ShardError: it is damaged, of another version, names files outside of its folder, or has shards whose
            columns differ.
    """
    try:
        document = json.loads(str(text, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise _wrong(where, f"is no JSON ({error}); copy it again") from error
    whole = _Reading(where, "the index", document)
    _check_version(whole)
    shards, columns = [], []
    for number, entry in enumerate(whole.get("shards", list)):
        shard = _Reading(where, f"shard {number}", entry)
        _check_version(shard)
        shards.append(_parse_shard(shard))
        columns.append(_parse_columns(shard))
        if columns[-1] != columns[0]:
            raise shard.wrong(
                "has other columns than the first; read the folders that were merged one by one"
            )
    if not shards:
        raise whole.wrong("names no shard; the writer had no rows, or did not finish")
    names = [shard.raw.name for shard in shards] + [shard.packed.name for shard in shards if shard.packed]
    if len(set(names)) != len(names):
        raise whole.wrong("names a file twice")
    return MdsIndex(tuple(shards), *columns[0])


class _Reading:
    """A JSON object whose parts are taken out by name and class."""

    def __init__(self, where: str, part: str, value: Any) -> None:
        self.where, self.part = where, part
        if not isinstance(value, dict):
            raise self.wrong("is no JSON object")
        self._value = value

    def get(self, name: str, kind: type[T]) -> T:
        """Return a part, which must be there."""
        value = self._value.get(name)
        if type(value) is not kind:  # a bool is no number here
            raise self.wrong(f"has no {name!r} that is {_WORDS[kind]}, but {_shown(value)}")
        return value

    def optional(self, name: str, kind: type[T]) -> T | None:
        """Return a part, None where it is null or missing."""
        return None if self._value.get(name) is None else self.get(name, kind)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        values = self.get(name, list)
        if not all(type(value) is str for value in values):
            raise self.wrong(f"has something else than text in {name!r}")
        return tuple(values)

    def count(self, name: str) -> int:
        """Return a number that counts rows or bytes of a shard."""
        value = self.get(name, int)
        if not 0 <= value < _MOST:
            raise self.wrong(f"has {_shown(value)} for {name!r}")
        return value

    def wrong(self, what: str) -> ShardError:
        """Make the error of this part."""
        return _wrong(self.where, f"cannot be used: {self.part} {what}", self.part)


_WORDS = {list: "a list", int: "a whole number", str: "text", dict: "an object"}


def _check_version(part: _Reading) -> None:
    if (version := part.get("version", int)) != _VERSION:
        raise part.wrong(f"has version {_shown(version)}, and only version {_VERSION} is known")


def _parse_shard(shard: _Reading) -> MdsShard:
    if (sort := shard.get("format", str)) != "mds":
        raise shard.wrong(
            f"has the format {_shown(sort)}; only 'mds' is read: write it anew as MDS, or pack it"
        )
    compression, packed = shard.optional("compression", str), shard.optional("zip_data", dict)
    if (compression is None) != (packed is None):
        raise shard.wrong("has 'compression' without 'zip_data', or the other way round")
    return MdsShard(
        raw=_parse_file(shard, "raw_data", shard.get("raw_data", dict)),
        packed=None if packed is None else _parse_file(shard, "zip_data", packed),
        compression=None if compression is None else compression.partition(":")[0],
        samples=shard.count("samples"),
    )


def _parse_file(shard: _Reading, part: str, value: Any) -> MdsFile:
    file = _Reading(shard.where, f"{part!r} of {shard.part}", value)
    name = file.get("basename", str)
    if not name or "\0" in name or "\\" in name or not set(name.split("/")).isdisjoint(("", ".", "..")):
        raise file.wrong(f"names {_shown(name)}, which is no file inside the folder")
    hashes = file.optional("hashes", dict) or {}
    if not all(type(total) is str for total in hashes.values()):
        raise file.wrong("has sums that are no text")
    return MdsFile(name, file.count("bytes"), tuple(hashes.items()))


_Columns = tuple[tuple[str, ...], tuple[str, ...], tuple[int | None, ...]]


def _parse_columns(shard: _Reading) -> _Columns:
    names, encodings = shard.texts("column_names"), shard.texts("column_encodings")
    sizes = shard.get("column_sizes", list)
    if not len(names) == len(encodings) == len(sizes):
        raise shard.wrong("has not as many names, encodings and sizes of columns")
    try:
        check_fields(zip(names, map(kind_of_encoding, encodings), strict=True))
    except ConfigError as error:
        raise shard.wrong(f"has columns that cannot be fields: {error}") from error
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        if size is not None and (type(size) is not int or not 0 < size < _MOST):
            raise shard.wrong(f"has {_shown(size)} for the size of column {name!r}")
        try:
            fixed = encoded_size(encoding)
        except (ValueError, KeyError) as error:
            raise shard.wrong(f"has column {name!r} as {_shown(encoding)}: {error}") from error
        if fixed is not None and fixed != size:
            raise shard.wrong(
                f"has {_shown(size)} for the size of column {name!r}, and {encoding} takes {fixed}"
            )
    return names, encodings, tuple(sizes)


def _wrong(where: str, what: str, part: str = "the index") -> ShardError:
    return ShardError(f"{where} {what}", shard=where, part=part)


def _shown(value: Any) -> str:
    """Show something of a file that may be of any length."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
