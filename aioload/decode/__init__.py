"""Decoders: one value's bytes in, one value out; small, frozen and picklable."""

from __future__ import annotations

from .array import Float, Int, NDArray
from .audio import Audio
from .image import Image
from .kinds import Decoder, for_encoding, for_kind
from .text import Bytes, Json, Str

__all__ = [
    "Audio",
    "Bytes",
    "Decoder",
    "Float",
    "Image",
    "Int",
    "Json",
    "NDArray",
    "Str",
    "for_encoding",
    "for_kind",
]
