"""The usual transform of photos, by Pillow's calls; in a module without torch, as each worker imports it."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = ["SIZE", "transform", "usual"]

SIZE = 224
Draw = Callable[[], float]


def usual(source: Any, draw: Draw) -> npt.NDArray[np.uint8]:
    """Decode, crop and flip by the calls that torchvision's transforms make; CHW, not contiguous.

    Args:
        source: an open file, or anything that Pillow's `open` takes.
        draw: gives random numbers between 0 and 1.
    """
    picture = Image.open(source).convert("RGB")
    left, top, width, height = _box(*picture.size, draw)
    picture = picture.crop((left, top, left + width, top + height))
    picture = picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    if draw() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(picture).transpose(2, 0, 1)


def _box(width: int, height: int, draw: Draw) -> tuple[int, int, int, int]:
    """Draw left, top, width, height of 8 to 100% of the area and 3:4 to 4:3, by torchvision's rules."""
    for _ in range(10):
        area = width * height * (0.08 + 0.92 * draw())
        ratio = math.exp(math.log(3 / 4) + (math.log(4 / 3) - math.log(3 / 4)) * draw())
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(draw() * (width - w + 1)), int(draw() * (height - h + 1)), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def transform(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Do the usual calls on a packed record's bytes."""
    return {"image": usual(io.BytesIO(sample["image"]), rng.random), "label": sample["label"]}
