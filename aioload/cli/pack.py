"""`aioload pack`: files in, a set out."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from ..errors import SampleError
from ..packing import Recipe, find_source, pack_by_tasks
from ..packing import pack as pack_source
from ._console import (
    AsJson,
    FieldKinds,
    Quiet,
    StorageOptions,
    parse_fields,
    parse_size,
    parse_storage_options,
    parse_workers,
    progress_bar,
)
from ._packed import IndexFields, Scheduler, for_others, show_failure, show_packed

__all__ = ["pack"]


class Kind(StrEnum):
    """Sources that can be asked for."""

    folder = "folder"
    flat = "flat"
    webdataset = "webdataset"
    tfrecord = "tfrecord"
    mds = "mds"
    aioload = "aioload"
    parquet = "parquet"
    csv = "csv"
    jsonl = "jsonl"


class Check(StrEnum):
    """How far images are looked at."""

    header = "header"
    full = "full"
    none = "none"


def pack(
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", show_default=False,
        help="A folder of images (a sub-folder is a class), WebDataset archives, TFRecord or Parquet files "
             "(also name-{000..009}.tar), an MDS folder, a packed set, a CSV, TSV or JSONL table of paths. "
             "Shards and packed sets may be given by their address, too.")],
    destination: Annotated[str, typer.Argument(metavar="DST", show_default=False,
        help="The folder to be made, or an address in a bucket, such as s3://bucket/train: what a run that "
             "was stopped has sent there is not sent again.")],
    *,
    kind: Annotated[Kind | None, typer.Option(help="What SRC is, where it cannot be told.")] = None,
    field: FieldKinds = None,
    path_field: Annotated[str | None, typer.Option(help="Column of a table that holds the path.")] = None,
    shard_size: Annotated[int, typer.Option(parser=parse_size, metavar="SIZE", show_default="256MiB",
        help="How large a shard may become.")] = 256 << 20,
    workers: Annotated[Any, typer.Option(parser=parse_workers, metavar="N|auto",
        help="Threads that read, or processes that re-encode; auto: as many as CPUs.")] = "auto",
    resize: Annotated[int | None, typer.Option(min=1, metavar="N",
        help="Make larger images smaller: N pixels on the shorter side, as JPEG.")] = None,
    quality: Annotated[int | None, typer.Option(min=1, max=100, metavar="Q",
        help="Re-encode images as JPEG of this quality; with --resize 90.")] = None,
    index_field: IndexFields = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out what cannot be read.")] = False,
    check: Annotated[Check, typer.Option(
        help="Look at each image: does it open, does it decode.")] = Check.header,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Pack in an order drawn from the seed.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the shuffled order.")] = 0,
    scheduler: Scheduler = None,
    force: Annotated[bool, typer.Option("--force",
        help="With --scheduler: begin anew where shards of another run lie.")] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Pack images, archives or a table of files into a set that streams fast."""
    if force and scheduler is None:
        raise typer.BadParameter("--force goes with --scheduler: a folder is cleared without one, too")
    storage_options = parse_storage_options(storage_option)
    is_remote = any("://" in each for each in sources)
    try:
        source = find_source(
            for_others(sources, scheduler),
            kind=None if kind is None else kind.value,
            path_field=path_field,
            fields=parse_fields(field),
            seed=seed if shuffle else None,
            storage_options=storage_options if is_remote else None,
        )
        options: dict[str, Any] = {
            "recipe": Recipe(check=check, resize=resize, quality=quality),
            "shard_bytes": shard_size,
            "index_fields": index_field or (),
            "num_workers": workers,
            "skip_bad": skip_bad,
            "storage_options": storage_options if "://" in destination or not is_remote else None,
        }
        by_tasks = scheduler is not None
        with progress_bar("packing", source.cost, quiet=quiet or as_json, counts_cost=by_tasks) as advance:
            if by_tasks:
                options |= {"scheduler": scheduler, "force": force}
                report = pack_by_tasks(source, destination, progress=advance, **options)
            else:
                report = pack_source(source, destination, progress=advance, **options)
    except SampleError as error:
        show_failure(error, as_json=as_json)
        raise

    show_packed(report, f"packed from {source.kind}", destination, source.noun, as_json=as_json, quiet=quiet)
