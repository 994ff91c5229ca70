"""`aioload inspect`: what a set holds, and what one record looks like."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from ..dataset import Dataset
from ..errors import AioloadError, ConfigError
from ..foreign import for_commands
from ..shard.kinds import media_suffix
from ._console import (
    AsJson,
    FieldKinds,
    SetOrShards,
    StorageOptions,
    count,
    one_or_all,
    parse_fields,
    parse_storage_options,
    print_json,
    print_table,
    short,
    size,
)

if TYPE_CHECKING:
    from ..shard.index import Index

__all__ = ["inspect"]

_OWN_SUMS = ("tfrecord",)  # formats whose records have sums of their own
_FEW = 8  # values of an array that are shown
_MOST_GLANCED = 10_000  # bytes of a value that is decoded for the overview
_AT_A_TIME = 1 << 16  # records whose sizes are looked at
_SHOWN = 5  # shards and records in the overview
_INLINE = ("int", "float", "str", "json")  # kinds whose value says more than its size
_SUFFIXES = {"ndarray": ".npy", "str": ".txt", "json": ".json", "int": ".i64", "float": ".f64"}


def inspect(
    data: SetOrShards,
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

    options = parse_storage_options(storage_option)
    dataset = Dataset(one_or_all(data), fields=parse_fields(field), storage_options=options)
    if record is None:
        overview = _overview(dataset)
        print_json(overview) if as_json else _show_overview(overview, dataset.source)
        return

    found = _read(dataset, record)
    details = _details(found, dataset)
    if save is not None:
        details["saved"] = [str(path) for path in _save(found, dataset, save)]
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
    sizes = [np.array([part.min(), part.sum(), part.max()]) for part in _sizes(index)]
    return {
        "format": dataset.kind,
        "records": len(index),
        "fields": dataset.fields,
        "encodings": dataset.encodings,
        "index_fields": list(index.columns),
        "metadata": dataset.metadata,
        "data_bytes": int(index.positions[-1]),
        "index_bytes": index.nbytes,
        "sums": index.sums is not None or dataset.kind in _OWN_SUMS,
        "record_bytes": {
            "min": min(int(part[0]) for part in sizes),
            "mean": sum(int(part[1]) for part in sizes) / len(index),
            "max": max(int(part[2]) for part in sizes),
        } if len(index) else None,
        "shards": [
            {"name": name, "records": int(stop - start), "bytes": int(num_bytes)}
            for name, (start, stop), num_bytes in zip(
                index.shards, itertools.pairwise(index.shard_records), index.shard_bytes, strict=True
            )
        ],
        "first": [_summary(dataset, number) for number in range(min(_SHOWN, len(index)))],
    }  # fmt: skip


def _sizes(index: Index) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the bytes of each record, some at a time: the index need not be in memory."""
    for first in range(0, len(index), _AT_A_TIME):
        places = index.positions[first : first + _AT_A_TIME + 1].astype(np.int64)
        yield places[1:] - places[:-1]


def _summary(dataset: Dataset, number: int) -> dict[str, Any]:
    """Return a line's worth of a record; a damaged one must not hide the rest."""
    try:
        found = _read(dataset, number)
    except AioloadError as error:
        return {"record": number, "error": for_commands(error)}

    return {
        "record": number,
        "key": found.key,
        "fields": {name: _glance(dataset, name, payload) for name, payload in found.payloads.items()},
    }


def _glance(dataset: Dataset, field: str, payload: memoryview) -> Any:
    """Return the value of a field where it is short, else its size."""
    kind = dataset.fields[field]
    if kind in ("image", "audio") or len(payload) > _MOST_GLANCED:
        return size(len(payload))

    try:
        value = _plain(dataset.decoders_of([field])[field](payload))
    except AioloadError as error:
        return f"cannot be decoded: {short(for_commands(error), 100)}"
    if isinstance(value, np.ndarray):
        return _array(value)
    if kind == "bytes":
        return size(len(value)) if isinstance(value, bytes) else count(len(value), "value")
    return short(value) if kind in ("str", "json") else value


def _details(found: _Record, dataset: Dataset) -> dict[str, Any]:
    return {
        "record": found.number,
        "key": found.key,
        "shard": found.shard,
        "start": found.start,
        "stop": found.stop,
        "fields": {
            name: {
                "kind": dataset.fields[name],
                "bytes": len(payload),
                "value": _describe(dataset, name, payload),
            }
            for name, payload in found.payloads.items()
        },
    }


