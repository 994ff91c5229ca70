"""`aioload map`: a set in, each record given to a function, a set out."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..dataset import Dataset
from ..errors import SampleError
from ..packing import map as map_records
from ._console import (
    AsJson,
    FieldKinds,
    Quiet,
    StorageOptions,
    one_or_all,
    parse_fields,
    parse_function,
    parse_size,
    parse_storage_options,
    parse_workers,
    progress_bar,
    stdout_kept,
)
from ._packed import IndexFields, Scheduler, for_others, show_failure, show_packed

__all__ = ["map_"]


def map_(
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", show_default=False,
        help="A set: its folder or address; or shards of others: files, a folder, name-{000..009}.tar.")],
    destination: Annotated[str, typer.Argument(metavar="DST", show_default=False,
        help="The folder to be made, or an address in a bucket, such as s3://bucket/prepared.")],
    *,
    function: Annotated[str, typer.Option("--with", metavar="MODULE:FUNCTION",
        help="What is done to each sample: it takes a dict and returns one. The working directory is looked "
             "into for the module.")],
    result: Annotated[list[str] | None, typer.Option("--result", metavar="NAME=KIND",
        help="A value that the function returns, and its kind, such as mel=ndarray; given again for each. "
             "Without it, they are told from the first result.")] = None,
    raw: Annotated[list[str] | None, typer.Option(metavar="FIELD",
        help="A field that the function gets as bytes, not decoded; may be given again.")] = None,
    field: FieldKinds = None,
    shard_size: Annotated[int | None, typer.Option(parser=parse_size, metavar="SIZE",
        show_default="a 64th of all, 4MiB to 256MiB",
        help="About how large a shard becomes. Each is made by one process.")] = None,
    workers: Annotated[Any, typer.Option(parser=parse_workers, metavar="N|auto",
        help="Processes; auto: as many as CPUs; 0: none but this one.")] = "auto",
    scheduler: Scheduler = None,
    index_field: IndexFields = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad",
        help="Leave out records that are damaged, or for which the function fails.")] = False,
    force: Annotated[bool, typer.Option("--force",
        help="Begin anew where shards of another run lie.")] = False,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Give each record of a set to a function, and pack what it returns; goes on where it was stopped."""
    options = parse_storage_options(storage_option)
    is_remote = any("://" in each for each in sources)
    dataset = Dataset(
        one_or_all(for_others(sources, scheduler)),
        fields=parse_fields(field),
        storage_options=options if is_remote else None,
    )
    called = parse_function(function)
    try:
        with (
            stdout_kept(wanted=as_json),  # what the function prints, too
            progress_bar("mapping", len(dataset), quiet=quiet or as_json, counts_cost=True) as advance,
        ):
            report = map_records(
                dataset,
                called,
                destination,
                fields=parse_fields(result),
                decode=dict.fromkeys(raw or (), "raw"),
                shard_bytes=shard_size,
                index_fields=index_field or (),
                num_workers=workers,
                scheduler=scheduler,
                skip_bad=skip_bad,
                force=force,
                progress=advance,
                storage_options=options if "://" in destination or not is_remote else None,
            )
    except SampleError as error:
        show_failure(error, as_json=as_json)
        raise

    show_packed(report, f"mapped with {function}", destination, "record", as_json=as_json, quiet=quiet)
