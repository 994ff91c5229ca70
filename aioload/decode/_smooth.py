"""Smoothing before a resize that shrinks: taps that make a plain bilinear resize an antialiased one.

An antialiased bilinear resize by s weighs the pixels around a place by a triangle that is s pixels wide to
either side. A plain one weighs the two pixels beside it. Smoothing all pixels first, and then taking two,
comes close to the triangle if the taps are chosen well; and both steps exist as vector instructions, while a
resize that weighs by the triangle itself takes several times longer.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["WIDEST", "taps"]

WIDEST = 16
"""The largest shrinking that there are taps for."""

_STEPS = 64  # a shrinking is rounded to this part of one: fewer taps to work out, none of them off by much
_PLACES = (np.arange(32) + 0.5) / 32


def taps(pixels: float, into: int) -> npt.NDArray[np.float32]:
    """Return the weights of neighbouring pixels, an odd number of them, for so many pixels into so many."""
    return _taps(max(round(pixels * _STEPS / into), _STEPS))


@lru_cache(maxsize=WIDEST * _STEPS)
def _taps(steps: int) -> npt.NDArray[np.float32]:
    """Fit the weights to the triangle, by least squares over all places between two pixels."""
    shrink = steps / _STEPS
    if shrink == 1:
        return np.ones(1, np.float32)
    reach = int(np.ceil(shrink))
    pixels = np.arange(-reach, reach + 2)
    matrix, wanted = [], []
    for place in _PLACES:
        triangle = np.maximum(0, 1 - np.abs(pixels - place) / shrink)
        wanted.append(triangle / triangle.sum())
        # the resize mixes the smoothed pixels to the left and to the right of the place
        left, right = np.eye(len(pixels), 2 * reach + 1), np.eye(len(pixels), 2 * reach + 1, -1)
        matrix.append((1 - place) * left + place * right)
    fitted = np.linalg.lstsq(np.vstack(matrix), np.hstack(wanted), rcond=None)[0]
    # equal to the last bit, which OpenCV's faster code for symmetric taps asks for
    fitted = fitted + fitted[::-1]
    weights: npt.NDArray[np.float32] = (fitted / fitted.sum()).astype(np.float32)
    weights.flags.writeable = False  # shared by all pictures
    return weights
