"""Looking: what lies where a source points to, and what to do where that is nothing that is read here."""

from __future__ import annotations

import glob
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError, NotFoundError, ShardError, StorageError
from ..shard.format import MANIFEST_NAME
from ..storage import folders, listing
from .names import MDS_INDEX, in_short, shards_among, way_out
from .place import Place, common

if TYPE_CHECKING:
    from ..storage import Storage

__all__ = ["files_like", "list_shards", "looked_up", "matched", "missing"]

_STAR = "*"


def looked_up(place: Place) -> Place:
    """Return the place of a local source, once it is known what its path is, and which files have its stars.

    Raises:
        ConfigError: there is nothing.
    """
    if place.is_address:
        return place
    paths = [place.root] if place.names is None else [str(Path(place.root) / name) for name in place.names]
    if any(glob.has_magic(path) for path in paths):
        return _without_stars(place, paths)
    return place if place.names is not None else _one_path(place)


def _one_path(place: Place) -> Place:
    path = Path(place.root)
    if path.is_file():
        return Place(str(path.parent), (path.name,))
    if not path.is_dir():
        raise ConfigError(
            f"{place.root} is neither a folder nor a file; give what `aioload pack` wrote, or shards. "
            f"{_what_is_there(path)}"
        )
    return place


def _what_is_there(path: Path) -> str:
    """Tell what there is in place of a path that leads to nothing."""
    above = next(parent for parent in path.absolute().parents if parent.is_dir())
    try:
        there = [each.name for each in above.iterdir() if not each.name.startswith(".")]
    except OSError:
        return f"{above} cannot be looked into"
    return f"In {above}: {in_short(there, 'name')}"


def _without_stars(place: Place, paths: Sequence[str]) -> Place:
    """Return the files that local patterns stand for; a path that is there stands for itself."""
    files = [file for path in paths for file in files_like(path)]
    if place.names is None and files == [place.root]:
        return _one_path(place)
    return common(files)


def files_like(path: str) -> list[str]:
    """Return the files that a local path with stars stands for; one that is there stands for itself.

    Raises:
        ConfigError: there is no such file.
    """
    if not glob.has_magic(path) or os.path.lexists(path):
        return [path]
    # not by Path.glob, which wants a folder and a pattern apart
    matches = glob.glob(path, recursive=True)  # noqa: PTH207 - see above
    found = sorted(each for each in matches if Path(each).is_file())
    if not found:
        raise ConfigError(
            f"no file has a name like {path}. {_what_is_there(Path(path.partition(_STAR)[0]) / 'x')}"
        )
    return shards_among(found) or found


async def matched(storage: Storage, place: Place, label: str) -> Place:
    """Return the files in the network that names with a star stand for; others stand for themselves.

    Raises:
        ConfigError: there is none, the server does not say, or the star stands for folders.
    """
    if _STAR not in "".join((place.root, *(place.names or ()))):
        return place
    if place.names is None or _STAR in place.root or any("/" in name for name in place.names):
        raise ConfigError(
            f"{label}: a star may stand in the last part of an address only; make a set of each folder, and "
            "put them together with aioload.Concat"
        )
    try:
        there = await listing(storage)
    except ConfigError as error:
        raise ConfigError(
            f"{label}: which files a star stands for, this server does not tell; write numbers as in "
            "train-{000..099}.tar"
        ) from error
    names: list[str] = []
    for name in place.names:
        found = sorted(_like(name, there)) if _STAR in name else [name]
        if not found:
            raise ConfigError(f"{label}: no file has a name like {name}; there: {in_short(there)}")
        names += shards_among(found) or found
    if len(set(names)) < len(names):
        raise ConfigError(f"{label}: the patterns name a shard twice; name each once")
    return Place(place.root, tuple(names))


def _like(pattern: str, names: Sequence[str]) -> Iterator[str]:
    whole = re.compile(".*".join(map(re.escape, pattern.split(_STAR))), re.DOTALL)
    return (name for name in names if whole.fullmatch(name))


async def list_shards(storage: Storage, label: str) -> tuple[str, ...]:
    """Return the names of the shards in a folder, sorted.

    Raises:
        ShardError: the storage cannot list, or lists no shard.
    """
    looked_for = f"{label} has no {MANIFEST_NAME} (a packed set) and no {MDS_INDEX} (an MDS folder, or wids)"
    try:
        names = sorted(await listing(storage))
    except ConfigError as error:
        raise ShardError(
            f"{looked_for}, and its server does not tell which files there are; check the address, and name "
            "the shards, as in 'https://host/train-{000..099}.tar'",
            shard=MANIFEST_NAME,
        ) from error
    shards = [] if any(name.endswith(".aio") for name in names) else shards_among(names)
    if not shards:
        raise ShardError(
            f"{looked_for}, nor shards (.tar, .tfrecord), but {in_short(names)}; "
            f"{way_out(names) or await _elsewhere(storage, label, is_empty=not names)}",
            shard=MANIFEST_NAME,
        )
    return tuple(shards)


async def missing(storage: Storage, error: NotFoundError) -> NotFoundError:
    """Return the error of a file that is not there with what is there in its place, if anybody tells."""
    try:
        names = await listing(storage)
    except (ConfigError, StorageError):
        return error
    folder = posixpath.dirname(error.shard or "")
    if folder:  # which is not the one that is listed
        return error
    return NotFoundError(f"{error}. There: {in_short(shards_among(names) or names)}", **error.facts)


async def _elsewhere(storage: Storage, label: str, *, is_empty: bool) -> str:
    """Say where to look, where a folder has no files, or none that anybody knows."""
    try:
        inner = await folders(storage)
    except StorageError:  # what was listed a moment ago; it is but a hint
        inner = []
    if inner:
        return (
            f"there is {in_short(inner, 'folder')} in it, which are not looked into: give one of these, "
            "or name their shards, as in 'data/*/*.tar' or 'data/{a,b}/x-{000..099}.tar'"
        )
    if is_empty and "://" in label:
        return "check the address; where it is that of a file, give it in a list, as in ['s3://…/x']"
    if is_empty:
        return "check the path"
    return "name the shards, if some of these are"
