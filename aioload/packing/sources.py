"""Which kind of source lies there: told by names and folders, or as the user says."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ..dataset import Dataset
from ..errors import ConfigError, NotFoundError, StorageError
from ..foreign import MDS_INDEX, Place, expand, files_like, format_of, parse_wids, unpacked_name
from .folders import Listing, class_folder, flat_folder, list_folder
from .foreign import foreign
from .items import Source, printable
from .parquet import parquet
from .tables import table
from .tars import webdataset

__all__ = ["SOURCE_KINDS", "find_source"]

SOURCE_KINDS = ("folder", "flat", "webdataset", "tfrecord", "mds", "parquet", "csv", "jsonl")
"""A sub-folder a class; images without labels; tar archives; TFRecord files; MDS folders; tables."""

_SUFFIXES = {
    ".tar": "webdataset", ".tfrecord": "tfrecord", ".parquet": "parquet", ".csv": "csv", ".tsv": "csv",
    ".jsonl": "jsonl", ".ndjson": "jsonl",
}  # fmt: skip


def find_source(
    paths: Sequence[str | os.PathLike[str]],
    *,
    kind: str | None = None,
    path_field: str | None = None,
    seed: int | None = None,
) -> Source:
    """Return what lies at the paths, ready to be packed.

    Args:
        paths: one folder or table, or any number of archives; `{000..009}` in a name stands for each number.
        kind: one of `SOURCE_KINDS`, where it cannot be told.
        path_field: the column of a table that holds the path.
        seed: of the order; sorted, or as in the file, without.

    Raises:
        ConfigError: it cannot be told what this is, or an option does not go with it.
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        ShardError: its content is not what its name says.
    """
    found = [Path(name) for path in paths for name in _found(_local(path))]
    try:
        return _open(_existing(found), kind, path_field, seed)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{error.filename or found[0]} cannot be read: {error.strerror}") from error


def _found(path: str) -> list[str]:
    """Return what a pattern stands for: braces stand for names, stars for files that are there."""
    return [name for each in expand(path) for name in files_like(each)]


def _local(path: str | os.PathLike[str]) -> str:
    """Refuse an address, and quote nothing of it that could be secret."""
    scheme, mark, _ = os.fspath(path).partition("://")
    if mark and scheme.isalnum():
        raise ConfigError(
            f"{scheme}://… is an address; what is packed must lie on a disk: copy it there first"
        )
    return os.fspath(path)


def _existing(paths: list[Path]) -> list[Path]:
    if not paths:
        raise ConfigError("nothing to pack: name a folder, a table or some archives")

    for path in paths:
        if not path.exists():
            raise NotFoundError(f"{printable(os.fspath(path))} does not exist")

    return paths


def _open(paths: list[Path], kind: str | None, path_field: str | None, seed: int | None) -> Source:
    if paths[0].is_dir():
        return _open_folder(_only(paths), kind, seed)

    kind = kind or _kind_by_suffix(paths)
    if kind in ("csv", "jsonl"):
        return table(_only(paths), is_json=kind == "jsonl", path_field=path_field, seed=seed)

    if kind not in _IN_ORDER:
        raise ConfigError(f"{paths[0]} is no folder, so it cannot be packed as {kind!r}")

    return _open_in_order(kind, paths, seed)


def _open_folder(root: Path, kind: str | None, seed: int | None) -> Source:
    listing = list_folder(root)
    if kind == "mds" or (kind is None and MDS_INDEX in listing.others):
        wids = parse_wids((root / MDS_INDEX).read_bytes(), str(root / MDS_INDEX)) if kind is None else None
        if wids is not None and not any("://" in url for url in wids.urls):
            names = wids.place(Place(str(root))).names or ()
            return _open_in_order("webdataset", _existing([root / name for name in names]), seed)
        return _open_in_order("mds", [root], seed)

    shards = [
        root / path for path in listing.others if os.sep not in path and _kind_by_name(path) in _IN_ORDER
    ]
    kind = kind or _kind_by_content(listing, shards)
    if kind in _IN_ORDER:
        return _open_in_order(kind, [path for path in shards if _kind_by_name(path.name) == kind], seed)

    if kind not in ("folder", "flat"):
        raise ConfigError(f"{root} is a folder, so it cannot be packed as {kind!r}; name the file")

    return class_folder(listing, seed=seed) if kind == "folder" else flat_folder(listing, seed=seed)


def _open_in_order(kind: str, paths: list[Path], seed: int | None) -> Source:
    """Open shards whose records come in the order in which they lie there."""
    if seed is not None:
        raise ConfigError(
            f"{kind} is read from front to back, so it cannot be shuffled while it is packed; a loader can"
        )
    if not paths:
        raise ConfigError(f"there is nothing to be packed as {kind!r}")
    return _IN_ORDER[kind](paths)


def _of_others(paths: list[Path]) -> Source:
    return foreign(Dataset(paths if len(paths) > 1 else paths[0]))


_IN_ORDER: dict[str, Callable[[list[Path]], Source]] = {
    "webdataset": webdataset,
    "tfrecord": _of_others,
    "mds": _of_others,
    "parquet": parquet,
}


def _kind_by_content(listing: Listing, shards: list[Path]) -> str:
    if listing.images:
        return "folder" if listing.classes else "flat"

    if shards:
        return _kind_by_suffix(shards)

    hint = "; it is packed already" if "manifest.json" in listing.others else ""
    raise ConfigError(f"{listing.root} holds neither images nor shards{hint}; to pack a table, name the file")


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
