"""What lies unpacked in a cache folder, file by file: how much, of what, since when, and whether it is used.

    <folder>/aioload-unpacked-1/locks                     byte locks: who is making what
                                uses                      byte locks: who uses what
                                <00-ff>/<file>/bytes-<n>  an unpacked file of n bytes
                                               part-…     one in the making
                                               of         what it is of, for people

A file is in use from the moment a reader has shared its byte until it lets that go or ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..bytelocks import ByteLock

__all__ = ["LOCKS", "OF", "UNPACKED_ROOT", "USES", "UnpackedFile", "UnpackedFiles", "slot_of"]

UNPACKED_ROOT = "aioload-unpacked-1"
LOCKS, USES, OF = "locks", "uses", "of"

_SLOT_BITS = 60
_NAMES = re.compile(r"[0-9a-f]{2}|[0-9a-f]{32}")
_MOST_SHOWN = 4096


@dataclass(frozen=True, slots=True)
class UnpackedFile:
    """A file that lies unpacked, or half so."""

    folder: str
    """Where, relative to the root."""
    num_bytes: int
    """What it takes of the disk."""
    used: float
    """When it was last used, in seconds of the epoch."""


def slot_of(digest: str) -> int:
    """Return the byte that stands for a file in both files of locks."""
    return int(digest, 16) % (1 << _SLOT_BITS)


class UnpackedFiles:
    """All that lies unpacked in a cache folder. Every method blocks.

    Args:
        folder: the cache folder.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / UNPACKED_ROOT

    def files(self) -> Iterator[UnpackedFile]:
        """Look at every file."""
        for place in _names(self.root):
            for name in _names(self.root / place):
                if (seen := self._look(f"{place}/{name}")) is not None:
                    yield seen

    def of(self, file: UnpackedFile) -> str:
        """Return what a file is of."""
        try:
            with (self.root / file.folder / OF).open(encoding="utf-8", errors="replace") as text:
                return text.read(_MOST_SHOWN) or "(unknown)"
        except OSError:
            return "(unknown)"

    def in_use(self, file: UnpackedFile) -> bool:
        """Tell whether a live process uses or makes a file."""
        slot = slot_of(Path(file.folder).name)
        try:
            for name in (USES, LOCKS):
                with contextlib.closing(ByteLock(self.root / name)) as lock:
                    if not lock.is_free(slot):
                        return True
        except OSError:  # not ours to look at
            return True
        return False

    def remove(self, file: UnpackedFile) -> bool:
        """Remove a file, unless somebody uses or makes it; tell whether it has gone."""
        slot = slot_of(Path(file.folder).name)
        with contextlib.ExitStack() as held:
            try:
                for name in (USES, LOCKS):
                    if not held.enter_context(contextlib.closing(ByteLock(self.root / name))).take(slot):
                        return False
                shutil.rmtree(self.root / file.folder)
                with contextlib.suppress(OSError):  # other files are there
                    (self.root / file.folder).parent.rmdir()
            except OSError:  # not ours to remove
                return False
        return True

    def _look(self, folder: str) -> UnpackedFile | None:
        try:
            entries = [
                entry.stat()
                for entry in os.scandir(self.root / folder)
                if entry.name.startswith(("bytes-", "part-"))
            ]
        except OSError:  # gone meanwhile
            return None
        if not entries:
            return None
        return UnpackedFile(
            folder, sum(each.st_blocks * 512 for each in entries), max(each.st_mtime for each in entries)
        )


def _names(folder: Path) -> list[str]:
    """Return the names in a folder that can be ours."""
    try:
        return [entry.name for entry in os.scandir(folder) if _NAMES.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
