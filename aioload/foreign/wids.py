"""Wids: the JSON index of WebDataset's own reader, which names archives and says how many samples each has.

    {"wids_version": 1, "shardlist": [{"url": "train-000.tar", "nsamples": 1000}, …]}

It is taken as a hint: where samples lie, only the archives can tell, and their count is what is found there.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError, ShardError
from ..storage.base import check_name
from .place import Place, origin_of, place_of

if TYPE_CHECKING:
    from ..shard.index import Index

__all__ = ["Wids", "parse_wids"]

_log = logging.getLogger("aioload.index")


@dataclass(frozen=True, slots=True)
class Wids:
    """What such an index says."""

    where: str
    """Its own name, for messages."""
    urls: tuple[str, ...]
    """Archives: relative to where it lies, or addresses."""
    samples: tuple[int | None, ...]
    """How many samples each is said to have."""

    def place(self, folder: Place) -> Place:
        """Return the archives.

        Args:
            folder: where the index lies.

        Raises:
            ShardError: it names a file outside of its folder, or one twice, or names only some by
                address.
            ConfigError: it leads from one server to another, where nobody meant to send keys.
        """
        absolute = ["://" in url for url in self.urls]
        if any(absolute) != all(absolute):
            raise self._wrong("names some shards by address and some not")
        try:
            if not any(absolute):
                for url in self.urls:
                    check_name(url)
                if len(set(self.urls)) < len(self.urls):
                    raise self._wrong("names a shard twice")
                return Place(folder.root, self.urls)
            found = place_of(self.urls)
        except ConfigError as error:
            raise self._wrong(f"names shards that cannot be: {error}") from error
        if folder.is_address and origin_of(folder.root) != origin_of(found.root):
            raise ConfigError(
                f"{self.where} names shards at {origin_of(found.root)}, another place than its own; if you "
                "trust it, give their addresses as a list"
            )
        return found

    def compare(self, index: Index) -> None:
        """Write a line into the log for each archive that has another count of samples than it is said to."""
        counts = np.diff(index.shard_records).tolist()
        for name, count, said in zip(index.shards, counts, self.samples, strict=True):
            if said is not None and said != count:
                _log.warning("%s has %d samples, not %d as %s says", name, count, said, self.where)

    def _wrong(self, what: str) -> ShardError:
        return ShardError(f"{self.where} {what}; give the shards as a list", shard=self.where)


def parse_wids(text: bytes, where: str) -> Wids | None:
    """Return what an index says; None: it is none of this kind.

    Raises:
        ShardError: it says it is, and is not.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None  # whoever takes it for something else says what is wrong
    if not isinstance(document, dict) or not {"wids_version", "shardlist"} & document.keys():
        return None
    version, entries = document.get("wids_version", 1), document.get("shardlist")
    if version != 1 or not isinstance(entries, list) or not entries or not all(map(_is_entry, entries)):
        raise ShardError(
            f"{where} is no wids index of version 1 with a list of shards; give the shards as a list",
            shard=where,
        )
    return Wids(
        where, tuple(each["url"] for each in entries), tuple(each.get("nsamples") for each in entries)
    )


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
        return False
    samples = entry.get("nsamples")
    return samples is None or (type(samples) is int and samples >= 0)
