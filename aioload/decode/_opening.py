"""Opening pictures with Pillow.

Pictures are opened by their plugins, not by `PIL.Image.open`: that one holds every picture against a limit of
the whole process, while ours is an option and is checked first, from the header. No switch of Pillow's is
touched, and its warnings do not get out: for the common formats because nothing is called that warns, for the
others by a filter, which is kept from the common ones since it, too, belongs to the whole process.
"""

from __future__ import annotations

import io
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from PIL import Image, ImageFile, JpegImagePlugin

from ..errors import SampleError

__all__ = ["Jpeg", "hushed", "open_picture", "too_large"]

_JPEG = b"\xff\xd8\xff"
_QUIET = (_JPEG, b"\x89PNG", b"BM", b"P5", b"P6", b"RIFF")
_FILTER_LOCK = threading.Lock()


@contextmanager
def hushed(raw: bytes) -> Iterator[None]:
    """Keep Pillow's warnings in, where the format has any."""
    if raw.startswith(_QUIET) and b"acTL" not in raw[:1024]:
        yield
        return
    with _FILTER_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Jpeg(JpegImagePlugin.JpegImageFile):
    """A JPEG file without the pictures and tags around the first picture."""

    def _read_dpi_from_exif(self) -> None:
        """Leave the EXIF tags unread: parsing them takes longer than the rest, and warns of damage in any."""


def open_picture(raw: bytes, max_pixels: int) -> ImageFile.ImageFile:
    """Read the header, and hold the size against the limit."""
    image = _try(Jpeg, raw) if raw.startswith(_JPEG) else _identified(raw)
    width, height = image.size
    if width * height > max_pixels:
        raise too_large(f"{width} x {height}", max_pixels)
    return image


def _identified(raw: bytes) -> ImageFile.ImageFile:
    """Open with the first plugin that takes the file: the few common formats first, then all."""
    damage: Exception | None = None
    tried: set[str] = {"EPS"}  # its plugin runs Ghostscript
    for register in (Image.preinit, Image.init):
        register()
        for name in [name for name in Image.ID if name not in tried]:
            tried.add(name)
            factory, accept = Image.OPEN[name]
            if accept is not None and not _accepted(accept, raw):
                continue
            try:
                return _try(factory, raw)
            except (SyntaxError, IndexError, TypeError, EOFError, struct.error) as error:
                if accept is not None:  # the file said it was of this format
                    damage = damage or error
    if damage is not None:
        raise damage
    raise _unidentified(raw)


def _accepted(accept: Callable[[bytes], bool | str], raw: bytes) -> bool:
    """Ask a plugin whether a file looks like its own."""
    try:
        return accept(raw[:16]) is True
    except (SyntaxError, IndexError, TypeError, struct.error):  # fewer bytes than it looks at
        return False


def _try(factory: Callable[[IO[bytes], str], ImageFile.ImageFile], raw: bytes) -> ImageFile.ImageFile:
    """Open with one plugin, and tell a header that is cut short from one that is wrong."""
    source = io.BytesIO(raw)
    try:
        return factory(source, "")
    except (SyntaxError, IndexError, TypeError, struct.error) as error:
        if source.tell() >= len(raw):
            raise EOFError("it is truncated inside its header") from error
        raise


def too_large(size: str, max_pixels: int) -> SampleError:
    """Make the error for a picture over the limit."""
    return SampleError(
        f"this picture says it has {size} pixels, over the limit of {max_pixels}; if that is right, "
        "decode it with aioload.decode.Image(max_pixels=...)",
        category="too_many_pixels",
    )


def _unidentified(raw: bytes) -> SampleError:
    """Make the error for bytes that are no picture."""
    what = f"{len(raw)} bytes that begin with {raw[:16]!r}" if raw else "no bytes at all"
    return SampleError(
        f"this is no picture that Pillow knows: {what}; "
        "pack it again from its source, or pass on_error='skip'",
        category="unidentified",
    )
