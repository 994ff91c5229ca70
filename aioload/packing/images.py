"""Images on their way into a set: is the file whole, and the same picture smaller, or in fewer bytes."""

from __future__ import annotations

import io

import PIL.Image
from PIL import UnidentifiedImageError

from .. import decode
from ..errors import SampleError

__all__ = ["check_image", "reencode"]

_GRAY = ("1", "L", "I;16", "I;16B", "I;16L")


def check_image(data: bytes, *, thorough: bool) -> None:
    """Make sure that a file is an image.

    Args:
        data: the file.
        thorough: decode it; otherwise only the header is read, and JPEG and PNG are searched for their end,
            which finds most of the files that were cut short, in a tenth of the time.

    Raises:
        SampleError: it is none, or cut short.
    """
    if thorough:
        decode.Image()(data)
        return

    image = _open(data)
    if not _has_end(data, image.format):
        raise SampleError(f"the image is cut short: {len(data)} bytes without its end", category="truncated")


def reencode(data: bytes, shorter_side: int | None, quality: int, *, always: bool) -> bytes:
    """Return a JPEG file of the picture, upright, its shorter side no longer than asked for.

    Args:
        data: the file.
        shorter_side: pixels; the picture is never enlarged.
        quality: of the JPEG.
        always: also where the size stays; otherwise such a file is returned as it is.

    Raises:
        SampleError: it cannot be decoded.
    """
    image = _open(data)
    scale = min(1.0, (shorter_side or max(image.size)) / min(image.size))
    if scale == 1.0 and not always:
        check_image(data, thorough=False)
        return data

    pixels = decode.Image(mode="L" if image.mode in _GRAY else "RGB")(data)
    picture = PIL.Image.fromarray(pixels)
    if scale < 1.0:
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        picture = picture.resize(size, PIL.Image.Resampling.LANCZOS, reducing_gap=3.0)

    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return file.getvalue()


def _open(data: bytes) -> PIL.Image.Image:
    """Read the header of a file."""
    try:
        return PIL.Image.open(io.BytesIO(data))
    except UnidentifiedImageError as error:
        what = "not an image of a known format" if data else "the file is empty"
        raise SampleError(what, category="unidentified") from error
    except Exception as error:  # Pillow answers damage with many classes that have nothing else in common
        raise SampleError(f"not a whole image: {error}", category="broken") from error


def _has_end(data: bytes, image_format: str | None) -> bool:
    """Whether the mark that ends a picture is there; true for formats that have none."""
    if image_format == "PNG":
        return data.rfind(b"IEND") >= 0

    if image_format not in ("JPEG", "MPO"):
        return True

    scan = _first_scan(data)  # from here on: a thumbnail in front has an end of its own
    return data.rfind(b"\xff\xd9", scan) >= 0


def _first_scan(data: bytes) -> int:
    """Return where the compressed picture of a JPEG file begins; its length if it does not."""
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xDA:
            return place
        # 0xFF before a marker is filling, 0x01 and 0xD0 to 0xD7 stand alone; all others say how long they are
        if marker == 0xFF:
            place += 1
        else:
            alone = marker == 0x01 or 0xD0 <= marker <= 0xD7
            place += 2 if alone else 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return len(data)
