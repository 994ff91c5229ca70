"""Pins: which version of each file was seen first, shared by all storages that must agree on it."""

from __future__ import annotations

import threading

__all__ = ["Pins"]


class Pins:
    """Size and tag of each file, as they were when it was first seen; usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pins: dict[str, tuple[int, str | None]] = {}

    def get(self, name: str) -> tuple[int, str | None] | None:
        """Return size and tag of a file that has been seen."""
        return self._pins.get(name)

    def pin(self, name: str, size: int, tag: str | None) -> tuple[int, str | None]:
        """Keep size and tag of a file unless it was seen before; return what is kept."""
        with self._lock:
            return self._pins.setdefault(name, (size, tag))

    def __repr__(self) -> str:
        return f"<Pins files={len(self._pins)}>"
