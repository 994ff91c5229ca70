"""Dataset: a set of records, where it lies and what is in it; opened when first asked."""

from __future__ import annotations

import hashlib
import operator
import os
import pickle
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from anyio.from_thread import start_blocking_portal

from .blocking import run_blocking
from .compose import RecordSet
from .errors import AioloadError, ConfigError
from .foreign import (
    Bar,
    Contents,
    Opening,
    Outcome,
    Progress,
    check_records,
    first_bar,
    no_bar,
    walk,
    with_defaults,
)
from .home import Away, Home
from .shard.example import ENCODINGS
from .shard.format import RecordFormat, check_sum
from .shard.kinds import check_fields
from .storage import Storage, close, read
from .table import IndexTable, name_content

if TYPE_CHECKING:
    from collections.abc import Callable

    from .decode import Decoder
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
        source: a folder, a shard, a pattern such as `train-{000..099}.tar`, `{a,b}.tar` or `train-*.tar`, the
            address of one of these (s3, gs, az, http or https; stars in the last part of a bucket's alone), a
            list of them, or a storage that holds the files of a set. A storage is used from several event
            loops, and never closed by the set or its loaders.
        fields: of shards of others: the fields that are wanted, in this order, with their kinds, such as
            `{"jpg": "image", "cls": "int"}`; by default those of the first record, with the kinds that their
            names tell. For TFRecord, `"example:bytes"`, `"example:int64"` and `"example:float"` are kinds,
            too: lists of any length.
        defaults: by field, what samples have where a record lacks it: a value such as the field's decoder
            gives, for example `{"label": -1}`. Without one that is an error.
        storage_options: how the network is spoken to, such as `{"endpoint": …, "anonymous": True}`; for an
            address alone. Names: endpoint, region, access_key_id, secret_access_key, anonymous, headers,
            connect_timeout, read_timeout and deadline (seconds), attempts, hedge, max_in_flight (bytes).
        cache_dir: folder on a disk of this machine that keeps what was read from an address; True is the
            user's cache folder. Processes and runs share it.
        cache_bytes: what that folder may take of the disk, as bytes or a text such as "200GiB"; by default
            all but the disk's last gibibyte.
        index_memory: what the index of a packed set may take of memory, as bytes or a text; by default 1 GiB,
            or less where there is little memory. A larger one, of some 90 million records, stays on the disk
            and is read where it is needed; one behind an address is brought there first, to `cache_dir` or
            the user's cache folder, once for all processes.

    Raises:
        ConfigError: the address or an option cannot be.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Storage,
        *,
        fields: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | bool | None = None,
        cache_bytes: int | str | None = None,
        index_memory: int | str = "auto",
    ) -> None:
        self._wanted = None if fields is None else _checked(fields)
        self._defaults = _copied(defaults)
        self._home = Home(source, storage_options, cache_dir, cache_bytes, index_memory)
        self.source = self._home.shown
        """Where the set lies, for messages: nothing secret is in it."""
        self._is_tolerant = False
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
        decoders = self.decoders
        key, payloads = self.split_record(number, memoryview(self.read_record(number)))
        sample: dict[str, Any] = {}
        for field in self.fields:
            sample[field] = self.decode_field(decoders[field], payloads[field], number, key, field)
        sample["__key__"] = str(number) if key is None else key
        return sample

    def __repr__(self) -> str:
        if self._opened is None:
            return f"<Dataset {self.source!r} not opened>"
        return f"<Dataset {self.source!r} records={len(self)} fields={self.fields}>"

    def __reduce__(self) -> tuple[Any, ...]:
        source, options = self._home.again  # keys, too: another process needs them as this one does
        return partial(Dataset, fields=self._wanted, defaults=self._defaults, **options), (source,)

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
    def defaults(self) -> Mapping[str, Any]:
        """By field, what samples have where a record lacks it; none where records have all fields."""
        may_lack = getattr(self.format, "optional", ())
        return {field: value for field, value in self._defaults.items() if field in may_lack}

    @property
    def metadata(self) -> Any:
        """What the writer was told to keep, such as names of classes."""
        return self.contents.metadata

    @property
    def contents(self) -> Contents:
        """All that is known of the set."""
        with self._lock:
            if self._opened is None:
                opening = Opening(self._wanted, bar=first_bar, is_tolerant=self._is_tolerant)
                self._opened = with_defaults(run_blocking(self._home.open(opening)), self._defaults)
            return self._opened

    @property
    def index(self) -> Index:
        """Where each record lies."""
        return self.contents.index

    @property
    def content(self) -> str | None:
        """A name for the content that no other content has; None where nothing tells it from another.

        A set of aioload's own has it from the sums of its records, wherever it lies. What is known of shards
        of others says little of what is in them, so where they lie and which versions they are is in it, too.
        """
        contents, index = self.contents, self.index
        if not index.is_foreign and index.sums is not None:
            return index.fingerprint()
        place = self._home.identity
        if place is None:
            return None
        sums = (
            None if index.sums is None else hashlib.blake2b(index.sums.tobytes(), digest_size=16).hexdigest()
        )
        versions = sorted(contents.versions.items())
        return name_content("foreign", index.fingerprint(), place, versions, sums, sorted(index.shards))

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
        data = run_blocking(self._with_storage(lambda storage: read(storage, shard, start, stop)))
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
            raise self._placed(error, record, error.key) from error

    def decode_field(
        self, decode: Decoder, payload: memoryview, record: int, key: str | None, field: str
    ) -> Any:
        """Decode one field of a record.

        Raises:
            SampleError: it cannot be; says in which field of which record.
        """
        try:
            return decode(payload)
        except AioloadError as error:
            stored = self.encodings.get(field, self.fields[field])
            raise self._placed(error, record, key, f"field {field!r} ({stored}): ", field=field) from error

    def _placed(
        self, error: AioloadError, record: int, key: str | None, more: str = "", **facts: Any
    ) -> AioloadError:
        """Return an error that says where a record lies."""
        located = self.index.locate(np.array([record], np.int64))
        shard = self.index.shards[int(located.shard[0])]
        where = f"record {record} ({'' if key is None else f'key {key!r}, '}{shard}): {more}"
        facts |= {"shard": shard, "record": record, "key": key, "offset": int(located.start[0])}
        if "what" in error.facts:
            facts["what"] = f"{where}{error.facts['what']}"
        return type(error)(f"{where}{error}", **(error.facts | facts))

    def raw_records(self) -> Iterator[tuple[int, memoryview]]:
        """Yield number and bytes of each record in its order, reading many at a time, and some ahead.

        Raises:
            ShardError: a record fails its sum, or a shard cannot be read to its end; after all before it.
        """
        for record, outcome in self.outcomes():
            if isinstance(outcome, AioloadError):
                raise outcome
            yield record, outcome

    def outcomes(self, ranges: Iterable[tuple[int, int]] | None = None) -> Iterator[Outcome]:
        """Yield number and bytes of each record in its order, or the error of one that cannot be read.

        Args:
            ranges: of records, in the order in which they are wanted; all where none are given.
        """
        contents = self.contents  # asked for first: what a storage must unpack is known once a set is open
        with start_blocking_portal() as portal:
            storage = self.open_storage()
            try:
                with portal.wrap_async_context_manager(walk(contents, storage, ranges)) as pieces:
                    while (piece := portal.call(pieces.take)) is not None:
                        yield from piece
            finally:
                portal.call(close, storage)

    def open_storage(self) -> Storage:
        """Return a storage of this set's files, for one event loop; whoever opens it closes it."""
        return self._home.storage(self._opened)

    def away(self) -> Away:
        """Return what opens a storage of this set's files in another process; it can be pickled.

        Raises:
            ConfigError: they cannot be had from there.
        """
        return self._home.away(self.contents)

    def tolerate(self) -> None:
        """Let the set be opened though shards of others are missing or damaged.

        Their records then fail when they are read: all that an MDS folder counts in such a shard, and one
        for a shard of any other kind. `Loader` calls it where `on_error` may skip records.
        """
        self._is_tolerant = True

    def make_index(self, *, checksums: bool = False, bar: Bar = no_bar) -> Contents:
        """Look through the shards of others for an index and keep it, as the first use would.

        Shards that were missing or damaged when an index was made are looked at again.

        Args:
            checksums: with a sum of each record, which is compared whenever it is read, for formats that have
                none of their own.
            bar: shows how far it is.

        Returns:
            What is in the set.
        """
        opening = Opening(self._wanted, checksums, bar, is_tolerant=self._is_tolerant, is_renewal=True)
        with self._lock:
            self._opened = with_defaults(run_blocking(self._home.open(opening)), self._defaults)
            self._table = None
            return self._opened

    def check(self, progress: Progress = int) -> VerifyReport:
        """Read every record of a foreign set, and compare all sums that there are.

        Args:
            progress: told of so many bytes more.
        """
        contents = self.contents
        return run_blocking(self._with_storage(lambda storage: check_records(contents, storage, progress)))

    def traffic(self) -> dict[str, int]:
        """Return what went over the network since this object was made: counts of `LoaderStats`, by name."""
        return {} if self._home.remote is None else self._home.remote.counts()

    async def _with_storage(self, use: Callable[[Storage], Coroutine[Any, Any, T]]) -> T:
        storage = self.open_storage()
        try:
            return await use(storage)
        finally:
            await close(storage)


def _checked(fields: Mapping[str, str]) -> dict[str, str]:
    """Return names and kinds of the fields that are wanted; encodings of TFRecord's lists are kinds there."""
    try:
        check_fields({name: ENCODINGS.get(kind, kind) for name, kind in fields.items()})
    except (AttributeError, TypeError) as error:
        raise ConfigError(f"fields map names to kinds, as in {{'jpg': 'image'}}, got {fields!r}") from error
    return dict(fields)


def _copied(defaults: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return defaults as they are now: what was given may be changed later, and workers get copies, too."""
    if defaults is not None and not isinstance(defaults, Mapping):
        raise ConfigError(f"defaults map fields to values, as in {{'label': -1}}, got {defaults!r}")
    copies: dict[str, Any] = {}
    for field, value in (defaults or {}).items():
        try:
            copies[field] = pickle.loads(pickle.dumps(value))
        except Exception as error:  # whatever its class raises
            raise ConfigError(
                f"the default of field {field!r} cannot be copied ({type(error).__name__}: {error}); give "
                "numbers, texts, bytes, arrays, or lists and dicts of them",
                field=field,
            ) from error
    return copies
