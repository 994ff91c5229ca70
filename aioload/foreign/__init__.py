"""Foreign sets: shards that others have written, told by their content and indexed where they lie."""

from .contents import Contents, RecordFormat
from .opening import Foreign, list_shards, open_foreign
from .place import Place, expand, place_of

__all__ = [
    "Contents",
    "Foreign",
    "Place",
    "RecordFormat",
    "expand",
    "list_shards",
    "open_foreign",
    "place_of",
]
