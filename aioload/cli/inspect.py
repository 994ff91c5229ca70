"""`aioload inspect`: what a set holds, and what one record looks like."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..dataset import Dataset
from ..decode import Decoder
from ..errors import AioloadError, ConfigError
from ..shard.kinds import media_suffix
from ._console import (
    AsJson,
    FieldKinds,
    StorageOptions,
    count,
    parse_fields,
    parse_storage_options,
    print_json,
    print_table,
    short,
    size,
)

__all__ = ["inspect"]

_SHOWN = 5  # shards and records in the overview
_INLINE = ("int", "float", "str", "json")  # kinds whose value says more than its size
_SUFFIXES = {"ndarray": ".npy", "str": ".txt", "json": ".json", "int": ".i64", "float": ".f64"}


def inspect(
    data: Annotated[str, typer.Argument(metavar="DATA", show_default=False,
        help="A set: its folder or address; or shards of others: a file, a folder, name-{000..009}.tar.")],
    *,
    record: Annotated[int | None, typer.Option(min=0, metavar="N", help="Show one record.")] = None,
    save: Annotated[Path | None, typer.Option(metavar="DIR",
        help="Write the bytes of the record's fields to files in this folder.")] = None,
    field: FieldKinds = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show what a set holds: fields, sizes, shards and the first records, or one record."""
    if save is not None and record is None:
        raise typer.BadParameter("--save writes one record; say which with --record")

    dataset = Dataset(data, fields=parse_fields(field), storage_options=parse_storage_options(storage_option))
    if record is None:
        overview = _overview(dataset)
        print_json(overview) if as_json else _show_overview(overview, dataset.source)
        return

    found = _read(dataset, record)
    details = _details(found, dataset)
    if save is not None:
        details["saved"] = [str(path) for path in _save(found, dataset.fields, save)]
    print_json(details) if as_json else _show_details(details)


@dataclass(frozen=True, slots=True)
class _Record:
    """One record as it is stored."""

    number: int
    shard: str
    start: int
    stop: int
    key: str | None
    payloads: dict[str, memoryview]


def _read(dataset: Dataset, number: int) -> _Record:
    """Read a record, which is compared with its sum, and cut it into its fields."""
    if number >= len(dataset):
        raise ConfigError(
            f"there is no record {number}; there are {count(len(dataset), 'record')}, from 0 on"
        )

    place = dataset.index.locate(np.array([number]))
    key, payloads = dataset.split_record(number, memoryview(dataset.read_record(number)))
    return _Record(
        number, dataset.index.shards[place.shard[0]], int(place.start[0]), int(place.stop[0]), key, payloads
    )


def _overview(dataset: Dataset) -> dict[str, Any]:
    index = dataset.index
    sizes = np.diff(index.positions.astype(np.int64))
    return {
        "format": dataset.kind,
        "records": len(index),
        "fields": dataset.fields,
        "encodings": dataset.encodings,
        "index_fields": list(index.columns),
        "metadata": dataset.metadata,
        "data_bytes": int(index.positions[-1]),
        "index_bytes": index.nbytes,
        "sums": index.sums is not None,
        "record_bytes": {
            "min": int(sizes.min()), "mean": float(sizes.mean()), "max": int(sizes.max())
        } if len(sizes) else None,
        "shards": [
            {"name": name, "records": int(stop - start), "bytes": int(num_bytes)}
            for name, (start, stop), num_bytes in zip(
                index.shards, itertools.pairwise(index.shard_records), index.shard_bytes, strict=True
            )
        ],
        "first": [_summary(dataset, number) for number in range(min(_SHOWN, len(index)))],
    }  # fmt: skip


def _summary(dataset: Dataset, number: int) -> dict[str, Any]:
    """Return a line's worth of a record; a damaged one must not hide the rest."""
    try:
        found = _read(dataset, number)
    except AioloadError as error:
        return {"record": number, "error": str(error)}

    kinds, decoders = dataset.fields, dataset.decoders
    return {
        "record": number,
        "key": found.key,
        "fields": {n: _glance(kinds[n], v, decoders[n]) for n, v in found.payloads.items()},
    }


