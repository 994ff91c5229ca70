"""The writer: samples in, a folder out that is complete or not there at all (FORMAT.md, section 1).

- Nothing has its final name before all its bytes are on the disk; the manifest comes last, by a rename. So a
  folder with a manifest is a whole set, whenever the process was killed.
- A sample is encoded whole before its first byte is written: after a value that does not fit, the set is
  as it was and the writer goes on. After an error within a record it cannot, and takes everything back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import ClosedError, ConfigError, SampleError, StorageError
from .destination import Destination
from .folder import Folder, is_own_name
from .footer import Footer, footer_bytes
from .format import (
    DATA_START,
    INDEX_NAME,
    MANIFEST_NAME,
    SHARD_TRAILER,
    Chunk,
    NativeFormat,
)
from .index import join_footers, make_manifest, render_index
from .kinds import KEY_NAME, check_columns, check_fields
from .manifest import to_json
from .openshard import OpenShard, encoded

__all__ = ["Writer"]


class Writer:
    """Packs samples into a folder, in one pass.

    Used in a `with` block, it closes at the end; an error in the block takes back everything that was
    written. It belongs to one thread.

    Args:
        path: a local folder, made where it does not exist, or an address in a bucket: `s3://`, `gs://` or
            `az://`. It must hold no complete set. In a bucket, whole shards stay there when the writer is
            stopped; one that writes the same again sends only what is missing.
        fields: name and kind of each field, in the order in which a record holds them.
        shard_bytes: a new shard begins before a file would become larger; only a record that is too large by
            itself makes one that is (the metadata, in the last shard, is not counted).
        index_fields: fields of kind int or float whose values are kept in the index too.
        metadata: anything that JSON can say, kept in the manifest; may be set until the writer is closed.
        storage_options: of a bucket: `endpoint`, `region`, `access_key_id`, `secret_access_key`, `anonymous`,
            `connect_timeout`, `read_timeout`, `deadline`, `attempts`.

    Raises:
        ConfigError: an argument cannot work, or the folder is taken.
        StorageError: the folder cannot be made or cleared, or the bucket did not answer as it should.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Mapping[str, str] | Iterable[tuple[str, str]],
        *,
        shard_bytes: int = 256 << 20,
        index_fields: Iterable[str] = (),
        metadata: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if shard_bytes < 1:
            raise ConfigError(f"shard_bytes must be a positive number, got {shard_bytes}")

        self._format = NativeFormat(check_fields(fields))
        self._columns = check_columns(index_fields, self._format.fields)
        self._shard_bytes = shard_bytes
        self.metadata = {} if metadata is None else metadata

        self._empty = Footer.empty(self._format.fields, self._columns)
        self._description_bytes = len(self._empty.describe())
        self._footers: list[Footer] = []
        self._file_bytes: list[int] = []
        self._records = 0
        self._closed = False
        self._small_bytes = 0  # of index and manifest
        self._folder = _open_destination(os.fspath(path), storage_options, shard_bytes)
        self._shard: OpenShard | None = None  # begun with its first record

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
            return

        try:
            self.close()
        except BaseException:  # whatever stopped it, nothing may stay that looks like a set
            self.abort()
            raise

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Writer {state} records={self._records} shards={len(self._footers) + (not self._closed)}>"

    @property
    def records(self) -> int:
        """How many records have been written."""
        return self._records

    @property
    def shards(self) -> int:
        """How many shards are whole."""
        return len(self._file_bytes)

    @property
    def total_bytes(self) -> int:
        """How many bytes the files have that are whole."""
        return sum(self._file_bytes) + self._small_bytes

    @property
    def notes(self) -> tuple[str, ...]:
        """What an earlier writer had left there, and what became of it, in a sentence each."""
        return self._folder.notes

    @property
    def metadata(self) -> Any:
        """What the manifest will keep besides the data."""
        return self._metadata

    @metadata.setter
    def metadata(self, value: Any) -> None:
        to_json(value)  # a mistake should show here, not after hours of packing
        self._metadata = value

    # hot: once per record
    def write(self, sample: Mapping[str, Any], key: str | None = None) -> None:
        """Add a record.

        Args:
            sample: a value for each field; a `"__key__"`, as samples that were read have it, is the key.
            key: a name for the record; the empty text is no key.

        Raises:
            SampleError: a field is missing, or unknown, or its value does not fit; nothing was written.
            StorageError: the disk failed; all was taken back, and the writer is closed.
            ClosedError: the writer is closed.
        """
        if self._closed:
            raise ClosedError("this Writer is closed; make another, in another folder")

        key = sample.get(KEY_NAME) if key is None else key
        try:
            values = encoded(self._format, sample, key)
            chunks = self._format.join(key, values)
        except SampleError as error:
            facts = {**error.facts, "record": self._records, "key": key if isinstance(key, str) else None}
            raise SampleError(
                f"record {self._records} (key {key!r}) was not written: {error}", **facts
            ) from error

        try:
            self._append(chunks, [values[name] for name in self._columns])
        except BaseException as error:  # an interrupt too may have left half a record
            self._give_up(error)
            raise

    def close(self) -> None:
        """Finish the set; closing twice is free.

        Raises:
            ConfigError: the metadata is not what JSON can say; set it anew and close again.
            StorageError: the disk failed; all was taken back.
        """
        if self._closed:
            return

        to_json(self._metadata)
        try:
            self._finish()
        except BaseException as error:
            self._give_up(error)
            raise

        self._closed = True
        self._folder.close()

    def abort(self) -> None:
        """Take back everything that was written; after `close` it does nothing.

        In a bucket, shards that are whole stay for a writer that goes on; without a manifest they are no set.
        """
        if self._closed:
            return

        self._closed = True
        if self._shard is not None:
            self._shard.discard()
        self._folder.clear()
        self._folder.close()

    def _give_up(self, error: BaseException) -> None:
        """Take everything back; raise what is no error of ours yet as one."""
        self.abort()
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            raise self._folder.translated(error) from error

    def _append(self, chunks: Sequence[Chunk], columns: Sequence[Chunk]) -> None:
        size = sum(len(chunk) for chunk in chunks)
        if self._shard is not None and self._size_with(self._shard, size) > self._shard_bytes:
            self._end_shard(self._shard)

        if self._shard is None:
            self._shard = OpenShard(self._folder, len(self._footers), self._empty)

        self._shard.append(chunks, size, columns)
        self._records += 1

    def _size_with(self, shard: OpenShard, record_bytes: int) -> int:
        """Return how large the file would become with one more record."""
        footer = footer_bytes(len(shard.ends) + 1, len(self._columns), self._description_bytes)
        return DATA_START + shard.data_bytes + record_bytes + footer + SHARD_TRAILER.size

    def _end_shard(self, shard: OpenShard, *, last: bool = False) -> None:
        footer = shard.footer(last=last, metadata=self._metadata if last else None)
        self._file_bytes.append(shard.finish(footer))
        self._footers.append(footer)
        self._shard = None

    def _finish(self) -> None:
        """Write what comes after the records; an empty set too has a shard, to be rebuilt from."""
        self._end_shard(self._shard or OpenShard(self._folder, 0, self._empty), last=True)

        index = join_footers(self._footers, self._file_bytes)
        rendered = render_index(index)
        manifest = make_manifest(index, rendered, self._metadata).render()
        self._folder.put(INDEX_NAME, rendered)
        self._folder.put(MANIFEST_NAME, manifest)
        self._small_bytes = len(rendered) + len(manifest)


def _open_destination(path: str, storage_options: Mapping[str, Any] | None, shard_bytes: int) -> Destination:
    """Return the folder, or the place in a bucket, that a path names."""
    if "://" not in path:
        if storage_options:
            raise ConfigError(f"storage_options go with an address such as s3://bucket/set, not with {path}")
        return Folder(Path(path))

    from ..storage.uploads import BucketFolder  # the network's client is large, and seldom wanted

    return BucketFolder(
        path, storage_options, is_own=is_own_name, last=MANIFEST_NAME, shard_bytes=shard_bytes
    )
