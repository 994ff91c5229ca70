"""Options of network storage, as users write them in `storage_options`, checked; shown without secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import ConfigError
from ..machine import parse_bytes
from .address import Address

__all__ = ["NetworkOptions"]

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_MOST_SECONDS = 1e9  # thirty years; clients of networks cannot count much further
_OURS = frozenset(
    {"accept-encoding", "connection", "content-length", "host", "if-match", "if-none-match", "if-range"}
    | {"if-modified-since", "if-unmodified-since", "range", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers that decide which bytes come, or how; a user's would break the reading."""


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How network storage is spoken to."""

    endpoint: str | None = field(default=None, repr=False)
    """Where the storage answers, in place of its usual address; not shown, as it may hold a password."""
    region: str | None = None
    """Of a bucket."""
    access_key_id: str | None = field(default=None, repr=False)
    """The key's name, or the account's."""
    secret_access_key: str | None = field(default=None, repr=False)
    """The key itself."""
    anonymous: bool = False
    """Whether to ask without a signature."""
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    """Sent with each request of http(s), to the address that was given and to no other place."""
    connect_timeout: float = 5.0
    """Seconds until a connection stands: name, socket and encryption."""
    read_timeout: float = 10.0
    """Seconds to the first byte, and between parts of a body."""
    deadline: float = 120.0
    """Seconds for one read with all its attempts."""
    attempts: int = 6
    """How often a read is tried."""
    hedge: bool = True
    """Whether late reads are asked again."""
    max_in_flight: int | None = None
    """Bytes asked for at once; by default they follow what the link gives."""

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None) -> NetworkOptions:
        """Take options from a mapping; None is the default of each.

        Raises:
            ConfigError: one is unknown, or has a value that cannot be.
        """
        known = [each.name for each in fields(cls)]
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"storage_options must be a dict of options by name; {_these(known)}")
        unknown = sorted(str(name)[:40] for name in set(given or {}) - set(known))
        if unknown:
            raise ConfigError(f"unknown storage options {', '.join(unknown)}; {_these(known)}")
        return cls(
            **{name: _CHECKS[name](name, value) for name, value in (given or {}).items() if value is not None}
        )


def _these(known: list[str]) -> str:
    return f"known are {', '.join(known)}"


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ConfigError(f"the storage option {name} must be a text")  # the value may be a secret
    return value


def _endpoint(name: str, value: Any) -> str:
    """Check where a storage answers: what obstore cannot parse would end in a panic of its threads."""
    try:
        address = Address.parse(_text(name, value))
    except ConfigError:
        address = None
    if address is None or not address.is_web or address.query:
        raise ConfigError(
            f"the storage option {name} must be an address of http or https, without a query, such as "
            "https://storage.example.org:9000"
        )
    return str(value)


def _region(name: str, value: Any) -> str:
    if not re.fullmatch(r"[\w-]+", _text(name, value), re.ASCII):
        raise ConfigError(f"the storage option {name} must be the name of a region, such as us-east-1")
    return str(value)


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"the storage option {name} must be True or False, got {value!r}")
    return value


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST_SECONDS:
        raise ConfigError(
            f"the storage option {name} must be a positive number of seconds, got {value!r:.40}"
        )
    return float(value)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"the storage option {name} must be a whole number of at least 1, got {value!r}")
    return value


def _size(name: str, value: Any) -> int:
    return parse_bytes(value, name=f"the storage option {name}")


def _headers(name: str, value: Any) -> dict[str, str]:
    """Check headers; messages name them, and never what they hold."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"the storage option {name} must be a dict of texts by name")
    for each, content in value.items():
        if not isinstance(each, str) or not _TOKEN.fullmatch(each):
            raise ConfigError(f"the storage option {name} has a name that no header can have")
        if each.lower() in _OURS:
            raise ConfigError(f"the header {each} is set by the reading itself; leave it out of {name}")
        if not isinstance(content, str) or not _VALUE.fullmatch(content):
            raise ConfigError(f"the header {each} of {name} must be a text of one line, in Latin-1")
    if len({each.lower() for each in value}) < len(value):
        raise ConfigError(f"the storage option {name} holds one header twice, in different letters")
    return dict(value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "endpoint": _endpoint,
    "region": _region,
    "access_key_id": _text,
    "secret_access_key": _text,
    "anonymous": _truth,
    "headers": _headers,
    "connect_timeout": _seconds,
    "read_timeout": _seconds,
    "deadline": _seconds,
    "attempts": _count,
    "hedge": _truth,
    "max_in_flight": _size,
}
