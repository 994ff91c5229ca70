"""Parquet tables as a source, above all those of the Hugging Face Hub, whose cells hold images or sounds.

A column of images or audio is a struct of `bytes` and `path`; which it is, the table's own metadata says. The
names of its classes are kept: what a number means stands nowhere else.
A binary column has bytes unless it is asked for as images or audio.
Numbers and texts keep their kinds, lists of numbers become arrays, all else JSON.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import AioloadError, ConfigError, SampleError, ShardError, StorageError
from .items import Item, Source, Unreadable, printable

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["parquet"]

_IN_BYTES = ("image", "audio", "bytes")  # kinds of fields whose values are files
_BATCH_ROWS = 64  # images are large


def parquet(paths: list[Path], wanted: Mapping[str, str] | None = None) -> Source:
    """Return the rows of some tables, in their order.

    Args:
        paths: of the tables.
        wanted: columns that are to become fields, and their kinds; None: all.

    Raises:
        ConfigError: pyarrow is not installed, a column's name or type cannot be or is not as wanted, or it
            comes twice.
        ShardError: a file is no Parquet table, or has other columns than the first.
    """
    with _opened(paths[0]) as first:
        schema = first.schema_arrow
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice:
        raise ConfigError(f"{paths[0]} has the column {min(twice)!r} twice; give each a name of its own")
    names = _class_names(schema)
    num_rows = 0
    for path in paths:
        with _opened(path) as table:
            if not table.schema_arrow.equals(schema, check_metadata=False):
                raise ShardError(f"{path} has other columns than {paths[0]}", shard=str(path))
            if _class_names(table.schema_arrow) != names:
                raise ShardError(
                    f"{path} has other names of classes than {paths[0]}, so its numbers mean something else",
                    shard=str(path),
                )
            num_rows += table.metadata.num_rows
    columns = _columns(schema) if wanted is None else _chosen(_columns(schema), wanted, paths[0])
    names = {name: classes for name, classes in names.items() if name in columns}
    fields = {name: kind for name, (kind, _) in columns.items()}
    metadata = {"class_names": names} if names else {}
    return Source("parquet", fields, _items(paths, columns), num_rows, metadata)


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a table; one at a time, for a set may have more of them than a process may have files."""
    try:
        import pyarrow as pa  # late: it is an extra
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError(
            "reading Parquet needs pyarrow; install it with: pip install 'torch-aioload[parquet]'"
        ) from error
    try:
        with pq.ParquetFile(path) as table:
            yield table
    except AioloadError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's; of damage it has none
            raise StorageError(f"{path} cannot be read: {error.strerror}", errno=error.errno) from error
        raise ShardError(f"{path} is no Parquet table, or damaged: {error}", shard=str(path)) from error


_Column = tuple[str, Callable[[Any], Any]]
"""Kind of the field, and what makes its value of a cell."""


def _columns(schema: pa.Schema) -> dict[str, _Column]:
    features = _features(schema)
    return {column.name: _column(column, features.get(column.name, {}).get("_type")) for column in schema}


def _chosen(columns: dict[str, _Column], wanted: Mapping[str, str], path: Path) -> dict[str, _Column]:
    """Return the columns that are wanted; what is in bytes may be told, since a plain table does not."""
    chosen = {}
    for name, kind in wanted.items():
        if name not in columns:
            raise ConfigError(f"{path} has no column {name!r}; it has {', '.join(columns)}")
        own, value_of = columns[name]
        if kind != own and not {kind, own} <= set(_IN_BYTES):
            known = " or ".join(_IN_BYTES if own in _IN_BYTES else [own])
            raise ConfigError(f"the column {name!r} of {path} can be packed as {known}, and not as {kind!r}")
        chosen[name] = kind, value_of
    return chosen


def _features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Return what the Hub's metadata says of the columns; nothing where there is none.

    Of a list, it is what the list holds.
    """
    try:
        info = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: _feature(feature) for name, feature in info.items() if name in schema.names}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _feature(feature: Any) -> dict[str, Any]:
    """Return the description of a column, or of what its lists hold."""
    while isinstance(feature, list) or (isinstance(feature, dict) and "feature" in feature):
        feature = feature["feature"] if isinstance(feature, dict) else feature[0] if feature else None
    return feature if isinstance(feature, dict) else {}


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of classes by column."""
    labels = {name: _names(feature) for name, feature in _features(schema).items()}
    return {name: names for name, names in labels.items() if names}


