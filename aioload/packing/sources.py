"""Which kind of source lies there: told by names and folders, or as the user says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..dataset import Dataset
from ..errors import ConfigError, NotFoundError, StorageError
from ..foreign import MDS_INDEX, expand, files_like, format_of, unpacked_name
from ..shard.format import MANIFEST_NAME
from .folders import Listing, class_folder, flat_folder, list_folder
from .foreign import foreign
from .items import Source, printable
from .parquet import parquet
from .tables import table
from .tars import compressed

__all__ = ["SOURCE_KINDS", "find_source", "is_shard"]

SOURCE_KINDS = ("folder", "flat", "webdataset", "tfrecord", "mds", "aioload", "parquet", "csv", "jsonl")
"""A sub-folder a class; images without labels; archives; TFRecord files; MDS folders; packed sets; tables."""

_SUFFIXES = {
    ".tar": "webdataset", ".tfrecord": "tfrecord", ".parquet": "parquet", ".csv": "csv", ".tsv": "csv",
    ".jsonl": "jsonl", ".ndjson": "jsonl",
}  # fmt: skip
_OF_SETS = ("webdataset", "tfrecord", "mds", "aioload")  # what a `Dataset` reads, in the network, too


def find_source(
    paths: Sequence[str | os.PathLike[str]],
    *,
    kind: str | None = None,
    path_field: str | None = None,
    seed: int | None = None,
    fields: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Source:
    """Return what lies at the paths, ready to be packed.

    Args:
        paths: one folder or table, or any number of archives; `{000..009}` in a name stands for each number.
            Shards of others and packed sets may be given by their address, too.
        kind: one of `SOURCE_KINDS`, where it cannot be told.
        path_field: the column of a table that holds the path.
        seed: of the order; sorted, or as in the file, without.
        fields: of archives, TFRecord and MDS: the fields that are wanted, with their kinds, as `Dataset` has
            them.
        storage_options: of an address.

    Raises:
        ConfigError: it cannot be told what this is, or an option does not go with it.
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        ShardError: its content is not what its name says.
    """
    asked = _Asked(kind, path_field, seed, fields, storage_options)
    given = [os.fspath(path) for path in paths]
    if any("://" in path for path in given):
        return _open_address(given, asked)
    found = [Path(name) for path in given for name in _found(path)]
    try:
        return _open(_existing(found), asked)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{error.filename or found[0]} cannot be read: {error.strerror}") from error


def _found(path: str) -> list[str]:
    """Return what a pattern stands for: braces stand for names, stars for files that are there."""
    return [name for each in expand(path) for name in files_like(each)]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was asked for besides the paths."""

    kind: str | None
    path_field: str | None
    seed: int | None
    fields: Mapping[str, str] | None
    storage_options: Mapping[str, Any] | None


def _open_address(given: list[str], asked: _Asked) -> Source:
    named = asked.kind or _kind_by_name(given[0].partition("?")[0])
    if named is not None and named not in _OF_SETS:
        shown = "".join(given[0].partition("://")[:2])  # no more: the rest may hold something secret
        raise ConfigError(
            f"{shown}… cannot be packed as {named!r} from an address, only archives, TFRecord files, MDS "
            "folders and packed sets: copy it to a disk first"
        )
    return _checked(_of_sets(given, asked), asked.kind)


def _checked(source: Source, kind: str | None) -> Source:
    if kind is not None and source.kind != kind:
        raise ConfigError(f"this is no {kind!r} but {source.kind!r}; leave --kind out")
    return source


def _existing(paths: list[Path]) -> list[Path]:
    if not paths:
        raise ConfigError("nothing to pack: name a folder, a table or some archives")

    for path in paths:
        if not path.exists():
            raise NotFoundError(f"{printable(os.fspath(path))} does not exist")

    return paths


