"""`aioload plan`: what training on a set will cost, and what to do about it first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer

from ..planning import PRESETS, Demand, Epochs, Forecast, Stage, Wanted, forecast, open_subject, seconds_of
from ..words import byte_rate, count, share, size, time_text
from ._console import (
    AsJson,
    FieldKinds,
    Quiet,
    SetOrShards,
    StorageOptions,
    one_or_all,
    parse_fields,
    parse_storage_options,
    print_json,
    print_table,
    seconds_bar,
    stdout_kept,
)
from ._loading import (
    BatchSize,
    Cropped,
    Flip,
    Loading,
    Order,
    Pixels,
    Seconds,
    Shuffled,
    With,
    Workers,
)

__all__ = ["plan"]

_WORTH_TELLING = 0.05  # of the first epoch: a start that takes more is told of
_VERDICTS = {
    "nothing": "do nothing",
    "leave": "leave it as it is",
    "pack": "pack it",
    "cache": "cache it on a disk",
    "keep": "keep decoded samples in memory",
}


class Storage(StrEnum):
    """Kinds of storage whose figures are known."""

    hdd = "hdd"
    sata = "sata"
    nvme = "nvme"
    s3 = "s3"
    http = "http"


def plan(
    data: SetOrShards,
    *,
    storage: Annotated[Storage | None, typer.Option(show_default=False,
        help="What the data will lie on; without it, what its path or address tells.")] = None,
    measure: Annotated[bool, typer.Option("--measure",
        help="Measure the storage by reads of this set, out of the page cache, in place of usual "
             "figures.")] = False,
    step_ms: Annotated[float | None, typer.Option(min=0.001, max=1e9, metavar="MS", show_default=False,
        help="What your model takes for a batch.")] = None,
    gpus: Annotated[int, typer.Option(min=1, max=10**6, metavar="N", help="That train on this machine.")] = 1,
    epochs: Annotated[int, typer.Option(min=1, max=10**9, metavar="N", help="That are to be trained.")] = 10,
    batch_size: BatchSize = 64,
    num_workers: Workers = "auto",
    shuffle: Shuffled = Order.block,
    pixels: Pixels = None,
    crop: Cropped = None,
    flip: Flip = False,
    transform: With = None,
    seconds: Seconds = 3.0,
    field: FieldKinds = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Tell what an epoch costs, what limits it, and whether to pack or cache the set first.

    DATA may also be a folder of pictures that are not packed yet.
    """
    if measure and storage is not None:
        raise typer.BadParameter("--measure asks the storage that is there; leave --storage out")
    loading = Loading(
        batch_size=batch_size,
        num_workers=num_workers,
        order=shuffle,
        transform=transform,
        size=pixels,
        crop=crop,
        flip=flip,
    )
    subject = open_subject(
        one_or_all(data), fields=parse_fields(field), storage_options=parse_storage_options(storage_option)
    )
    wanted = Wanted(None if storage is None else PRESETS[storage.value], measure, seconds)
    demand = Demand(batch_size, gpus, None if step_ms is None else step_ms / 1000, epochs)
    setup = loading.setup(subject.fields)
    with (
        stdout_kept(wanted=as_json),  # what the user's functions print, too
        seconds_bar("planning", seconds_of(wanted), quiet=quiet or as_json) as advance,
    ):
        found = forecast(subject, setup, demand, wanted, progress=advance)
    print_json(_as_json(found)) if as_json else _show(found, shuffle)