def _names(feature: dict[str, Any]) -> list[str]:
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def _column(column: pa.Field, feature: Any) -> _Column:
    from pyarrow import types

    cell = column.type
    if types.is_struct(cell) and any(part.name == "bytes" for part in cell):
        return ("audio" if feature == "Audio" else "image"), _cell_bytes
    if types.is_integer(cell) or types.is_boolean(cell):
        return "int", int
    if types.is_floating(cell):
        return "float", float
    if types.is_string(cell) or types.is_large_string(cell):
        return "str", str
    if types.is_binary(cell) or types.is_large_binary(cell) or types.is_fixed_size_binary(cell):
        return "bytes", bytes
    number = _number_in(cell)
    return ("json", lambda value: value) if number is None else ("ndarray", _as_array(number))


def _number_in(cell: Any) -> Any:
    """Return numpy's type of the numbers in a list, or in lists of lists; None: it is no list of numbers."""
    from pyarrow import types

    inner = cell
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner = inner.value_type
    is_number = types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)
    return inner.to_pandas_dtype() if inner is not cell and is_number else None


def _as_array(dtype: Any) -> Callable[[Any], Any]:
    def array(value: Any) -> Any:
        if _has_gap(value):  # numpy takes it for a number, or for False
            raise ValueError("a place in its list is empty")
        return np.asarray(value, dtype)

    return array


def _has_gap(value: list[Any]) -> bool:
    """Tell whether a list, or a list in it, has an empty place."""
    are_lists = isinstance(value[0], list) if value else False
    return None in value or (are_lists and any(map(_has_gap, value)))


def _cell_bytes(cell: Any) -> bytes:
    data = cell["bytes"] if cell else None
    if not isinstance(data, bytes):
        raise SampleError(
            "the cell holds no bytes, only a path; embed the files in the table (`embed_table_storage`)"
        )
    return data


def _items(paths: list[Path], columns: dict[str, _Column]) -> Iterator[Item | Unreadable]:
    numbers = itertools.count()
    for path in paths:
        for row, cells in enumerate(_rows(path, list(columns))):
            name = f"row {row} of {printable(os.fspath(path))}"
            if isinstance(cells, Unreadable):
                yield replace(cells, name=f"{name} and what follows" if cells.cost > 1 else name)
            else:
                yield _item(name, f"{next(numbers):09}", cells, columns)


def _rows(path: Path, columns: list[str]) -> Iterator[dict[str, Any] | Unreadable]:
    """Yield the cells of each row; what is damaged stands for itself, or for all rows from there on."""
    said = left = 0
    try:
        with _opened(path) as table:
            said = left = table.metadata.num_rows
            for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                left -= len(batch)
                yield from _cells(batch)
    except ShardError as error:
        yield Unreadable("", str(error), max(left, 1))
    else:
        if left:
            why = f"the table says it has {said} rows, and there are {said - left}: it is damaged"
            yield Unreadable("", why, max(left, 1))


def _cells(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | Unreadable]:
    """Yield the cells of each row of a batch; text that is none spoils no other row."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError) as error:
        if len(batch) == 1:
            yield Unreadable("", f"a cell cannot be read: {error}")
            return
        for row in range(len(batch)):
            yield from _cells(batch.slice(row, 1))


def _item(name: str, key: str, cells: dict[str, Any], columns: dict[str, _Column]) -> Item | Unreadable:
    values: dict[str, Any] = {}
    raw: dict[str, bytes | str] = {}
    for field, (kind, value_of) in columns.items():
        cell = cells[field]
        if cell is None:
            return Unreadable(name, f"the column {field!r} is empty there; fill it, or leave the row out")
        try:
            value = value_of(cell)
        except (TypeError, ValueError, SampleError) as error:
            return Unreadable(name, f"the column {field!r} cannot be read: {error}")
        if kind in _IN_BYTES:
            raw[field] = value
        else:
            values[field] = value
    return Item(name, key, values, raw)
