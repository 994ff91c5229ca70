"""Huge records, and damage that makes a huge one: refused before the first batch, or one skipped record."""

from __future__ import annotations

import json
import struct
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import foreign_sets
import mds_sets
import protos
import pytest
import torch  # noqa: F401 - which would otherwise be imported, and counted, at the first batch

from aioload import ConfigError, Dataset, Loader, Skip

HUGE = 3 << 30
MOST = 32 << 20  # bytes that opening and loading may take


@pytest.fixture(autouse=True)
def in_little_memory() -> Iterator[None]:
    """Fail where more than a little memory was needed: the files are sparse, their records are not."""
    tracemalloc.start(1)
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST


def records(path: Path, before: int, behind: int, *, cut: int = 0) -> Path:
    """Write small records, a huge one, whose length has the right sum, and small ones again."""
    head = struct.pack("<Q", HUGE)
    with path.open("wb") as file:
        file.write(foreign_sets.make_tfrecord(range(before)) + head + protos.masked(head))
        stop = file.tell() + HUGE + 4 - cut
        file.truncate(stop)
        file.seek(stop)
        file.write(foreign_sets.make_tfrecord(range(behind)))
    return path


def rows(folder: Path, *, cut: int = 0) -> Path:
    """Write an MDS folder of three small rows and a huge one, of 500 MB."""
    size = 500 << 20
    small = [
        struct.pack("<I", len(data)) + data + struct.pack("<q", number)
        for number, data in enumerate(map(foreign_sets.sample_bytes, range(3)))
    ]
    last = struct.pack("<I", size)
    foreign_sets.make_mds(folder, [range(4)])
    data = bytearray(mds_sets.shard([*small, last]))
    stop = len(data) + size + 8
    struct.pack_into("<I", data, 4 * 5, stop)
    shard = folder / "shard.00000.mds"
    with shard.open("wb") as file:
        file.write(data)
        file.truncate(stop - cut)
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["raw_data"]["bytes"] = stop
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def load(path: Path, **options: Any) -> tuple[list[int], int]:
    """Return the numbers of the samples of an epoch, and how many records were skipped."""
    with Loader(
        path, batch_size=2, memory_limit="16MiB", collate=list, on_error=Skip(limit=1), **options
    ).sync() as batches:
        numbers = [foreign_sets.number_of(sample) for batch in batches for sample in batch]
        return numbers, batches.stats().skipped


@pytest.mark.parametrize(("before", "behind"), [(0, 3), (3, 2), (0, 0)])
def test_a_huge_record_is_refused_before_the_first_batch(tmp_path: Path, before: int, behind: int) -> None:
    """The error names the record, its bytes, and the limit that it needs; a skip policy changes nothing."""
    path = records(tmp_path / "x.tfrecord", before, behind)

    with pytest.raises(
        ConfigError, match=rf"record {before} \(x\.tfrecord\) alone has {HUGE + 16} bytes"
    ) as caught:
        load(path, num_workers=0)

    assert (caught.value.shard, caught.value.record) == ("x.tfrecord", before)
    assert caught.value.facts["needed"] > HUGE


def test_a_huge_row_is_refused_before_the_first_batch(tmp_path: Path) -> None:
    """So it is in an MDS folder."""
    with pytest.raises(ConfigError, match=r"record 3 \(shard\.00000\.mds\) alone has 5242880") as caught:
        load(rows(tmp_path / "mds"), num_workers=0)

    assert caught.value.record == 3


def test_other_errors_of_a_limit_name_no_record(tmp_path: Path) -> None:
    """Where a batch is large because of many records, none of them is to blame."""
    (tmp_path / "x.tfrecord").write_bytes(foreign_sets.make_tfrecord(range(50)))

    with (
        pytest.raises(ConfigError, match="are enough") as caught,
        Loader(tmp_path / "x.tfrecord", batch_size=50, memory_limit=1000, num_workers=0).sync() as batches,
    ):
        next(iter(batches))

    assert caught.value.record is None


@pytest.mark.parametrize("workers", [0, 1])
def test_a_length_beyond_the_file_is_one_skipped_record(tmp_path: Path, workers: int) -> None:
    """What is left of the file is not read to find that out, be it gigabytes; nor for `aioload verify`."""
    path = records(tmp_path / "x.tfrecord", 3, 0, cut=1000)

    assert load(path, num_workers=workers) == ([0, 1, 2], 1)
    (problem,) = Dataset(path).check().problems
    assert "truncated" in problem.message


def test_a_row_beyond_the_file_is_one_skipped_record(tmp_path: Path) -> None:
    """So it is in an MDS folder."""
    assert load(rows(tmp_path / "mds", cut=1000), num_workers=0) == ([0, 1, 2], 1)


def test_a_wrong_length_far_from_the_end_is_one_skipped_record(tmp_path: Path) -> None:
    """A length whose sum is wrong hides the rest of its shard, which costs one record and no memory."""
    path = tmp_path / "x.tfrecord"
    path.write_bytes(foreign_sets.make_tfrecord(range(3)) + b"\1" * 12)
    with path.open("r+b") as file:
        file.truncate(1 << 31)

    assert load(path, num_workers=0) == ([0, 1, 2], 1)


@pytest.mark.parametrize("rest", [b"junk" * 128, b"header"], ids=["no header", "cut"])
def test_damage_far_from_an_archives_end_is_one_skipped_record(tmp_path: Path, rest: bytes) -> None:
    """Gigabytes behind a damaged header, or of a file that is cut, are neither read nor counted."""
    path = tmp_path / "x.tar"
    member = tarfile.TarInfo("00003.bin")
    member.size = HUGE
    whole = foreign_sets.make_tar(range(3))[: 6 * 1024]
    path.write_bytes(whole + (member.tobuf() if rest == b"header" else rest))
    with path.open("r+b") as file:
        file.truncate(1 << 31)

    assert load(path, num_workers=0) == ([0, 1, 2], 1)
    (problem,) = Dataset(path).check().problems
    assert problem.record == 3


def test_a_huge_sample_is_refused_before_the_first_batch(tmp_path: Path) -> None:
    """A sample of an archive that is whole is named, as records and rows are."""
    member = tarfile.TarInfo("00003.bin")
    member.size = HUGE
    (tmp_path / "x.tar").write_bytes(foreign_sets.make_tar(range(3))[: 6 * 1024] + member.tobuf())
    with (tmp_path / "x.tar").open("r+b") as file:
        file.truncate(7 * 1024 + HUGE)

    with pytest.raises(ConfigError, match=r"record 3 \(x\.tar\) alone has 32212"):
        load(tmp_path / "x.tar", num_workers=0)
