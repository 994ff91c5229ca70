"""Workplace: a folder, or a place in a bucket, where many make the shards of one set, and one calls it whole.

A small file says whose shards lie there: the run, and all that its shards depend on. A run that is stopped
leaves it with its whole shards. One that depends on the same goes on with them; another one is refused, so
that shards of two functions, or two sources, never stand side by side. Whoever makes a shard looks at the
file again before the shard gets its name: one that was given up long ago changes nothing any more.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import ConfigError, NotFoundError, StorageError
from ..shard.folder import WORK_NAME, Folder, is_own_name
from ..shard.format import INDEX_NAME, MANIFEST_NAME, shard_name
from ..shard.reader import Reader, read_whole
from ..storage.address import shown
from ..storage.reading import open_reader

__all__ = ["Parts", "Workplace", "bad_name"]

_BUFFER_BYTES = 1 << 20


def bad_name(number: int) -> str:
    """Return the name of the file that says what a shard lacks, while its set is being made."""
    return f"{shard_name(number)}.bad"


@dataclass(frozen=True, slots=True)
class Parts:
    """What makers of shards know of the place, in any process that sees it."""

    destination: str
    """Folder or address."""
    storage_options: Mapping[str, Any] | None
    """Of an address."""
    shard_bytes: int
    """How large files are meant to become."""
    run: str
    """Which run they work for."""

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Give what is there."""
        with open_reader(self.destination, self.storage_options) as reader:
            yield reader

    def check(self, reader: Reader) -> None:
        """Make sure that the run still wants shards.

        Raises:
            ConfigError: another one has taken its place, or this process does not see it.
        """
        left = _left(reader)
        if left is None or left.get("run") != self.run:
            what = "does not know of this run" if left is None else "belongs to another run by now"
            raise ConfigError(
                f"{shown(self.destination)} {what}, as seen from here; all that make shards must see the "
                "same folder, or write to a bucket"
            )

    def files(self) -> SharedFolder | Any:
        """Return what new files are written with: it has the methods of `SharedFolder`."""
        if "://" not in self.destination:
            return SharedFolder(Path(self.destination), self)
        return _bucket(self.destination, self.storage_options, self.shard_bytes)


class SharedFolder:
    """A local folder that several processes write to, each file under a name of its own until it is whole.

    Args:
        path: of the folder.
        parts: of the run.
    """

    def __init__(self, path: Path, parts: Parts) -> None:
        self._path = path
        self._parts = parts
        self._token = secrets.token_hex(4)

    def begin(self, name: str) -> BinaryIO:
        """Open a file that is not there under its name yet."""
        return self._draft(name).open("wb", buffering=_BUFFER_BYTES)

    def finish(self, file: BinaryIO, name: str) -> None:
        """Close the file and give it its name, once its bytes are on the disk and the run still wants it."""
        with file:
            file.flush()
            os.fsync(file.fileno())
        with self._parts.reader() as reader:
            self._parts.check(reader)
        self._draft(name).replace(self._path / name)
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network file systems cannot do it for folders
                raise
        finally:
            os.close(descriptor)

    def put(self, name: str, data: bytes) -> None:
        """Write a whole file."""
        with self.begin(name) as file:
            file.write(data)
            self.finish(file, name)

    def give_up(self, name: str) -> None:
        """Remove what a file that was not finished has left."""
        with contextlib.suppress(OSError):  # the first error matters more
            self._draft(name).unlink(missing_ok=True)

    def translated(self, error: OSError) -> StorageError:
        """Return the disk's error as ours."""
        reason = error.strerror or str(error)
        return StorageError(f"the folder {self._path} cannot be written to: {reason}", path=str(self._path))

    def _draft(self, name: str) -> Path:
        return self._path / f"{name}.{self._token}.tmp"


