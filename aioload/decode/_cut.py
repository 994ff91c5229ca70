"""What to cut out of a picture, and how it lies: arithmetic alone, the same for every backend.

All boxes are left, top, width, height. A picture is *stored* in one frame and *upright* in another, which its
EXIF orientation leads to; users think in the upright one, decoders work in the stored one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["NUMBERS", "STRAIGHT", "TURNS", "Box", "Cut", "Turn", "centre_box", "random_box", "reduction"]

Box = tuple[float, float, float, float]

_TRIES = 10
NUMBERS = 4 * _TRIES
"""How many random numbers a random box takes, however many of them decide."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What becomes of one upright picture: a part of it, scaled, and perhaps mirrored."""

    box: Box
    """The part that is left."""
    width: int
    """Columns of the result."""
    height: int
    """Rows of the result."""
    flip: bool = False
    """Whether left and right are exchanged."""


@dataclass(frozen=True, slots=True)
class Turn:
    """How a stored picture becomes upright: rows and columns are exchanged first, then mirrored."""

    transpose: bool = False
    """Whether rows become columns."""
    left_right: bool = False
    """Whether the left becomes the right."""
    top_bottom: bool = False
    """Whether the top becomes the bottom."""

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height in the other frame; either way, as turning twice changes nothing."""
        return (height, width) if self.transpose else (width, height)

    def stored(self, box: Box, width: int, height: int) -> Box:
        """Return where a box of an upright picture of this size lies in the stored one."""
        left, top, columns, rows = box
        if self.left_right:
            left = width - left - columns
        if self.top_bottom:
            top = height - top - rows
        return (top, left, rows, columns) if self.transpose else (left, top, columns, rows)

    def then_flip(self) -> Turn:
        """Return this turn with left and right exchanged after it."""
        return replace(self, left_right=not self.left_right)


STRAIGHT = Turn()
TURNS = {
    2: Turn(left_right=True),
    3: Turn(left_right=True, top_bottom=True),
    4: Turn(top_bottom=True),
    5: Turn(transpose=True),
    6: Turn(transpose=True, left_right=True),
    7: Turn(transpose=True, left_right=True, top_bottom=True),
    8: Turn(transpose=True, top_bottom=True),
}
"""What makes a picture upright, by its EXIF orientation; others need nothing."""


def random_box(
    numbers: Sequence[float],
    width: int,
    height: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Box:
    """Choose a box by its share of the area and its ratio of width to height.

    Shares are uniform, and so are logarithms of ratios, which makes wide boxes as likely as high ones. A box
    that does not fit is drawn anew; after ten, the largest central one of an allowed ratio is taken.

    Args:
        numbers: `NUMBERS` random numbers from [0, 1).
        width: of the upright picture.
        height: of the upright picture.
        scale: smallest and largest share.
        ratio: smallest and largest ratio.
    """
    least, span = math.log(ratio[0]), math.log(ratio[1] / ratio[0])
    for first in range(0, NUMBERS, 4):
        share, form, across, down = numbers[first : first + 4]
        area = width * height * (scale[0] + (scale[1] - scale[0]) * share)
        root = math.exp((least + span * form) / 2)
        columns, rows = round(math.sqrt(area) * root), round(math.sqrt(area) / root)
        if 0 < columns <= width and 0 < rows <= height:
            return int(across * (width - columns + 1)), int(down * (height - rows + 1)), columns, rows
    return centre_box(width, height, min(max(width / height, ratio[0]), ratio[1]))


def centre_box(width: int, height: int, ratio: float) -> Box:
    """Return the largest central box with this ratio of width to height, in whole pixels."""
    columns = min(width, max(1, round(height * ratio)))
    rows = min(height, max(1, round(width / ratio)))
    return (width - columns) // 2, (height - rows) // 2, columns, rows


def reduction(box: Box, width: int, height: int) -> int:
    """Return by how much a JPEG may be decoded smaller: 8, 4, 2 or 1.

    Twice the size asked for is kept at least: what a decoder leaves out is smoothed by other rules than
    those of the resize that follows, and shows less the more of the shrinking is left to that.
    """
    spare = min(box[2] / width, box[3] / height) / 2
    return next((factor for factor in (8, 4, 2) if factor <= spare), 1)
