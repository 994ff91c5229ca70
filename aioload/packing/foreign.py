"""Shards that others have written, as a source: TFRecord files and MDS folders, record by record."""

from __future__ import annotations

from collections.abc import Iterator

from ..dataset import Dataset
from .items import Item, Source

__all__ = ["foreign"]


def foreign(dataset: Dataset) -> Source:
    """Return the records of a set, in their order.

    Raises:
        ShardError: the shards are no such set. The items raise it too, for a record that is damaged.
    """
    return Source(dataset.kind, dataset.fields, _items(dataset), len(dataset))


def _items(dataset: Dataset) -> Iterator[Item]:
    decoders = {name: dataset.decoders[name] for name in dataset.encodings}
    for number, raw in dataset.raw_records():
        key, payloads = dataset.split_record(number, raw)
        values = {name: decode(payloads[name]) for name, decode in decoders.items()}
        rest: dict[str, bytes | str] = {
            name: bytes(data) for name, data in payloads.items() if name not in decoders
        }
        yield Item(f"record {number} of {dataset.source}", key or "", values, rest)