def _glance(kind: str, payload: memoryview, decode: Decoder) -> Any:
    """Return the value of a field where it is short, else its size."""
    if kind not in _INLINE or len(payload) > 10_000:
        return size(len(payload))

    try:
        value = decode(payload)
    except AioloadError as error:
        return f"cannot be decoded: {short(error, 100)}"
    return short(value) if kind in ("str", "json") else value


def _details(found: _Record, dataset: Dataset) -> dict[str, Any]:
    kinds, decoders = dataset.fields, dataset.decoders
    return {
        "record": found.number,
        "key": found.key,
        "shard": found.shard,
        "start": found.start,
        "stop": found.stop,
        "fields": {
            name: {
                "kind": kinds[name],
                "bytes": len(payload),
                "value": _describe(kinds[name], payload, decoders[name]),
            }
            for name, payload in found.payloads.items()
        },
    }


def _describe(kind: str, payload: memoryview, decode: Decoder) -> str:
    """Tell what a field decodes to; where it cannot be decoded, why."""
    try:
        value = decode(payload)
    except AioloadError as error:
        return f"cannot be decoded: {error}"

    return _shape_of(value, payload) if kind not in _INLINE else short(value, 200)


def _shape_of(value: Any, payload: memoryview) -> str:
    if isinstance(value, (bytes, memoryview)):
        return short(bytes(payload[:16]).hex(" "), 60)

    parts = value if isinstance(value, (tuple, list)) else [value]
    return ", ".join(f"{p.dtype} {p.shape}" if isinstance(p, np.ndarray) else short(p) for p in parts)


def _save(found: _Record, kinds: dict[str, str], folder: Path) -> Iterator[Path]:
    """Write fields to files named by the record's number and theirs: no name can lead elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, (name, payload) in enumerate(found.payloads.items()):
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:60]
        unique = plain if plain == name else f"{plain}.{place}"  # no plain name has a dot
        path = folder / f"{found.number:08}-{unique}{_suffix(kinds[name], payload)}"
        path.write_bytes(payload)
        yield path


def _suffix(kind: str, payload: memoryview) -> str:
    if kind not in ("image", "audio"):
        return _SUFFIXES.get(kind, ".bin")

    return f".{media_suffix(payload) or 'bin'}"


def _show_overview(overview: dict[str, Any], data: str) -> None:
    shards, sizes = overview["shards"], overview["record_bytes"]
    what = "" if overview["format"] == "aioload" else f" ({overview['format']})"
    print(f"{data}{what}: {count(overview['records'], 'record')}, {size(overview['data_bytes'])}")
    print_table(
        [
            ("records", "min {}, mean {}, max {}".format(*map(size, sizes.values())) if sizes else "none"),
            (
                "index",
                f"{size(overview['index_bytes'])}, columns: {', '.join(overview['index_fields']) or 'none'}, "
                f"{'with' if overview['sums'] else 'without'} a sum of each record",
            ),
            ("metadata", short(overview["metadata"], 100)),
        ]
    )
    print("fields")
    print_table((short(name), kind) for name, kind in overview["fields"].items())
    print("shards")
    print_table((s["name"], count(s["records"], "record"), size(s["bytes"])) for s in shards[:_SHOWN])
    if len(shards) > _SHOWN:
        print(f"  … and {len(shards) - _SHOWN:,} more")
    print("first records")
    print_table(map(_row, overview["first"]))


def _row(summary: dict[str, Any]) -> Iterator[str]:
    yield str(summary["record"])
    if "error" in summary:
        yield summary["error"]
        return

    yield "(no key)" if summary["key"] is None else short(summary["key"])
    yield from (f"{short(name)}: {value}" for name, value in summary["fields"].items())


def _show_details(details: dict[str, Any]) -> None:
    key = "no key" if details["key"] is None else short(details["key"], 500)
    place = f"{details['shard']}, bytes {details['start']} to {details['stop']}"
    print(f"record {details['record']}: {key}; {place}")
    print_table(
        (short(name), field["kind"], size(field["bytes"]), field["value"])
        for name, field in details["fields"].items()
    )
    for path in details.get("saved", ()):
        print(f"saved {path}")
