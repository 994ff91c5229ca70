"""Foreign sets: shards that others have written, told by their content and indexed where they lie."""

from .advice import for_commands
from .build import Progress, pieces, read_piece
from .check import UNPROTECTED, check_records
from .contents import Contents, damage_of, with_defaults
from .opening import MDS_INDEX, Bar, Foreign, list_shards, no_bar, open_foreign
from .place import Place, expand, place_of
from .wids import Wids, parse_wids

__all__ = [
    "MDS_INDEX",
    "UNPROTECTED",
    "Bar",
    "Contents",
    "Foreign",
    "Place",
    "Progress",
    "Wids",
    "check_records",
    "damage_of",
    "expand",
    "for_commands",
    "list_shards",
    "no_bar",
    "open_foreign",
    "parse_wids",
    "pieces",
    "place_of",
    "read_piece",
    "with_defaults",
]
