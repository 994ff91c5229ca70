"""Case rows T, F and M through data sets and loaders, local and over HTTP, with the manifest's values."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers.ranges import RangeServer

from aioload import Dataset, Loader, SampleError, ShardError, Skip

FILES = Path(__file__).parent / "files"
ENTRIES = json.loads((FILES / "manifest.json").read_text())["files"]
EXPECTED: dict[str, Any] = {
    entry["path"]: entry["expect"] for entry in ENTRIES if entry["kind"] in ("tar", "tfrecord", "mds")
}


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes and unpacked files go to a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=["local", "http"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Return a function that gives the source of a file: its path in a fresh copy, or its address."""
    if request.param == "local":
        yield lambda path: str(_copied(FILES / path, tmp_path / "files"))
        return
    files = {str(path.relative_to(FILES)): path.read_bytes() for path in FILES.rglob("*") if path.is_file()}
    with RangeServer(files) as server:
        yield lambda path: f"{server.url}/{path}"


def _copied(path: Path, folder: Path) -> Path:
    copy = folder / path.name
    folder.mkdir(exist_ok=True)
    return Path(shutil.copytree(path, copy, dirs_exist_ok=True) if path.is_dir() else shutil.copy(path, copy))


def brief(data: bytes) -> str:
    """Return the beginning of a sum, as the manifest writes it."""
    return hashlib.sha256(data).hexdigest()[:16]


def read(source: Any, **options: Any) -> tuple[list[dict[str, Any]], ShardError | None]:
    """Return all samples that come before the end or the first error, and that error."""
    options = {"num_workers": 0, "batch_size": 1, "collate": list, "transform": dict, **options}
    samples: list[dict[str, Any]] = []
    dataset = source if isinstance(source, Dataset) else Dataset(source)
    with Loader(dataset, decode=dict.fromkeys(dataset.fields, "raw"), **options).sync() as batches:
        try:
            for batch in batches:
                samples += batch
        except ShardError as error:
            return samples, error
    return samples, None


