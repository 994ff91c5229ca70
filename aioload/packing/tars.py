"""Archives that are compressed as a whole: each is unpacked to a temporary file, and packed from there.

They can only be read from front to back, so nothing but packing takes them. One is unpacked at a time: the
disk for temporary files has to hold the largest, and not all.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from anyio.from_thread import start_blocking_portal

from ..ahead import Ahead, Read
from ..dataset import Dataset
from ..errors import ShardError, StorageError
from ..foreign import Place, list_shards, place_of
from ..foreign.detect import HEAD_BYTES, tell
from ..storage import LocalStorage, Storage, close, read
from ..storage.codecs import BadData, check_codec, unpack_file
from ..storage.remote import Remote
from .foreign import foreign
from .items import Item, Source, Unreadable

__all__ = ["compressed"]

_PART_BYTES = 8 << 20


def compressed(
    given: Sequence[str],
    fields: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Source:
    """Return the samples of some archives, of which all or some are compressed as a whole.

    Args:
        given: their paths or addresses, or the address of their folder.
        fields: that are wanted, with their kinds; None: those of the first sample, which all must have.
        storage_options: of an address.

    Raises:
        ConfigError: what unpacks one is not installed.
        ShardError: the first cannot be unpacked, or is no archive.
    """
    place = _placed(given, storage_options)
    names = place.names or ()
    first = _samples(place, names[0], fields, storage_options, all_fields=fields is None)
    others = (
        _attempt(place, name, first.fields, storage_options, all_fields=fields is None) for name in names[1:]
    )
    items = itertools.chain(_costing_one(first.items), *map(_costing_one, others))
    return replace(first, items=items, cost=len(names), dataset=None)


def _placed(given: Sequence[str], storage_options: Mapping[str, Any] | None) -> Place:
    """Return where archives lie, and their names."""
    if "://" not in given[0]:
        root = os.path.commonpath([Path(path).absolute().parent for path in given])
        return Place(root, tuple(os.path.relpath(path, root) for path in given))
    place = place_of(given[0] if len(given) == 1 else given)
    if place.names is not None:
        return place
    remote = Remote(place.root, storage_options)
    with start_blocking_portal() as portal:
        storage = remote.open()
        try:
            return Place(place.root, portal.call(list_shards, storage, remote.shown))
        finally:
            portal.call(close, storage)


def _costing_one(items: Iterable[Item | Unreadable]) -> Iterator[Item | Unreadable]:
    """Yield items that cost one together, however many they are."""
    last: Item | Unreadable | None = None
    for item in items:
        if last is not None:
            yield last
        last = replace(item, cost=0)
    if last is not None:
        yield replace(last, cost=1)


def _attempt(
    place: Place,
    name: str,
    fields: Mapping[str, str],
    storage_options: Mapping[str, Any] | None,
    *,
    all_fields: bool,
) -> Iterator[Item | Unreadable]:
    """Yield the samples of an archive; one that cannot be unpacked is unreadable as a whole."""
    try:
        source = _samples(place, name, fields, storage_options, all_fields=all_fields)
    except ShardError as error:
        yield Unreadable(name, str(error))
    else:
        yield from source.items


def _samples(
    place: Place,
    name: str,
    fields: Mapping[str, str] | None,
    storage_options: Mapping[str, Any] | None,
    *,
    all_fields: bool,
) -> Source:
    """Return the samples of an archive; what was unpacked for them goes when they have been gone through."""
    folder = tempfile.TemporaryDirectory(prefix="aioload-pack-")
    try:
        path = Path(folder.name) / PurePosixPath(name).name
        _unpack(place, name, path, storage_options)
        source = foreign(Dataset(path, fields=fields), all_fields=all_fields)
    except BaseException:
        folder.cleanup()
        raise
    return replace(source, items=_until(source, folder))


def _until(source: Source, folder: tempfile.TemporaryDirectory[str]) -> Iterator[Item | Unreadable]:
    with folder:
        yield from source.items


def _unpack(place: Place, name: str, target: Path, storage_options: Mapping[str, Any] | None) -> None:
    """Write the plain archive to a file.

    Raises:
        ConfigError: what unpacks it is not installed.
        ShardError: it cannot be unpacked.
        StorageError: the disk for temporary files failed, or the source.
    """
    with start_blocking_portal() as portal:
        is_remote = place.is_address
        storage = Remote(place.root, storage_options).open() if is_remote else LocalStorage(place.root)
        try:
            size = portal.call(storage.size, name)
            head = portal.call(read, storage, name, 0, min(size, HEAD_BYTES))
            codec = tell(head, name)[1]
            with portal.wrap_async_context_manager(Ahead(_reads(storage, name, size))) as parts:
                bytes_of = iter(partial(portal.call, parts.take), None)
                unpack_file(None if codec is None else check_codec(codec), bytes_of, target)
        except BadData as error:
            raise ShardError(
                f"{name} cannot be unpacked ({codec}): {error}; copy it again", shard=name
            ) from error
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"{name} cannot be unpacked into {target.parent}: {error.strerror or error}; set TMPDIR to a "
                "folder with more room"
            ) from error
        finally:
            portal.call(close, storage)


def _reads(storage: Storage, name: str, size: int) -> Iterator[Read[bytes]]:
    for start in range(0, size, _PART_BYTES):
        stop = min(start + _PART_BYTES, size)
        yield stop - start, partial(read, storage, name, start, stop)
