"""Damaged shards of others through a whole loader: right data or a typed error, and always an end.

Files of each format are cut anywhere, or have a bit flipped. Where sums protect them, whatever comes out is
right. Where none do, as in archives and rows, a flipped bit of a payload is that bit and nothing else: fields
keep their lengths, and samples their places.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cramjam
import foreign_sets
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioload import AioloadError, Dataset, Loader, Skip

COUNT = 7

Files = dict[str, bytes]
Sample = tuple[int, bytes, int]
"""The number that its key tells, and its fields."""

# an example opens and loads a set twice: a share of the profile's
quick = settings(
    max_examples=settings.default.max_examples * 2 // 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Kind:
    """A set, and what its format promises."""

    files: Callable[[], Files]
    """Makes its files; the first is damaged."""
    sums: bool
    """Whether sums protect what it holds."""
    whole: int = COUNT
    """Samples that can be read before the first error, without further damage."""


def rows() -> Files:
    """Return the files of an MDS folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = foreign_sets.make_mds(Path(name), [range(COUNT)])
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir(), reverse=True)}


def packed_rows() -> Files:
    """Return those of one whose shard is compressed, and has a sum."""
    files = rows()
    name, data = next(iter(files.items()))
    stored = bytes(cramjam.zstd.compress(data))
    index = json.loads(files["index.json"])
    (entry,) = index["shards"]
    entry |= {"compression": "zstd", "hashes": ["sha1"]}
    entry["raw_data"]["hashes"] = {"sha1": hashlib.sha1(data).hexdigest()}
    hashes = {"sha1": hashlib.sha1(stored).hexdigest()}
    entry["zip_data"] = {"basename": f"{name}.zstd", "bytes": len(stored), "hashes": hashes}
    return {f"{name}.zstd": stored, "index.json": json.dumps(index).encode()}


def summed_rows() -> Files:
    """Return those of one with a sum of its shard."""
    files = rows()
    index = json.loads(files["index.json"])
    index["shards"][0]["raw_data"]["hashes"] = {"sha1": hashlib.sha1(next(iter(files.values()))).hexdigest()}
    return {**files, "index.json": json.dumps(index).encode()}


def damaged_archive() -> Files:
    """Return an archive one of whose headers is damaged already: that of the last sample but one."""
    data = bytearray(foreign_sets.make_tar(range(COUNT)))
    data[data.index(b"%05d.bin" % (COUNT - 2)) + 100] ^= 1
    return {"x.tar": bytes(data)}


def archive() -> Files:
    """Return an archive."""
    return {"x.tar": foreign_sets.make_tar(range(COUNT))}


def records() -> Files:
    """Return a TFRecord file."""
    return {"x.tfrecord": foreign_sets.make_tfrecord(range(COUNT))}


def packed_records() -> Files:
    """Return one that is compressed."""
    return {"x.tfrecord.gz": gzip.compress(foreign_sets.make_tfrecord(range(COUNT)), mtime=0)}


KINDS = {
    "tar": Kind(archive, False),
    "tar-damaged": Kind(damaged_archive, False, COUNT - 2),
    "tfrecord": Kind(records, True),
    "tfrecord-gz": Kind(packed_records, True),
    "mds": Kind(rows, False),
    "mds-summed": Kind(summed_rows, True),
    "mds-zstd": Kind(packed_rows, True),
}

DAMAGES = st.tuples(st.floats(0, 1, exclude_max=True), st.none() | st.integers(0, 7))
"""Where in the file, and which bit is flipped there; None: the file is cut."""

Damage = tuple[float, int | None]


def written(folder: Path, files: Files, damage: Damage | None) -> Path:
    """Write a set whose first file is damaged."""
    for number, (name, data) in enumerate(files.items()):
        (folder / name).write_bytes(data if number or damage is None else damaged(data, damage))
    return folder


def damaged(data: bytes, damage: Damage) -> bytes:
    """Return bytes that are cut, or of which one bit is another."""
    at = int(damage[0] * len(data))
    if damage[1] is None:
        return data[:at]
    return data[:at] + bytes([data[at] ^ 1 << damage[1]]) + data[at + 1 :]


