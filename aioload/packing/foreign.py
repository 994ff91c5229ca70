"""Shards that others have written, as a source: TFRecord files and MDS folders, record by record."""

from __future__ import annotations

from collections.abc import Iterator

from ..dataset import Dataset
from ..errors import AioloadError
from ..foreign import for_commands
from ..shard.kinds import NUMERIC_KINDS
from .items import Item, Source, Unreadable
from .values import plain

__all__ = ["foreign"]


def foreign(dataset: Dataset) -> Source:
    """Return the records of a set, in their order.

    A record that is damaged, or lacks a field, is unreadable; the others are packed with `skip_bad`.

    Raises:
        ShardError: the shards are no such set.
    """
    kinds = {
        # pictures that are no files, but pixels
        name: "ndarray" if dataset.encodings.get(name) == "mds:pil" else kind
        for name, kind in dataset.fields.items()
    }
    return Source(dataset.kind, kinds, _items(dataset), len(dataset))


def _items(dataset: Dataset) -> Iterator[Item | Unreadable]:
    decoders = dataset.decoders_of(
        name for name, kind in dataset.fields.items() if name in dataset.encodings or kind in NUMERIC_KINDS
    )
    for number, raw in dataset.raw_records():
        name = f"record {number} of {dataset.source}"
        try:
            key, payloads = dataset.split_record(number, raw)
            values = {
                field: plain(dataset.decode_field(decode, payloads[field], number, key, field))
                for field, decode in decoders.items()
            }
        except AioloadError as error:
            yield Unreadable(name, for_commands(error))
            continue
        rest: dict[str, bytes | str] = {
            field: bytes(payloads[field]) for field in dataset.fields if field not in decoders
        }
        yield Item(name, key or "", values, rest)
