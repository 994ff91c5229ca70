"""Contents: what is known of a set once it has been opened, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..shard.index import Index
    from ..shard.manifest import Manifest

__all__ = ["Contents", "RecordFormat"]


class RecordFormat(Protocol):
    """How a record is cut into fields; a small picklable object."""

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Names and kinds."""

    @property
    def encodings(self) -> Mapping[str, str]:
        """By field, what its bytes are where they are not as in the own format (see `decode.for_encoding`)."""

    def split(self, record: memoryview) -> tuple[str | None, dict[str, memoryview]]:
        """Return the key and the payload of each field."""


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """What is in a set."""

    kind: str
    """`aioload`, `tar`, `tfrecord` or `mds`."""
    format: RecordFormat
    """How a record is cut into fields."""
    index: Index
    """Where each record lies."""
    metadata: Any = None
    """What the writer was told to keep."""
    manifest: Manifest | None = None
    """Of the own format."""
    codecs: Mapping[str, str] = field(default_factory=dict)
    """How shards are compressed as a whole, by name."""
    damage: tuple[str | None, ...] = ()
    """Of each shard, why its last record cannot be read; None: all can."""
