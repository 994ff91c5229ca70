"""`aioload export`: any set as WebDataset archives."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from ..dataset import Dataset
from ..packing import export as export_set
from ..storage.address import Address
from ._console import (
    AsJson,
    FieldKinds,
    Quiet,
    StorageOptions,
    bytes_bar,
    count,
    parse_fields,
    parse_size,
    parse_storage_options,
    print_json,
    size,
)

__all__ = ["export"]


def export(
    data: Annotated[str, typer.Argument(metavar="DATA", show_default=False,
        help="A set: its folder or address; or shards of others: a file, a folder, name-{000..009}.tar.")],
    destination: Annotated[str, typer.Argument(metavar="DST", show_default=False,
        help="The folder for the archives, or an address in a bucket, such as s3://bucket/archives.")],
    *,
    shard_size: Annotated[int, typer.Option("--shard-size", parser=parse_size, metavar="BYTES",
        help="How large an archive may become.")] = 256 << 20,
    field: FieldKinds = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Write a set as WebDataset archives, its payloads byte for byte."""
    started = time.monotonic()
    options = parse_storage_options(storage_option)
    dataset = Dataset(
        data,
        fields=parse_fields(field),
        storage_options=options if "://" in data or "://" not in destination else None,
    )
    with bytes_bar("exporting", int(dataset.index.positions[-1]), quiet=quiet or as_json) as advance:
        report = export_set(
            dataset,
            destination,
            shard_bytes=shard_size,
            progress=advance,
            storage_options=options if "://" in destination else None,
        )
    if as_json:
        print_json(asdict(report))
    elif not quiet:
        shown = Address.parse(destination).shown if "://" in destination else destination
        print(
            f"{shown}: {count(report.records, 'sample')} ({size(report.data_bytes)}) in "
            f"{count(len(report.shards), 'archive')}, {time.monotonic() - started:.1f} s"
        )
