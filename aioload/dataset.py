"""Dataset: a set of records, where it lies and what is in it; opened when first asked."""

from __future__ import annotations

import operator
import os
import secrets
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import numpy as np
from anyio.from_thread import start_blocking_portal

from .compose import RecordSet
from .errors import AioloadError, ConfigError, NotFoundError, ShardError
from .foreign import (
    MDS_INDEX,
    Bar,
    Contents,
    Foreign,
    Outcome,
    Place,
    Progress,
    Wids,
    check_records,
    list_shards,
    no_bar,
    open_foreign,
    parse_wids,
    place_of,
    walk,
)
from .shard.example import ENCODINGS
from .shard.format import INDEX_NAME, MANIFEST_NAME, RecordFormat, check_sum
from .shard.index import parse_index
from .shard.kinds import check_fields
from .shard.manifest import Manifest
from .storage import (
    Lent,
    LocalStorage,
    Packed,
    Storage,
    Unpacked,
    close,
    default_cache_folder,
    read,
)
from .storage.remote import Remote
from .table import IndexTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from .shard.check import VerifyReport
    from .shard.index import Index

__all__ = ["Dataset"]

T = TypeVar("T")


class Dataset(RecordSet):
    """A set of records: one that `Writer` or `aioload pack` has made, or shards that others have written.

    Nothing is read until something is asked of it; then its manifest and index are read once and kept. Shards
    of others (WebDataset tar, TFRecord, MDS) are looked through once for an index, which is kept beside them,
    or else in the user's cache folder; `aioload index` does that ahead of time. `select` and `split` make
    sets of some of its records.

    Args:
        source: a folder, a shard, a pattern such as `train-{000..099}.tar`, the address of one of these (s3,
            gs, az, http or https), a list of shards, or a storage that holds the files of a set. A storage is
            used from several event loops, and never closed by the set or its loaders.
        fields: of shards of others: the fields that are wanted, in this order, with their kinds, such as
            `{"jpg": "image", "cls": "int"}`; by default those of the first record, with the kinds that their
            names tell. For TFRecord, `"example:bytes"`, `"example:int64"` and `"example:float"` are kinds,
            too: lists of any length.
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
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Storage,
        *,
        fields: Mapping[str, str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | bool | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        self._wanted = None if fields is None else _checked(fields)
        self._storage = source if isinstance(source, Storage) else None
        self._place = Place(repr(source)) if isinstance(source, Storage) else place_of(source)
        self._again: tuple[Callable[..., Dataset], tuple[Any, ...]] = (
            partial(Dataset, fields=self._wanted),
            (source if isinstance(source, (str, os.PathLike, Storage)) else tuple(source),),
        )
        self._options = storage_options, cache_dir, cache_bytes
        self._token = secrets.token_hex(8)
        self._remote: Remote | None = None
        if self._storage is None and self._place.is_address:
            self._remote = Remote(self._place.root, storage_options, cache_dir, cache_bytes)
            again = partial(  # as it is now: what was given may be changed later
                Dataset,
                fields=self._wanted,
                storage_options=asdict(self._remote.options),
                cache_dir=cache_dir if cache_dir is True else self._remote.folder,
                cache_bytes=cache_bytes,
            )
            self._again = again, self._again[1]
        elif storage_options or cache_dir or cache_bytes:
            raise ConfigError(
                "storage_options, cache_dir and cache_bytes go with an address such as s3://…, which "
                f"{self._place.root} is not; leave them out"
            )
        self._root = self._place.root if self._remote is None else self._remote.shown
        self.source = _described(self._root, self._place.names)
        """Where the set lies, for messages: nothing secret is in it."""
        self._lock = threading.Lock()
        self._opened: Contents | None = None
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
        key, payloads = self.split_record(number, memoryview(self.read_record(number)))
        sample: dict[str, Any] = {}
        decoders = self.decoders
        for field in self.fields:
            try:
                sample[field] = decoders[field](payloads[field])
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
    def kind(self) -> str:
        """Whose format it is: `aioload`, `tar`, `tfrecord` or `mds`."""
        return self.contents.kind

    @property
    def fields(self) -> dict[str, str]:
        """Names and kinds of the fields, in the order of the record."""
        return dict(self.contents.fields)

    @property
    def encodings(self) -> dict[str, str]:
        """By field, what its bytes are where they are not as in a set of aioload's own."""
        return dict(self.contents.encodings)

    @property
    def metadata(self) -> Any:
        """What the writer was told to keep, such as names of classes."""
        return self.contents.metadata

    @property
    def contents(self) -> Contents:
        """All that is known of the set."""
        with self._lock:
            if self._opened is None:
                self._opened = _blocking(self._open())
            return self._opened

    @property
    def index(self) -> Index:
        """Where each record lies."""
        return self.contents.index

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
    def format(self) -> RecordFormat:
        """How a record is cut into fields."""
        return self.contents.format

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

    def split_record(self, record: int, raw: memoryview) -> tuple[str | None, dict[str, memoryview]]:
        """Cut the bytes of a record into its key and the bytes of each field.

        Raises:
            ShardError: they are damaged; `.shard`, `.record` and `.offset` say where they lie.
            SampleError: a field is not there, or is not of its kind.
        """
        try:
            return self.format.split(raw)
        except AioloadError as error:
            located = self.index.locate(np.array([record], np.int64))
            shard = self.index.shards[int(located.shard[0])]
            place = {"shard": shard, "record": record, "offset": int(located.start[0])}
            raise type(error)(f"record {record} ({shard}): {error}", **(error.facts | place)) from error

    def raw_records(self) -> Iterator[tuple[int, memoryview]]:
        """Yield number and bytes of each record in its order, reading many at a time, and some ahead.

        Raises:
            ShardError: a record fails its sum, or a shard cannot be read to its end; after all before it.
        """
        for record, outcome in self.outcomes():
            if isinstance(outcome, AioloadError):
                raise outcome
            yield record, outcome

    def outcomes(self) -> Iterator[Outcome]:
        """Yield number and bytes of each record in its order, or the error of one that cannot be read."""
        contents = self.contents  # asked for first: what a storage must unpack is known once a set is open
        with start_blocking_portal() as portal:
            storage = self.open_storage()
            try:
                with portal.wrap_async_context_manager(walk(contents, storage)) as pieces:
                    while (piece := portal.call(pieces.take)) is not None:
                        yield from piece
            finally:
                portal.call(close, storage)

    def open_storage(self) -> Storage:
        """Return a storage of this set's files, for one event loop; whoever opens it closes it."""
        if self._opened is None:
            return self._plain_storage()
        storage = self._plain_storage(self._opened)
        return self._unpacked(storage, self._opened.packed) if self._opened.packed else storage

    def make_index(self, *, checksums: bool = False, bar: Bar = no_bar) -> Contents:
        """Look through the shards of others for an index and keep it, as the first use would.

        Args:
            checksums: with a sum of each record, which is compared whenever it is read, for formats that have
                none of their own.
            bar: shows how far it is.

        Returns:
            What is in the set.
        """
        with self._lock:
            self._opened = _blocking(self._open(checksums=checksums, bar=bar))
            self._table = None
            return self._opened

    def check(self, progress: Progress = int) -> VerifyReport:
        """Read every record of a foreign set, and compare all sums that there are.

        Args:
            progress: told of so many bytes more.
        """
        contents = self.contents
        return _blocking(self._with_storage(lambda storage: check_records(contents, storage, progress)))

    def traffic(self) -> dict[str, int]:
        """Return what went over the network since this object was made: counts of `LoaderStats`, by name."""
        return {} if self._remote is None else self._remote.counts()

    async def _open(self, *, checksums: bool = False, bar: Bar = no_bar) -> Contents:
        self._place = _looked_up(self._place) if self._storage is None else self._place
        storage = self._plain_storage()
        try:
            own = await _load_own(storage, self._root) if self._place.names is None else None
            if own is not None:
                if self._wanted is not None:
                    raise ConfigError(f"{self.source} knows its fields; leave `fields` out")
                return own
            document, wids = await self._find_document(storage)
            if wids is not None:
                storage = await self._follow(wids, storage)
            names = self._place.names
            if names is None:
                names = () if document is not None else await list_shards(storage, self.source)
            folder = self._folder()
            foreign = Foreign(names, self.source, self._identity(), folder, self._wanted, document, bar)
            contents = await open_foreign(foreign, storage, self._unpacked, checksums=checksums)
            if wids is not None:
                wids.compare(contents.index)
            return contents
        finally:
            await close(storage)

    async def _find_document(self, storage: Storage) -> tuple[bytes | None, Wids | None]:
        """Return the index of an MDS folder, or the wids index of archives, where there is one."""
        names = self._place.names
        if names is not None and not (len(names) == 1 and names[0].lower().endswith(".json")):
            return None, None
        name = MDS_INDEX if names is None else names[0]
        try:
            document = await read(storage, name)
        except NotFoundError:
            if names is not None:
                raise
            return None, None
        wids = parse_wids(
            document, _join(self._place.root if self._remote is None else self._remote.shown, name)
        )
        if wids is not None:
            return None, wids
        if name != MDS_INDEX:
            raise ShardError(f"{self.source} is no wids index; give shards, or their folder", shard=name)
        self._place = Place(self._place.root)
        return document, None

    async def _follow(self, wids: Wids, storage: Storage) -> Storage:
        """Go to the shards that an index names; return a storage of them, in place of the other."""
        place = wids.place(self._place)
        if place.root == self._place.root:
            self._place = place
            return storage
        if self._storage is not None:
            raise ConfigError(
                f"{wids.where} names addresses, which {self.source} cannot read; give them as a list"
            )
        await close(storage)
        self._place, self._remote = place, Remote(place.root, *self._options)
        return self._plain_storage()

    def _folder(self) -> Path | None:
        """Return the folder on this machine, if it is one."""
        return None if self._remote or self._storage is not None else Path(self._place.root).absolute()

    def _identity(self) -> str | None:
        """Return what tells this place from all others, also in other processes; None: nothing does."""
        folder = self._folder()
        if folder is not None:
            return str(folder)
        if self._remote is not None:
            return self._remote.key("")
        text = repr(self._storage)
        return text if hasattr(self._storage, "version") and " at 0x" not in text else None

    def _plain_storage(self, opened: Contents | None = None) -> Storage:
        """Return a storage of the files as they lie there; what is cached is known by what is in them."""
        if self._remote is not None:
            if opened is None:
                return self._remote.open()
            versions, fingerprint = opened.versions, opened.index.fingerprint()
            return self._remote.open(
                lambda name: versions.get(name, fingerprint),
                checked=opened.index.sums is not None,
                passed={packed.name or name for name, packed in opened.packed.items()},  # kept unpacked
            )
        return LocalStorage(self._place.root) if self._storage is None else Lent(self._storage)

    def _unpacked(self, storage: Storage, packed: Mapping[str, Packed]) -> Storage:
        """Return a storage around one that holds shards which are compressed as a whole."""
        folder = self._remote.folder if self._remote is not None else None
        root = self._identity() or self._token  # what cannot be told apart is not found again
        key = self._remote.key if self._remote is not None else partial(_join, root)
        limit = self._remote.cache_bytes if self._remote is not None else None
        return Unpacked(storage, folder or default_cache_folder(), packed.get, key, limit_bytes=limit)

    async def _with_storage(self, use: Callable[[Storage], Coroutine[Any, Any, T]]) -> T:
        storage = self.open_storage()
        try:
            return await use(storage)
        finally:
            await close(storage)


