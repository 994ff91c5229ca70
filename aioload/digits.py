"""Digits: a data set that anyone can make, drawn with Pillow's own font, turned, scaled, coloured and noisy.

Picture number i shows the digit i mod 10, and depends on the seed and i alone, so parts of the set can be
drawn by different processes.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

__all__ = ["CLASSES", "SIDE", "draw", "draw_files"]

CLASSES = 10
SIDE = 48
"""Pixels on each side."""

_MIN_CONTRAST = 200  # of 765: red, green and blue of ink and paper differ by this much in all


def draw_files(folder: Path, start: int, stop: int, seed: int) -> int:
    """Write pictures `start` to `stop` into sub-folders named after their digits; return how many."""
    for number in range(start, stop):
        (folder / f"{number % CLASSES}" / f"{number:06}.jpg").write_bytes(draw(number, seed))
    return stop - start


def draw(number: int, seed: int) -> bytes:
    """Return a picture as a JPEG file."""
    random = np.random.default_rng((seed, number))
    ink, paper = _colours(random)
    shape = _shape(number % CLASSES, random)

    light = np.linspace(-1, 1, SIDE)[:, None, None] * random.uniform(-40, 40, 3)
    noise = random.normal(0, random.uniform(2, 20), (SIDE, SIDE, 3))
    pixels = paper + (ink - paper) * shape + light + noise

    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def _colours(random: Generator) -> NDArray[np.int64]:
    """Draw ink and paper until they can be told apart."""
    while True:
        colours = random.integers(0, 256, (2, 3))
        if abs(int(colours[0].sum() - colours[1].sum())) >= _MIN_CONTRAST:
            return colours


def _shape(digit: int, random: Generator) -> NDArray[np.float64]:
    """Return how much ink there is at each pixel, 0 to 1."""
    image = Image.new("L", (SIDE, SIDE))
    font = ImageFont.load_default(size=SIDE * random.uniform(0.45, 0.8))
    ImageDraw.Draw(image).text((SIDE / 2, SIDE / 2), str(digit), fill=255, font=font, anchor="mm")

    turn, (right, down) = random.uniform(-25, 25), random.uniform(-0.12, 0.12, 2) * SIDE
    image = image.rotate(turn, Image.Resampling.BICUBIC, translate=(right, down))
    return np.asarray(image)[..., None] / 255
