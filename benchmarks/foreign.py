"""Shards of others: what does it cost to read photos from a tar, TFRecord or MDS rather than a packed set?

    python benchmarks/foreign.py
    python benchmarks/foreign.py --scale 0.2 --rounds 3

The photos of `photos.py` with the built-in decoder, antialiased, in batches of 64, in random order, by two
workers. The same photos lie in a packed set and, in the same order, in WebDataset archives, TFRecord files
and MDS shards. The index of each is made before anything is measured. Measured as `_cases.py` says.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _data
from _cases import Contender, Loops, Workload, main
from _data import Places
from photos import BATCH, SIZE

import aioload
from aioload.packing import export
from aioload.shard.tfrecord import frame

__all__ = ["WORKLOAD"]

_SHARD_BYTES = 64 << 20


def _tar(places: Places) -> aioload.Dataset:
    folder = _made(places, "tar", lambda folder: export(aioload.Dataset(places.packed), folder))
    return aioload.Dataset(folder, fields={"image.jpg": "image", "label.cls": "int"})


def _tfrecord(places: Places) -> aioload.Dataset:
    folder = _made(places, "tfrecord", lambda folder: _write_tfrecord(places, folder))
    return aioload.Dataset(folder, fields={"image": "image", "label": "int"})


def _mds(places: Places) -> aioload.Dataset:
    return aioload.Dataset(_made(places, "mds", lambda folder: _write_mds(places, folder)))


def _made(places: Places, name: str, write: Callable[[Path], object]) -> Path:
    """Return the folder of a format, written and indexed the first time."""
    folder = places.packed.with_name(f"{places.packed.name}-{name}")
    if not folder.exists():
        draft = folder.with_name(f"{folder.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)  # of a run that was stopped
        draft.mkdir()
        write(draft)
        draft.rename(folder)
    return folder


def _photos(places: Places) -> Iterator[tuple[bytes, int]]:
    dataset = aioload.Dataset(places.packed)
    for _, raw in dataset.raw_records():
        payloads = dataset.format.split(raw)[1]
        yield bytes(payloads["image"]), int.from_bytes(payloads["label"], "little")


def _write_tfrecord(places: Places, folder: Path) -> None:
    for number, photos in enumerate(_shards(places)):
        with (folder / f"photos-{number:05}.tfrecord").open("wb") as file:
            file.writelines(frame(_example(image, label)) for image, label in photos)


def _example(image: bytes, label: int) -> bytes:
    """Return a tf.train.Example of a picture and its label."""
    values = _field(1, image), _field(1, _varint(label))
    features = _field(1, values[0]), _field(3, values[1])
    entries = (
        _field(1, name) + _field(2, feature)
        for name, feature in zip((b"image", b"label"), features, strict=True)
    )
    return _field(1, b"".join(_field(1, entry) for entry in entries))


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _write_mds(places: Places, folder: Path) -> None:
    shards = []
    for number, photos in enumerate(_shards(places)):
        rows = [struct.pack("<I", len(image)) + image + struct.pack("<q", label) for image, label in photos]
        place, offsets = 4 + 4 * (len(rows) + 1), []
        for row in rows:
            offsets.append(place)
            place += len(row)
        name = f"shard.{number:05}.mds"
        head = struct.pack(f"<{len(rows) + 2}I", len(rows), *offsets, place)
        (folder / name).write_bytes(b"".join([head, *rows]))
        shards.append(
            {
                "column_encodings": ["jpeg", "int"], "column_names": ["image", "label"],
                "column_sizes": [None, 8], "compression": None, "format": "mds", "hashes": [],
                "raw_data": {"basename": name, "bytes": place, "hashes": {}}, "samples": len(rows),
                "size_limit": _SHARD_BYTES, "version": 2, "zip_data": None,
            }
        )  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def _shards(places: Places) -> Iterator[list[tuple[bytes, int]]]:
    """Give the photos, so many together as fill a shard."""
    photos: list[tuple[bytes, int]] = []
    size = 0
    for image, label in _photos(places):
        photos.append((image, label))
        size += len(image)
        if size > _SHARD_BYTES:
            yield photos
            photos, size = [], 0
    if photos:
        yield photos


def _case(dataset: Callable[[Places], aioload.Dataset], image: str) -> Callable[[Places, int], Contender]:
    def make(places: Places, workers: int) -> Contender:
        decoder = aioload.decode.Image(size=SIZE, crop="random_resized", flip=True)
        found = dataset(places)
        len(found)  # indexed by now
        loader = aioload.Loader(
            found, batch_size=BATCH, shuffle=True, num_workers=workers, decode={image: decoder}
        )
        return Loops(loader.sync(), loader.close)

    return make


def touch(batch: Any) -> int:
    """Look at a few bytes of each picture."""
    images = next(value for name, value in batch.items() if name.startswith("image"))
    assert int(images[:, 0, 0].sum()) > 0
    return len(images)


WORKLOAD = Workload(
    "photos in shards of others",
    _data.photos,
    touch,
    {
        "packed": _case(lambda places: aioload.Dataset(places.packed), "image"),
        "tar": _case(_tar, "image.jpg"),
        "tfrecord": _case(_tfrecord, "image"),
        "mds": _case(_mds, "image"),
    },
)


if __name__ == "__main__":
    main(WORKLOAD, __doc__)
