"""Foreign sets: shards that others have written, told by their content and indexed where they lie."""

from .build import Progress, pieces, read_piece
from .check import UNPROTECTED, check_records
from .contents import Contents, damage_of
from .looking import files_like, list_shards, looked_up, matched
from .lost import Lost, error_of
from .making import Bar, no_bar
from .names import MDS_INDEX, format_of, unpacked_name
from .opening import Foreign, Opening, open_foreign
from .place import Place, expand, place_of
from .showing import first_bar
from .wids import Wids, parse_wids

__all__ = [
    "MDS_INDEX",
    "UNPROTECTED",
    "Bar",
    "Contents",
    "Foreign",
    "Lost",
    "Opening",
    "Place",
    "Progress",
    "Wids",
    "check_records",
    "damage_of",
    "error_of",
    "expand",
    "files_like",
    "first_bar",
    "format_of",
    "list_shards",
    "looked_up",
    "matched",
    "no_bar",
    "open_foreign",
    "parse_wids",
    "pieces",
    "place_of",
    "read_piece",
    "unpacked_name",
]
