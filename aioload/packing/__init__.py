"""What `aioload pack` does: sources told apart, and the packer that reads many files at once."""

from __future__ import annotations

from .export import ExportReport, export
from .items import Item, Source, Unreadable
from .mapping import map
from .packer import PackReport, pack
from .planned import pack_by_tasks
from .prepare import Recipe
from .sources import SOURCE_KINDS, find_source

__all__ = [
    "SOURCE_KINDS",
    "ExportReport",
    "Item",
    "PackReport",
    "Recipe",
    "Source",
    "Unreadable",
    "export",
    "find_source",
    "map",
    "pack",
    "pack_by_tasks",
]
