"""Collection: what a loader runs over, be it a packed set or one that is made of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .decode import for_encoding, for_kind
from .decode.default import Defaulted, fitting
from .errors import ConfigError
from .order import Shuffle

if TYPE_CHECKING:
    from ._workers.items import Items
    from .decode import Decoder
    from .shard.format import RecordFormat
    from .shard.index import Index
    from .storage import Storage
    from .table import Table

__all__ = ["Collection", "Source"]


class Source(Protocol):
    """One packed set, as a loader needs it."""

    source: str

    @property
    def format(self) -> RecordFormat:
        """How a record is cut into fields."""

    @property
    def index(self) -> Index:
        """Where each record lies."""

    def tolerate(self) -> None:
        """Let the set be opened though shards are missing: their records fail when they are read."""

    def open_storage(self) -> Storage:
        """Return a storage of the files; whoever opens it closes it."""

    def traffic(self) -> dict[str, int]:
        """Return what went over the network so far: counts of `LoaderStats`, by name."""

    @property
    def content(self) -> str | None:
        """A name for the content that no other content has; None where nothing tells it from another."""

    def __getitem__(self, record: int) -> dict[str, Any]:
        """Read and decode one record."""


class Collection(ABC):
    """What a loader runs over."""

    source: str
    """Where the records lie, for messages."""
    items: Items | None = None
    """What gives samples, where they are not made of records."""
    packages: tuple[str, ...] = ()
    """What workers will import for it."""

    @property
    @abstractmethod
    def table(self) -> Table:
        """The records, as a loader sees them."""

    @property
    @abstractmethod
    def sources(self) -> tuple[Source, ...]:
        """The packed sets whose records these are; `sample["__source__"]` counts them."""

    @property
    @abstractmethod
    def fields(self) -> dict[str, str]:
        """Names and kinds of the fields."""

    @property
    @abstractmethod
    def encodings(self) -> dict[str, str]:
        """By field, what its bytes are where they are not as in a set of aioload's own."""

    @property
    def defaults(self) -> Mapping[str, Any]:
        """By field, what samples have where a record lacks it."""
        return {}

    @property
    def decoders(self) -> dict[str, Decoder]:
        """What makes a value of a field's bytes, by default.

        Raises:
            ConfigError: as `decoders_of` does.
        """
        return self.decoders_of(self.fields)

    def decoders_of(
        self, fields: Iterable[str], own: Mapping[str, Decoder] = MappingProxyType({})
    ) -> dict[str, Decoder]:
        """Return what makes values of some fields' bytes, or of their absence.

        Args:
            fields: their names.
            own: the user's decoders.

        Raises:
            ConfigError: bytes of a field are never decoded, or its default is not what its decoder gives.
        """
        kinds, encodings, defaults = self.fields, self.encodings, self.defaults
        found: dict[str, Decoder] = {}
        for field in fields:
            kind, encoding = kinds[field], encodings.get(field)
            decode = own[field] if field in own else self._usual(field, kind, encoding)
            if field in defaults:
                value = defaults[field]
                value = value if field in own else fitting(field, kind, encoding, value)
                decode = Defaulted(decode, value)
            found[field] = decode
        return found

    def _usual(self, field: str, kind: str, encoding: str | None) -> Decoder:
        """Return the decoder that a field has by default."""
        try:
            return for_kind(kind) if encoding is None else for_encoding(encoding)
        except ConfigError as error:
            where = f"field {field!r} of {self.source}: "
            facts = {"what": f"{where}{error.facts['what']}"} if "what" in error.facts else {}
            raise ConfigError(f"{where}{error}", field=field, **facts) from error

    @property
    @abstractmethod
    def metadata(self) -> Any:
        """What the writer was told to keep, such as names of classes."""

    def __len__(self) -> int:
        """Return the number of samples of an epoch."""
        return len(self.table)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Read and decode one sample of an epoch that is not shuffled, for looking at data.

        Args:
            number: of the sample; negative ones count from the end.

        Returns:
            A value for each field, `"__key__"`, and `"__source__"` if there are several sets.

        Raises:
            IndexError: there is no such sample.
            ShardError: its bytes are damaged.
            SampleError: a value cannot be decoded.
        """
        position = number + len(self) if number < 0 else number
        if not 0 <= position < len(self):
            raise IndexError(f"samples are 0 to {len(self) - 1}, asked for {number}")
        record = self.table.order(Shuffle(), 0).records(np.array([position], np.int64))
        place = self.table.places(record)
        source = int(place.source[0])
        sample = self.sources[source][int(place.record[0])]
        return sample if len(self.sources) == 1 else {**sample, "__source__": source}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.source}>"

    def table_at(self, table: Table, epoch: int) -> Table:
        """Return the table of an epoch that begins, after one that ran with `table`."""
        return table

    def saved(self, table: Table) -> dict[str, Any] | None:
        """Return what a state must know of a table beside the content, as plain JSON."""
        return None

    def table_of(self, saved: Mapping[str, Any] | None) -> Table:
        """Return the table of a state.

        Raises:
            ConfigError: it is not one of this collection's.
        """
        if saved is not None:
            raise ConfigError(
                f"the state is that of a mix, and {self.source} is none; load it where it was made"
            )
        return self.table

    def resume(self, saved: Mapping[str, Any] | None) -> None:  # noqa: B027 - most have nothing to take up
        """Take up what a state knows beside the table."""
