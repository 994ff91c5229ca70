"""Dataset: a packed set of records, where it lies and what is in it; opened when first asked."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import numpy as np

from .compose import RecordSet
from .decode import for_kind
from .errors import AioloadError, ConfigError, ShardError
from .shard.format import INDEX_NAME, MANIFEST_NAME, NativeFormat, check_sum
from .shard.index import Index, parse_index
from .shard.manifest import Manifest
from .storage import Lent, LocalStorage, Storage, close, read
from .storage.remote import Remote
from .table import IndexTable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Dataset"]

T = TypeVar("T")


class Dataset(RecordSet):
    """A set of records that `Writer` or `aioload pack` has made.

    Nothing is read until something is asked of it; then its manifest and index are read once and kept.
    `select` and `split` make sets of some of its records.

    Args:
        source: the folder; its address, of s3, gs, az, http or https; or a storage that holds the files of a
            set. A storage is used from several event loops, and never closed by the set or its loaders.
        storage_options: how the network is spoken to, such as `{"endpoint": …, "anonymous": True}`; for an
            address alone. Names: endpoint, region, access_key_id, secret_access_key, anonymous, headers,
            connect_timeout, read_timeout and deadline (seconds), attempts, hedge, max_in_flight (bytes).
        cache_dir: folder on a disk of this machine that keeps what was read from an address; True is the
            user's cache folder. Processes and runs share it.
        cache_bytes: what that folder may take of the disk, as bytes or a text such as "200GiB"; by default
            all but the disk's last gibibyte.

    Raises:
        ConfigError: the address or an option cannot be.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Storage,
        *,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | bool | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        self._storage = source if isinstance(source, Storage) else None
        self._again: tuple[Callable[..., Dataset], tuple[Any, ...]] = Dataset, (source,)
        self._remote: Remote | None = None
        self.source = repr(source) if isinstance(source, Storage) else os.fspath(source)
        """Where the set lies, for messages: nothing secret is in it."""
        if self._storage is None and "://" in self.source:
            self._remote = Remote(self.source, storage_options, cache_dir, cache_bytes)
            again = partial(  # as it is now: what was given may be changed later
                Dataset,
                storage_options=asdict(self._remote.options),
                cache_dir=cache_dir if cache_dir is True else self._remote.folder,
                cache_bytes=cache_bytes,
            )
            self._again = again, (self.source,)
            self.source = self._remote.shown
        elif storage_options or cache_dir or cache_bytes:
            raise ConfigError(
                "storage_options, cache_dir and cache_bytes go with an address such as s3://…, which "
                f"{self.source} is not; leave them out"
            )
        self._lock = threading.Lock()
        self._opened: tuple[Manifest, Index] | None = None
        self._table: IndexTable | None = None

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.index)

    def __getitem__(self, record: int) -> dict[str, Any]:
        """Read and decode one record, for looking at data.

        Args:
            record: its number; negative ones count from the end.

        Returns:
            The sample: a value for each field, as the default decoders make it, and `"__key__"`.

        Raises:
            IndexError: there is no such record.
            ShardError: its bytes are damaged.
            SampleError: a value cannot be decoded.
        """
        number = operator.index(record)
        if not -len(self) <= number < len(self):
            raise IndexError(f"{self.source} has {len(self)} records; there is no record {number}")
        number %= len(self)
        key, payloads = self.format.split(memoryview(self.read_record(number)))
        sample: dict[str, Any] = {}
        for field, kind in self.fields.items():
            try:
                sample[field] = for_kind(kind)(payloads[field])
            except AioloadError as error:
                error.add_note(f"in field {field!r} of record {number} of {self.source}")
                raise
        sample["__key__"] = str(number) if key is None else key
        return sample

    def __repr__(self) -> str:
        if self._opened is None:
            return f"<Dataset {self.source!r} not opened>"
        return f"<Dataset {self.source!r} records={len(self)} fields={self.fields}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again  # keys among the options, too: another process needs them as this one does

    @property
    def fields(self) -> dict[str, str]:
        """Names and kinds of the fields, in the order of the record."""
        return dict(self.manifest.fields)

    @property
    def metadata(self) -> Any:
        """What the writer was told to keep, such as names of classes."""
        return self.manifest.metadata

    @property
    def manifest(self) -> Manifest:
        """The set's manifest."""
        return self._open()[0]

    @property
    def index(self) -> Index:
        """Where each record lies."""
        return self._open()[1]

    @property
    def sources(self) -> tuple[Dataset, ...]:
        """The packed sets whose records these are: this one."""
        return (self,)

    @property
    def table(self) -> IndexTable:
        """The records, as a loader sees them."""
        if self._table is None:
            self._table = IndexTable(self.index)
        return self._table

    @property
    def format(self) -> NativeFormat:
        """How a record is cut into fields."""
        return self.manifest.format

    def read_record(self, record: int) -> bytes:
        """Read the bytes of one record and check them.

        Raises:
            IndexError: there is no such record.
            ShardError: they are damaged.
        """
        located = self.index.locate(np.array([record], np.int64))
        shard = self.index.shards[int(located.shard[0])]
        start, stop = int(located.start[0]), int(located.stop[0])
        data = _blocking(self._with_storage(lambda storage: read(storage, shard, start, stop)))
        if located.sums is not None:
            check_sum(memoryview(data), int(located.sums[0]), shard=shard, record_id=record, start=start)
        return data

    def open_storage(self) -> Storage:
        """Return a storage of this set's files, for one event loop; whoever opens it closes it."""
        if self._remote is not None:
            index = None if self._opened is None else self._opened[1]
            if index is None:
                return self._remote.open()
            return self._remote.open(index.fingerprint(), checked=index.sums is not None)
        return LocalStorage(self.source) if self._storage is None else Lent(self._storage)

    def traffic(self) -> dict[str, int]:
        """Return what went over the network since this object was made: counts of `LoaderStats`, by name."""
        return {} if self._remote is None else self._remote.counts()

    def _open(self) -> tuple[Manifest, Index]:
        with self._lock:
            if self._opened is None:
                if self._storage is None and self._remote is None and not Path(self.source).is_dir():
                    raise ConfigError(
                        f"{self.source} is not a folder; give the folder that `aioload pack` wrote"
                    )
                self._opened = _blocking(self._with_storage(self._load))
            return self._opened

    async def _load(self, storage: Storage) -> tuple[Manifest, Index]:
        try:
            head = await read(storage, MANIFEST_NAME)
        except FileNotFoundError as error:
            raise ShardError(
                f"{self.source} holds no {MANIFEST_NAME}: it is no packed set, or its writer did not finish; "
                "pack it again",
                shard=MANIFEST_NAME,
            ) from error
        manifest = Manifest.parse(head, _join(self.source, MANIFEST_NAME))
        index = await read(storage, INDEX_NAME)
        return manifest, parse_index(index, manifest, _join(self.source, INDEX_NAME))

    async def _with_storage(self, use: Callable[[Storage], Coroutine[Any, Any, T]]) -> T:
        storage = self.open_storage()
        try:
            return await use(storage)
        finally:
            await close(storage)


def _join(folder: str, name: str) -> str:
    return os.path.join(folder, name)  # noqa: PTH118 - the first may be the description of a storage


def _blocking(waited: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a thread of its own: the caller's may have a loop that runs already."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    async def main() -> None:
        outcome.append(await waited)

    def run() -> None:
        try:
            anyio.run(main)
        except BaseException as error:  # raised again where it is waited for
            failure.append(error)

    thread = threading.Thread(target=run, name="aioload-open", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
