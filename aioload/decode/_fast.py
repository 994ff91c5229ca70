"""The fast road for plain JPEGs: simplejpeg decodes, OpenCV resizes; both are extras.

Everything here may say "not mine" by raising `Declined`: Pillow then decodes the same part of the same
picture, or finds the words for what is wrong with it. One warning of libjpeg is enough for that. It fills
what is damaged or missing with gray, and would go on.

No setting of OpenCV is touched. Smoothing, and a resize to 256 x 256 pixels or less, run in the calling
thread alone; larger results are made by as many threads as the process allows OpenCV.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

from ._cut import STRAIGHT, TURNS, Box, Cut, Turn, reduction
from ._jpeg import Head
from ._smooth import WIDEST, taps

__all__ = ["COLOURS", "Declined", "decode"]

Pixels = npt.NDArray[Any]

COLOURS = {"RGB": ("rgb", 3), "L": ("gray", 1)}
"""What simplejpeg calls the modes it knows, and how many values a pixel has."""

_KEPT_BYTES = 16 << 20
_local = threading.local()
# libjpeg tells the first warning only, so nothing was wrong before this one
_ROWS_LEFT_OUT = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd9")


class Declined(Exception):
    """This picture is another decoder's."""


def decode(
    data: bytes | memoryview,
    head: Head,
    cut: Cut | None,
    turn: Turn,
    *,
    mode: str,
    antialias: bool,
    planar: bool,
    out: Pixels | None,
) -> Pixels | None:
    """Decode one picture.

    Args:
        data: the file.
        head: what its head says.
        cut: the part to take of it, in the upright frame; None for all of it.
        turn: what makes it upright.
        mode: one of `COLOURS`.
        antialias: whether a resize that shrinks smooths first.
        planar: colours in three planes instead of side by side.
        out: where the result belongs; memory of its own if None.

    Returns:
        The result, or None where `out` has another shape.

    Raises:
        Declined: Pillow has to look at it.
    """
    colours = COLOURS[mode][1]
    planar = planar and colours > 1
    width, height = turn.size(head.width, head.height) if cut is None else (cut.width, cut.height)
    shape = _shape(width, height, colours, planar)
    if out is None:
        out = np.empty(shape, np.uint8)
    elif out.shape != shape or out.dtype != np.uint8:
        return None

    last = turn.then_flip() if cut is not None and cut.flip else turn
    straight = last == STRAIGHT and not planar
    columns, rows = turn.size(width, height)  # of the result while it lies as stored
    pixels = out if straight else _kept("lying", _shape(columns, rows, colours))
    if cut is None:
        _decompress(data, head, 1, head.height, mode, pixels)
    else:
        box = turn.stored(cut.box, *turn.size(head.width, head.height))
        part, box = _part(data, head, box, reduction(box, columns, rows), mode)
        if antialias:
            part = _smoothed(part, (box[2], columns), (box[3], rows))
        _resize(part, box, pixels)
    if not straight:
        _put(pixels, last, out, planar=planar)
    return out


def _shape(width: int, height: int, colours: int, planar: bool = False) -> tuple[int, ...]:
    """Return the shape of pixels; gray ones have no axis for colours."""
    if colours == 1:
        return height, width
    return (colours, height, width) if planar else (height, width, colours)


