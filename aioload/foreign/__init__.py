"""Foreign sets: shards that others have written, told by their content and indexed where they lie."""

from .advice import for_commands
from .build import Progress
from .check import UNPROTECTED, check_records, unmarked
from .contents import Contents, with_defaults
from .looking import files_like, list_shards, looked_up, matched
from .lost import Lost
from .making import HOLES_LOG, Bar, no_bar
from .names import MDS_INDEX, format_of, unpacked_name
from .opening import DAMAGE_LOG, Foreign, Opening, open_foreign
from .place import Place, expand, meant, place_of
from .showing import first_bar
from .walk import Outcome, walk
from .wids import Wids, parse_wids

__all__ = [
    "DAMAGE_LOG",
    "HOLES_LOG",
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
    "expand",
    "files_like",
    "first_bar",
    "for_commands",
    "format_of",
    "list_shards",
    "looked_up",
    "matched",
    "meant",
    "no_bar",
    "open_foreign",
    "parse_wids",
    "place_of",
    "unmarked",
    "unpacked_name",
    "walk",
    "with_defaults",
]
