"""Remote: a folder in the network, as a set keeps it for all the storages that are opened over it.

Event loops come and go, and each needs connections of its own. What must outlive them is here: which version
of each file was seen first, what the link gives, and what went over it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..machine import parse_bytes
from .address import Address
from .base import Storage
from .cache import Cached
from .cachedisk import CacheTally
from .cachefolder import default_cache_folder
from .link import Link
from .options import NetworkOptions
from .pins import Pins
from .steady import steady

__all__ = ["Remote"]


class Remote:
    """A folder behind an address. Making one does no I/O.

    Args:
        url: of the folder: s3, gs, az, http or https.
        storage_options: see `NetworkOptions`.
        cache_dir: where bytes that were read are kept; True is the user's cache folder, None keeps none.
        cache_bytes: what the folder may take of the disk, as bytes or a text such as "200GiB".
        pinned: versions of files that were seen before, elsewhere.

    Raises:
        ConfigError: the address, or an option, cannot be.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | bool | None = None,
        cache_bytes: int | str | None = None,
        pinned: Mapping[str, tuple[int, str | None]] | None = None,
    ) -> None:
        self._address = Address.parse(url)
        self.options = NetworkOptions.parse(storage_options)
        """How the network is spoken to."""
        self.folder = _folder(cache_dir)
        """Where the cache is, if there is one."""
        if cache_bytes is not None and self.folder is None:
            raise ConfigError("cache_bytes says how much cache_dir may hold; pass that too, or leave it out")
        self.cache_bytes = None if cache_bytes is None else parse_bytes(cache_bytes, name="cache_bytes")
        """What it may take of the disk, with what is unpacked there; None: all but the disk's last GiB."""
        self._link = Link(max_in_flight=self.options.max_in_flight, shown=self.shown)
        self.pins = Pins(pinned)
        """Which version of each file was seen first."""
        self._tally = CacheTally()

    @property
    def shown(self) -> str:
        """The address, for messages: without anything secret."""
        return self._address.shown

    def open(
        self,
        version_of: Callable[[str], str] | None = None,
        *,
        checked: bool = False,
        passed: Container[str] = (),
    ) -> Storage:
        """Return a storage over the folder, for one event loop; whoever opens it closes it.

        Args:
            version_of: tells the content of a file, by its name, from others that had its name; where that is
                known. What is cached is known by it, too.
            checked: it tells every byte, and whoever reads checks each.
            passed: names of files that are not cached.
        """
        storage = steady(
            self._one_attempt(),
            self._link,
            attempts=self.options.attempts,
            deadline=self.options.deadline,
            hedge=self.options.hedge,
            where=self.shown,
        )
        if self.folder is None or version_of is None:
            return storage
        return Cached(
            storage,
            self.folder,
            self.cache_bytes,
            lambda name: f"{self.key(name)} {version_of(name)}",
            vouched=checked,
            passed=passed,
            tally=self._tally,
        )

    def counts(self) -> dict[str, int]:
        """Return what went over the network, and what the cache saved, since this was made.

        Returns:
            Counts by name, as `LoaderStats` has them.
        """
        cache = {f"cache_{name}": count for name, count in asdict(self._tally.counts()).items()}
        network = asdict(self._link.counts())
        network["network_bytes"] = network.pop("bytes")
        return network | cache

    def key(self, name: str) -> str:
        """Return a text that tells a file from all others, without secrets."""
        return self._address.child(name).key(self.options.endpoint)

    def __repr__(self) -> str:
        return f"<Remote {self.shown} {self._link!r}>"

    def _one_attempt(self) -> Storage:
        # imported here: who reads from a disk should not pay half a second for clients of networks
        if self._address.is_web:
            from .http import HttpStorage

            return HttpStorage(self._address, self.options, self.pins)
        from .cloud import CloudStorage

        return CloudStorage(self._address, self.options, self.pins)


def _folder(cache_dir: str | os.PathLike[str] | bool | None) -> Path | None:
    """Return where a cache is to be, the same also should the working directory change."""
    if not cache_dir:
        return None
    if cache_dir is True:
        return default_cache_folder()
    try:
        return Path(cache_dir).expanduser().absolute()
    except TypeError as error:
        raise ConfigError(f"cache_dir must be a folder, True or None, got {cache_dir!r}") from error
    except RuntimeError as error:
        raise ConfigError(f"cache_dir names the home of a user who has none: {cache_dir}") from error
