"""Contents: what a folder of kept samples holds, as `aioload cache` shows and removes it."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from .folder import SampleFolder, last_use, taken

__all__ = ["KeptKey", "KeptSamples"]


@dataclass(frozen=True, slots=True)
class KeptKey:
    """What is kept under one name."""

    path: Path
    """Its folder."""
    num_bytes: int
    """What it takes of the disk."""
    used: float
    """When it was last opened, in seconds of the epoch."""


class KeptSamples:
    """All names under which a folder keeps samples.

    Args:
        folder: as it was given to `Disk`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = SampleFolder(folder, 0)

    def kept(self) -> list[KeptKey]:
        """Return them, those used longest ago first."""
        found = [KeptKey(key, taken(key), last_use(key)) for key in self._folder.kept()]
        return sorted(found, key=lambda key: key.used)

    def of(self, key: KeptKey) -> str:
        """Return what its samples are made of, for people."""
        try:
            about = json.loads((key.path / "about.json").read_bytes())
            named = [*about["decoders"].values()] if about["prepare"] is None else [about["prepare"]]
            version = [] if about["version"] is None else [f"version {about['version']!r}"]
            return f"set {about['set'][:8]}, {', '.join([*named, *version])}"
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return "(damaged)"

    def in_use(self, key: KeptKey) -> bool:
        """Tell whether a running program has it open."""
        try:
            fd = os.open(key.path / "use", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def prune(self, keep: int, *, older_than: float | None = None) -> list[KeptKey]:
        """Remove what nobody uses, whole names at a time, and return it.

        Args:
            keep: bytes that may stay; what was used longest ago goes first.
            older_than: remove only what was last used before that time.
        """
        gone: list[KeptKey] = []
        keys = self.kept()
        left = sum(key.num_bytes for key in keys)
        for key in keys:
            if left <= keep or (older_than is not None and key.used >= older_than):
                break
            if self._folder.remove(key.path):
                gone.append(key)
                left -= key.num_bytes
        return gone
