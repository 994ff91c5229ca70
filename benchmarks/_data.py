"""Data for the benchmarks: generated, the same everywhere, kept in a folder until its recipe changes.

Three sets, each twice: packed by `aioload.Writer`, and laid out as a user of torch's DataLoader would have
them.

- photos: 500 x 375 JPEGs (4:2:0, quality 95, 103 KB on the average) in a hundred class folders. They are not
  photographs, but cost what photographs cost: noise of all scales that falls off as in nature, patches with
  edges, and fine grain, so that as many coefficients survive as in a camera's file.
- tiny: 2,048 random bytes and a label. For torch one file of records end to end, read by `os.pread` at the
  record's place: what one does once millions of small files have become too slow.
- tensors: float32 (3, 224, 224). For torch one `.npy` file each, and one `.npy` file of all for `np.load(...,
  mmap_mode="r")`: some do this, some that, and the faster one is what aioload is compared with.

Records are packed in an order drawn once, and photos are written to their folders in the same one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

import aioload

__all__ = ["DEFAULT_FOLDER", "Places", "photo", "photos", "tensors", "tiny"]

DEFAULT_FOLDER = Path(tempfile.gettempdir()) / "aioload-benchmarks"

PHOTOS, PHOTO_SIZE, CLASSES, QUALITY = 6000, (500, 375), 100, 95
TINY, TINY_BYTES = 200_000, 2048
TENSORS, TENSOR_SHAPE = 4000, (3, 224, 224)
RECIPE = 2
"""Raise it when anything here makes other bytes than before."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a set lies."""

    folder: Path
    """Holds everything below."""
    records: int
    """How many there are."""

    @property
    def packed(self) -> Path:
        """The set as aioload reads it."""
        return self.folder / "packed"

    @property
    def plain(self) -> Path:
        """The set as others read it."""
        return self.folder / "plain"

    def kept(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return a folder beside the others that `make` fills, unless an earlier run did."""
        return _kept(self.folder / name, make)


def photos(folder: Path = DEFAULT_FOLDER, scale: float = 1.0) -> Places:
    """Make the photos, or find them: `plain/class-012/000345.jpg` and packed `image`, `label`."""
    records = max(int(PHOTOS * scale), 64)
    return _set(folder, "photos", records, _make_photos)


def tiny(folder: Path = DEFAULT_FOLDER, scale: float = 1.0) -> Places:
    """Make tiny records, or find them; packed `data`, `label`.

    Plain they are there twice: `plain/class-012/000345.bin`, and end to end in `plain/records.bin` with
    `plain/labels.npy`.
    """
    return _set(folder, "tiny", max(int(TINY * scale), 256), _make_tiny)


def tensors(folder: Path = DEFAULT_FOLDER, scale: float = 1.0) -> Places:
    """Make the tensors, or find them: `plain/000123.npy`, `plain/all.npy`; packed `x`."""
    return _set(folder, "tensors", max(int(TENSORS * scale), 64), _make_tensors)


def photo(number: int) -> bytes:
    """Return a JPEG that depends on its number alone."""
    rng = np.random.default_rng((RECIPE, number))
    luma = 40 * _natural(rng, 7) + _patches(rng)
    luma += rng.standard_normal(luma.shape, dtype=np.float32) * (5 + 11 * rng.random())  # grain: sizes vary
    planes = [luma, 20 * _natural(rng, 3), 20 * _natural(rng, 3)]
    pixels = np.stack([(plane + 128).clip(0, 255).astype(np.uint8) for plane in planes], axis=-1)
    out = io.BytesIO()
    Image.frombytes("YCbCr", PHOTO_SIZE, pixels.tobytes()).save(out, "JPEG", quality=QUALITY, subsampling=2)
    return out.getvalue()


def _natural(rng: np.random.Generator, octaves: int) -> npt.NDArray[np.float32]:
    """Noise in octaves, the finer the fainter, in the size of a photo."""
    width, height = PHOTO_SIZE
    total = np.zeros((height, width), np.float32)
    for octave in range(octaves):
        grid = rng.standard_normal((min(height, 3 << octave), min(width, 4 << octave)), dtype=np.float32)
        total += 0.6**octave * np.asarray(Image.fromarray(grid).resize(PHOTO_SIZE, Image.Resampling.BICUBIC))
    return total


def _patches(rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """A few shapes with sharp edges."""
    picture = Image.new("L", PHOTO_SIZE, 64)
    pen = ImageDraw.Draw(picture)
    for _ in range(6):
        x, y, w, h = (int(n) for n in rng.integers((0, 0, 20, 20), (*PHOTO_SIZE, 160, 160)))
        pen.ellipse((x, y, x + w, y + h), fill=int(rng.integers(128)))
    return np.asarray(picture, np.float32) - 64


def _make_photos(places: Places) -> None:
    fields = {"image": "image", "label": "int"}
    with (
        ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool,  # no thread runs yet
        aioload.Writer(places.packed, fields=fields) as writer,
    ):
        for number, content in enumerate(pool.map(photo, range(places.records), chunksize=16)):
            name = f"class-{_label(number):03}/{number:06}.jpg"
            file = places.plain / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            writer.write({"image": content, "label": _label(number)}, key=name)


def _make_tiny(places: Places) -> None:
    rng = np.random.default_rng(RECIPE)
    places.plain.mkdir(parents=True)
    with (
        (places.plain / "records.bin").open("wb") as file,
        aioload.Writer(places.packed, fields={"data": "bytes", "label": "int"}) as writer,
    ):
        for number in range(places.records):
            record = rng.bytes(TINY_BYTES)
            file.write(record)
            writer.write({"data": record, "label": _label(number)})
            single = places.plain / f"class-{_label(number):03}" / f"{number:06}.bin"
            single.parent.mkdir(exist_ok=True)
            single.write_bytes(record)
    np.save(places.plain / "labels.npy", np.array([_label(number) for number in range(places.records)]))


def _make_tensors(places: Places) -> None:
    places.plain.mkdir(parents=True)
    shape = (places.records, *TENSOR_SHAPE)
    everything = np.lib.format.open_memmap(places.plain / "all.npy", "w+", np.float32, shape)
    with aioload.Writer(places.packed, fields={"x": "ndarray"}) as writer:
        for number in range(places.records):
            rng = np.random.default_rng((RECIPE, number))
            everything[number] = array = rng.random(TENSOR_SHAPE, dtype=np.float32)
            np.save(places.plain / f"{number:06}.npy", array)
            writer.write({"x": array})
    everything.flush()


def _label(number: int) -> int:
    """Classes in an order without a pattern that matters: neighbours differ."""
    return number * 7919 % CLASSES


def _set(folder: Path, name: str, records: int, make: Callable[[Places], None]) -> Places:
    """Find a set of this recipe and size, or make it."""
    recipe = [RECIPE, PHOTO_SIZE, CLASSES, QUALITY, TINY_BYTES, TENSOR_SHAPE, aioload.__version__]
    digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:8]
    path = folder / f"{name}-{records}-{digest}"
    return Places(_kept(path, lambda fresh: make(Places(fresh, records))), records)


def _kept(path: Path, make: Callable[[Path], None]) -> Path:
    """Return the folder, made under another name first: what has its name is complete."""
    if not path.exists():
        with _fresh(path) as fresh:
            make(fresh)
            if not path.exists():  # else another run was faster
                fresh.rename(path)
    return path


@contextlib.contextmanager
def _fresh(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