def _part(data: bytes | memoryview, head: Head, box: Box, factor: int, mode: str) -> tuple[Pixels, Box]:
    """Decode what is needed for a box; return the pixels with the box's place in them."""
    _, top, _, rows = box
    bottom = head.height
    if head.height_at is not None:
        # what follows is left out; two rows more, since colours are stored for two rows together and smoothed
        bottom = min(bottom, math.ceil(top + rows) + 2 * factor)
    shape = _shape(-(-head.width // factor), -(-bottom // factor), COLOURS[mode][1])
    pixels = _kept("whole", shape)
    _decompress(data, head, factor, bottom, mode, pixels)
    left, top, columns, rows = (edge / factor for edge in box)
    x, y = math.floor(left), math.floor(top)
    part = pixels[y : math.ceil(top + rows), x : math.ceil(left + columns)]
    return part, (left - x, top - y, columns, rows)


def _decompress(
    data: bytes | bytearray | memoryview, head: Head, factor: int, bottom: int, mode: str, pixels: Pixels
) -> None:
    """Decode the rows above `bottom` into place, smaller by a factor.

    libjpeg stops after the last row that the head tells of: a head that tells of fewer saves the work on all
    that follow. It then looks for the end of the file, and warns of the bytes it had no use for.
    """
    shortened = bottom < head.height
    if shortened:
        data = _with_height(data, head, bottom)
    try:
        simplejpeg.decode_jpeg(
            data,
            COLOURS[mode][0],
            min_height=pixels.shape[0],
            min_width=pixels.shape[1],
            buffer=pixels,
        )
    except ValueError as warning:
        if not (shortened and _ROWS_LEFT_OUT.fullmatch(str(warning))):
            raise Declined from warning


def _with_height(data: bytes | bytearray | memoryview, head: Head, height: int) -> bytearray:
    """Copy a file, with another height in its head; that takes microseconds, and rows take milliseconds."""
    assert head.height_at is not None, "only then fewer rows are asked for"
    copy = bytearray(data)
    copy[head.height_at : head.height_at + 2] = height.to_bytes(2, "big")
    return copy


def _smoothed(pixels: Pixels, columns: tuple[float, int], rows: tuple[float, int]) -> Pixels:
    """Smooth where pixels become fewer, so that the resize leaves none out."""
    if max(columns[0] / columns[1], rows[0] / rows[1]) > WIDEST:
        raise Declined
    across, down = taps(*columns), taps(*rows)
    if len(across) == len(down) == 1:
        return pixels
    out = _kept("smooth", pixels.shape)
    return cv2.sepFilter2D(pixels, -1, across, down, out, borderType=cv2.BORDER_REPLICATE)


def _resize(pixels: Pixels, box: Box, out: Pixels) -> None:
    """Resize by taking the two nearest pixels in each direction."""
    left, top, columns, rows = box
    height, width = out.shape[:2]
    if (left, top, rows, columns) == (0, 0, *pixels.shape[:2]):
        cv2.resize(pixels, (width, height), out, interpolation=cv2.INTER_LINEAR)
        return
    # the box of a picture that was decoded smaller may begin inside a pixel
    x, y = columns / width, rows / height
    places = np.array([[x, 0, left + x / 2 - 0.5], [0, y, top + y / 2 - 0.5]])
    how = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    cv2.warpAffine(pixels, places, (width, height), out, flags=how, borderMode=cv2.BORDER_REPLICATE)


_UPRIGHT: dict[Turn, Callable[[Pixels, Pixels], Any]] = {
    STRAIGHT: lambda pixels, out: np.copyto(out, pixels),
    TURNS[2]: lambda pixels, out: cv2.flip(pixels, 1, out),
    TURNS[3]: lambda pixels, out: cv2.flip(pixels, -1, out),
    TURNS[4]: lambda pixels, out: cv2.flip(pixels, 0, out),
    TURNS[5]: lambda pixels, out: cv2.transpose(pixels, out),
    TURNS[6]: lambda pixels, out: cv2.rotate(pixels, cv2.ROTATE_90_CLOCKWISE, out),
    TURNS[7]: lambda pixels, out: cv2.flip(cv2.transpose(pixels), -1, out),
    TURNS[8]: lambda pixels, out: cv2.rotate(pixels, cv2.ROTATE_90_COUNTERCLOCKWISE, out),
}


def _put(pixels: Pixels, turn: Turn, out: Pixels, *, planar: bool) -> None:
    """Turn pixels, and copy them to where they belong."""
    if not planar:
        _UPRIGHT[turn](pixels, out)
        return
    height, width = out.shape[1:]
    upright = pixels if turn == STRAIGHT else np.empty((height, width, len(out)), np.uint8)
    if turn != STRAIGHT:
        _UPRIGHT[turn](pixels, upright)
    np.copyto(out, upright.transpose(2, 0, 1))


def _kept(use: str, shape: tuple[int, ...]) -> Pixels:
    """Return memory that this thread uses again: fresh memory costs a page fault for every page.

    What is in it is worth nothing to anybody after the picture it was taken for.
    """
    size = math.prod(shape)
    if size > _KEPT_BYTES:
        return np.empty(shape, np.uint8)
    memory = getattr(_local, use, None)
    if memory is None or len(memory) < size:
        memory = np.empty(size, np.uint8)
        setattr(_local, use, memory)
    return memory[:size].reshape(shape)
