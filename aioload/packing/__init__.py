"""What `aioload pack` does: sources told apart, and the packer that reads many files at once."""

from __future__ import annotations

from .items import Item, Source, Unreadable
from .packer import PackReport, pack
from .prepare import Recipe
from .sources import SOURCE_KINDS, find_source

__all__ = ["SOURCE_KINDS", "Item", "PackReport", "Recipe", "Source", "Unreadable", "find_source", "pack"]
