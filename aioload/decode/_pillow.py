"""The Pillow backend of the image decoder: any picture, whole or in part."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from ..errors import SampleError
from ._cut import STRAIGHT, TURNS, Box, Cut, Turn, reduction
from ._jpeg import exif_orientation
from ._opening import Jpeg, hushed, open_picture, too_large

__all__ = ["decode", "from_pixels"]

Pixels = npt.NDArray[Any]
Cutter = Callable[[int, int], Cut | None]

_ORIENTATION = 0x0112
_UPRIGHT = {
    TURNS[2]: Image.Transpose.FLIP_LEFT_RIGHT,
    TURNS[3]: Image.Transpose.ROTATE_180,
    TURNS[4]: Image.Transpose.FLIP_TOP_BOTTOM,
    TURNS[5]: Image.Transpose.TRANSPOSE,
    TURNS[6]: Image.Transpose.ROTATE_270,
    TURNS[7]: Image.Transpose.TRANSVERSE,
    TURNS[8]: Image.Transpose.ROTATE_90,
}
_SHAPES: dict[str, tuple[int, ...]] = {"RGB": (3,), "RGBA": (4,), "L": (), "I;16": ()}
_BACK = TURNS | {6: TURNS[8], 8: TURNS[6]}


def decode(
    data: bytes | memoryview,
    *,
    mode: str,
    orient: bool,
    max_pixels: int,
    all_frames: bool,
    cut: Cutter,
    antialias: bool,
    planar: bool,
    out: Pixels | None,
) -> Pixels | None:
    """Decode one picture; the options are those of `aioload.decode.Image`.

    Args:
        cut: says what to take of a picture whose upright width and height are given; None for all.
        planar: colours in three planes instead of side by side.
        out: where the result belongs; memory of its own if None.

    Returns:
        The result, or None where `out` has another shape or type.

    Raises:
        SampleError: it cannot be decoded, whatever class Pillow raised.
    """
    raw = bytes(data)
    planar = planar and bool(_SHAPES[mode])
    try:
        with hushed(raw):
            image = open_picture(raw, max_pixels)
            if all_frames:
                return _placed(_all_frames(image, raw, mode, orient, max_pixels), planar, out)
            upright = _cut_out(image, mode, orient, cut, antialias)
            if out is None or planar or not _fits(upright, out):
                return _placed(_pixels(upright), planar, out)
            return _pixels(upright, out)
    except SampleError:
        raise
    except Exception as error:  # Pillow answers damage with a dozen classes that have nothing else in common
        raise _translated(error, raw) from error


def from_pixels(mode: str, size: tuple[int, int], raw: bytes) -> Pixels:
    """Convert a picture that is in memory as Pillow has it there to RGB.

    Args:
        mode: Pillow's, without a palette.
        size: width and height.
        raw: the pixels, exactly as many.

    Raises:
        SampleError: the mode cannot become RGB, or Pillow does not take the pixels.
    """
    try:
        return _pixels(_converted(Image.frombytes(mode, size, raw), "RGB"))
    except SampleError:
        raise
    except Exception as error:  # as in `decode`
        raise _translated(error, raw) from error


def _all_frames(image: ImageFile.ImageFile, raw: bytes, mode: str, orient: bool, max_pixels: int) -> Pixels:
    """Decode frame after frame, to the end that the file itself names."""
    frames: list[Pixels] = []
    pixels = image.width * image.height
    for index in itertools.count():
        try:
            image.seek(index)
        except EOFError:
            break
        if pixels * (index + 1) > max_pixels:
            raise too_large(f"{image.width} x {image.height} in more than {index} frames", max_pixels)
        frames.append(_pixels(_turned(*_loaded(image, mode, orient))))
    # Pillow takes the end of the bytes for the end of the animation
    if len(frames) < getattr(image, "n_frames", 1) or (image.format == "GIF" and not _gif_is_whole(raw)):
        raise EOFError(f"it is truncated after {len(frames)} frames")
    return np.stack(frames)


def _cut_out(
    image: ImageFile.ImageFile, mode: str, orient: bool, cut: Cutter, antialias: bool
) -> Image.Image:
    """Decode a picture, or what is needed of it."""
    size, factor = None, 1
    if isinstance(image, Jpeg):
        size, factor = image.size, _draft(image, mode, orient, cut)
    picture, turn = _loaded(image, mode, orient)
    width, height = size or picture.size
    wanted = cut(*turn.size(width, height))
    if wanted is None:
        return _turned(picture, turn)

    left, top, columns, rows = turn.stored(wanted.box, *turn.size(width, height))
    box = (left / factor, top / factor, columns / factor, rows / factor)
    small = _resized(picture, box, turn.size(wanted.width, wanted.height), antialias)
    return _turned(small, turn.then_flip() if wanted.flip else turn)


def _draft(image: Jpeg, mode: str, orient: bool, cut: Cutter) -> int:
    """Have libjpeg decode smaller, and brightness alone, where that will do; return by how much smaller."""
    turn = _exif_turn(image) if orient else STRAIGHT
    wanted = cut(*turn.size(*image.size))
    factor = 1 if wanted is None else reduction(wanted.box, wanted.width, wanted.height)
    width, height = image.size
    # of this smaller size Pillow makes the same factor again
    image.draft("L" if mode == "L" else None, (width // factor, height // factor))
    return factor if image.size != (width, height) else 1


def _loaded(image: ImageFile.ImageFile, mode: str, orient: bool) -> tuple[Image.Image, Turn]:
    """Decode the present frame and convert it; return what makes it lie as asked, too."""
    tiff_orientation = getattr(image, "tag_v2", {}).get(_ORIENTATION, 1)
    image.load()  # before the tags are looked at: PNG may have them behind the pixels
    converted = _converted(image, mode)
    if hasattr(image, "tag_v2"):  # the TIFF plugin has turned it already
        return converted, STRAIGHT if orient else _BACK.get(tiff_orientation, STRAIGHT)
    return converted, _exif_turn(image) if orient else STRAIGHT


def _exif_turn(image: ImageFile.ImageFile) -> Turn:
    """Return what makes a picture upright, by its tags."""
    return TURNS.get(exif_orientation(image.info.get("exif", b"")), STRAIGHT)


def _turned(image: Image.Image, turn: Turn) -> Image.Image:
    """Turn a picture, if there is need."""
    return image if turn == STRAIGHT else image.transpose(_UPRIGHT[turn])


def _resized(image: Image.Image, box: Box, size: tuple[int, int], antialias: bool) -> Image.Image:
    """Resize a part of a picture; where nothing changes, it is the picture itself."""
    left, top, columns, rows = box
    if size == image.size and columns == image.width and rows == image.height:
        return image
    if image.mode == "I;16":  # Pillow resizes wider numbers only
        wide = _resized(Image.fromarray(np.asarray(image).astype(np.int32)), box, size, antialias)
        return Image.fromarray(np.asarray(wide).clip(0, 65535).astype(np.uint16))
    if antialias:
        edges = (left, top, left + columns, top + rows)
        return image.resize(size, Image.Resampling.BILINEAR, edges, reducing_gap=2.0)

    # cut first, or pixels beside the box would be mixed in at its edges
    x, y = math.floor(left), math.floor(top)
    part = image.crop((x, y, math.ceil(left + columns), math.ceil(top + rows)))
    extent = (left - x, top - y, left - x + columns, top - y + rows)
    return part.transform(size, Image.Transform.EXTENT, extent, Image.Resampling.BILINEAR)


def _converted(image: Image.Image, mode: str) -> Image.Image:
    """Convert colours where they are not as asked."""
    if image.mode == mode:
        return image
    if mode == "I;16":
        return Image.fromarray(_gray16(image))
    if image.mode.startswith(("I", "F")):
        # round, where convert() would clip at 255
        image = Image.fromarray(((_gray16(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.mode in ("RGBa", "La"):
        image = image.convert({"RGBa": "RGBA", "La": "LA"}[image.mode])  # colours not multiplied by alpha

    hidden = image.info.pop("transparency", None) if mode != "RGBA" else None  # convert() would warn of it
    try:
        return image.convert(mode)
    except ValueError as error:
        raise _unsupported(f"{image.mode} cannot become {mode}: {error}") from error
    finally:
        if hidden is not None:
            image.info["transparency"] = hidden


def _gray16(image: Image.Image) -> Pixels:
    """Return gray values in 16 bits."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return np.asarray(image).astype(np.uint16)
    if image.mode in ("1", "L"):
        return np.asarray(image.convert("L")).astype(np.uint16) * np.uint16(257)
    raise _unsupported(f"colours of mode {image.mode} have no fixed range of 16-bit gray")


