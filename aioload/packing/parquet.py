"""Parquet tables as a source, above all those of the Hugging Face Hub, whose cells hold images or sounds.

A column of images or audio is a struct of `bytes` and `path`; which it is, the table's own metadata says. The
names of its classes are kept: what a number means stands nowhere else.
Numbers, texts and binary columns keep their kinds, lists of numbers become arrays, all else JSON.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, SampleError, ShardError
from .items import Item, Source, Unreadable, printable

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["parquet"]

_BATCH_ROWS = 64  # images are large


def parquet(paths: list[Path]) -> Source:
    """Return the rows of some tables, in their order.

    Raises:
        ConfigError: pyarrow is not installed, or a column's name or type cannot be.
        ShardError: a file is no Parquet table, or has other columns than the first.
    """
    with _opened(paths[0]) as first:
        schema = first.schema_arrow
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
    columns = _columns(schema)
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
        table = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ShardError(f"{path} is no Parquet table: {error}", shard=str(path)) from error
    with table:
        yield table


_Column = tuple[str, Callable[[Any], Any]]
"""Kind of the field, and what makes its value of a cell."""


def _columns(schema: pa.Schema) -> dict[str, _Column]:
    features = _features(schema)
    return {column.name: _column(column, features.get(column.name, {}).get("_type")) for column in schema}


def _features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Return what the Hub's metadata says of the columns; nothing where there is none.

    Of a list, it is what the list holds.
    """
    try:
        info = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: _feature(feature) for name, feature in info.items() if name in schema.names}
    except (KeyError, ValueError, TypeError, AttributeError):
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
    return lambda value: np.asarray(value, dtype)


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
            yield _item(f"row {row} of {printable(os.fspath(path))}", f"{next(numbers):09}", cells, columns)


def _rows(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    with _opened(path) as table:
        for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
            yield from batch.to_pylist()


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
        if kind in ("image", "audio", "bytes"):
            raw[field] = value
        else:
            values[field] = value
    return Item(name, key, values, raw)
