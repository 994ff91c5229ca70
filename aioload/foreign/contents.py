"""Contents: what is known of a set once it has been opened, whoever wrote it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, ShardError
from ..shard.format import RecordFormat
from ..shard.sidecar import Loss
from ..shard.tar import TarFormat
from ..shard.tfrecord import TFRecordFormat
from ..storage import Packed

if TYPE_CHECKING:
    from ..shard.index import Index

__all__ = ["Contents", "damage_of", "with_defaults"]


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """What is in a set."""

    kind: str
    """`aioload`, `tar`, `tfrecord` or `mds`."""
    format: RecordFormat
    """How a record is cut into fields."""
    fields: Mapping[str, str]
    """Names and kinds of the fields that samples have; records may have others."""
    encodings: Mapping[str, str]
    """By field, what its bytes are where they are not as in the own format."""
    index: Index
    """Where each record lies."""
    metadata: Any = None
    """What the writer was told to keep."""
    packed: Mapping[str, Packed] = field(default_factory=dict)
    """What is known of shards that are compressed as a whole, by name."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of each file as it is stored, what tells its content from another; none where the index does."""
    damage: tuple[str | None, ...] = ()
    """Of each shard, why its last record cannot be read; None: all can."""
    lost: Mapping[str, Loss] = field(default_factory=dict)
    """By name, why nothing of a shard can be had; whoever reads its records is told."""


def with_defaults(contents: Contents, names: Collection[str]) -> Contents:
    """Return contents whose records may lack some fields.

    Args:
        contents: of a set. Records of its own format and rows of MDS have all fields, and lack none.
        names: of the fields.

    Raises:
        ConfigError: there is no such field.
    """
    unknown = sorted(set(names) - set(contents.fields))
    if unknown:
        raise ConfigError(
            f"there are defaults for {unknown}, but the fields are {', '.join(contents.fields)}; name "
            "in fields=, too, what only some records have",
            field=unknown[0],
        )
    if not names or not isinstance(contents.format, TarFormat | TFRecordFormat):
        return contents
    return replace(contents, format=replace(contents.format, optional=frozenset(names)))


def damage_of(contents: Contents, shard: int) -> ShardError | None:
    """Return why the last record of a shard, which is all of its rest, cannot be read; None: it can."""
    why = contents.damage[shard] if contents.damage else None
    if why is None:
        return None
    index = contents.index
    record = int(index.shard_records[shard + 1]) - 1
    start = int(index.locate(np.array([record], np.int64)).start[0])
    name = index.shards[shard]
    return ShardError(
        f"{name} cannot be read from record {record} on: {why}", shard=name, record=record, offset=start
    )
