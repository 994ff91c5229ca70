"""A folder under one writer: locked, cleared of what a dead writer left, and given its names at last."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Container
from pathlib import Path
from typing import BinaryIO

from ..errors import ConfigError, StorageError
from .format import MANIFEST_NAME

__all__ = ["WORK_NAME", "Folder", "is_own_name"]

WORK_NAME = "aioload-work.json"
"""The file that says whose shards lie in a folder that has no manifest yet, where many make a set."""

_OWN_NAMES = re.compile(
    rf"(shard-\d{{5,}}\.aio(\.bad)?|index\.aioi|manifest\.json|{re.escape(WORK_NAME)})((\.[0-9a-f]{{8}})?\.tmp)?"
)
_BUFFER_BYTES = 1 << 20  # small records are gathered to writes of this size; larger ones go past the buffer


def is_own_name(name: str) -> bool:
    """Tell whether a writer gives such names."""
    return _OWN_NAMES.fullmatch(name) is not None


class Folder:
    """Files that get their names when all their bytes are on the disk.

    The lock is the kernel's, on the folder itself: it ends with the process, so that a dead writer blocks
    nobody, and what lies around under the names of a set, without a manifest, has no owner any more.

    Args:
        path: of the folder.
        clears: whether what a dead writer left goes at once; else `remove` does it.

    Raises:
        ConfigError: the folder holds a complete set, or another writer is at work in it.
        StorageError: it cannot be made, opened or cleared. The methods raise OSError as it comes.
    """

    def __init__(self, path: Path, *, clears: bool = True) -> None:
        self._path = path
        self._removed = 0
        self._descriptor = -1
        try:
            self._made = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            self._lock()
            self._check_free()
            if clears:
                self.remove()
        except ConfigError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise self.translated(error) from error

    def __del__(self) -> None:
        self.close()  # a forgotten writer must not lock its folder until the process ends

    @property
    def notes(self) -> tuple[str, ...]:
        """What an earlier writer had left here, and what became of it."""
        if not self._removed:
            return ()
        what = "1 file" if self._removed == 1 else f"{self._removed} files"
        return (f"{what} of a run that did not finish lay there and went",)

    def remove(self, kept: Container[str] = (), *, told: bool = True) -> None:
        """Remove all files under the names of a set but some; `told`: as those of another run."""
        removed = self._remove_own(kept)
        self._removed += removed if told else 0

    def begin(self, name: str) -> BinaryIO:
        """Open a file that is not there under its name yet."""
        return (self._path / f"{name}.tmp").open("wb", buffering=_BUFFER_BYTES)

    def finish(self, file: BinaryIO, name: str) -> None:
        """Close the file and give it its name, once its bytes are on the disk."""
        with file:
            file.flush()
            os.fsync(file.fileno())

        (self._path / f"{name}.tmp").replace(self._path / name)
        try:
            os.fsync(self._descriptor)  # the names of the shards must not come after the manifest's
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network file systems cannot do it for folders
                raise

    def put(self, name: str, data: bytes) -> None:
        """Write a whole file."""
        with self.begin(name) as file:
            file.write(data)
            self.finish(file, name)

    def clear(self) -> None:
        """Remove what was written, and the folder if it was made for it, as far as the disk allows."""
        # without a manifest, what stays is no set; the first error matters more
        with contextlib.suppress(OSError):
            self._remove_own()
            if self._made:
                self._path.rmdir()

    def vanish(self) -> None:
        """Remove the folder if it was made for nothing."""
        if self._made:
            with contextlib.suppress(OSError):  # something was written
                self._path.rmdir()

    def close(self) -> None:
        """Let go of the folder; twice is free."""
        if self._descriptor >= 0:
            # explicit: children that were forked meanwhile hold the lock too
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    def translated(self, error: OSError) -> StorageError:
        """Return the disk's error as ours."""
        reason = error.strerror or str(error)
        return StorageError(f"the folder {self._path} cannot be written to: {reason}", path=str(self._path))

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another Writer is at work in {self._path}; close or abort it, or take another folder"
            ) from error
        except OSError:
            return  # a file system without locks: then two writers are the user's to avoid

    def _check_free(self) -> None:
        if (self._path / MANIFEST_NAME).exists():
            raise ConfigError(
                f"{self._path} holds a complete data set; remove it first, or write to another folder",
                path=str(self._path),
            )

    def _remove_own(self, kept: Container[str] = ()) -> int:
        """Remove all files under the names of a set but some; return how many."""
        own = (path for path in self._path.iterdir() if is_own_name(path.name) and path.name not in kept)
        names = [path for path in own if not path.is_dir()]
        # the mark of completeness first
        for path in sorted(names, key=lambda path: path.name != MANIFEST_NAME):
            path.unlink()
        return len(names)
