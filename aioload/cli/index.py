"""`aioload index`: the index of shards that others have written, made ahead of time."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

import typer

from ..dataset import Dataset
from ..errors import ConfigError
from ._console import (
    AsJson,
    FieldKinds,
    Quiet,
    StorageOptions,
    bytes_bar,
    count,
    parse_fields,
    parse_storage_options,
    print_json,
    size,
)

__all__ = ["index"]


def index(
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", show_default=False,
        help="Shards that others have written: files, a folder, name-{000..009}.tar, or their address.")],
    *,
    checksums: Annotated[bool, typer.Option("--checksums",
        help="Sum every record, so that damage is found whenever it is read: for tar and MDS, which have no "
             "sums.")] = False,
    field: FieldKinds = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Look through shards for an index, which is kept beside them or in the user's cache folder."""
    started = time.monotonic()
    options = parse_storage_options(storage_option)
    source = sources[0] if len(sources) == 1 else sources
    dataset = Dataset(source, fields=parse_fields(field), storage_options=options)
    dataset.tolerate()
    contents = dataset.make_index(checksums=checksums, bar=partial(bytes_bar, quiet=quiet or as_json))
    if contents.kind == "aioload":
        raise ConfigError(f"{dataset.source} is a packed set, which has its index; nothing is to be done")
    found = contents.index
    damaged = {name: why for name, why in zip(found.shards, contents.damage, strict=False) if why is not None}
    damaged |= {name: loss.text for name, loss in contents.lost.items()}
    if as_json:
        print_json(
            {
                "format": contents.kind,
                "records": len(found),
                "shards": len(found.shards),
                "data_bytes": int(found.positions[-1]),
                "index_bytes": found.nbytes,
                "fields": dict(contents.fields),
                "sums": found.sums is not None,
                "damage": damaged,
                "seconds": time.monotonic() - started,
            }
        )
    elif not quiet or damaged:
        for name, why in damaged.items():
            print(f"{name}: {why}")
        print(
            f"{dataset.source} ({contents.kind}): {count(len(found), 'record')} "
            f"({size(int(found.positions[-1]))}) in {count(len(found.shards), 'shard')}, index "
            f"{size(found.nbytes)}, {time.monotonic() - started:.1f} s"
        )
    if damaged:
        raise typer.Exit(1)
