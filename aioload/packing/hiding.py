"""Hiding: a packed set beside shards of others would be all that is seen of their folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from ..errors import ConfigError
from ..foreign import MDS_INDEX
from ..storage import close, listing
from ..storage.address import Address
from ..storage.remote import Remote
from .sources import is_shard

__all__ = ["check_hides_nothing"]


def check_hides_nothing(destination: str, storage_options: Mapping[str, Any] | None) -> None:
    """Make sure that no shards of others lie where a set is to be written.

    Raises:
        ConfigError: some do, or the address cannot be.
        StorageError: the storage failed.
    """
    there = [name for name in _names(destination, storage_options) if is_shard(name) or name == MDS_INDEX]
    if there:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        shown = Address.parse(destination).shown if "://" in destination else destination
        raise ConfigError(
            f"{shown} holds shards of others ({min(there)}{more}), which nobody would see any more with a "
            "packed set beside them; write to another folder"
        )


def _names(destination: str, storage_options: Mapping[str, Any] | None) -> list[str]:
    if "://" not in destination:
        with suppress(OSError):  # whoever writes there says what is wrong with it
            return [path.name for path in Path(destination).iterdir()]
        return []
    if Address.parse(destination).is_web:
        return []  # nothing can be written there
    with start_blocking_portal() as portal:
        storage = Remote(destination, storage_options).open()
        try:
            return portal.call(listing, storage)
        finally:
            portal.call(close, storage)
