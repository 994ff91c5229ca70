"""`aioload bench`: how fast the loader is on this machine and data, and which stage is the slowest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..benching import Bench, Measured, Sweep, Wanted, run_bench, seconds_of
from ..benching.plot import check_plot, plot
from ..dataset import Dataset
from ..errors import ConfigError
from ..machine import usable_cpus
from ..words import byte_rate, count, share, time_text
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

__all__ = ["bench"]

_WIDE = 1000  # columns where there is no terminal: nothing is cut off for the next program


class Against(StrEnum):
    """Others that can be measured, too."""

    torch = "torch"


def bench(
    data: SetOrShards,
    *,
    against: Annotated[Against | None, typer.Option(show_default=False,
        help="Measure this loader over the same records, too.")] = None,
    sweep: Annotated[bool, typer.Option("--sweep",
        help="Try numbers of workers and of batches ahead, and tell from where on more no longer "
             "helps.")] = False,
    stages: Annotated[bool, typer.Option("--stages/--no-stages", help="Measure each stage alone.")] = True,
    picture: Annotated[Path | None, typer.Option("--plot", metavar="PNG", show_default=False,
        help="Draw it; needs the extra plot.")] = None,
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
    """Measure this loader on your data and machine: all of it, its stages alone, and torch's beside it.

    Ctrl-C ends it and prints what there is.
    """
    loading = Loading(
        batch_size=batch_size,
        num_workers=num_workers,
        order=shuffle,
        transform=transform,
        size=pixels,
        crop=crop,
        flip=flip,
    )
    if picture is not None:
        check_plot(picture)
    dataset = Dataset(
        one_or_all(data), fields=parse_fields(field), storage_options=parse_storage_options(storage_option)
    )
    if not len(dataset):
        raise ConfigError(f"{dataset.source} has no records, so there is nothing to measure")
    wanted = Wanted(seconds, stages, against is not None, sweep)
    workers = usable_cpus() if num_workers is None else num_workers
    setup, total = loading.setup(dataset.fields), seconds_of(wanted, num_workers=workers)
    found: Bench | None = None
    with (
        stdout_kept(wanted=as_json),  # what the user's functions print, too
        seconds_bar("measuring", total, quiet=quiet or as_json) as advance,
    ):
        steps = run_bench(dataset, setup, wanted, progress=advance)
        try:
            for so_far in steps:
                found = so_far
        except KeyboardInterrupt:
            steps.close()
    if found is None or not found.measured:
        raise typer.Exit(1)
    print_json(_as_json(found)) if as_json else _show(found)
    if picture is not None:
        plot(found, picture)
        if not (as_json or quiet):
            print(f"drawn: {picture}")
    if not found.is_complete:
        raise typer.Exit(1)


def _show(found: Bench) -> None:
    print(
        f"{found.source}: {count(found.records, 'record')}, batches of {found.batch_size}, "
        f"{count(found.num_workers, 'worker')}"
    )
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    console.print(_table(found))
    for line in _told(found):
        print(line)
    if not found.is_complete:
        print("stopped before the end: figures are of fewer rounds, or missing")


def _table(found: Bench) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("")
    for name in ("samples/s", "bytes/s", "± half", "CPU s / 1,000", "first batch"):
        table.add_column(name, justify="right")
    table.add_column("")
    for one in found.measured:
        if one.missing is not None:
            table.add_row(one.name, "-", "-", "-", "-", "-", one.missing)
            continue
        first = "" if one.first_batch_seconds is None else time_text(one.first_batch_seconds)
        table.add_row(
            one.name,
            f"{one.samples_per_second:,.0f}",
            byte_rate(one.bytes_per_second),
            share(one.spread / 2),
            f"{one.cpu_seconds_per_1000:.2f}",
            first,
            one.what,
        )
    return table


def _told(found: Bench) -> Iterator[str]:
    loader, slowest, torch = found.named("loader"), found.slowest, found.named("torch")
    if loader is not None and slowest is not None and slowest.samples_per_second:
        reached = loader.samples_per_second / slowest.samples_per_second
        yield f"the slowest stage alone is {slowest.name}; the loader reaches {share(reached)} of it"
    if loader is not None and torch is not None and torch.samples_per_second:
        yield f"{loader.samples_per_second / torch.samples_per_second:.2f} times torch's DataLoader"
    for sweep in found.sweeps:
        yield _sweep_line(sweep)
    yield from found.notes


def _sweep_line(sweep: Sweep) -> str:
    what = "workers" if sweep.knob == "workers" else "batches ahead"
    points = ", ".join(
        f"{point.value}: {point.rate:,.0f}" for point in sorted(sweep.points, key=lambda point: point.value)
    )
    knee = sweep.knee
    if knee.is_clear:
        return f"{what}, samples/s: {points}; {knee.value} will do, within 5% of the best"
    return (
        f"{what}, samples/s: {points}; {knee.value} may do, but rates waver by {share(knee.noise)}: measure "
        "longer, with --seconds"
    )


def _as_json(found: Bench) -> dict[str, Any]:
    slowest = found.slowest
    return {
        "source": found.source,
        "records": found.records,
        "batch_size": found.batch_size,
        "num_workers": found.num_workers,
        "complete": found.is_complete,
        "measured": [asdict(one) for one in found.measured],
        "slowest": None if slowest is None else slowest.name,
        "loader_to_torch": _ratio(found.named("loader"), found.named("torch")),
        "sweeps": [
            {
                "knob": sweep.knob,
                "points": [
                    {"value": point.value, "rate": point.rate, "rates": list(point.rates)}
                    for point in sweep.points
                ],
                "knee": asdict(sweep.knee),
            }
            for sweep in found.sweeps
        ],
        "notes": found.notes,
    }


def _ratio(one: Measured | None, other: Measured | None) -> float | None:
    if one is None or other is None or not other.samples_per_second:
        return None
    return one.samples_per_second / other.samples_per_second
