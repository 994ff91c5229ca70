"""Shards that the real packages wrote (scripts beside the files) are read back equal, here and over HTTP."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import mds_sets
import numpy as np
import pytest
from servers.ranges import RangeServer

from aioload import Dataset, Loader
from aioload.collate import as_list

TESTS = Path(__file__).parent.parent
WEBDATASET = TESTS / "shard" / "files" / "webdataset.tar"
TFRECORD = TESTS / "fixtures" / "tfrecord"
MDS = TESTS / "fixtures" / "mds"


def of_webdataset() -> list[dict[str, Any]]:
    """Return the values that make_webdataset.py gave to webdataset."""
    rows = [([1, None], b"\0" * 700, "é", 3), (None, b"", "", -1), (None, b"\xff", "end", 0)]
    found = [
        {"json": {"n": n}, "bin": data, "txt": text, "cls": number, "left.npy": np.full(2, place)}
        for place, (n, data, text, number) in enumerate(rows)
    ]
    return [found[0], found[1] | {"json": {}}, found[2] | {"json": []}]


def of_tfrecord() -> list[dict[str, Any]]:
    """Return the values that make.py gave to TensorFlow and to tfrecord."""
    rows = json.loads((TFRECORD / "values.json").read_text())["example"]
    return [
        {
            "image/encoded": bytes.fromhex(row["image/encoded"][0]),
            "label": row["label"][0],
            "größe": row["größe"][0],
            "name": bytes.fromhex(row["name"][0]).decode(),
        }
        for row in rows
    ]


KINDS = {"image/encoded": "bytes", "label": "int", "größe": "float", "name": "str"}


CASES: dict[str, tuple[Path, Callable[[], list[dict[str, Any]]]]] = {
    "webdataset": (WEBDATASET, of_webdataset),
    "tensorflow": (TFRECORD / "tensorflow.tfrecord", of_tfrecord),
    "tensorflow gzip": (TFRECORD / "tensorflow.gzip.tfrecord", of_tfrecord),
    "tensorflow zlib": (TFRECORD / "tensorflow.zlib.tfrecord", of_tfrecord),
    "tfrecord": (TFRECORD / "tfrecord.tfrecord", of_tfrecord),
    **{
        f"mosaicml {name}": (MDS / name, lambda folder=MDS / name: mds_sets.expected(folder))  # type: ignore[misc]
        for name in ("all", "zstd", "gz", "br", "bz2", "snappy")
    },
}


@pytest.mark.parametrize("name", CASES)
def test_what_real_packages_write_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each value is what its package was given, in a loader over the file and over its address."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source, expected = CASES[name]
    folder = tmp_path / "data"
    if source.is_dir():
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("expected.json"))
    else:
        folder.mkdir()
        shutil.copy(source, folder)
    place = "" if source.is_dir() else source.name

    with RangeServer(folder) as server:
        over_http = rows(f"{server.url}/{place}".rstrip("/"))
    here = rows(folder / place)

    for found in (here, over_http):
        assert len(found) == len(expected())
        for number, values in enumerate(expected()):
            for field, value in values.items():
                np.testing.assert_equal(plain(found[number][field]), plain(value))


def rows(source: Any) -> list[dict[str, Any]]:
    """Return the samples of a set as a loader gives them."""
    fields = KINDS if "tfrecord" in str(source).rpartition("/")[2] else None
    with Loader(
        Dataset(source, fields=fields), batch_size=2, collate=as_list, num_workers=0
    ).sync() as batches:
        return [sample for batch in batches for sample in batch]


def plain(value: Any) -> Any:
    """Return a value that can be compared, whatever holds its numbers."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, Decimal):
        return str(value)  # as the package's own is told
    return value if isinstance(value, str | bytes | dict | list) else np.asarray(value)
