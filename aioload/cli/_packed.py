"""What `pack` and `map` have in common: options, and what they say in the end."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from ..errors import SampleError
from ..packing import PackReport, Unreadable
from ..storage.address import shown
from ._console import count, print_json, short, size

__all__ = ["IndexFields", "Scheduler", "for_others", "show_failure", "show_packed"]

IndexFields = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Keep the values of a numeric field in the index too; may be given again."
    ),
]

Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="A Dask scheduler, such as tcp://host:8786, whose workers do it, a shard each at a time; a run "
        "that was stopped is gone on with. They must see SRC and DST.",
    ),
]

_SHOWN = 50  # unreadable files that are named; --json names all


def for_others(sources: list[str], scheduler: str | None) -> list[str]:
    """Return sources as workers of a scheduler can name them: they may work in another folder."""
    if scheduler is None:
        return sources
    return [each if "://" in each else os.path.abspath(each) for each in sources]  # noqa: PTH100 - patterns, too


def show_packed(
    report: PackReport, what: str, destination: str, noun: str, *, as_json: bool, quiet: bool
) -> None:
    """Print a report.

    Args:
        report: of the command.
        what: it did, such as `packed`, and from what.
        destination: where the set is.
        noun: what items are called.
        as_json: for machines.
        quiet: nothing, when all is well.
    """
    if as_json:
        print_json(_as_json(report))
    elif not quiet:
        _show(report, what, destination)
    _show_unreadable(report.unreadable, noun)


def show_failure(error: SampleError, *, as_json: bool) -> None:
    """Print what could not be packed, where that ended the command."""
    unreadable: tuple[Unreadable, ...] = error.facts.get("unreadable", ())
    if as_json:
        print_json({"error": str(error), "unreadable": [_entry(bad) for bad in unreadable]})
    _show_unreadable(unreadable, error.facts.get("noun", "file"))


def _show(report: PackReport, what: str, destination: str) -> None:
    rate = report.records / max(report.seconds, 1e-9)
    done, source = what.split(" ", 1)
    print(
        f"{done} {count(report.records, 'record')} {source} into {shown(destination)}: "
        f"{size(report.data_bytes)} in {count(report.shards, 'shard')}, "
        f"{report.seconds:.1f} s, {rate:,.0f} records/s"
    )
    for note in report.notes:
        print(note)


def _show_unreadable(unreadable: tuple[Unreadable, ...], noun: str) -> None:
    if not unreadable:
        return

    print(f"{count(len(unreadable), noun)} could not be packed:", file=sys.stderr)
    for bad in unreadable[:_SHOWN]:
        print(f"  {short(bad.name, 500)}: {short(bad.reason, 300)}", file=sys.stderr)
    if len(unreadable) > _SHOWN:
        print(f"  … and {len(unreadable) - _SHOWN:,} more; --json names all", file=sys.stderr)


def _as_json(report: PackReport) -> dict[str, Any]:
    return {
        "records": report.records,
        "bytes": report.data_bytes,
        "shards": report.shards,
        "seconds": round(report.seconds, 3),
        "unreadable": [_entry(bad) for bad in report.unreadable],
        "notes": list(report.notes),
    }


def _entry(bad: Unreadable) -> dict[str, str]:
    return {"name": bad.name, "reason": bad.reason}
