"""MDS folders for tests: those that the real package wrote, and shards made by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from aioload.decode import for_encoding, for_kind
from aioload.shard.mds import MdsFormat, scan
from aioload.shard.mdsindex import MdsIndex, parse_mds_index
from aioload.shard.scan import Scanned, run

FIXTURES = Path(__file__).parent / "fixtures" / "mds"
CASES = Path(__file__).parent / "cases" / "files" / "mds"


def index_of(folder: Path) -> MdsIndex:
    """Read a folder's index."""
    return parse_mds_index((folder / "index.json").read_bytes(), "index.json")


def scanned(data: bytes, samples: int, name: str = "shard.mds") -> Scanned:
    """Look through a shard in memory."""
    return run(scan(len(data), name, samples), lambda start, stop: data[start:stop])


def spans(found: Scanned) -> list[tuple[int, int]]:
    """Return where each record begins and ends."""
    ends = [int(end) for end in found.ends]
    return list(zip([found.data_start, *ends], ends, strict=False))


def rows(data: bytes, samples: int, fmt: MdsFormat) -> Iterator[dict[str, bytes]]:
    """Yield the bytes of each column, row by row; the first damaged row raises."""
    for start, stop in spans(scanned(data, samples)):
        yield {name: bytes(part) for name, part in fmt.split(memoryview(data)[start:stop])[1].items()}


def samples(folder: Path) -> Iterator[dict[str, Any]]:
    """Decode all rows of a folder that is not compressed."""
    index = index_of(folder)
    decoders = {
        name: for_encoding(index.encodings[name]) if name in index.encodings else for_kind(kind)
        for name, kind in index.fields
    }
    for shard in index.shards:
        data = (folder / shard.raw.name).read_bytes()
        for row in rows(data, shard.samples, index.record_format()):
            yield {name: decoders[name](memoryview(part)) for name, part in row.items()}


def expected(folder: Path) -> list[dict[str, Any]]:
    """Return what the real package reads from a folder."""
    return [
        {name: _value(told) for name, told in row.items()}
        for row in json.loads((folder / "expected.json").read_text())
    ]


def shard(parts: list[bytes], config: bytes = b"{}") -> bytes:
    """Make a shard of rows that are already encoded."""
    start = 4 + 4 * (len(parts) + 1) + len(config)
    offsets = np.cumsum([start, *map(len, parts)])
    return struct.pack(f"<{len(parts) + 2}I", len(parts), *offsets) + config + b"".join(parts)


def row(**columns: bytes | None) -> bytes:
    """Make a row of columns whose size is not fixed."""
    values = [value for value in columns.values() if value is not None]
    return struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values)


def _value(told: dict[str, Any]) -> Any:
    if "list" in told:
        return [_value(item) for item in told["list"]]
    if "dtype" in told:
        return np.array(told["data"], told["dtype"]).reshape(told["shape"])
    if "decimal" in told:
        return told["decimal"]
    return bytes.fromhex(told["hex"]) if "hex" in told else told["value"]
