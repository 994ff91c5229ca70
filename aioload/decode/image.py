"""Pictures: what may be asked for; a backend, imported at the first picture, does the work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ._cut import NUMBERS, STRAIGHT, TURNS, Cut, centre_box, random_box
from ._jpeg import read_head
from ._options import checked_flip, checked_pair, checked_size

__all__ = ["Image"]

Mode = Literal["RGB", "RGBA", "L", "I;16"]
Crop = Literal["random_resized", "center"]
Layout = Literal["HWC", "CHW"]
Backend = Literal["auto", "pillow", "fast"]

_COLOURS = {"RGB": 3, "RGBA": 4, "L": 1, "I;16": 1}
_SCALE, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Decode a picture of any format that Pillow reads (but not EPS, which would run Ghostscript).

    The result is a writable uint8 array (height, width, 3); "RGBA" has 4 channels, "L" is (height, width) and
    "I;16" the same in uint16. Alpha is dropped, never blended in, unless RGBA is asked for. 16-bit gray is
    scaled by 1/257, black and white are 0 and 255. The gray of a JPEG is its stored brightness.

    With `size`, `crop` and `flip` only what is needed of a picture is decoded, and resized once:

        Image(size=224, crop="random_resized", flip=True)  # for training
        Image(size=224, crop="center")  # for evaluation

    What is random is drawn from `rng`, by the same rules for every picture and backend. Without one, as in
    `dataset[17]`, a crop is the central one, and nothing is flipped.
    """

    mode: Mode = "RGB"
    """Colours of the result; "I;16" takes gray pictures alone and leaves 16-bit values as they are."""
    size: int | tuple[int, int] | None = None
    """Rows and columns of the result, as (height, width) or one number for both. Without `crop`, a pair is
    reached by scaling both directions as needed, and one number is the length of the shorter side."""
    crop: Crop | None = None
    """"center" takes the largest central part that has the form of `size`. "random_resized" takes a part of
    random area, form and place."""
    scale: tuple[float, float] = _SCALE
    """Smallest and largest area of a random crop, as shares of the picture's."""
    ratio: tuple[float, float] = _RATIO
    """Smallest and largest ratio of width to height of a random crop, before it gets the form of `size`."""
    flip: bool | float = False
    """Exchange left and right: True in half of the cases, a number with this probability."""
    antialias: bool = True
    """Smooth when a resize shrinks, as Pillow does. False takes the four nearest pixels, which is a little
    faster, and as good while crops are about as large as `size`. In either case a JPEG is decoded at a half,
    a quarter or an eighth while twice the `size` remains."""
    layout: Layout = "HWC"
    """Where the channels are: last as decoded, or "CHW" as most models for torch expect them."""
    backend: Backend = "auto"
    """"auto" decodes plain JPEGs (8 bits, gray or three colours, also progressive) with simplejpeg and
    OpenCV where both are installed, as by `pip install torch-aioload[fast]`, and all else with Pillow.
    "pillow" takes that for all; "fast" is "auto", and an error where they are missing.

    Pictures that are not resized come out the same from both. Resized photographs differ by less than 1 of
    255 on the average, any one of them by less than 3, and its sharpest edges by less than 40; without
    antialias no value differs by more than 1, or 5 in a JPEG that was decoded at a fraction."""
    orient: bool = True
    """Turn the picture as its EXIF orientation says; annotations made on the stored pixels need False."""
    max_pixels: int = 178_956_970
    """The largest picture (all frames together) that is decoded; beyond, none of its memory is taken."""
    all_frames: bool = False
    """Decode every frame of an animation, into (frames, height, width, ...); otherwise the first."""

    def __post_init__(self) -> None:
        for name, choices in (
            ("mode", get_args(Mode)),
            ("crop", (*get_args(Crop), None)),
            ("layout", get_args(Layout)),
            ("backend", get_args(Backend)),
        ):
            if getattr(self, name) not in choices:
                known = ", ".join(map(str, choices))
                raise ConfigError(f"{name} must be one of {known}; got {getattr(self, name)!r}")
        if self.max_pixels <= 0:
            raise ConfigError(f"max_pixels must be positive, got {self.max_pixels}")
        object.__setattr__(self, "size", checked_size(self.size))
        for name in ("scale", "ratio"):
            object.__setattr__(self, name, checked_pair(name, getattr(self, name)))
        if self.scale[1] > 1:
            raise ConfigError(f"scale is a share of the picture, at most 1; got {self.scale}")
        object.__setattr__(self, "flip", checked_flip(self.flip))
        self._check_together()
        if self.backend == "fast" and _fast() is None:
            raise ConfigError(
                "backend='fast' needs simplejpeg and opencv-python-headless, and one of them is missing; "
                "install both with pip install 'torch-aioload[fast]', or take backend='auto'"
            )

    def _check_together(self) -> None:
        """Refuse options that mean nothing beside the others."""
        if self.crop is not None and self.size is None:
            raise ConfigError(f"crop={self.crop!r} needs a size: say how large the result is, as in size=224")
        if self.crop != "random_resized" and (self.scale, self.ratio) != (_SCALE, _RATIO):
            raise ConfigError(
                "scale and ratio are those of a random crop: pass crop='random_resized' with them"
            )
        if self.all_frames and (self.size is not None or self.flip):
            raise ConfigError(
                "all_frames=True decodes frames as they are: leave size, crop and flip out, "
                "and resize in a transform"
            )

    @property
    def draws(self) -> bool:
        """Whether results depend on random numbers, so that calls should be given an `rng`."""
        return self.crop == "random_resized" or self.flip > 0

    @property
    def example(self) -> npt.NDArray[Any] | None:
        """A value of the make that all results have; None where it depends on the picture."""
        shape = self.static_shape
        return None if shape is None else np.zeros(shape, np.uint16 if self.mode == "I;16" else np.uint8)

    @property
    def packages(self) -> tuple[str, ...]:
        """What decoding imports, if it is installed, for most pictures."""
        return () if self.backend == "pillow" else ("cv2", "simplejpeg")

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape of every result, or None where it depends on the picture."""
        if self.size is None or (self.crop is None and isinstance(self.size, int)):
            return None
        height, width = self._form()
        colours = _COLOURS[self.mode]
        if colours == 1:
            return height, width
        return (colours, height, width) if self.layout == "CHW" else (height, width, colours)

    def __call__(
        self, data: bytes | memoryview, *, rng: np.random.Generator | None = None
    ) -> npt.NDArray[Any]:
        """Decode one picture.

        Args:
            data: the file.
            rng: where random numbers come from; a different one for each picture.

        Raises:
            SampleError: with `category` "truncated", "unidentified", "too_many_pixels", "broken" or
                "unsupported".
        """
        pixels = self._decode(data, rng, None)
        assert pixels is not None, "memory of its own has the right shape"
        return pixels

    def into(
        self, data: bytes | memoryview, out: npt.NDArray[Any], *, rng: np.random.Generator | None = None
    ) -> bool:
        """Decode one picture straight into a place of its own, such as a row of a batch.

        Args:
            data: the file.
            out: C-contiguous; afterwards what a call would have returned.
            rng: as in a call.

        Returns:
            Whether the result is there. Where it has another shape or type than `out`, it is not, and
            what `out` holds is undefined.

        Raises:
            SampleError: as a call does.
        """
        return self._decode(data, rng, out) is not None

    def _decode(
        self, data: bytes | memoryview, rng: np.random.Generator | None, out: npt.NDArray[Any] | None
    ) -> npt.NDArray[Any] | None:
        """Decode on the fast road if there is one, else on Pillow's."""
        # first, and always as many: what becomes of them depends on the picture
        numbers = rng.random(1 + NUMBERS).tolist() if rng is not None and self.draws else None
        if self.mode in ("RGB", "L") and not self.all_frames and self.backend != "pillow":
            fast = _fast()
            if fast is not None:
                try:
                    return self._decode_fast(fast, data, numbers, out)
                except fast.Declined:
                    pass
        from . import _pillow  # late: `import aioload` must not load Pillow

        return _pillow.decode(
            data,
            mode=self.mode,
            orient=self.orient,
            max_pixels=self.max_pixels,
            all_frames=self.all_frames,
            cut=partial(self._cut, numbers),
            antialias=self.antialias,
            planar=self.layout == "CHW",
            out=out,
        )

    def _decode_fast(
        self,
        fast: ModuleType,
        data: bytes | memoryview,
        numbers: list[float] | None,
        out: npt.NDArray[Any] | None,
    ) -> npt.NDArray[Any] | None:
        """Decode a plain JPEG.

        Raises:
            Declined: it is not plain, or damaged.
        """
        head = read_head(data)
        if head is None or head.width * head.height > self.max_pixels:
            raise fast.Declined
        turn = TURNS.get(head.orientation, STRAIGHT) if self.orient else STRAIGHT
        pixels: npt.NDArray[Any] | None = fast.decode(
            data,
            head,
            self._cut(numbers, *turn.size(head.width, head.height)),
            turn,
            mode=self.mode,
            antialias=self.antialias,
            planar=self.layout == "CHW",
            out=out,
        )
        return pixels

    def _cut(self, numbers: list[float] | None, width: int, height: int) -> Cut | None:
        """Say what is taken of an upright picture of this size; None for all of it, as it is."""
        flip = numbers is not None and numbers[0] < self.flip
        whole = (0, 0, width, height)
        if self.size is None:
            return Cut(whole, width, height, flip) if flip else None
        if self.crop is None and isinstance(self.size, int):
            short = min(width, height)
            return Cut(whole, max(1, self.size * width // short), max(1, self.size * height // short), flip)
        rows, columns = self._form()
        if self.crop is None:
            return Cut(whole, columns, rows, flip)
        if self.crop == "random_resized" and numbers is not None:
            return Cut(random_box(numbers[1:], width, height, self.scale, self.ratio), columns, rows, flip)
        return Cut(centre_box(width, height, columns / rows), columns, rows, flip)

    def _form(self) -> tuple[int, int]:
        """Return rows and columns of a result whose size is given."""
        assert self.size is not None, "asked only of those"
        return (self.size, self.size) if isinstance(self.size, int) else self.size


@cache
def _fast() -> ModuleType | None:
    """Import the fast road, if all it needs is installed."""
    try:
        from . import _fast as fast
    except ImportError:
        return None
    return fast
