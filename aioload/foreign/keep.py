"""Keep: where the index of a foreign set lies, and that one process of a machine makes it.

Beside it lie those of other sets with some of the same shards: what they know of these need not be found out
again, be it that a shard was added, or that the same ones are named in another way.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import posixpath
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from ..bytelocks import ByteLock
from ..errors import ShardError, StorageError
from ..shard.sidecar import Sidecar, parse_sidecar, render_sidecar
from ..storage import default_cache_folder

__all__ = ["Kept"]

_log = logging.getLogger("aioload.index")

_DEADLINE = 6 * 3600.0  # seconds: indexing terabytes over a network takes hours
_POLL = 0.1
_SAY_AFTER = 5.0
_LEFT_BEHIND = 24 * 3600.0
_MOST_OTHERS = 8  # indexes of other sets in a folder, the latest first
_MOST_FOLDERS = 64


class Kept:
    """Places where the index of one set may lie: beside the data, and in the user's cache folder.

    What lies beside the data is named by the shards alone: a folder that is mounted elsewhere, or moved, has
    its index still. `load`, `others` and `save` block.

    Args:
        label: what messages call the set.
        root: what tells its folder from all others, without secrets.
        names: of its shards.
        folder: of the data, where it is on this machine.
    """

    def __init__(self, label: str, root: str, names: Sequence[str], folder: Path | None) -> None:
        self._beside = None if folder is None else folder / f".aioload-{_digest(names)}.index"
        self._cached = default_cache_folder() / "indexes" / f"{_digest([root])}-{_digest(names)}.index"
        self._folder = folder
        self._names = names
        self._label = label
        self._warned: set[Path] = set()

    def load(self, key: str) -> Sidecar | None:
        """Return the index that is kept, if it is whole and made of the very same files."""
        for path in self._places():
            try:
                found = parse_sidecar(path.read_bytes(), str(path))
            except FileNotFoundError:
                continue
            except (OSError, ShardError) as error:
                if path not in self._warned:
                    _log.warning("the index %s cannot be used and is made anew: %s", path, error)
                self._warned.add(path)
                continue
            if found.key == key:
                return found
            _log.info("the index %s is of other versions of the shards and is made anew", path)
        return None

    def save(self, sidecar: Sidecar) -> Path | None:
        """Write an index, beside the data where that can be; tell where, or None: only memory has it."""
        data = render_sidecar(sidecar)
        for path in self._places():
            try:
                _write(path, data)
            except OSError as error:
                _log.info("the index cannot be kept at %s: %s", path, error)
                continue
            return path
        _log.warning(
            "the index of %s can be kept neither beside it nor in %s: each process will make it anew",
            self._label,
            self._cached.parent,
        )
        return None

    def others(self) -> Iterator[Sidecar]:
        """Yield indexes that may know some of the shards, of this set or others; shards are named as here."""
        beside = sorted({posixpath.dirname(name) for name in self._names})[:_MOST_FOLDERS]
        for inner in dict.fromkeys(["", *beside]) if self._folder is not None else ():
            assert self._folder is not None
            yield from _indexes(self._folder / inner, ".aioload-*.index", inner)
        yield from _indexes(self._cached.parent, f"{self._cached.name.partition('-')[0]}-*.index", "")

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold off other processes of this machine; the system lets go for one that dies.

        Raises:
            StorageError: another process has been at it for hours.
        """
        with contextlib.ExitStack() as held:
            try:
                lock = held.enter_context(
                    contextlib.closing(await anyio.to_thread.run_sync(_lock_beside, self._cached))
                )
            except OSError:
                pass  # nowhere to wait for each other: then each makes it
            else:
                await self._wait(lock)
            yield

    async def _wait(self, lock: ByteLock) -> None:
        began = time.monotonic()
        said = False
        while not await anyio.to_thread.run_sync(_taken, lock):
            waited = time.monotonic() - began
            if waited > _DEADLINE:
                raise StorageError(
                    f"another process has been indexing {self._label} for {waited / 3600:.0f} hours; end it, "
                    "or make the index ahead of time with `aioload index`"
                )
            if waited > _SAY_AFTER and not said:
                _log.warning("waiting for another process that is indexing %s", self._label)
                said = True
            await anyio.sleep(_POLL)

    def _places(self) -> list[Path]:
        return [self._cached] if self._beside is None else [self._beside, self._cached]


def _digest(texts: Sequence[str]) -> str:
    return hashlib.blake2b(json.dumps(list(texts)).encode(), digest_size=8).hexdigest()


def _indexes(folder: Path, pattern: str, prefix: str) -> Iterator[Sidecar]:
    """Yield the latest indexes of a folder, with what leads to it before the names of their shards."""
    with contextlib.suppress(OSError):
        paths = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in paths[:_MOST_OTHERS]:
            with contextlib.suppress(OSError, ShardError):  # whoever needs this one says so
                found = parse_sidecar(path.read_bytes(), str(path))
                names = tuple(posixpath.join(prefix, name) for name in found.index.shards)
                yield replace(found, index=replace(found.index, shards=names))


def _lock_beside(path: Path) -> ByteLock:
    path.parent.mkdir(parents=True, exist_ok=True)
    return ByteLock(path.with_suffix(".lock"))


def _taken(lock: ByteLock) -> bool:
    try:
        return lock.take(0)
    except OSError:  # a file system without locks: at worst the index is made twice
        return True


def _write(path: Path, data: bytes) -> None:
    """Write a file that is there whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f"{path.name}.*.tmp"):  # of processes that were killed, here or elsewhere
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _LEFT_BEHIND:
                old.unlink()
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
