"""Options of network storage, as users write them in `storage_options`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import ConfigError

__all__ = ["NetworkOptions"]


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How network storage is spoken to."""

    endpoint: str | None = None
    """Where the storage answers, in place of its usual address."""
    region: str | None = None
    """Of a bucket."""
    access_key_id: str | None = field(default=None, repr=False)
    """The key's name, or the account's."""
    secret_access_key: str | None = field(default=None, repr=False)
    """The key itself."""
    anonymous: bool = False
    """Whether to ask without a signature."""
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    """Sent with each request of http(s)."""
    connect_timeout: float = 5.0
    """Seconds."""
    read_timeout: float = 10.0
    """Seconds to the first byte, and between parts of a body."""
    deadline: float = 120.0
    """Seconds for one read with all its attempts."""
    attempts: int = 6
    """How often a read is tried."""
    hedge: bool = True
    """Whether late reads are asked again."""
    max_in_flight: int | None = None
    """Bytes asked for at once."""

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None) -> NetworkOptions:
        """Take options from a mapping.

        Raises:
            ConfigError: one is unknown.
        """
        known = [each.name for each in fields(cls)]
        unknown = sorted(set(given or {}) - set(known))
        if unknown:
            raise ConfigError(f"unknown storage options {', '.join(unknown)}; known are {', '.join(known)}")
        return cls(**dict(given or {}))
