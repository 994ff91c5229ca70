"""Foreign sets: shards that others have written, told by their content and indexed where they lie."""

from .advice import for_commands
from .build import Progress
from .check import UNPROTECTED, check_records
from .contents import Contents, with_defaults
from .looking import files_like, list_shards, looked_up, matched
from .lost import Lost, error_of
from .making import Bar, no_bar
from .names import MDS_INDEX, format_of, unpacked_name
from .opening import Foreign, Opening, open_foreign
from .place import Place, expand, place_of
from .showing import first_bar
from .walk import Outcome, walk
from .wids import Wids, parse_wids

__all__ = [
    "MDS_INDEX",
    "UNPROTECTED",
    "Bar",
    "Contents",
    "Foreign",
    "Lost",
    "Opening",
    "Outcome",
    "Place",
    "Progress",
    "Wids",
    "check_records",
    "error_of",
    "expand",
    "files_like",
    "first_bar",
    "for_commands",
    "format_of",
    "list_shards",
    "looked_up",
    "matched",
    "no_bar",
    "open_foreign",
    "parse_wids",
    "place_of",
    "unpacked_name",
    "walk",
    "with_defaults",
]
