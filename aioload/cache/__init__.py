"""Cache: samples that are kept as they are before anything random happens to them, in memory or on a disk."""

from .tiers import Disk, Memory

__all__ = ["Disk", "Memory"]
