"""Where exported archives go: a folder, or a place in a bucket; each appears there when it is whole."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from ..errors import ConfigError, StorageError

__all__ = ["Archives", "archives_at"]

_BUFFER_BYTES = 1 << 20
_NEVER = "/"  # no file's name: a folder of archives has no file that makes it complete


class Archives(Protocol):
    """Files that get their names when they are whole. The methods raise OSError."""

    def begin(self, name: str) -> BinaryIO:
        """Open a file that is not there under its name yet; closing it by itself gives it up."""

    def finish(self, file: BinaryIO, name: str) -> None:
        """Close the file and give it its name."""

    def give_up(self, name: str) -> None:
        """Remove what a file that is closed, but was not finished, has left."""

    def translated(self, error: OSError) -> StorageError:
        """Return a foreign error as ours."""


def archives_at(
    place: str | os.PathLike[str], shard_bytes: int, storage_options: Mapping[str, Any] | None
) -> Archives:
    """Return the folder or the place in a bucket, in which there must be no archive.

    Raises:
        ConfigError: there is one, or nothing can be written to such an address.
        StorageError: it cannot be made, or did not answer as it should.
    """
    text = os.fspath(place)
    if "://" not in text:
        return _Folder(Path(text))
    from ..storage.uploads import BucketFolder  # the network's client is large, and seldom wanted

    bucket = BucketFolder(text, storage_options, is_own=_is_archive, last=_NEVER, shard_bytes=shard_bytes)
    if bucket.names:
        raise _taken(bucket.shown)
    return bucket


class _Folder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(_is_archive(other.name) for other in path.iterdir()):
                raise _taken(str(path))
        except OSError as error:
            raise self.translated(error) from error

    def begin(self, name: str) -> BinaryIO:
        """Open a file that is not there under its name yet."""
        return (self._path / f"{name}.tmp").open("wb", buffering=_BUFFER_BYTES)

    def finish(self, file: BinaryIO, name: str) -> None:
        """Close the file and give it its name."""
        file.close()
        (self._path / f"{name}.tmp").replace(self._path / name)

    def translated(self, error: OSError) -> StorageError:
        """Return the disk's error as ours."""
        reason = error.strerror or error
        return StorageError(f"{self._path} cannot be written to: {reason}", path=str(self._path))

    def give_up(self, name: str) -> None:
        """Remove a file that was not finished."""
        (self._path / f"{name}.tmp").unlink(missing_ok=True)


def _is_archive(name: str) -> bool:
    return re.search(r"\.tar(\.\w+)?$", name) is not None


def _taken(shown: str) -> ConfigError:
    return ConfigError(f"{shown} holds archives; remove them first, or write to another folder", path=shown)
