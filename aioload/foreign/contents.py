"""Contents: what is known of a set once it has been opened, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..shard.format import RecordFormat

if TYPE_CHECKING:
    from ..shard.index import Index
    from ..shard.manifest import Manifest

__all__ = ["Contents", "RecordFormat"]


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