def _describe(dataset: Dataset, field: str, payload: memoryview) -> str:
    """Tell what a field decodes to; where it cannot be decoded, why."""
    try:
        value = _plain(dataset.decoders_of([field])[field](payload))
    except AioloadError as error:
        return f"cannot be decoded: {for_commands(error)}"

    return _shape_of(value, payload) if dataset.fields[field] not in _INLINE else short(value, 200)


def _plain(value: Any) -> Any:
    """Return one of numpy's numbers as a number of Python's, which JSON knows."""
    return value.item() if isinstance(value, np.generic) else value


def _shape_of(value: Any, payload: memoryview) -> str:
    if isinstance(value, (bytes, memoryview)):
        return short(bytes(payload[:16]).hex(" "), 60)

    parts = value if isinstance(value, (tuple, list)) else [value]
    return short(", ".join(_array(p) if isinstance(p, np.ndarray) else short(p) for p in parts), 200)


def _array(value: np.ndarray[Any, Any]) -> str:
    """Return type and shape of an array, or its values where they are few, as those of a label."""
    if value.ndim == 1 and value.size <= _FEW:
        # 0.1 of single precision is shown so, and not with all of its digits in double
        values = [float(str(each)) for each in value] if value.dtype.kind == "f" else value.tolist()
        return f"{value.dtype} {short(values)}"
    return f"{value.dtype} {value.shape}"


def _save(found: _Record, dataset: Dataset, folder: Path) -> Iterator[Path]:
    """Write fields to files named by the record's number and theirs: no name can lead elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, (name, payload) in enumerate(found.payloads.items()):
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:60]
        unique = plain if plain == name else f"{plain}.{place}"  # no plain name has a dot
        path = folder / f"{found.number:08}-{unique}{_suffix(dataset, name, payload)}"
        path.write_bytes(payload)
        yield path


def _suffix(dataset: Dataset, field: str, payload: memoryview) -> str:
    """Return the suffix of a file of a field's bytes, as they are stored."""
    kind, encoding = dataset.fields[field], dataset.encodings.get(field)
    if encoding is not None:
        return ".txt" if encoding.startswith("text:") else ".bin"
    if kind in ("image", "audio"):
        return f".{media_suffix(payload) or 'bin'}"
    return _SUFFIXES.get(kind, ".bin")


def _show_overview(overview: dict[str, Any], data: str) -> None:
    shards, sizes = overview["shards"], overview["record_bytes"]
    what = "" if overview["format"] == "aioload" else f" ({overview['format']})"
    print(f"{data}{what}: {count(overview['records'], 'record')}, {size(overview['data_bytes'])}")
    print_table(
        [
            ("records", "min {}, mean {}, max {}".format(*map(size, sizes.values())) if sizes else "none"),
            (
                "index",
                ", ".join(
                    [size(overview["index_bytes"]), *_columns(overview["index_fields"]), _sums(overview)]
                ),
            ),
        ]
        + [("metadata", short(overview["metadata"], 100))] * bool(overview["metadata"])
    )
    print("fields")
    classes = _classes(overview["metadata"])
    print_table((short(name), kind, *_named(classes.get(name))) for name, kind in overview["fields"].items())
    print("shards")
    print_table((s["name"], count(s["records"], "record"), size(s["bytes"])) for s in shards[:_SHOWN])
    if len(shards) > _SHOWN:
        print(f"  … and {len(shards) - _SHOWN:,} more")
    print("first records")
    print_table(map(_row, overview["first"]))


def _columns(names: list[str]) -> Iterator[str]:
    if names:
        yield f"with the values of {', '.join(names)}"


def _sums(overview: dict[str, Any]) -> str:
    if overview["format"] in _OWN_SUMS:
        return "each record with sums of its own"
    return "with a sum of each record" if overview["sums"] else "no sums (`aioload index --checksums`)"


def _classes(metadata: Any) -> dict[str, Any]:
    """Return the names of classes by field, as packing keeps them of tables or of folders."""
    if not isinstance(metadata, dict):
        return {}
    by_field = metadata.get("class_names")
    return by_field if isinstance(by_field, dict) else {"label": metadata.get("classes")}


def _named(names: Any) -> Iterator[str]:
    """Yield what the numbers of a field stand for, if that is known."""
    if isinstance(names, list):
        yield short(f"{len(names)} classes: {', '.join(map(str, names))}", 100)


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
