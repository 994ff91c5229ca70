"""Keep: where the index of a foreign set lies, and that one process of a machine makes it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import ShardError, StorageError
from ..shard.sidecar import Sidecar, parse_sidecar, render_sidecar
from ..storage import default_cache_folder
from ..storage.bytelocks import ByteLock

__all__ = ["Kept"]

_log = logging.getLogger("aioload.index")

_DEADLINE = 6 * 3600.0  # seconds: indexing terabytes over a network takes hours
_POLL = 0.1
_SAY_AFTER = 5.0
_LEFT_BEHIND = 24 * 3600.0


class Kept:
    """Places where the index of one set may lie: beside the data, and in the user's cache folder.

    What lies beside the data is named by the shards alone: a folder that is mounted elsewhere, or moved, has
    its index still. Every method blocks.

    Args:
        label: what messages call the set.
        root: what tells its folder from all others, without secrets.
        names: of its shards.
        folder: of the data, where it is on this machine.
    """

    def __init__(self, label: str, root: str, names: Sequence[str], folder: Path | None) -> None:
        self._beside = None if folder is None else folder / f".aioload-{_digest(names)}.index"
        self._cached = default_cache_folder() / "indexes" / f"{_digest([root, *names])}.index"
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

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold off other processes of this machine; the system lets go for one that dies.

        Raises:
            StorageError: another process has been at it for hours.
        """
        with contextlib.ExitStack() as held:
            try:
                self._cached.parent.mkdir(parents=True, exist_ok=True)
                lock = held.enter_context(contextlib.closing(ByteLock(self._cached.with_suffix(".lock"))))
            except OSError:
                pass  # nowhere to wait for each other: then each makes it
            else:
                self._wait(lock)
            yield

    def _wait(self, lock: ByteLock) -> None:
        began = time.monotonic()
        said = False
        while not _taken(lock):
            waited = time.monotonic() - began
            if waited > _DEADLINE:
                raise StorageError(
                    f"another process has been indexing {self._label} for {waited / 3600:.0f} hours; end it, "
                    "or make the index ahead of time with `aioload index`"
                )
            if waited > _SAY_AFTER and not said:
                _log.warning("waiting for another process that is indexing %s", self._label)
                said = True
            time.sleep(_POLL)

    def _places(self) -> list[Path]:
        return [self._cached] if self._beside is None else [self._beside, self._cached]


def _digest(texts: Sequence[str]) -> str:
    return hashlib.blake2b(json.dumps(list(texts)).encode(), digest_size=8).hexdigest()


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
