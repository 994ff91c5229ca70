"""Writes examples and TFRecord files by the book, member by member; shares no code with what reads them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import google_crc32c
import numpy as np

from aioload.decode import for_encoding, for_kind
from aioload.shard.scan import Scanned, run
from aioload.shard.tfrecord import TFRecordFormat, scan

KIND_NUMBERS = {"bytes": 1, "float": 2, "int64": 3}


def varint(number: int) -> bytes:
    """Write a number, seven bits a byte; negative ones take ten."""
    number %= 1 << 64
    out = []
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def member(number: int, data: bytes) -> bytes:
    """Write a member that has a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def listed(kind: str, values: Iterable[Any], *, packed: bool = True) -> bytes:
    """Write the message of a list."""
    if kind == "bytes":
        return b"".join(member(1, value) for value in values)
    if packed:
        one = varint if kind == "int64" else struct.Struct("<f").pack
        return member(1, b"".join(map(one, values)))
    if kind == "int64":
        return b"".join(b"\x08" + varint(value) for value in values)
    return b"".join(b"\x0d" + struct.pack("<f", value) for value in values)


def feature(kind: str, values: Iterable[Any], *, packed: bool = True) -> bytes:
    """Write a feature; no kind: an empty one."""
    return member(KIND_NUMBERS[kind], listed(kind, values, packed=packed)) if kind else b""


def entry(name: str, value: bytes) -> bytes:
    """Write an entry of a map."""
    return member(1, member(1, name.encode()) + member(2, value))


def example(**features: bytes) -> bytes:
    """Write an example of features that `feature` has written."""
    return member(1, b"".join(entry(name, value) for name, value in features.items()))


def sequence(context: dict[str, bytes], lists: dict[str, list[bytes]]) -> bytes:
    """Write a sequence example."""
    steps = {name: b"".join(member(1, step) for step in features) for name, features in lists.items()}
    return example(**context) + member(2, b"".join(entry(name, value) for name, value in steps.items()))


def masked(data: bytes) -> bytes:
    """Write the sum of bytes."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % (1 << 32))


def framed(*records: bytes) -> bytes:
    """Write a file."""
    heads = [struct.pack("<Q", len(record)) for record in records]
    return b"".join(
        head + masked(head) + record + masked(record) for head, record in zip(heads, records, strict=True)
    )


def scanned(data: bytes, **options: Any) -> Scanned:
    """Scan a file that is held in memory; ranges that reach beyond it are a mistake of the scanner."""

    def read(start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(data)
        return data[start:stop]

    return run(scan(len(data), "x.tfrecord", **options), read)


def spans(data: bytes, found: Scanned) -> list[memoryview]:
    """Cut a file into its records."""
    starts = [found.data_start, *found.ends.tolist()]
    return [memoryview(data)[start:stop] for start, stop in zip(starts, found.ends.tolist(), strict=False)]


def decoded(form: TFRecordFormat, record: memoryview) -> dict[str, Any]:
    """Split a record and decode its fields; images and sounds are left as bytes."""
    values = form.split(record)[1]
    kinds = {name: "bytes" if kind in ("image", "audio") else kind for name, kind in form.fields}
    return {
        name: (for_encoding(form.encodings[name]) if name in form.encodings else for_kind(kinds[name]))(value)
        for name, value in values.items()
    }


def samples(data: bytes, kinds: dict[str, str] | None = None, **options: Any) -> list[dict[str, Any]]:
    """Read a whole file as a loader would."""
    found = scanned(data)
    form = TFRecordFormat(found.fields, **found.facts, **options).with_kinds(kinds or {})
    return [decoded(form, record) for record in spans(data, found)]


def plain(value: Any) -> Any:
    """Return values as lists and bytes, so that they can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value
