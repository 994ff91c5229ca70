"""Tables of paths and labels as sources: CSV, TSV and JSON lines.

The whole table is held in memory: the kind of a column is known only when its last row has been seen.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, ShardError
from ..shard.kinds import kind_of
from .items import Item, Source, printable, shuffled

__all__ = ["PATH_FIELDS", "table"]

PATH_FIELDS = ("path", "file", "image")
"""Columns that hold the path, the first that is there."""

_FIELD_NAMES = {"ndarray": "array", "str": "text", "bytes": "data"}  # by kind; else the kind itself
_INT = re.compile(r"-?(0|[1-9][0-9]*)\Z")  # a leading zero says that it is a code, not a number
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?\Z|[-+]?(nan|inf)\Z", re.IGNORECASE)

Row = dict[str, Any]


def table(path: Path, *, is_json: bool, path_field: str | None = None, seed: int | None = None) -> Source:
    """Return one item a row: the file that the row names, and the other columns as fields.

    Args:
        path: the table; the paths in it are relative to its folder.
        is_json: one JSON object a line, else a header and separated values.
        path_field: the column that holds the path; one of `PATH_FIELDS` where it is not given.
        seed: of the order; as in the table without.

    Raises:
        ConfigError: no such column, or no rows, or two fields would have the same name.
        ShardError: the table cannot be read; names the line.
    """
    rows = list(_json_rows(path) if is_json else _csv_rows(path))
    if not rows:
        raise ConfigError(f"{path} has no rows")

    path_field = _find_path_field(path, rows[0], path_field)
    columns = [name for name in rows[0] if name != path_field]
    kinds = {name: _settle(rows, name, is_json=is_json) for name in columns}
    paths = [_path(path, row[path_field], line) for line, row in enumerate(rows, 1)]

    found = {kind_of(name) for name in paths}
    file_kind = found.pop() if len(found) == 1 else "bytes"
    file_field = _FIELD_NAMES.get(file_kind, file_kind)
    if file_field in kinds:
        raise ConfigError(
            f"the content of the files is the field {file_field!r}, but {path} has a column of that name "
            f"besides {path_field!r}; rename the column",
            field=file_field,
        )

    order = shuffled(list(range(len(rows))), seed)
    items = (
        _item(path.parent, paths[row], file_field, {name: rows[row][name] for name in columns})
        for row in order
    )
    return Source("jsonl" if is_json else "csv", {file_field: file_kind, **kinds}, items, len(rows))


def _csv_rows(path: Path) -> Iterator[Row]:
    """Yield the rows below the header; each must have a value for each column."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, strict=True, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        try:
            header = next(lines, [])
            if len(set(header)) != len(header):
                raise ConfigError(f"{path}: the header names a column twice: {header}")

            for values in lines:
                if values and len(values) != len(header):
                    raise _broken(
                        path, lines.line_num, f"has {len(values)} values, the header {len(header)} names"
                    )
                if values:
                    yield dict(zip(header, values, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise _broken(path, lines.line_num, f"cannot be read: {error}") from error


def _json_rows(path: Path) -> Iterator[Row]:
    """Yield the object of each line; all must have the members of the first."""
    names: set[str] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise _broken(path, number, f"is no JSON: {error}") from error

            if not isinstance(row, dict) or (names and row.keys() != names):
                raise _broken(
                    path, number, f"is not an object with the members of the first: {sorted(names)}"
                )
            names = names or set(row)
            yield row


def _find_path_field(path: Path, row: Row, path_field: str | None) -> str:
    for name in PATH_FIELDS if path_field is None else (path_field,):
        if name in row:
            return name

    wanted = " or ".join(repr(name) for name in (PATH_FIELDS if path_field is None else (path_field,)))
    raise ConfigError(
        f"{path} has no column {wanted}, but {', '.join(row)}; name the one with the path with --path-field",
        field=path_field,
    )


def _path(table_path: Path, value: Any, line: int) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"row {line} of {table_path} has no path but {value!r}", record=line - 1)

    return value


def _settle(rows: list[Row], name: str, *, is_json: bool) -> str:
    """Return the kind that fits all values of a column, having turned text into numbers where it can be."""
    values = [row[name] for row in rows]
    kind = _json_kind(values) if is_json else _text_kind(values)

    if kind in ("int", "float"):
        convert = int if kind == "int" else float
        for row in rows:
            row[name] = convert(row[name])

    return kind


def _text_kind(values: Sequence[str]) -> str:
    if all(_INT.match(value) and -(2**63) <= int(value) < 2**63 for value in values):
        return "int"

    return "float" if all(map(_is_float, values)) else "str"


def _is_float(value: str) -> bool:
    """Whether a text is a number that a float keeps: a long identity would lose its last digits."""
    if _INT.match(value):
        return _is_exact(int(value))

    # a point alone passes the pattern
    return _FLOAT.match(value) is not None and any(map(str.isalnum, value))


def _json_kind(values: Sequence[Any]) -> str:
    types = {type(value) for value in values}
    if types <= {int, bool} and all(-(2**63) <= value < 2**63 for value in values):
        return "int"

    if types <= {int, float} and all(_is_exact(value) for value in values if type(value) is int):
        return "float"

    return "str" if types == {str} else "json"


def _is_exact(number: int) -> bool:
    return abs(number) <= 2**53


def _item(folder: Path, path: str, file_field: str, values: Row) -> Item:
    name = os.path.join(folder, path)  # noqa: PTH118 - once a row, as in folders
    return Item(name, printable(os.path.splitext(path)[0]), values, {file_field: name})  # noqa: PTH122 - likewise


def _broken(path: Path, line: int, what: str) -> ShardError:
    return ShardError(f"line {line} of {path} {what}", shard=str(path), line=line)
