"""Where the bytes are: the only code that touches disks and sockets."""

from .base import Storage, check_name, check_range, ends_early, read
from .lent import Lent
from .local import LocalStorage
from .memory import MemoryStorage

__all__ = [
    "Lent",
    "LocalStorage",
    "MemoryStorage",
    "Storage",
    "check_name",
    "check_range",
    "ends_early",
    "read",
]
