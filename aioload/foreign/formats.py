"""Formats: what each foreign format brings: a scanner for its shards, and what cuts its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..shard import tar, tfrecord
from ..shard.kinds import Fields, check_fields

if TYPE_CHECKING:
    from ..shard.scan import Scanner
    from .contents import RecordFormat

__all__ = ["begin_scan", "record_format"]


def begin_scan(kind: str, size: int, name: str) -> Scanner:
    """Return the scanner of a shard.

    Args:
        kind: `tar` or `tfrecord`.
        size: of the shard, in bytes.
        name: its name, for errors.
    """
    return tar.scan(size, name) if kind == "tar" else tfrecord.scan(size, name)


def record_format(
    kind: str, found: Fields, facts: Mapping[str, Any], wanted: Mapping[str, str] | None
) -> RecordFormat:
    """Return what cuts the records of a set.

    Args:
        kind: `tar` or `tfrecord`.
        found: the fields that the first record has.
        facts: what the scanner found besides.
        wanted: the fields that the user asked for, with their kinds; None: those that were found.

    Raises:
        ConfigError: a kind that there is not, or that the format cannot give.
    """
    if kind == "tar":
        return tar.TarFormat(check_fields(wanted) if wanted else found)
    whole = tfrecord.TFRecordFormat(found, **facts)
    if wanted is None:
        return whole
    known = whole.with_kinds(wanted)
    kinds = dict(known.fields)
    return replace(
        known,
        fields=tuple((name, kinds[name]) for name in wanted),
        encodings={name: known.encodings[name] for name in wanted if name in known.encodings},
    )
