"""`aioload verify`: every byte of a set compared with its sums."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ..dataset import Dataset
from ..errors import AioloadError, ConfigError, NotFoundError, ShardError
from ..foreign import UNPROTECTED, place_of
from ..shard.check import Problem, VerifyReport
from ..shard.check import verify as verify_set
from ..shard.format import MANIFEST_NAME, shard_name
from ..shard.manifest import Manifest
from ..shard.reader import Reader
from ..storage.address import Address
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
    short,
    size,
)
from ._reading import open_reader

__all__ = ["verify"]


def verify(
    data: Annotated[str, typer.Argument(metavar="DATA", show_default=False,
        help="A set: its folder or address; or shards of others: a file, a folder, name-{000..009}.tar.")],
    *,
    field: FieldKinds = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Check every sum and every offset of a set; name each damaged record."""
    started = time.monotonic()
    options = parse_storage_options(storage_option)
    foreign = _foreign(data, parse_fields(field), options)
    hint = None
    if foreign is None:
        report = _verify_own(data, options, quiet=quiet or as_json)
    else:
        report, hint = _verify_foreign(foreign, quiet=quiet or as_json)

    if as_json:
        print_json({**asdict(report), "ok": report.ok, "unprotected": hint})
    else:
        shown = Address.parse(data).shown if "://" in data else data
        _show(report, shown, time.monotonic() - started, quiet=quiet)
        if hint is not None and not quiet:
            print(f"not checked: {hint}")
    if not report.ok:
        raise typer.Exit(1)


def _foreign(
    data: str, fields: Mapping[str, str] | None, options: Mapping[str, Any] | None
) -> Dataset | None:
    """Return a set that others have written; None where it is one of aioload's own, whole or not."""
    is_folder = place_of(data).names is None if "://" in data else Path(data).is_dir()
    if is_folder:
        with open_reader(data, options) as reader:
            # an index alone is a leftover, beside shards of others perhaps
            if any(_is_there(reader, name) for name in (MANIFEST_NAME, shard_name(0))):
                if fields:
                    raise ConfigError(f"{data} is a packed set, which knows its fields; leave --field out")
                return None
    return Dataset(data, fields=fields, storage_options=options)


def _is_there(reader: Reader, name: str) -> bool:
    try:
        reader.size(name)
    except NotFoundError:
        return False
    return True


def _verify_own(data: str, options: Mapping[str, Any] | None, *, quiet: bool) -> VerifyReport:
    with open_reader(data, options) as reader:
        expected = _expected_bytes(reader)
        with bytes_bar("verifying", expected, quiet=quiet) as advance:
            return verify_set(reader, progress=advance)


def _verify_foreign(dataset: Dataset, *, quiet: bool) -> tuple[VerifyReport, str | None]:
    """Return what was found, and what could not be checked."""
    dataset.tolerate()
    try:
        index = dataset.index
    except ShardError as error:
        problem = Problem(str(error.shard), error.record, "file", error.offset, str(error))
        return VerifyReport(0, 0, 1, (problem,)), None
    hint = None if index.sums is not None else UNPROTECTED.get(dataset.kind)
    with bytes_bar("verifying", int(index.positions[-1]), quiet=quiet) as advance:
        return dataset.check(advance), hint


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
