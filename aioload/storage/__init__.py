"""Where the bytes are: the only code that touches disks and sockets."""

from .base import Storage, check_name, read
from .cache import CacheCounts, Cached
from .cachefolder import default_cache_folder
from .local import LocalStorage
from .memory import MemoryStorage

__all__ = [
    "CacheCounts",
    "Cached",
    "LocalStorage",
    "MemoryStorage",
    "Storage",
    "check_name",
    "default_cache_folder",
    "read",
]
