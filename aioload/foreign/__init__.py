"""Foreign sets: shards that others have written, told by their content and indexed where they lie."""

from .place import Place, expand, place_of

__all__ = ["Place", "expand", "place_of"]