class Workplace:
    """The place, for the one who plans the run.

    Args:
        destination: folder or address; locked, where that is possible, until it is closed.
        storage_options: of an address.
        shard_bytes: how large shards are meant to become.

    Raises:
        ConfigError: it holds a whole set, or somebody is at work there.
        StorageError: it cannot be used.
    """

    def __init__(self, destination: str, storage_options: Mapping[str, Any] | None, shard_bytes: int) -> None:
        self._shown = shown(destination)
        if "://" not in destination:
            destination = str(Path(destination).absolute())  # others may work in another folder
        self._where = destination, storage_options, shard_bytes
        self._folder = None if "://" in destination else Folder(Path(destination), clears=False)
        if self._folder is not None and storage_options:
            self._folder.close()
            raise ConfigError(
                f"storage_options go with an address such as s3://bucket/set, not with {destination}"
            )
        self._bucket = _bucket(*self._where) if self._folder is None else None
        self._notes: list[str] = []

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and self._folder is not None:
            self._folder.vanish()
        self.close()

    @property
    def shown(self) -> str:
        """The place, for messages: nothing secret is in it."""
        return self._shown

    @property
    def notes(self) -> tuple[str, ...]:
        """What an earlier run had left there, and what became of it, in a sentence each."""
        return (*self._notes, *(() if self._folder is None else self._folder.notes))

    def left(self) -> dict[str, Any] | None:
        """Return what the run was given whose shards lie there; None where none do."""
        with open_reader(self._where[0], self._where[1]) as reader:
            return _left(reader)

    def check(self, left: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Compare what a run was given that was stopped with what another one is given.

        Raises:
            ConfigError: something differs; says what.
        """
        other = [name for name, fact in facts.items() if left.get(name) != fact]
        if other or left.get("run") != _run_of({name: left[name] for name in left if name != "run"}):
            raise ConfigError(
                f"{self.shown} holds shards of a run that was stopped, with another "
                f"{', another '.join(other) or 'plan'}; start that one again, or give --force (force=True) "
                "to begin anew",
                differs=tuple(other),
            )

    def begin(self, facts: Mapping[str, Any]) -> Parts:
        """Clear the place for a run.

        Args:
            facts: all that its shards depend on.
        """
        run = _run_of(facts)
        work = json.dumps({"run": run, **facts}, ensure_ascii=False, indent=1).encode()
        if self._folder is not None:
            self._folder.remove()
            self._folder.put(WORK_NAME, work)
        else:
            assert self._bucket is not None
            for name in self._bucket.names:
                self._bucket.remove(name)
            self._bucket.put(WORK_NAME, work)
        return Parts(*self._where, run)

    def resume(self, facts: Mapping[str, Any]) -> Parts:
        """Take the place as an earlier run with the same facts has left it, but for what is half written."""
        if self._folder is not None:
            self._folder.remove(_Whole())
        return Parts(*self._where, _run_of(facts))

    def finish(self, shards: Sequence[str], index: bytes, manifest: bytes) -> None:
        """Make a set of the shards; all else under the names of a set goes.

        Args:
            shards: their names.
            index: the bytes of the index.
            manifest: the bytes of the manifest.
        """
        kept = {INDEX_NAME, MANIFEST_NAME, *shards}
        if self._folder is not None:
            self._folder.put(INDEX_NAME, index)
            self._folder.put(MANIFEST_NAME, manifest)
            self._folder.remove(kept, told=False)
        else:
            bucket = _bucket(*self._where, kept=kept)
            bucket.put(INDEX_NAME, index)
            bucket.put(MANIFEST_NAME, manifest)

    def note(self, what: str) -> None:
        """Add to the notes."""
        self._notes.append(what)

    def close(self) -> None:
        """Let go of the place; twice is free."""
        if self._folder is not None:
            self._folder.close()


class _Whole:
    """The names of files that are whole."""

    def __contains__(self, name: object) -> bool:
        return not str(name).endswith(".tmp")


def _left(reader: Reader) -> dict[str, Any] | None:
    try:
        left = json.loads(read_whole(reader, WORK_NAME))
    except NotFoundError:
        return None
    except ValueError:
        return {}  # of somebody else
    return left if isinstance(left, dict) else {}


def _run_of(facts: Mapping[str, Any]) -> str:
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _bucket(
    destination: str,
    storage_options: Mapping[str, Any] | None,
    shard_bytes: int,
    kept: frozenset[str] | set[str] = frozenset(),
) -> Any:
    from ..storage.uploads import BucketFolder  # the network's client is large, and seldom wanted

    return BucketFolder(
        destination,
        storage_options,
        is_own=lambda name: is_own_name(name) and name not in kept - {MANIFEST_NAME},
        last=MANIFEST_NAME,
        shard_bytes=shard_bytes,
    )
