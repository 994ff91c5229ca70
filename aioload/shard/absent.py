"""Absent: what stands for the bytes of a field that a record lacks, where there is a default for it."""

from __future__ import annotations

__all__ = ["ABSENT"]

ABSENT = memoryview(b"")
"""Told from a field that holds no bytes by identity: it is this very object."""