def load(folder: Path, **options: Any) -> tuple[list[Sample], int, bool]:
    """Return the samples before the end or an error of ours, how many were skipped, and whether it ended."""
    options = {"batch_size": 1, "num_workers": 0, "transform": dict, "collate": list, **options}
    samples: list[Sample] = []
    # without them, a first sample that was cut would tell of fewer
    dataset = Dataset(folder, fields={"bin": "bytes", "cls": "int"})
    with Loader(dataset, **options).sync() as batches:
        try:
            for batch in batches:
                samples += map(plain, batch)
        except AioloadError:
            return samples, batches.stats().skipped, False
        return samples, batches.stats().skipped, True


def plain(sample: dict[str, Any]) -> Sample:
    """Make a sample comparable."""
    return int(sample["__key__"]), sample["bin"], sample["cls"]


def difference(sample: Sample) -> int:
    """Return how many bits a payload differs in from its own; it must have its length."""
    key, data, number = sample
    expected = foreign_sets.sample_bytes(key)
    assert len(data) == len(expected)
    return sum((one ^ other).bit_count() for one, other in zip(data, expected, strict=True)) + (number != key)


def check(kind: Kind, folder: Path, damage: Damage | None, **options: Any) -> None:
    """Load a set with both policies, and compare what comes out."""
    raised, _, ended = load(folder, **options)
    kept, skipped, kept_ended = load(folder, on_error=Skip(limit=COUNT + 1), **options)

    keys = [key for key, _, _ in raised]
    kept_keys = [key for key, _, _ in kept]
    assert keys == list(range(len(keys)))
    assert kept_keys == sorted(set(kept_keys))
    assert set(keys) <= set(kept_keys) or not kept_ended
    assert len(kept) + skipped <= COUNT + 1  # a record that stands for what cannot be read on
    # only opening may fail in spite of a policy; after it, all ends well
    assert kept_ended or not kept
    differences = [*map(difference, raised), *map(difference, kept)]
    most = 0 if kind.sums or damage is None or damage[1] is None else 1
    assert max(differences, default=0) <= most
    assert sum(map(difference, kept)) <= most
    assert ended <= (len(raised) == len(kept))


@pytest.mark.parametrize("name", KINDS)
@quick
@given(damage=DAMAGES)
def test_a_damaged_set_is_right_or_refused(name: str, damage: Damage) -> None:
    """Whatever is cut or flipped: samples that are right, then the end or an error of ours."""
    kind = KINDS[name]
    with tempfile.TemporaryDirectory() as folder:
        check(kind, written(Path(folder), kind.files(), damage), damage)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("damage", [None, (0.3, None), (0.6, 3)])
def test_so_it_is_with_workers(name: str, damage: Damage | None, tmp_path: Path) -> None:
    """Files that workers map, and what they raise, change nothing of it."""
    kind = KINDS[name]
    folder = written(tmp_path, kind.files(), damage)

    check(kind, folder, damage, num_workers=2)
    if damage is None:
        assert len(load(folder)[0]) == kind.whole


@quick
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_sums_of_an_index_protect_an_archive(where: float, bit: int) -> None:
    """With sums that were made ahead of time no flipped bit of an archive is ever taken for data."""
    with tempfile.TemporaryDirectory() as name:
        folder = written(Path(name), archive(), None)
        path = folder / "x.tar"
        Dataset(folder).make_index(checksums=True)
        status = path.stat()
        path.write_bytes(damaged(path.read_bytes(), (where, bit)))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

        check(Kind(archive, True), folder, (where, bit))


@quick
@given(damage=DAMAGES)
def test_a_damaged_index_of_rows_is_right_or_refused(damage: Damage) -> None:
    """A bit of `index.json` may rename a column; nothing but an error of ours comes of any, and no hang."""
    files = dict(reversed(rows().items()))
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), files, damage)
        try:
            with Loader(path, batch_size=2, num_workers=0, collate=list, transform=dict).sync() as batches:
                samples = [sample for batch in batches for sample in batch]
        except AioloadError:
            return
        assert len(samples) == COUNT
