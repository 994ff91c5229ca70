"""Pins: which version of each file was seen first, shared by all storages that must agree on it."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from ..errors import StorageError

__all__ = ["Pins", "changed"]


class Pins:
    """Size and tag of each file, as they were when it was first seen; usable from any thread.

    Args:
        known: what was seen elsewhere.
    """

    def __init__(self, known: Mapping[str, tuple[int, str | None]] | None = None) -> None:
        self._lock = threading.Lock()
        self._pins = dict(known or {})

    def known(self) -> dict[str, tuple[int, str | None]]:
        """Return what was seen so far, for `Pins` of other processes."""
        with self._lock:
            return dict(self._pins)

    def get(self, name: str) -> tuple[int, str | None] | None:
        """Return size and tag of a file that has been seen."""
        return self._pins.get(name)

    def pin(self, name: str, size: int, tag: str | None) -> tuple[int, str | None]:
        """Keep size and tag of a file unless it was seen before; return what is kept."""
        with self._lock:
            return self._pins.setdefault(name, (size, tag))

    def __repr__(self) -> str:
        return f"<Pins files={len(self._pins)}>"


def changed(
    name: str, place: str, before: tuple[int, str | None], now: tuple[int | None, str | None]
) -> StorageError:
    """Make the error of a file that is another now.

    Args:
        name: of the file.
        place: its address, without anything secret.
        before: size and tag that are pinned.
        now: what they are now; no size where it is not known.
    """
    size = f"{now[0]} bytes with " if now[0] is not None else ""
    return StorageError(
        f"source changed: {place} was {before[0]} bytes with tag {before[1]} when it was opened, and has "
        f"{size}tag {now[1]} now; open the set again",
        shard=name,
        before=before[1],
        now=now[1],
        final=True,
    )
