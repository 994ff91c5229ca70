"""Pictures: what may be asked for; a backend, imported at the first picture, does the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy.typing as npt

from ..errors import ConfigError

__all__ = ["Image"]

Mode = Literal["RGB", "RGBA", "L", "I;16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Decode a picture of any format that Pillow reads (but not EPS, which would run Ghostscript).

    The result is a writable uint8 array (height, width, 3); "RGBA" has 4 channels, "L" is (height, width) and
    "I;16" the same in uint16. Alpha is dropped, never blended in, unless RGBA is asked for. 16-bit gray is
    scaled by 1/257, black and white are 0 and 255.
    """

    mode: Mode = "RGB"
    """Colours of the result; "I;16" takes gray pictures alone and leaves 16-bit values as they are."""
    orient: bool = True
    """Turn the picture as its EXIF orientation says; annotations made on the stored pixels need False."""
    max_pixels: int = 178_956_970
    """The largest picture (all frames together) that is decoded; beyond, none of its memory is taken."""
    all_frames: bool = False
    """Decode every frame of an animation, into (frames, height, width, ...); otherwise the first."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ConfigError(f"mode must be one of {', '.join(get_args(Mode))}; got {self.mode!r}")
        if self.max_pixels <= 0:
            raise ConfigError(f"max_pixels must be positive, got {self.max_pixels}")

    def __call__(self, data: bytes | memoryview) -> npt.NDArray[Any]:
        """Decode one picture.

        Raises:
            SampleError: with `category` "truncated", "unidentified", "too_many_pixels", "broken" or
                "unsupported".
        """
        from . import _pillow  # late: `import aioload` must not load Pillow

        return _pillow.decode(
            data,
            mode=self.mode,
            orient=self.orient,
            max_pixels=self.max_pixels,
            all_frames=self.all_frames,
        )
