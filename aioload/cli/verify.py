"""`aioload verify`: every byte of a set compared with its sums."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from ..dataset import Dataset
from ..errors import AioloadError, ConfigError, NotFoundError, ShardError
from ..foreign import DAMAGE_LOG, HOLES_LOG, UNPROTECTED, place_of
from ..shard.check import Problem, VerifyReport
from ..shard.check import verify as verify_set
from ..shard.format import MANIFEST_NAME, shard_name
from ..shard.manifest import Manifest
from ..shard.reader import Reader
from ..storage.address import shown
from ..storage.reading import open_reader
from ._console import (
    AsJson,
    FieldKinds,
    Quiet,
    SetOrShards,
    StorageOptions,
    bytes_bar,
    count,
    one_or_all,
    parse_fields,
    parse_storage_options,
    print_json,
    short,
    size,
    told_once,
)

__all__ = ["verify"]


def verify(
    data: SetOrShards,
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
        report = _verify_own(data[0], options, quiet=quiet or as_json)
    else:
        with told_once(DAMAGE_LOG, HOLES_LOG):
            report, hint = _verify_foreign(foreign, quiet=quiet or as_json)

    if as_json:
        print_json({**asdict(report), "ok": report.ok, "unprotected": hint})
    else:
        source = foreign.source if foreign is not None else shown(data[0])
        _show(report, source, time.monotonic() - started, quiet=quiet)
        if hint is not None and not quiet:
            print(f"not checked: {hint}")
    if not report.ok:
        raise typer.Exit(1)


def _foreign(
    sources: list[str], fields: Mapping[str, str] | None, options: Mapping[str, Any] | None
) -> Dataset | None:
    """Return a set that others have written; None where it is one of aioload's own, whole or not."""
    data = sources[0]
    is_folder = place_of(data).names is None if "://" in data else Path(data).is_dir()
    if len(sources) == 1 and is_folder:
        with open_reader(data, options) as reader:
            # an index alone is a leftover, beside shards of others perhaps
            if any(_is_there(reader, name) for name in (MANIFEST_NAME, shard_name(0))):
                if fields:
                    raise ConfigError(f"{data} is a packed set, which knows its fields; leave --field out")
                return None
    return Dataset(one_or_all(sources), fields=fields, storage_options=options)


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
    place, message = [problem.shard], problem.message
    if problem.record is not None:
        place.append(f"record {problem.record}")
    place.append(problem.region)
    if problem.offset is not None:
        place.append(f"byte {problem.offset}")
    for told in place[:2]:  # once is enough
        message = message.removeprefix(f"{told}: ").removeprefix(f"{told} ")
    return f"{', '.join(place)}: {short(message, 300)}"
