"""Shards that others have written, as a source: TFRecord files and MDS folders, record by record."""

from __future__ import annotations

from collections.abc import Iterator

from ..dataset import Dataset
from ..shard.kinds import NUMERIC_KINDS
from .items import Item, Source
from .values import plain

__all__ = ["foreign"]


def foreign(dataset: Dataset) -> Source:
    """Return the records of a set, in their order.

    Raises:
        ShardError: the shards are no such set. The items raise it too, for a record that is damaged.
    """
    kinds = {
        # pictures that are no files, but pixels
        name: "ndarray" if dataset.encodings.get(name) == "mds:pil" else kind
        for name, kind in dataset.fields.items()
    }
    return Source(dataset.kind, kinds, _items(dataset), len(dataset))


def _items(dataset: Dataset) -> Iterator[Item]:
    decoders = {
        name: dataset.decoders[name]
        for name, kind in dataset.fields.items()
        if name in dataset.encodings or kind in NUMERIC_KINDS
    }
    for number, raw in dataset.raw_records():
        key, payloads = dataset.split_record(number, raw)
        values = {name: plain(decode(payloads[name])) for name, decode in decoders.items()}
        rest: dict[str, bytes | str] = {
            name: bytes(payloads[name]) for name in dataset.fields if name not in decoders
        }
        yield Item(f"record {number} of {dataset.source}", key or "", values, rest)