def _show(found: Forecast, order: Order) -> None:
    subject, work, medium, demand = found.subject, found.work, found.medium, found.demand
    where = f"{medium.name}: {1000 * medium.seek_seconds:.2g} ms to begin, {byte_rate(medium.total_bytes)}"
    files = count(subject.shards, "file" if subject.kind == "files" else "shard")
    print(
        f"{subject.source} ({subject.kind}): {count(subject.records, 'record')}, "
        f"{size(subject.data_bytes)} in {files}; {where}"
    )
    gpus = f", {demand.gpus} GPUs" if demand.gpus > 1 else ""
    print(
        f"an epoch, order {order.value}, batches of {demand.batch_size}{gpus}, "
        f"{count(work.num_workers, 'worker')}"
    )
    print_table(_rows(found))
    first, start = found.epochs.first_seconds, found.epochs.start_seconds
    waits = f" ({time_text(start)} of it before its first batch)" if start > _WORTH_TELLING * first else ""
    print(
        f"epochs: the first {time_text(first)}{waits}, each later one "
        f"{time_text(found.epochs.later_seconds)}, {found.demand.epochs} in all "
        f"{time_text(found.epochs.total(demand.epochs))}; limited by {found.epochs.limit.name}"
    )
    verdict = found.verdict
    print(f"verdict: {_VERDICTS[verdict.action]}. {verdict.because[0].upper()}{verdict.because[1:]}.")
    for line in (*verdict.advice, *found.notes):
        print(f"  {line}")


def _rows(found: Forecast) -> Iterator[list[str]]:
    details = _details(found)
    has_step = found.demand.step_seconds is not None
    yield ["stage", "first epoch", "later", *["of the step"] * has_step, ""]
    for first, later in zip(found.epochs.first, found.epochs.later, strict=True):
        of_step = [] if later.share_of_step is None else [_of_step(first, later)]
        yield [first.name, time_text(first.seconds), time_text(later.seconds), *of_step, details[first.name]]


def _of_step(first: Stage, later: Stage) -> str:
    told = [share(part) for part in (first.share_of_step, later.share_of_step) if part is not None]
    return told[0] if len(set(told)) == 1 else ", ".join(told)


def _details(found: Forecast) -> dict[str, str]:
    """Return what stands behind the seconds of each stage."""
    pattern, work, demand = found.pattern, found.work, found.demand
    asked = (
        f"{count(pattern.requests, 'request')}, " if found.medium.is_network else
        f"{count(pattern.reads, 'read')}, {count(pattern.seeks, 'seek')}, "
    )  # fmt: skip
    cached = ", then from the page cache" if not found.epochs.later[0].seconds else ""
    details = {
        "storage": f"{asked}{size(pattern.read_bytes)}{cached}",
        "decode": f"{work.core_seconds * found.subject.records:,.1f} core-seconds, "
        f"{1000 * work.core_seconds:.2f} ms a record; {work.samples_per_second:,.0f} samples/s measured",
        "copy": f"{size(work.batch_bytes * found.subject.records)} over the bus",
    }
    if demand.step_seconds is not None:
        rate = demand.batch_size * demand.gpus / demand.step_seconds
        details["model"] = f"{1000 * demand.step_seconds:g} ms a step, {rate:,.0f} samples/s wanted"
    return details


def _as_json(found: Forecast) -> dict[str, Any]:
    return {
        "subject": asdict(found.subject),
        "reads": asdict(found.pattern),
        "storage": {**asdict(found.medium), "is_cold": found.is_cold},
        "work": asdict(found.work),
        "demand": asdict(found.demand),
        "epochs": _epochs(found.epochs, found.demand),
        "choices": [
            {
                "action": choice.action,
                "once_seconds": choice.once_seconds,
                **_epochs(choice.epochs, found.demand),
                "total_seconds": choice.total(found.demand.epochs),
            }
            for choice in found.choices
        ],
        "verdict": asdict(found.verdict),
        "notes": list(found.notes),
    }


def _epochs(epochs: Epochs, demand: Demand) -> dict[str, Any]:
    return {
        "first_seconds": epochs.first_seconds,
        "later_seconds": epochs.later_seconds,
        "total_seconds": epochs.total(demand.epochs),
        "start_seconds": epochs.start_seconds,
        "limit": epochs.limit.name,
        "first": [asdict(stage) for stage in epochs.first],
        "later": [asdict(stage) for stage in epochs.later],
    }
