"""Foreign sets for tests: archives, TFRecord files and MDS folders with known samples."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mds_sets
import protos
from shard.tars import by_tarfile

from aioload import Dataset, Loader

__all__ = ["make_hashed_mds", "make_mds", "make_tar", "make_tfrecord", "numbers", "sample_bytes"]


def sample_bytes(number: int) -> bytes:
    """Return the payload of a sample; each has another length."""
    return f"payload {number} ".encode() * (1 + number % 5)


def make_tar(wanted: Iterable[int]) -> bytes:
    """Return an archive with a payload and a number for each sample."""
    return by_tarfile(
        file
        for number in wanted
        for file in ((f"{number:05}.bin", sample_bytes(number)), (f"{number:05}.cls", b"%d\n" % number))
    )


def make_tfrecord(wanted: Iterable[int]) -> bytes:
    """Return a file with a payload and a number for each sample."""
    return protos.framed(
        *(
            protos.example(
                bin=protos.feature("bytes", [sample_bytes(number)]), cls=protos.feature("int64", [number])
            )
            for number in wanted
        )
    )


def make_mds(folder: Path, shards: Iterable[Iterable[int]]) -> Path:
    """Write a folder with a payload and a number for each sample, and no sums."""
    entries = []
    folder.mkdir(parents=True, exist_ok=True)
    for place, wanted in enumerate(shards):
        rows = [
            struct.pack("<I", len(sample_bytes(number))) + sample_bytes(number) + struct.pack("<q", number)
            for number in wanted
        ]
        data = mds_sets.shard(rows)
        name = f"shard.{place:05}.mds"
        (folder / name).write_bytes(data)
        entries.append(
            {
                "version": 2,
                "format": "mds",
                "column_names": ["bin", "cls"],
                "column_encodings": ["bytes", "int"],
                "column_sizes": [None, 8],
                "compression": None,
                "hashes": [],
                "raw_data": {"basename": name, "bytes": len(data), "hashes": {}},
                "samples": len(rows),
                "size_limit": 1 << 26,
                "zip_data": None,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    return folder


def make_hashed_mds(folder: Path, shards: Iterable[Iterable[int]]) -> Path:
    """Write such a folder with a sum of each shard."""
    make_mds(folder, shards)
    document = json.loads((folder / "index.json").read_text())
    for entry in document["shards"]:
        data = (folder / entry["raw_data"]["basename"]).read_bytes()
        entry["hashes"] = ["sha1"]
        entry["raw_data"]["hashes"] = {"sha1": hashlib.sha1(data).hexdigest()}
    (folder / "index.json").write_text(json.dumps(document))
    return folder


def numbers(dataset: Dataset, **options: Any) -> list[int]:
    """Return the numbers of the samples in the order of a loader; each must come with its own payload."""
    options = {"batch_size": 4, "num_workers": 0, "collate": list, "transform": dict, **options}
    with Loader(dataset, **options).sync() as batches:
        return [number_of(sample) for batch in batches for sample in batch]


def number_of(sample: Mapping[str, Any]) -> int:
    """Return the number of a sample, whose payload must be its own."""
    number = int(sample["cls"] if not hasattr(sample["cls"], "shape") else sample["cls"].reshape(-1)[0])
    assert bytes(sample["bin"]) == sample_bytes(number)
    return number
