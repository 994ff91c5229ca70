"""`aioload cache`: what is cached on this disk, and what of it goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..cache.contents import KeptSamples
from ..foreign.indexes import KeptIndexes
from ..storage.cachefolder import CacheFolder, default_cache_folder
from ..storage.unpackedfiles import UnpackedFiles
from ._console import AsJson, Quiet, count, parse_size, print_json, short, size

__all__ = ["cache"]

cache = typer.Typer(
    no_args_is_help=True,
    help="Look at the cache folder, and empty it: what was read from networks, files that were unpacked, "
    "indexes of shards of others, and samples that cache=Disk(DIR) keeps.",
)

_DAY = 24 * 3600
_WIDE = 1000  # columns where there is no terminal: nothing is cut off for the next program

Folder = Annotated[Path | None, typer.Option("--dir", metavar="DIR", show_default=False,
    help="The folder given as cache_dir, or to Disk; without, the user's folder for caches.")]  # fmt: skip


@cache.command("ls")
def list_cached(*, folder: Folder = None, as_json: AsJson = False) -> None:
    """List what is cached, set by set: how much of it, when it was last used, whether it is in use."""
    path = folder or default_cache_folder()
    files = _files(path)
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
    before = None if older is None else time.time() - older * _DAY
    gone: list[Any] = []
    # indexes go last: they are small, and dear to make
    for holder, kinds in (
        (CacheFolder(path, None), ("cached", "unpacked")),
        (KeptSamples(path), ("samples",)),
        (KeptIndexes(path), ("index",)),
    ):
        others = sum(file.num_bytes for file in _files(path) if file.kind not in kinds)
        gone += holder.prune(max((keep or 0) - others, 0), older_than=before)
    left = _files(path)
    freed = sum(each.num_bytes for each in gone)
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
    """A file of the cache, as it is shown."""

    kind: str
    """`cached` of a network, `unpacked`, `samples`, or an `index`."""
    address: str
    """What it is of."""
    num_bytes: int
    """What it takes of the disk."""
    file_bytes: int | None
    """How large the whole is, where that is known."""
    tag: str | None
    """What told its content at its source, where that said."""
    used: float
    """When it was last used, in seconds of the epoch."""
    in_use: bool
    """Whether a running program uses or makes it."""


def _files(path: Path) -> list[_File]:
    files = [
        *_cached(CacheFolder(path, None)),
        *_unpacked(UnpackedFiles(path)),
        *_samples(KeptSamples(path)),
        *_indexes(KeptIndexes(path)),
    ]
    return sorted(files, key=lambda file: (file.kind, file.address))


def _cached(folder: CacheFolder) -> Iterator[_File]:
    for version in folder.versions():
        head = folder.head(version)
        address = "(damaged)" if head is None else head.shown
        file_bytes, tag = (None, None) if head is None else (head.size, head.tag)
        in_use = folder.in_use(version)
        yield _File("cached", address, version.num_bytes, file_bytes, tag, version.used, in_use)


def _unpacked(folder: UnpackedFiles) -> Iterator[_File]:
    for file in folder.files():
        in_use = folder.in_use(file)
        yield _File("unpacked", folder.of(file), file.num_bytes, file.num_bytes, None, file.used, in_use)


def _samples(folder: KeptSamples) -> Iterator[_File]:
    for key in folder.kept():
        yield _File("samples", folder.of(key), key.num_bytes, None, None, key.used, folder.in_use(key))


def _indexes(folder: KeptIndexes) -> Iterator[_File]:
    for index in folder.files():
        num_bytes, in_use = index.num_bytes, folder.in_use(index)
        yield _File("index", str(index.path), num_bytes, num_bytes, None, index.used, in_use)


def _total(files: Iterable[_File]) -> int:
    return sum(file.num_bytes for file in files)


def _table(files: Iterable[_File]) -> Table:
    """Make a table with a row for each folder that files come from."""
    sets: dict[tuple[str, str], list[_File]] = defaultdict(list)
    for file in files:
        sets[file.kind, file.address.rpartition("/")[0] or file.address].append(file)

    table = Table(box=None, pad_edge=False)
    table.add_column("from", overflow="fold")
    for column in ("files", "cached", "of", "last used", "in use", "what"):
        table.add_column(column, justify="right", no_wrap=True)
    for (kind, address), members in sets.items():
        whole = sum(file.file_bytes or 0 for file in members)
        last = max(file.used for file in members)
        used = sum(file.in_use for file in members)
        cells = (
            f"{len(members):,}",
            size(_total(members)),
            size(whole),
            _ago(last),
            f"{used:,}" if used else "-",
            kind,
        )
        table.add_row(short(address, 200), *cells)
    return table


def _as_json(file: _File) -> dict[str, Any]:
    return {
        "kind": file.kind,
        "address": file.address,
        "tag": file.tag,
        "bytes": file.num_bytes,
        "file_bytes": file.file_bytes,
        "used": file.used,
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
