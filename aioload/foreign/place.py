"""Place: which files a source names, relative to one folder or address; nothing is read for it.

A source is a folder, a file, a pattern such as `train-{000..099}.tar`, the address of one of these, or a list
of files. All files of a set lie under one root, so that one storage serves them. A name with a star stands
for those that are found once somebody looks.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from ..errors import ConfigError
from ..storage.address import Address
from .names import is_file

__all__ = ["Place", "common", "expand", "meant", "origin_of", "place_of"]

_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")  # of longer numbers Python makes none
_BRACES = re.compile(rf"\{{(?:{_RANGE.pattern}|[^{{}}]*,[^{{}}]*)\}}")
_NESTED = re.compile(r"\{[^}]*\{")
_MARKS = ("{", "::", "pipe:")  # what has a meaning in a pattern, but is no more than odd in a name
_MOST_NAMES = 1_000_000  # of a pattern: a mistake in it must not fill the memory
_WEB = ("http://", "https://")
_IN_BRACKETS = re.compile(r"\[[^\]]*\]")  # as in http://[::1]/


@dataclass(frozen=True, slots=True)
class Place:
    """A root, and files under it."""

    root: str
    """A folder of this machine, or an address."""
    names: tuple[str, ...] | None = None
    """Files, relative to the root; None: what the set is made of is to be looked up there."""

    @property
    def is_address(self) -> bool:
        """Whether the root is an address in the network."""
        return "://" in self.root


def place_of(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Place:
    """Return the place that a source names, not looking there but for odd names of files.

    A single address is that of a file if its name says so, as in `….tar`; else that of a folder. What a
    single local path is, only the disk can tell: it is returned as a root.

    Raises:
        ConfigError: an empty list, a name that comes twice, files that do not lie under one root, a name as
            other programs take it, or no texts and paths at all.
    """
    if isinstance(source, (str, os.PathLike)):
        text = os.fspath(source)
        names = meant(text)
        if names == [text] and not ("://" in text and _names_files(_path_of(text))):
            return Place(text)
        return common(names)
    try:
        texts = [os.fspath(each) for each in source]
        names = [name for text in texts for name in meant(text)]
    except TypeError as error:
        by_number = hasattr(source, "__getitem__") and not isinstance(source, (list, tuple))
        cure = "; what gives samples by number goes to aioload.from_dataset" if by_number else ""
        raise ConfigError(
            f"a source is a path, an address or a list of such, got {source!r}{cure}"
        ) from error
    if not names:
        raise ConfigError("an empty list names no shard; give at least one")
    return common(names)


def meant(text: str) -> list[str]:
    """Return what a text names: itself, where a file is called so, else what its braces stand for."""
    is_file = "://" not in text and any(mark in text for mark in _MARKS) and os.path.lexists(text)
    return [text] if is_file else expand(text)


def expand(pattern: str) -> list[str]:
    """Return the names that `train-{000..009}.tar` or `{a,b}.tar` stands for; others stand for themselves.

    Raises:
        ConfigError: it stands for more than a million, or for none, or is written as other programs want it.
    """
    _refuse_habits(pattern)
    names = [""]
    end = 0
    for match in _BRACES.finditer(pattern):
        choices = _choices(match[0][1:-1], pattern, _MOST_NAMES // len(names))
        if len(choices) * len(names) > _MOST_NAMES:
            raise _too_many(pattern)
        names = [name + pattern[end : match.start()] + choice for name in names for choice in choices]
        end = match.end()
    if end and _NESTED.search(pattern):
        raise ConfigError(f"the pattern {pattern!r} has braces within braces; give a list of patterns")
    return [name + pattern[end:] for name in names]


def _choices(inner: str, pattern: str, most: int) -> list[str]:
    """Return what stands for a pair of braces, at most one more than `most`."""
    found: list[str] = []
    for part in inner.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            found.append(part)
            continue
        first, last = match.groups()
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        if int(last) < int(first):
            raise ConfigError(f"the pattern {pattern!r} counts down: write the smaller number first")
        if int(last) - int(first) >= most - len(found):
            raise _too_many(pattern)
        found += [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]
    return found


def _too_many(pattern: str) -> ConfigError:
    return ConfigError(f"the pattern {pattern!r} stands for more than {_MOST_NAMES:,} names")


def _refuse_habits(text: str) -> None:
    """Refuse what WebDataset takes and nobody else; what is quoted of it could be secret."""
    if text.startswith("pipe:"):
        raise ConfigError(
            "a source is no command (pipe:…): give the files or the address that the command reads, such as "
            "s3://bucket/train-{000..099}.tar; keys go into storage_options or the environment"
        )
    if "::" in _IN_BRACKETS.sub("", text):
        raise ConfigError("several sources are given as a list, not as one text with :: between them")


def origin_of(url: str) -> str:
    """Return scheme and host of an address, without user and password."""
    scheme, _, host = _origin(url)[0].partition("://")
    return f"{scheme}://{host.rpartition('@')[2]}".lower()


def common(files: Sequence[str]) -> Place:
    """Return the root that lies above all files, and their names under it.

    Raises:
        ConfigError: one comes twice, or they do not lie under one root.
    """
    addresses = sum("://" in file for file in files)
    if addresses not in (0, len(files)):
        raise ConfigError("a list holds either local files or addresses, not both")
    place = _common_address(files) if addresses else _common_folder(files)
    if len(set(place.names or ())) < len(files):
        raise ConfigError(f"a shard comes twice in {len(files)} names under {place.root}: name each once")
    return place


def _common_folder(files: Sequence[str]) -> Place:
    paths = [os.path.abspath(file) for file in files]  # noqa: PTH100 - text, and nothing is looked up
    root = os.path.commonpath([os.path.dirname(path) for path in paths])  # noqa: PTH120
    return Place(root, tuple(os.path.relpath(path, root) for path in paths))


def _common_address(files: Sequence[str]) -> Place:
    origins = {_origin(file) for file in files}
    if len(origins) > 1:
        raise ConfigError(
            "the addresses of a list must be of one bucket or server, with the same query; make a set of "
            "each, and put them together with aioload.Concat"
        )
    origin, query = origins.pop()
    paths = [_path_of(file) for file in files]
    for file, path in zip(files, paths, strict=True):
        if "//" in f"/{path}":
            Address.parse(file)  # buckets take no such path, web servers do
    root = _common_parent([path.partition("//")[0] for path in paths])
    names = [path[len(root) :].removeprefix("/") for path in paths]
    if origin.lower().startswith(_WEB):
        names = [unquote(name) for name in names]  # storages quote names of files themselves
    return Place(f"{origin}/{root}{query}", tuple(names))


def _common_parent(paths: Iterable[str]) -> str:
    return posixpath.commonpath([posixpath.dirname(f"/{path.lstrip('/')}") for path in paths]).lstrip("/")


def _origin(url: str) -> tuple[str, str]:
    """Return scheme and host of an address, and its query with the question mark."""
    scheme, _, rest = url.partition("://")
    bare, mark, query = rest.partition("?") if scheme.lower() in ("http", "https") else (rest, "", "")
    return f"{scheme}://{bare.partition('/')[0]}", mark + query


def _names_files(path: str) -> bool:
    """Tell whether the path of an address is that of a file, or has a star where files have names."""
    return is_file(path) or "*" in path.rpartition("/")[2]


def _path_of(url: str) -> str:
    scheme, _, rest = url.partition("://")
    bare = rest.partition("?")[0] if scheme.lower() in ("http", "https") else rest
    return bare.partition("/")[2]
