"""Foreign sets: shards that others have written, told by their content and indexed where they lie."""

from .build import Progress
from .check import UNPROTECTED, check_records
from .contents import Contents
from .opening import MDS_INDEX, Bar, Foreign, list_shards, no_bar, open_foreign
from .place import Place, expand, place_of
from .walk import Outcome, walk
from .wids import Wids, parse_wids

__all__ = [
    "MDS_INDEX",
    "UNPROTECTED",
    "Bar",
    "Contents",
    "Foreign",
    "Outcome",
    "Place",
    "Progress",
    "Wids",
    "check_records",
    "expand",
    "list_shards",
    "no_bar",
    "open_foreign",
    "parse_wids",
    "place_of",
    "walk",
]
