"""A folder in a bucket under one writer: shards sent while they are packed, and not sent again.

- A shard goes out in parts while it is written, so memory holds a few parts and never a shard. Buckets show a
  file when its last part has been confirmed, so nothing half-sent is ever seen; a killed writer leaves parts
  that nobody can read, which a rule of the bucket should clear away (AbortIncompleteMultipartUpload).
- A writer that was stopped leaves its whole shards, and no manifest. The next one packs the same again, each
  shard whose name is taken into a temporary file first. If size and checksum say that the same bytes are
  there, they are not sent. The tag of most S3 servers is that checksum; elsewhere the bytes are read back.
- The manifest is sent last, and only if nobody else's has come meanwhile: buckets have no locks.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from ..errors import AioloadError, ConfigError, StorageError
from .address import Address
from .faults import fault_of
from .options import NetworkOptions
from .stores import RUNTIME, make_store

if TYPE_CHECKING:
    from obstore import WritableFile
    from typing_extensions import Buffer  # Python 3.12 has it

__all__ = ["BucketFolder"]

_PART_BYTES = 8 << 20
_MOST_PARTS = 9_000  # S3 takes 10,000 a file
_PARTS_AT_ONCE = 4
_GATHERED_BYTES = 1 << 20  # small records are gathered to writes of this size
_BUCKETS = ("s3", "gs", "az")


class BucketFolder:
    """Where a `Writer` writes that was given the address of a bucket.

    Args:
        url: of the folder.
        storage_options: see `NetworkOptions`.
        is_own: tells the names that a writer gives.
        last: the name of the file that makes a set complete.
        shard_bytes: how large files are meant to become.

    Raises:
        ConfigError: this is no bucket, or a complete set lies there.
        StorageError: the storage failed. The methods raise it too.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None,
        *,
        is_own: Callable[[str], bool],
        last: str,
        shard_bytes: int,
    ) -> None:
        address = Address.parse(url)
        if address.scheme not in _BUCKETS:
            raise ConfigError(
                f"nothing can be written to {address.scheme} addresses; write to a folder, or to an "
                f"address of {', '.join(_BUCKETS)}"
            )
        options = NetworkOptions.parse(storage_options)
        RUNTIME.enter()
        self._store = make_store(address, options, attempts=options.attempts)
        self.shown = address.shown
        """The address, for messages: nothing secret is in it."""
        self._folder = f"{address.path.strip('/')}/".lstrip("/")
        self._last = last
        self._part_bytes = max(_PART_BYTES, -(-shard_bytes // _MOST_PARTS))
        self._kept = 0
        self._stale = self._list(is_own)
        if last in self._stale:
            raise ConfigError(
                f"{self.shown} holds a complete data set; remove it first, or write to another folder",
                path=self.shown,
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """What an earlier writer had left here, and what became of it."""
        if not self._kept:
            return ()
        what = "1 shard was" if self._kept == 1 else f"{self._kept} shards were"
        return (f"{what} there already, from an earlier run, and not sent again",)

    @property
    def names(self) -> tuple[str, ...]:
        """Names that an earlier writer gave, of files that this one has not written anew."""
        return tuple(self._stale)

    def begin(self, name: str) -> BinaryIO:
        """Open a file that is sent as it is written, or kept at first if one of that name is there."""
        if name in self._stale:
            return cast("BinaryIO", tempfile.TemporaryFile())
        return cast("BinaryIO", io.BufferedWriter(self._upload(name), _GATHERED_BYTES))

    def finish(self, file: BinaryIO, name: str) -> None:
        """See to it that the file is in the bucket, sending what is not there yet."""
        with file:
            file.flush()
            if isinstance(file, io.BufferedWriter) and isinstance(file.raw, _Upload):
                file.raw.finish()
            elif self._is_there(file, name):
                self._kept += 1
            else:
                self._send(file, name)
        self._stale.pop(name, None)

    def put(self, name: str, data: bytes) -> None:
        """Write a whole file in one request; the last one only where there is none."""
        import obstore

        self._stale.pop(name, None)
        if name == self._last:
            self._remove_stale()
            return self._put_last(data)
        with self._translating(name):
            obstore.put(self._store, self._folder + name, data, use_multipart=False)

    def give_up(self, name: str) -> None:
        """Leave nothing of a file that was closed: its parts went with that."""

    def remove(self, name: str) -> None:
        """Remove a file that an earlier writer left."""
        import obstore

        with self._translating(name):
            obstore.delete(self._store, self._folder + name)
        self._stale.pop(name, None)

    def clear(self) -> None:
        """Leave the shards that are whole to the next writer; without the last file they are no set."""

    def close(self) -> None:
        """Let go of the place; connections go with their store."""

    def translated(self, error: OSError) -> StorageError:
        """Return an error of the disk, where shards are kept that may not have to be sent, as ours."""
        reason = error.strerror or str(error)
        return StorageError(f"the folder for temporary files cannot be used: {reason}; set TMPDIR to another")

    def _list(self, is_own: Callable[[str], bool]) -> dict[str, tuple[int, str | None]]:
        """Return size and tag of the files that an earlier writer left."""
        import obstore

        with self._translating(""):
            found = obstore.list_with_delimiter(self._store, self._folder or None)["objects"]
        files = {file["path"].removeprefix(self._folder): (file["size"], file["e_tag"]) for file in found}
        return {name: what for name, what in files.items() if is_own(name)}

    def _upload(self, name: str) -> _Upload:
        import obstore

        with self._translating(name):
            writer = obstore.open_writer(
                self._store,
                self._folder + name,
                buffer_size=self._part_bytes,
                max_concurrency=_PARTS_AT_ONCE,
            )
        return _Upload(writer, lambda: self._translating(name))

    def _is_there(self, file: BinaryIO, name: str) -> bool:
        """Whether the bucket holds the very bytes of a file already."""
        size, tag = self._stale[name]
        if file.seek(0, os.SEEK_END) != size:
            return False
        return tag == _s3_tag(file, self._part_bytes) or self._reads_the_same(file, name)

    def _reads_the_same(self, file: BinaryIO, name: str) -> bool:
        import obstore

        file.seek(0)
        with self._translating(name):
            for piece in obstore.get(self._store, self._folder + name).stream(self._part_bytes):
                if file.read(len(piece)) != bytes(piece):
                    return False
        return not file.read(1)

    def _send(self, file: BinaryIO, name: str) -> None:
        file.seek(0)
        with self._upload(name) as upload:
            while part := file.read(self._part_bytes):
                upload.write(part)
            upload.finish()

    def _remove_stale(self) -> None:
        """Remove what an earlier writer left and this one has not written anew."""
        for name in list(self._stale):
            self.remove(name)

    def _put_last(self, data: bytes) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError

        path = self._folder + self._last
        with self._translating(self._last):
            try:
                obstore.put(self._store, path, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                # it may be ours, sent twice since the first answer was lost
                if bytes(obstore.get(self._store, path).bytes()) != data:
                    raise self._taken() from None
            except BaseError as error:
                if not isinstance(error, NotSupportedError) and fault_of(error).status != 501:
                    raise
                obstore.put(self._store, path, data, use_multipart=False)  # a server without conditions

    def _taken(self) -> ConfigError:
        return ConfigError(
            f"another Writer has finished a set in {self.shown} meanwhile; that one stands, but its "
            "shards may have been overwritten: verify it, or remove it and pack again",
            path=self.shown,
        )

    def _translating(self, name: str) -> _Translating:
        return _Translating(name, self.shown)


class _Translating:
    """Turns errors of obstore into ours."""

    def __init__(self, name: str, shown: str) -> None:
        self._name, self._shown = name, shown

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, AioloadError):
            raise fault_of(error).error(self._name, self._shown) from None


class _Upload(io.RawIOBase):
    """A file on its way into a bucket; closing it before `finish` gives it up."""

    def __init__(self, writer: WritableFile, translating: Callable[[], _Translating]) -> None:
        super().__init__()
        self._writer: WritableFile | None = writer
        self._translating = translating

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        """Take bytes, waiting while too many are under way."""
        assert self._writer is not None, "nothing is written after finish"
        with self._translating():
            self._writer.write(bytes(data))  # a copy: whoever gathers writes uses its memory again
        return memoryview(data).nbytes

    def finish(self) -> None:
        """Send what is left, and have the bucket show the file."""
        assert self._writer is not None, "it is finished once"
        writer, self._writer = self._writer, None
        with self._translating():
            writer.close()

    def close(self) -> None:
        """Take back the parts that were sent, unless the file is finished."""
        if not self.closed and self._writer is not None:
            writer, self._writer = self._writer, None
            with contextlib.suppress(Exception):  # what stays cannot be seen; the first error matters more
                writer.__exit__(InterruptedError, InterruptedError(), None)
        super().close()


def _s3_tag(file: BinaryIO, part_bytes: int) -> str:
    """Return the tag that S3 gives to a file that was sent in such parts."""
    file.seek(0)
    parts = []
    while part := file.read(part_bytes):
        parts.append(hashlib.md5(part, usedforsecurity=False))
    if len(parts) == 1:
        return f'"{parts[0].hexdigest()}"'
    whole = hashlib.md5(b"".join(part.digest() for part in parts), usedforsecurity=False)
    return f'"{whole.hexdigest()}-{len(parts)}"'