def told(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample as the manifest writes it."""
    fields = {name: value for name, value in sample.items() if name != "__key__"}
    return {
        "key": sample["__key__"],
        "fields": {name: {"len": len(value), "sha256": brief(value)} for name, value in fields.items()},
    }


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "path", ["tar/plain.tar", "tar/long_pax.tar", "tar/long_gnu.tar", "tar/pax_global.tar"]
)
def test_t06_whole_keys_and_no_samples_of_headers(where: Any, path: str, workers: int) -> None:
    """T00, T06: long and non-ASCII names come whole, in a loader as by number."""
    dataset = Dataset(where(path), fields=dict.fromkeys(EXPECTED[path]["samples"][0]["fields"], "bytes"))

    samples, error = read(dataset, num_workers=workers)

    assert error is None
    assert [told(sample) for sample in samples] == EXPECTED[path]["samples"]
    assert [dataset[number]["__key__"] for number in range(len(dataset))] == [s["__key__"] for s in samples]


def test_t01_dots_in_names(where: Any) -> None:
    """T01: a key ends at the first dot after the last slash; an absent field is an error that tells."""
    expected = EXPECTED["tar/dots.tar"]["samples"]
    first = Dataset(where("tar/dots.tar"), fields=dict.fromkeys(expected[0]["fields"], "bytes"))

    samples, error = read(first)

    assert [told(sample) for sample in samples] == expected[:1]
    assert error is not None
    assert (error.shard, error.record, error.key) == ("dots.tar", 1, "dir.v1/x")
    assert "seg.png, png" in str(error)


def test_t02_interleaved_files_are_refused(where: Any) -> None:
    """T02: files of a key that lie apart are an error that names the file and the shard."""
    with pytest.raises(ShardError, match=r"0\.json") as caught:
        len(Dataset(where("tar/interleaved.tar")))

    assert "interleaved.tar" in str(caught.value)


def test_t04_keys_are_the_shards_own(where: Any) -> None:
    """T04: a key that ends one shard and begins the next makes two samples."""
    paths = ["tar/edge-a.tar", "tar/edge-b.tar"]
    dataset = Dataset([where(path) for path in paths])

    samples, error = read(dataset)

    assert error is None
    assert [told(sample) for sample in samples] == [s for path in paths for s in EXPECTED[path]["samples"]]
    assert dataset.index.shards == ("edge-a.tar", "edge-b.tar")
    assert dataset.index.shard_records.tolist() == [0, 2, 4]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("path", ["tar/cut_in_data.tar", "tar/cut_in_header.tar"])
def test_t09_cut_archives(where: Any, path: str, workers: int) -> None:
    """T09: whole samples first, then an error with shard and offset; the skip policy goes on without it."""
    source = where(path)

    samples, error = read(source, num_workers=workers)
    kept, none = read(source, num_workers=workers, on_error=Skip(limit=1))

    assert [told(sample) for sample in samples] == EXPECTED[path]["samples"]
    assert error is not None
    assert (error.shard, error.record) == (Path(path).name, 2)
    assert error.offset == 4096
    assert (kept, none) == (samples, None)


def test_t10_empty_is_not_absent(where: Any) -> None:
    """T10: a field of no bytes is there; one that is absent is an error, unless nobody asks for it."""
    expected = EXPECTED["tar/lacks_field.tar"]["samples"]
    source = where("tar/lacks_field.tar")

    samples, _ = read(source, on_error=Skip(limit=1))
    every, error = read(Dataset(source, fields={"json": "bytes"}))

    assert [told(sample) for sample in samples] == [expected[0], expected[2]]
    assert error is None
    assert [told(sample)["fields"]["json"] for sample in every] == [s["fields"]["json"] for s in expected]


@pytest.mark.parametrize("workers", [0, 2])
def test_f01_a_damaged_record_is_an_error(where: Any, workers: int) -> None:
    """F01: record 0, then an error with file, record 1 and offset; the skip policy gives records 0 and 2."""
    source, expected = where("tfrecord/data_crc.tfrecord"), EXPECTED["tfrecord/data_crc.tfrecord"]

    samples, error = read(source, num_workers=workers)
    kept, none = read(source, num_workers=workers, on_error=Skip(limit=1))

    assert [sample["name"] for sample in samples] == [b"s0"]
    assert error is not None
    assert (error.shard, error.record, error.offset) == ("data_crc.tfrecord", 1, expected["offset"])
    assert [sample["name"] for sample in kept] == [b"s0", b"s2"]
    assert none is None


@pytest.mark.parametrize("path", ["tfrecord/cut_data.tfrecord", "tfrecord/cut_len.tfrecord"])
def test_f03_cut_files(where: Any, path: str) -> None:
    """F03: whole records first, then an error that says truncated, with its place."""
    expected = EXPECTED[path]

    samples, error = read(where(path))

    assert len(samples) == len(expected["records"])
    assert error is not None
    assert "truncated" in str(error)
    assert (error.record, error.offset) == (expected["record"], expected["offset"])


def test_f04_gzip_of_several_members(where: Any) -> None:
    """F04: a compressed file is unpacked once, all of its members."""
    expected = EXPECTED["tfrecord/gz.tfrecord.gz"]["features"]
    dataset = Dataset(where("tfrecord/gz.tfrecord.gz"))

    samples = [dataset[number] for number in range(len(dataset))]

    assert [brief(sample["image"]) for sample in samples] == [each["image"][1] for each in expected]
    assert [sample["label"].tolist() for sample in samples] == [each["label"][1] for each in expected]


def test_f05_lists_of_any_length(where: Any) -> None:
    """F05: empty lists have shape (0,) and the right dtype, integers are exact, bytes stay bytes."""
    expected = EXPECTED["tfrecord/features.tfrecord"]["features"][0]
    sample = Dataset(where("tfrecord/features.tfrecord"))[0]

    for name, (kind, values) in expected.items():
        if kind == "absent":
            assert name not in sample
        elif kind == "bytes_list":
            assert [brief(value) for value in sample[name]] == values
        else:
            assert sample[name].dtype == np.dtype({"int64": np.int64, "float": np.float32}[kind])
            assert sample[name].tolist() == values


@pytest.mark.parametrize("workers", [0, 2])
def test_f05_an_absent_key_is_an_error_unless_a_default_is_given(where: Any, workers: int) -> None:
    """F05: the error names the key, shard and record; with a default the sample has that, and no other."""
    source = where("tfrecord/features.tfrecord")
    fields = {"no_kind": "example:int64", "nowhere": "int", "empty_float": "example:float"}
    defaults = {"no_kind": [1, -1], "nowhere": 7, "empty_float": [9.0]}

    with (
        pytest.raises(SampleError, match=r"'no_kind'.*defaults=") as caught,
        Loader(Dataset(source, fields=fields), batch_size=1, num_workers=workers).sync() as batches,
    ):
        next(iter(batches))
    dataset = Dataset(source, fields=fields, defaults=defaults)
    with Loader(dataset, batch_size=1, num_workers=workers).sync() as batches:
        (batch,) = batches

    assert (caught.value.shard, caught.value.record) == ("features.tfrecord", 0)
    assert batch["no_kind"].tolist() == [[1, -1]]
    assert batch["nowhere"].tolist() == [7]
    assert batch["empty_float"].shape == (1, 0)  # it is there, and empty


def rows_of(source: Any) -> tuple[list[dict[str, Any]], ShardError | None]:
    """Return the rows of an MDS folder as the manifest writes them, up to the first error."""
    rows: list[dict[str, Any]] = []
    dataset = Dataset(source)
    with Loader(dataset, batch_size=1, transform=dict, collate=list, num_workers=0).sync() as batches:
        try:
            for (sample,) in batches:
                rows.append({"id": sample["id"], "img": brief(sample["img"]), "text": sample["text"]})
        except ShardError as error:
            return rows, error
    return rows, None


@pytest.mark.parametrize("path", ["mds/plain", "mds/hash_ok"])
def test_m02_rows_whose_sums_are_right(where: Any, path: str) -> None:
    """M00, M02: rows come as they were written; where the index has sums of shards, each row has its own."""
    rows, error = rows_of(where(path))

    assert (rows, error) == (EXPECTED[path]["rows"], None)
    assert (Dataset(where(path)).index.sums is not None) == (path == "mds/hash_ok")


def test_m01_a_shard_that_is_shorter_than_its_index(where: Any) -> None:
    """M01: the rows that are there, then an error that names the one that is not."""
    rows, error = rows_of(where("mds/cut"))

    assert rows == EXPECTED["mds/cut"]["rows"]
    assert error is not None
    assert (error.shard, error.record) == ("shard.00000.mds", 2)


def test_m02_a_shard_whose_sum_is_wrong(where: Any) -> None:
    """M02: an error before any row is handed out, which names the shard."""
    with pytest.raises(ShardError, match="failed its checksum") as caught:
        len(Dataset(where("mds/hash_bad")))

    assert caught.value.shard == "shard.00000.mds"