def _open(paths: list[Path], asked: _Asked) -> Source:
    if paths[0].is_dir():
        return _open_folder(_only(paths), asked)

    kind = asked.kind or _kind_by_suffix(paths)
    if kind in ("csv", "jsonl"):
        _refuse_fields(kind, asked.fields)
        return table(_only(paths), is_json=kind == "jsonl", path_field=asked.path_field, seed=asked.seed)

    if kind not in _IN_ORDER:
        raise ConfigError(f"{paths[0]} is no folder, so it cannot be packed as {kind!r}")

    return _open_in_order(kind, paths, asked)


def _open_folder(root: Path, asked: _Asked) -> Source:
    listing, kind = list_folder(root), asked.kind
    if kind in ("mds", "aioload") or (kind is None and MDS_INDEX in listing.others):
        return _open_in_order(kind or "mds", [root], asked)  # or what a wids index names

    shards = [
        root / path for path in listing.others if os.sep not in path and _kind_by_name(path) in _IN_ORDER
    ]
    kind = kind or _kind_by_content(listing, shards)
    if kind == "aioload":
        return _open_in_order(kind, [root], asked)
    if kind in _IN_ORDER:
        return _open_in_order(kind, [path for path in shards if _kind_by_name(path.name) == kind], asked)

    if kind not in ("folder", "flat"):
        raise ConfigError(f"{root} is a folder, so it cannot be packed as {kind!r}; name the file")

    _refuse_fields(kind, asked.fields)
    return (
        class_folder(listing, seed=asked.seed) if kind == "folder" else flat_folder(listing, seed=asked.seed)
    )


def _refuse_fields(kind: str, fields: Mapping[str, str] | None) -> None:
    if fields is not None:
        raise ConfigError(
            f"fields are chosen of archives, TFRecord and MDS, and this is packed as {kind!r}; leave them out"
        )


def is_shard(name: str) -> bool:
    """Tell whether a file's name is that of a shard of others."""
    return _kind_by_name(name) in ("webdataset", "tfrecord")


def _open_in_order(kind: str, paths: list[Path], asked: _Asked) -> Source:
    """Open shards whose records come in the order in which they lie there."""
    if asked.seed is not None:
        raise ConfigError(
            f"{kind} is read from front to back, so it cannot be shuffled while it is packed; a loader can"
        )
    if not paths:
        raise ConfigError(f"there is nothing to be packed as {kind!r}")
    if kind == "parquet":
        _refuse_fields(kind, asked.fields)
        return parquet(paths)
    return _of_sets([os.fspath(path) for path in paths], asked)


def _of_sets(given: list[str], asked: _Asked) -> Source:
    """Open what a `Dataset` reads, and archives that are compressed as a whole, which it refuses."""
    dataset = Dataset(
        given[0] if len(given) == 1 else given, fields=asked.fields, storage_options=asked.storage_options
    )
    try:
        return foreign(dataset, all_fields=asked.fields is None)
    except ConfigError as error:
        if error.facts.get("codec") is None:
            raise
    return compressed(given, asked.fields, asked.storage_options)


_IN_ORDER = ("webdataset", "tfrecord", "mds", "aioload", "parquet")


def _kind_by_content(listing: Listing, shards: list[Path]) -> str:
    if listing.images:
        return "folder" if listing.classes else "flat"

    if shards:
        return _kind_by_suffix(shards)

    if MANIFEST_NAME in listing.others:
        return "aioload"

    raise ConfigError(f"{listing.root} holds neither images nor shards; to pack a table, name the file")


def _kind_by_suffix(paths: list[Path]) -> str:
    kinds = {_kind_by_name(path.name) for path in paths}
    kind = kinds.pop()
    if kind is None or kinds:
        raise ConfigError(
            f"the name of {paths[0]} does not tell what it is (known are {', '.join(_SUFFIXES)}); "
            "say so with --kind"
        )

    return kind


def _kind_by_name(name: str) -> str | None:
    shard = format_of(name)
    return _SUFFIXES.get(Path(unpacked_name(name).lower()).suffix if shard is None else f".{shard}")


def _only(paths: list[Path]) -> Path:
    if len(paths) > 1:
        raise ConfigError(
            f"only archives can be packed several at a time, got {paths[0]} and {len(paths) - 1} more"
        )

    return paths[0]