def _fits(image: Image.Image, out: Pixels) -> bool:
    """Whether a place has the shape and the type of a picture's pixels."""
    return out.shape == (image.height, image.width, *_SHAPES[image.mode]) and out.dtype == _dtype(image)


def _dtype(image: Image.Image) -> type[np.unsignedinteger[Any]]:
    """Return the type of a picture's values."""
    return np.uint16 if image.mode == "I;16" else np.uint8


def _placed(pixels: Pixels, planar: bool, out: Pixels | None) -> Pixels | None:
    """Put pixels where they belong, if they fit there."""
    if planar:
        pixels = np.moveaxis(pixels, -1, -3)
    if out is None:
        return np.ascontiguousarray(pixels)
    if out.shape != pixels.shape or out.dtype != pixels.dtype:
        return None
    np.copyto(out, pixels)
    return out


def _pixels(image: Image.Image, out: Pixels | None = None) -> Pixels:
    """Copy the pixels out, into memory of their own that may be written to, or into a place that fits.

    As `numpy.asarray` does, which is slower and ends on read-only bytes; `numpy.array` copies once more.
    """
    width, height = image.size
    if out is None:
        out = np.empty((height, width, *_SHAPES[image.mode]), _dtype(image))
    flat = out.reshape(-1).view(np.uint8)
    encoder = Image._getencoder(image.mode, "raw", (image.mode,))
    encoder.setimage(image.im, (0, 0, width, height))
    start, status = 0, 0
    while not status:
        # in pieces that stay in the cache
        _, status, chunk = encoder.encode(max(ImageFile.MAXBLOCK, width * 4))
        flat[start : start + len(chunk)] = np.frombuffer(chunk, np.uint8)
        start += len(chunk)
    if start != len(flat):
        raise OSError(f"Pillow gave {start} bytes for {len(flat)}")
    return out


