"""How a set is to be loaded, as `bench` and `plan` are told it: the options of a loader that matter there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from ..benching.setup import Setup
from ..decode import Image
from ..errors import AioloadError, ConfigError
from ._console import parse_function, parse_workers

__all__ = [
    "BatchSize",
    "Crop",
    "Cropped",
    "Flip",
    "Loading",
    "Order",
    "Pixels",
    "Seconds",
    "Shuffled",
    "With",
    "Workers",
]


class Crop(StrEnum):
    """Parts of pictures that can be asked for."""

    RANDOM = "random"
    CENTER = "center"


class Order(StrEnum):
    """Orders of an epoch."""

    block = "block"
    full = "full"
    none = "none"


def parse_pixels(value: str) -> int | tuple[int, int]:
    """Return rows and columns that a text like 224 or 224x320 stands for."""
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", value)
    if match is None or int(match[1]) < 1 or (match[2] is not None and int(match[2]) < 1):
        raise typer.BadParameter(f"{value!r} is no size: pixels such as 224, or rows and columns as 224x320")
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))


BatchSize = Annotated[int, typer.Option(min=1, metavar="N", help="Samples in a batch, on each GPU.")]
Workers = Annotated[Any, typer.Option(parser=parse_workers, metavar="N|auto",
    help="Worker processes, of each GPU; auto: the CPUs of this machine.")]  # fmt: skip
Shuffled = Annotated[Order, typer.Option("--shuffle", help="The order of an epoch.")]
Pixels = Annotated[Any, typer.Option("--size", parser=parse_pixels, metavar="N|HxW", show_default=False,
    help="Pixels that pictures are cropped or scaled to; without it they stay as they are.")]  # fmt: skip
Cropped = Annotated[Crop | None, typer.Option(show_default=False,
    help="What of a picture becomes that: a random part, or the centre.")]  # fmt: skip
Flip = Annotated[bool, typer.Option("--flip", help="Exchange left and right in half of the cases.")]
With = Annotated[Any, typer.Option("--with", parser=parse_function, metavar="MODULE:FUNCTION",
    show_default=False, help="Your transform, as the loader calls it on each decoded sample.")]  # fmt: skip
Seconds = Annotated[
    float, typer.Option(min=0.01, max=86_400, metavar="S", help="How long each thing is measured.")
]


class Loading:
    """What was said of loading; it becomes a setup once the fields are known.

    Args:
        batch_size: as `Setup` has it.
        num_workers: a number; None is auto.
        order: of an epoch.
        transform: the user's.
        size: of pictures.
        crop: of pictures.
        flip: of pictures.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        num_workers: int | None,
        order: Order,
        transform: Callable[..., Any] | None,
        size: int | tuple[int, int] | None,
        crop: Crop | None,
        flip: bool,
    ) -> None:
        self._options: dict[str, Any] = {
            "batch_size": batch_size,
            "num_workers": "auto" if num_workers is None else num_workers,
            "shuffle": {"block": True, "full": "full", "none": False}[order.value],
            "transform": transform,
        }
        self._image: Image | None = None
        if size is None and crop is not None:
            raise typer.BadParameter("--crop needs --size: say how large the result is")
        if size is not None or flip:
            chosen = {Crop.RANDOM: "random_resized", Crop.CENTER: "center", None: None}[crop]
            try:
                self._image = Image(size=size, crop=chosen, flip=flip)  # type: ignore[arg-type]  # of a table
            except AioloadError as error:
                raise typer.BadParameter(str(error)) from error

    def setup(self, fields: Mapping[str, str]) -> Setup:
        """Return the setup for a set with these fields.

        Raises:
            ConfigError: pictures were asked for, and there are none.
        """
        decode: dict[str, Any] = {}
        if self._image is not None:
            decode = {name: self._image for name, kind in fields.items() if kind == "image"}
            if not decode:
                raise ConfigError(
                    f"--size, --crop and --flip are for pictures, and no field is one: {dict(fields)}"
                )
        return Setup(**self._options, decode=decode)
