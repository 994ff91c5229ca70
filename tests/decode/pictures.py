"""Pictures for the tests of the decoder: real and made ones, and what Pillow's own calls make of them."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow
from PIL import ImageOps
from sklearn import datasets


@functools.cache
def photographs() -> tuple[bytes, ...]:
    """Two real photographs of 640 x 427, as JPEG."""
    folder = Path(datasets.__file__).parent / "images"
    return tuple(file.read_bytes() for file in sorted(folder.glob("*.jpg")))


@functools.cache
def made(number: int) -> Pillow.Image:
    """Make a picture of 500 x 375 with slopes, edges and grain."""
    rng = np.random.default_rng(number)
    coarse = Pillow.fromarray(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)).resize((500, 375))
    edges = Pillow.fromarray(rng.integers(0, 255, (15, 20, 3), dtype=np.uint8))
    mixed = Pillow.blend(coarse, edges.resize((500, 375), Pillow.Resampling.NEAREST), 0.3)
    grain = rng.normal(0, 6, (375, 500, 1))
    return Pillow.fromarray((np.asarray(mixed) + grain).clip(0, 255).astype(np.uint8))


def encoded(picture: Pillow.Image, kind: str = "JPEG", orientation: int = 1, **options: Any) -> bytes:
    """Write a picture in some format."""
    file = io.BytesIO()
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    if orientation != 1:
        options["exif"] = exif
    picture.save(file, kind, **({"quality": 92} if kind == "JPEG" else {}) | options)
    return file.getvalue()


def opened(data: bytes, mode: str = "RGB") -> Pillow.Image:
    """Open a picture as a careful user of Pillow would."""
    return ImageOps.exif_transpose(Pillow.open(io.BytesIO(data))).convert(mode)


def apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return by how much values differ."""
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    return np.abs(one.astype(int) - other)