def _gif_is_whole(raw: bytes) -> bool:
    """Walk over the blocks of a GIF to its trailer."""
    place = 13 + _gif_colours(raw[10:11])
    while raw[place : place + 1] in (b"!", b","):
        if raw[place : place + 1] == b"!":
            place += 2
        else:
            place += 11 + _gif_colours(raw[place + 9 : place + 10])
        while place < len(raw) and raw[place]:
            place += 1 + raw[place]
        place += 1
    return raw[place : place + 1] == b";"


def _gif_colours(flags: bytes) -> int:
    """Return the size of the colour table that these flags tell of."""
    return 3 << (flags[0] & 7) + 1 if flags and flags[0] & 0x80 else 0


def _translated(error: Exception, raw: bytes) -> SampleError:
    """Make one error of whatever Pillow raised."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, Image.DecompressionBombError):
        return SampleError(
            f"this picture is larger than Pillow's own limit: {error}", category="too_many_pixels"
        )
    short_riff = raw[:4] == b"RIFF" and int.from_bytes(raw[4:8], "little") + 8 > len(raw)  # WebP says no more
    cut = short_riff or isinstance(error, EOFError | IndexError | struct.error) or "truncated" in text.lower()
    return SampleError(
        f"this picture {'is cut short' if cut else 'is damaged'} ({len(raw)} bytes): {error}; "
        "pack it again from its source, or pass on_error='skip'",
        category="truncated" if cut else "broken",
        cause=text,
    )


def _unsupported(reason: str) -> SampleError:
    """Make the error for a sound picture that has no meaning in the mode asked for."""
    return SampleError(
        f"{reason}; ask for another mode, or take the bytes with decode={{field: 'raw'}}",
        category="unsupported",
    )
