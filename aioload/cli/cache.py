"""`aioload cache`: what the disk cache of network storage holds, and what of it goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..storage.cachefolder import CachedVersion, CacheFolder, default_cache_folder
from ._console import AsJson, Quiet, count, parse_size, print_json, short, size

__all__ = ["cache"]

cache = typer.Typer(no_args_is_help=True, help="Look at the disk cache of network storage, and empty it.")

_DAY = 24 * 3600
_WIDE = 1000  # columns where there is no terminal: nothing is cut off for the next program

Folder = Annotated[Path | None, typer.Option("--dir", metavar="DIR", show_default=False,
    help="The folder given as cache_dir; without, the user's folder for caches.")]  # fmt: skip


@cache.command("ls")
def list_cached(*, folder: Folder = None, as_json: AsJson = False) -> None:
    """List what is cached, set by set: how much of it, when it was last used, whether it is in use."""
    path = folder or default_cache_folder()
    files = _files(CacheFolder(path, None))
    if as_json:
        print_json({"folder": str(path), "bytes": _total(files), "files": [_as_json(file) for file in files]})
        return

    if files:
        _console().print(_table(files))
    print(f"{path}: {size(_total(files))} of {count(len(files), 'file')}")


@cache.command()
def prune(
    *,
    keep: Annotated[Any, typer.Option("--bytes", parser=parse_size, metavar="N", show_default=False,
        help="Keep so much, such as 50GiB: what was used longest ago goes.")] = None,
    older: Annotated[float | None, typer.Option("--older", min=0, metavar="DAYS", show_default=False,
        help="Remove what was not used for so many days.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all.")] = False,
    folder: Folder = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Remove what is cached, but for what a running program uses."""
    if (keep is not None) + (older is not None) + everything != 1:
        raise typer.BadParameter("say what goes: one of --bytes N, --older DAYS and --all")

    path = folder or default_cache_folder()
    cached = CacheFolder(path, None)
    before = None if older is None else time.time() - older * _DAY
    gone = cached.prune(keep or 0, older_than=before)
    left = _files(cached)
    freed = sum(version.num_bytes for version in gone)
    used = sum(file.in_use for file in left)
    if as_json:
        print_json({
            "folder": str(path), "removed": len(gone), "removed_bytes": freed,
            "left": len(left), "left_bytes": _total(left), "in_use": used,
        })  # fmt: skip
    elif not quiet:
        print(
            f"{path}: removed {size(freed)} of {count(len(gone), 'file')}; left {size(_total(left))} of "
            f"{count(len(left), 'file')}" + (f", {used:,} in use" if used else "")
        )


@dataclass(frozen=True, slots=True)
class _File:
    """One version of a cached file, as it is shown."""

    version: CachedVersion
    address: str
    file_bytes: int | None
    tag: str | None
    in_use: bool


def _files(folder: CacheFolder) -> list[_File]:
    files: list[_File] = []
    for version in folder.versions():
        head = folder.head(version)
        address = "(damaged)" if head is None else head.shown
        file_bytes, tag = (None, None) if head is None else (head.size, head.tag)
        files.append(_File(version, address, file_bytes, tag, folder.in_use(version)))
    return sorted(files, key=lambda file: (file.address, file.version.folder))


def _total(files: Iterable[_File]) -> int:
    return sum(file.version.num_bytes for file in files)


def _table(files: Iterable[_File]) -> Table:
    """Make a table with a row for each folder that files come from."""
    sets: dict[str, list[_File]] = defaultdict(list)
    for file in files:
        sets[file.address.rpartition("/")[0] or file.address].append(file)

    table = Table(box=None, pad_edge=False)
    table.add_column("from", overflow="fold")
    for column in ("files", "cached", "of", "last used", "in use"):
        table.add_column(column, justify="right", no_wrap=True)
    for address, members in sets.items():
        whole = sum(file.file_bytes or 0 for file in members)
        last = max(file.version.used for file in members)
        used = sum(file.in_use for file in members)
        cells = (
            f"{len(members):,}",
            size(_total(members)),
            size(whole),
            _ago(last),
            f"{used:,}" if used else "-",
        )
        table.add_row(short(address, 200), *cells)
    return table


def _as_json(file: _File) -> dict[str, Any]:
    return {
        "address": file.address,
        "tag": file.tag,
        "bytes": file.version.num_bytes,
        "file_bytes": file.file_bytes,
        "used": file.version.used,
        "in_use": file.in_use,
    }


def _ago(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    for unit, length in (("day", _DAY), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{count(int(seconds / length), unit)} ago"
    return "just now"


def _console() -> Console:
    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=_WIDE)
