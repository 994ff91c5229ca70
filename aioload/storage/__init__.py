"""Where the bytes are: the only code that touches disks and sockets."""

from .base import Storage, check_name, check_range, close, ends_early, folders, listing, read
from .cache import CacheCounts, Cached
from .cachefolder import default_cache_folder
from .lent import Lent
from .local import LocalStorage
from .memory import MemoryStorage
from .unpacked import Packed, Unpacked

__all__ = [
    "CacheCounts",
    "Cached",
    "Lent",
    "LocalStorage",
    "MemoryStorage",
    "Packed",
    "Storage",
    "Unpacked",
    "check_name",
    "check_range",
    "close",
    "default_cache_folder",
    "ends_early",
    "folders",
    "listing",
    "read",
]
