"""Mapping over a network: from a web server, and into a bucket, where a run that was stopped goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from obstore.store import S3Store
from servers.ranges import RangeServer
from servers.seaweed import SECRET, Seaweed

import aioload
from aioload import Dataset, Writer
from aioload.packing.provenance import PROVENANCE
from aioload.shard.folder import WORK_NAME


class Stopped(Exception):
    """What stops a run of a test."""


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    """Stand for costly work; record 30 fails."""
    if sample["n"] == 30:
        raise ValueError("thirty")
    return {"double": sample["x"] * 2, "n": sample["n"]}


def numbers(path: Path) -> Path:
    """Write a set of arrays."""
    with Writer(path, {"x": "ndarray", "n": "int"}, shard_bytes=3000) as writer:
        for number in range(40):
            writer.write({"x": np.arange(10), "n": number})
    return path


def test_a_bucket_gets_the_set_that_a_folder_gets(tmp_path: Path, seaweed: Seaweed) -> None:
    """Stopped and gone on with: shards that were there stay, no other file does, and no key is in any."""
    source, url = numbers(tmp_path / "set"), f"s3://{seaweed.bucket}/mapped"
    common: dict[str, Any] = {"shard_bytes": 2000, "skip_bad": True}
    aioload.map(source, doubled, tmp_path / "folder", num_workers=0, **common)
    common["storage_options"] = seaweed.options
    left = iter(range(3))

    def progress(records: int, num_bytes: int) -> None:
        if next(left) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        aioload.map(source, doubled, url, num_workers=0, progress=progress, **common)
    store = S3Store(seaweed.bucket, **seaweed.options, client_options={"allow_http": True})
    obstore.put(store, "mapped/shard-00001.aio", b"cut short")
    report = aioload.map(source, doubled, url, num_workers=2, **common)

    found = {
        file["path"].partition("/")[2]: bytes(obstore.get(store, file["path"]).bytes())
        for file in obstore.list(store, "mapped").collect()
    }
    assert found == {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()}
    assert WORK_NAME not in found
    assert report.notes[0].startswith("2 of ")
    assert [bad.reason for bad in report.unreadable] == ["ValueError: thirty"]
    assert SECRET.encode() not in b"".join(found.values())


def test_a_source_may_lie_behind_an_address(tmp_path: Path) -> None:
    """The result is that of its copy, but for the address, of which only what is not secret is kept."""
    source = numbers(tmp_path / "set")
    files = {f"set/{path.name}": path.read_bytes() for path in source.iterdir()}

    with RangeServer(files) as server:
        far = Dataset(f"{server.url}/set?sig=topsecret").select(range(30))
        aioload.map(far, doubled, tmp_path / "far", num_workers=1)
    aioload.map(Dataset(source).select(range(30)), doubled, tmp_path / "near", num_workers=0)

    one, other = Dataset(tmp_path / "far"), Dataset(tmp_path / "near")
    assert one.index.fingerprint() == other.index.fingerprint()
    assert one.metadata[PROVENANCE]["source"].startswith("http://127.0.0.1")
    assert "topsecret" not in str(one.metadata)
