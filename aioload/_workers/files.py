"""Files: shards that a worker reads through mappings of its own, straight from the page cache.

A mapping is made when a record of its file is first asked for, and the least recently used go when there are
many. A path with a slash at its end is a shard's place in a disk cache, where its bytes are one file, two
folders below. What cannot be mapped as the table says (a file that is gone, or ends early) is `Unmapped`: its
records are then read the usual way, which names what is wrong. A file that is cut while it is mapped ends the
process with SIGBUS; the pool notices, and the same is done.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Files", "Unmapped"]

_BYTES = "bytes-"  # what the name of a file of cached bytes begins with; see `storage.cachefolder`
_MOST = 128  # mappings at a time; each holds a descriptor


class Unmapped(Exception):
    """A record cannot be had from a mapping; no error, it is read another way."""


class Files:
    """Mappings of shards.

    Args:
        paths: of all shards, by number; those of the disk cache's places end with a slash.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._open: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()

    def array(self, shard: int) -> NDArray[np.uint8]:
        """Return the bytes of a shard, which cannot be written to.

        Raises:
            Unmapped: it cannot be mapped.
        """
        found = self._open.get(shard)
        if found is None:
            found = self._open[shard] = _map(self._paths[shard])
            if len(self._open) > _MOST:
                self._open.popitem(last=False)  # unmapped when nothing refers to it any more
        else:
            self._open.move_to_end(shard)
        return found


def _map(path: str) -> NDArray[np.uint8]:
    try:
        # O_NONBLOCK: what is no plain file may have nobody at its other end
        fd = os.open(
            _only_file(path) if path.endswith("/") else path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        )
    except OSError as error:
        raise Unmapped from error
    try:
        mapping = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:  # an empty file is a ValueError
        raise Unmapped from error
    finally:
        os.close(fd)
    return np.frombuffer(mapping, np.uint8)


def _only_file(place: str) -> str:
    """Return the file of bytes in a place of the disk cache.

    Raises:
        OSError: there is none.
        Unmapped: there are several versions, and which is right is not known here.
    """
    versions = [version.path for version in os.scandir(place)]
    files = [
        file.path for version in versions for file in os.scandir(version) if file.name.startswith(_BYTES)
    ]
    if len(files) != 1:
        raise Unmapped
    return files[0]
