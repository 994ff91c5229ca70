"""Preparing an item: its files read, looked at and, where asked for, re-encoded; in a thread or a process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..decode import for_kind
from ..errors import AioloadError
from ..shard.kinds import Stored, encode
from .images import check_image, reencode
from .items import Item, Unreadable
from .values import parse

__all__ = ["CHECKS", "Prepared", "Recipe", "prepare"]

CHECKS = ("header", "full", "none")
"""How far an image is looked at: whether it opens and has an end, whether it decodes, not at all."""

DEFAULT_QUALITY = 90


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is done to each item."""

    kinds: dict[str, str] = field(default_factory=dict)
    """Kinds of the fields."""
    check: str = "header"
    """One of `CHECKS`."""
    resize: int | None = None
    """The shorter side of images that are larger."""
    quality: int | None = None
    """Quality of re-encoded images, which are JPEGs; without `resize` all are re-encoded."""

    @property
    def reencodes(self) -> bool:
        """Whether images are decoded and encoded: work for processes, not for threads."""
        return self.resize is not None or self.quality is not None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A record ready to be written."""

    name: str
    """What messages call it."""
    key: str
    """The record's key."""
    values: dict[str, Any]
    """Its fields."""
    cost: int
    """Its share of the source's `cost`."""


def prepare(items: Iterable[Item | Unreadable], recipe: Recipe) -> list[Prepared | Unreadable]:
    """Prepare some items; what is wrong with one comes in its place."""
    return [_prepare(item, recipe) if isinstance(item, Item) else item for item in items]


def _prepare(item: Item, recipe: Recipe) -> Prepared | Unreadable:
    values = dict(item.values)
    for name, raw in item.raw.items():
        try:
            values[name] = _value(
                raw if isinstance(raw, bytes) else Path(raw).read_bytes(), recipe.kinds[name], recipe
            )
        except (AioloadError, OSError, ValueError) as error:
            # without the path, which the name says
            reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
            return Unreadable(
                item.name, f"field {name}: {reason}" if len(item.raw) > 1 else reason, item.cost
            )

    return Prepared(item.name, item.key, values, item.cost)


def _value(data: bytes, kind: str, recipe: Recipe) -> Any:
    if kind in ("json", "ndarray"):
        value = parse(kind, data)
        # what a set would store just so is kept byte for byte, not written anew
        return Stored(data) if _is_storable(kind, data, value) else value

    if kind != "image":
        return parse(kind, data)

    if recipe.reencodes:
        quality = DEFAULT_QUALITY if recipe.quality is None else recipe.quality
        data = reencode(data, recipe.resize, quality, always=recipe.quality is not None)

    elif recipe.check != "none":
        check_image(data, thorough=recipe.check == "full")

    return data


def _is_storable(kind: str, data: bytes, value: Any) -> bool:
    """Tell whether bytes that were parsed are also what a set has for such a value."""
    try:
        for_kind(kind)(memoryview(data))
        if kind == "json":
            encode(kind, value)
    except AioloadError:
        return False
    return True
