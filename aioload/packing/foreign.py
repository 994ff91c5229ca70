"""Sets that a `Dataset` reads, as a source: shards of others, and packed sets that are packed anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..dataset import Dataset
from ..decode import Decoder
from ..errors import AioloadError, ShardError
from ..foreign import for_commands, unmarked
from ..shard.kinds import NUMERIC_KINDS
from ..shard.tarsample import shown, split
from .items import Item, Source, Unreadable
from .values import plain

__all__ = ["foreign", "items_of"]

_KINDS = {"tar": "webdataset"}  # as sources are called, where that is not what sets are called

Cut = Callable[[memoryview], tuple[str | None, dict[str, memoryview]]]


def foreign(dataset: Dataset, *, all_fields: bool = True) -> Source:
    """Return the records of a set, in their order.

    A record that is damaged, or lacks a field, is unreadable; the others are packed with `skip_bad`.

    Args:
        dataset: the set.
        all_fields: whether nothing that is in an archive may be left out: then a sample with further fields
            is unreadable, too.

    Raises:
        ShardError: the shards are no such set.
    """
    kinds = {
        # pictures that are no files, but pixels
        name: "ndarray" if dataset.encodings.get(name) == "mds:pil" else kind
        for name, kind in dataset.fields.items()
    }
    return Source(
        kind=_KINDS.get(dataset.kind, dataset.kind),
        fields=kinds,
        items=items_of(dataset, None, all_fields=all_fields, ends=True),
        cost=len(dataset),
        metadata=dataset.metadata or {},
        index_fields=tuple(dataset.index.columns),
        dataset=dataset,
        all_fields=all_fields,
    )


def items_of(
    dataset: Dataset, ranges: Sequence[tuple[int, int]] | None, *, all_fields: bool, ends: bool
) -> Iterator[Item | Unreadable]:
    """Yield records of a set.

    Args:
        dataset: the set.
        ranges: of records; all where none are given.
        all_fields: see `foreign`.
        ends: whether what archives hold behind their records is told of, too.
    """
    is_tar = dataset.kind == "tar"
    cut: Cut = _strict(dataset) if is_tar and all_fields else dataset.format.split
    # digits of an archive are read with its other files; all else that is no file is decoded here
    decoders = {} if is_tar else _decoders(dataset)
    bounds = dataset.index.shard_records.tolist()
    shard = 0
    for number, outcome in dataset.outcomes(ranges):
        while number >= bounds[shard + 1]:
            shard += 1
        name = f"record {number} ({dataset.index.shards[shard]})"
        if isinstance(outcome, AioloadError):
            yield Unreadable(name, for_commands(outcome))
            continue
        try:
            yield _item(dataset, name, number, *cut(outcome), decoders)
        except AioloadError as error:
            yield Unreadable(name, for_commands(error))
    if is_tar and ends:
        yield from (Unreadable(name, why, cost=0) for name, why in unmarked(dataset.contents))


def _item(
    dataset: Dataset,
    name: str,
    number: int,
    key: str | None,
    payloads: dict[str, memoryview],
    decoders: dict[str, Decoder],
) -> Item:
    values: dict[str, Any] = {
        field: plain(dataset.decode_field(decode, payloads[field], number, key, field))
        for field, decode in decoders.items()
    }
    raw: dict[str, bytes | str] = {
        field: bytes(payloads[field]) for field in dataset.fields if field not in decoders
    }
    return Item(f"{name}, {key}" if key else name, key or "", values, raw)


def _decoders(dataset: Dataset) -> dict[str, Decoder]:
    """Return what makes values of payloads that are no files of their kind."""
    return dataset.decoders_of(
        name for name, kind in dataset.fields.items() if name in dataset.encodings or kind in NUMERIC_KINDS
    )


def _strict(dataset: Dataset) -> Cut:
    """Return what cuts the samples of archives that must have all fields and no other."""
    fields = dataset.fields

    def cut(record: memoryview) -> tuple[str, dict[str, memoryview]]:
        sample = split(record)
        key = shown(sample.key)
        if sample.views.keys() != fields.keys():
            what = (
                f"{key} has the fields {', '.join(sample.views)}, the first sample has {', '.join(fields)}; "
                "all must have the same"
            )
            raise ShardError(what, what=what, key=key, fields=sorted(sample.views))
        return key, sample.views

    return cut
