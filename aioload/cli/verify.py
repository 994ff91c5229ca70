"""`aioload verify`: every byte of a set compared with its sums."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from ..errors import AioloadError
from ..shard.check import Problem, VerifyReport
from ..shard.check import verify as verify_set
from ..shard.format import MANIFEST_NAME
from ..shard.manifest import Manifest
from ..shard.reader import Reader
from ..storage.address import Address
from ._console import (
    AsJson,
    Quiet,
    StorageOptions,
    count,
    parse_storage_options,
    print_json,
    progress_bar,
    short,
    size,
)
from ._reading import open_reader

__all__ = ["verify"]


def verify(
    data: Annotated[str, typer.Argument(metavar="DATA", show_default=False,
        help="The folder of a set, or its address.")],
    *,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Check every sum and every offset of a set; name each damaged record."""
    started = time.monotonic()
    with open_reader(data, parse_storage_options(storage_option)) as reader:
        expected = _expected_bytes(reader)
        with progress_bar("verifying", expected, quiet=quiet or as_json) as advance:
            report = verify_set(reader, progress=lambda num_bytes: advance(num_bytes, num_bytes))

    if as_json:
        print_json({**asdict(report), "ok": report.ok})
    else:
        _show(
            report,
            Address.parse(data).shown if "://" in data else data,
            time.monotonic() - started,
            quiet=quiet,
        )
    if not report.ok:
        raise typer.Exit(1)


def _expected_bytes(reader: Reader) -> int:
    """Return how much there is to read, as far as the manifest can tell: only the bar needs it."""
    try:
        return Manifest.parse(
            reader.read(MANIFEST_NAME, 0, reader.size(MANIFEST_NAME)), MANIFEST_NAME
        ).data_bytes
    except AioloadError:
        return 0


def _show(report: VerifyReport, data: str, seconds: float, *, quiet: bool) -> None:
    for problem in report.problems:
        print(_line(problem))
    if report.omitted:
        print(f"… and {count(report.omitted, 'more problem')}")

    found = len(report.problems) + report.omitted
    if found or not quiet:
        verdict = count(found, "problem") if found else "all well"
        print(
            f"{data}: {verdict}; {count(report.records, 'record')} ({size(report.data_bytes)}) in "
            f"{count(report.shards, 'shard')} checked in {seconds:.1f} s"
        )


def _line(problem: Problem) -> str:
    place = [problem.shard]
    if problem.record is not None:
        place.append(f"record {problem.record}")
    place.append(problem.region)
    if problem.offset is not None:
        place.append(f"byte {problem.offset}")
    return f"{', '.join(place)}: {short(problem.message, 300)}"
