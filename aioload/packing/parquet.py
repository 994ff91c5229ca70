"""Parquet tables as a source, above all those of the Hugging Face Hub, whose cells hold images or sounds.

A column of images or audio is a struct of `bytes` and `path`; which it is, the table's own metadata says.
Numbers, texts and binary columns keep their kinds, lists of numbers become arrays, all else JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, SampleError, ShardError
from .items import Item, Source, printable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["parquet"]

_ROWS = 64  # of a batch: images are large


def parquet(paths: list[Path]) -> Source:
    """Return the rows of some tables, in their order.

    Raises:
        ConfigError: pyarrow is not installed, or a column's name or type cannot be.
        ShardError: a file is no Parquet table, or has other columns than the first.
    """
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError(
            "reading Parquet needs pyarrow; install it with: pip install 'torch-aioload[parquet]'"
        ) from error
    tables = [_opened(pq.ParquetFile, path) for path in paths]
    schema = tables[0].schema_arrow
    for path, table in zip(paths, tables, strict=True):
        if not table.schema_arrow.equals(schema, check_metadata=False):
            raise ShardError(f"{path} has other columns than {paths[0]}", shard=str(path))
    columns = _columns(schema)
    fields = {name: kind for name, (kind, _) in columns.items()}
    rows = sum(table.metadata.num_rows for table in tables)
    return Source("parquet", fields, _items(paths, tables, columns), rows)


def _opened(open_table: Callable[[Path], Any], path: Path) -> Any:
    import pyarrow as pa

    try:
        return open_table(path)
    except pa.ArrowInvalid as error:
        raise ShardError(f"{path} is no Parquet table: {error}", shard=str(path)) from error


_Column = tuple[str, Callable[[Any], Any]]
"""Kind of the field, and what makes its value of a cell."""


def _columns(schema: pa.Schema) -> dict[str, _Column]:
    features = _features(schema)
    return {column.name: _column(column, features.get(column.name, "")) for column in schema}


def _features(schema: pa.Schema) -> dict[str, str]:
    """Return what the Hub's metadata calls the columns; nothing where there is none."""
    try:
        info = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: str(feature.get("_type", "")) for name, feature in info.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _column(column: pa.Field, feature: str) -> _Column:
    from pyarrow import types

    kind = column.type
    if types.is_struct(kind) and {each.name for each in kind} >= {"bytes"}:
        return ("audio" if feature == "Audio" else "image"), _cell_bytes
    if types.is_integer(kind) or types.is_boolean(kind):
        return "int", int
    if types.is_floating(kind):
        return "float", float
    if types.is_string(kind) or types.is_large_string(kind):
        return "str", str
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes", bytes
    if _is_array(kind):
        return "ndarray", _as_array(_number_of(kind))
    return "json", lambda value: value


def _is_array(kind: Any) -> bool:
    from pyarrow import types

    inner = kind
    depth = 0
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner, depth = inner.value_type, depth + 1
    return bool(depth and (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)))


def _number_of(kind: Any) -> Any:
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return kind.to_pandas_dtype()


def _as_array(dtype: Any) -> Callable[[Any], Any]:
    return lambda value: np.asarray(value, dtype)


def _cell_bytes(cell: Any) -> bytes:
    data = cell["bytes"] if cell else None
    if not isinstance(data, bytes):
        raise SampleError(
            "the cell holds no bytes, only a path; embed the files in the table (`embed_table_storage`)"
        )
    return data


def _items(paths: list[Path], tables: list[Any], columns: dict[str, _Column]) -> Iterator[Item]:
    number = 0
    for path, table in zip(paths, tables, strict=True):
        row = 0
        for batch in table.iter_batches(batch_size=_ROWS, columns=list(columns)):
            for cells in batch.to_pylist():
                name = f"row {row} of {printable(os.fspath(path))}"
                yield _item(name, f"{number:09}", cells, columns)
                number, row = number + 1, row + 1


def _item(name: str, key: str, cells: dict[str, Any], columns: dict[str, _Column]) -> Item:
    values: dict[str, Any] = {}
    raw: dict[str, bytes | str] = {}
    for field, (kind, value_of) in columns.items():
        cell = cells[field]
        if cell is None:
            raise SampleError(f"{name}: the column {field!r} is empty there; fill it, or leave the row out")
        try:
            value = value_of(cell)
        except (TypeError, ValueError, SampleError) as error:
            raise SampleError(f"{name}: the column {field!r} cannot be read: {error}", key=key) from error
        if kind in ("image", "audio", "bytes"):
            raw[field] = value
        else:
            values[field] = value
    return Item(name, key, values, raw)