async def _load_own(storage: Storage, root: str) -> Contents | None:
    """Return what is in a set of the own format; None where there is none."""
    try:
        head = await read(storage, MANIFEST_NAME)
    except NotFoundError:
        return None
    manifest = Manifest.parse(head, _join(root, MANIFEST_NAME))
    index = parse_index(await read(storage, INDEX_NAME), manifest, _join(root, INDEX_NAME))
    return Contents("aioload", manifest.format, manifest.fields, {}, index, manifest.metadata)


def _checked(fields: Mapping[str, str]) -> dict[str, str]:
    """Return names and kinds of the fields that are wanted; encodings of TFRecord's lists are kinds there."""
    try:
        check_fields({name: ENCODINGS.get(kind, kind) for name, kind in fields.items()})
    except (AttributeError, TypeError) as error:
        raise ConfigError(f"fields map names to kinds, as in {{'jpg': 'image'}}, got {fields!r}") from error
    return dict(fields)


def _looked_up(place: Place) -> Place:
    """Return the place of a local source, once it is known whether its path is that of a file.

    Raises:
        ConfigError: there is nothing.
    """
    if place.names is not None or place.is_address:
        return place
    path = Path(place.root)
    if path.is_file():
        return Place(str(path.parent), (path.name,))
    if not path.is_dir():
        raise ConfigError(
            f"{place.root} is neither a folder nor a file; give what `aioload pack` wrote, or shards"
        )
    return place


def _described(root: str, names: Sequence[str] | None) -> str:
    if names is None:
        return root
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return _join(root, names[0]) + more


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
