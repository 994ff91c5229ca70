"""Sets of the own format for tests: packing, reading through manifest, index and sums, and damaging."""

from __future__ import annotations

import io
import json
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from aioload.errors import NotFoundError, ShardError
from aioload.shard.check import VerifyReport, verify
from aioload.shard.format import INDEX_NAME, MANIFEST_NAME, check_sum
from aioload.shard.index import parse_index
from aioload.shard.manifest import Manifest
from aioload.shard.writer import Writer

Files = dict[str, bytes]
Sample = dict[str, Any]
Keyed = tuple[str | None, Sample]

ALL_KINDS = {
    "photo": "image",
    "sound": "audio",
    "array": "ndarray",
    "count": "int",
    "share": "float",
    "text": "str",
    "blob": "bytes",
    "extra": "json",
}

_DECODE = {
    "image": bytes,
    "audio": bytes,
    "bytes": bytes,
    "str": lambda value: str(value, "utf-8"),
    "int": lambda value: struct.unpack("<q", value)[0],
    "float": lambda value: struct.unpack("<d", value)[0],
    "json": lambda value: json.loads(bytes(value)),
    "ndarray": lambda value: np.load(io.BytesIO(value), allow_pickle=False),
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_arrays = st_numpy.arrays(
    st.sampled_from(["u1", "<i8", ">f4", "f8", "?", "c16", "U3", "M8[s]"]),
    st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
samples = st.fixed_dictionaries(
    {
        "photo": st.binary(),
        "sound": st.binary(max_size=300),
        "array": _arrays,
        "count": st.integers(-(2**63), 2**63 - 1),
        "share": st.floats(),
        "text": st.text(),
        "blob": st.binary().map(bytearray),
        "extra": json_values,
    }
)
keyed_samples = st.lists(st.tuples(st.none() | st.text(min_size=1), samples), max_size=12)


class MemoryReader:
    """Files of a set that was read into memory."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        self.largest_read = 0

    def size(self, name: str) -> int:
        if name not in self.files:
            raise NotFoundError(f"no file {name}")
        return len(self.files[name])

    def read(self, name: str, start: int, stop: int) -> bytes:
        self.largest_read = max(self.largest_read, stop - start)
        return self.files[name][start:stop]


def pack(path: Path, fields: Mapping[str, str], records: Iterable[Keyed], **options: Any) -> Files:
    """Write a set and return its files."""
    with Writer(path, fields, **options) as writer:
        for key, sample in records:
            writer.write(sample, key)
    return load(path)


def pack_away(fields: Mapping[str, str], records: Iterable[Keyed], **options: Any) -> Files:
    """Write a set to a folder that does not stay, and return its files."""
    with tempfile.TemporaryDirectory() as folder:
        return pack(Path(folder) / "set", fields, records, **options)


def load(path: Path) -> Files:
    """Return the files of a folder."""
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def fifty(path: Path) -> Files:
    """Write the 50 records of case O01."""
    random = np.random.default_rng(1)
    records = [(f"key/{i}", {"image": random.bytes(i * 7 % 90), "label": i}) for i in range(50)]
    return pack(
        path,
        {"image": "image", "label": "int"},
        records,
        index_fields=["label"],
        metadata={"classes": ["a", "ä"]},
    )


def read_set(files: Mapping[str, bytes]) -> list[Keyed]:
    """Read all records as a loader does: manifest, index, then each record against its sum."""
    manifest = Manifest.parse(files[MANIFEST_NAME], MANIFEST_NAME)
    index = parse_index(files[INDEX_NAME], manifest, INDEX_NAME)
    located = index.locate(np.arange(len(index)))

    records = []
    for record, (shard, start, stop) in enumerate(
        zip(located.shard, located.start, located.stop, strict=True)
    ):
        name = index.shards[shard]
        data = memoryview(files[name])[int(start) : int(stop)]
        if len(data) < stop - start:
            raise ShardError(f"{name} ends early", shard=name)
        check_sum(data, int(located.sums[record]), shard=name, record_id=record, start=int(start))
        key, values = manifest.format.split(data)
        records.append(
            (key, {field: _DECODE[manifest.fields[field]](value) for field, value in values.items()})
        )

    return records


def same_records(found: list[Keyed], expected: list[Keyed]) -> bool:
    """Compare keys, types and values, NaN being equal to itself."""
    np.testing.assert_equal([plain(record) for record in found], [plain(record) for record in expected])
    return True


def plain(record: Keyed) -> tuple[str | None, Sample]:
    """Return a record in which arrays show their type, and bytes are bytes."""
    key, sample = record
    return key, {
        name: (value.dtype.str, value.shape, value.tobytes())
        if isinstance(value, np.ndarray)
        else bytes(value)
        if isinstance(value, bytearray)
        else value
        for name, value in sample.items()
    }


def cuts(data: bytes, count: int) -> Iterator[bytes]:
    """Cut at evenly spread lengths, all shorter than the file."""
    yield from (data[:length] for length in np.linspace(0, len(data) - 1, count).astype(int))


def flips(data: bytes, count: int) -> Iterator[bytes]:
    """Flip single bits, evenly spread over the file."""
    for bit in np.linspace(0, 8 * len(data) - 1, count).astype(int):
        yield flip(data, int(bit))


def flip(data: bytes, bit: int) -> bytes:
    """Flip one bit."""
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def outcome(files: Files, name: str, damaged: bytes, expected: list[Keyed]) -> str:
    """Say what reading a damaged set gives."""
    try:
        return "same" if read_set({**files, name: damaged}) == expected else "other data"
    except ShardError:
        return "error"


def outcome_in_bytes(files: Files, name: str, damaged: bytes) -> str:
    """Say the same for samples with arrays and NaN, which are compared by their bytes."""
    expected = [repr(plain(record)) for record in read_set(files)]
    try:
        found = [repr(plain(record)) for record in read_set({**files, name: damaged})]
    except ShardError:
        return "error"
    return "same" if found == expected else "other data"


def report(files: Files, name: str, damaged: bytes) -> VerifyReport:
    """Verify a damaged set."""
    return verify(MemoryReader({**files, name: damaged}))
