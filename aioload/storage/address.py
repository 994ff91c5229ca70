"""Addresses of network storage: taken apart once, and shown without what is secret in them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import unquote, urlsplit

from ..errors import ConfigError

__all__ = ["SCHEMES", "Address"]

SCHEMES = ("s3", "gs", "az", "http", "https")
"""Schemes of addresses."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a folder or file lies in the network."""

    scheme: str
    """One of `SCHEMES`."""

    host: str
    """The bucket, or host and port."""

    path: str
    """Without a slash at its beginning or end."""

    query: str = field(default="", repr=False)
    """What follows a question mark; it may hold a signature."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Take an address apart.

        Raises:
            ConfigError: it is none of a kind that is known.
        """
        scheme, mark, rest = url.partition("://")
        if not mark or scheme.lower() not in SCHEMES:
            raise ConfigError(
                f"an address begins with one of {', '.join(SCHEMES)}, got scheme {scheme[:20]!r}"
            )
        if scheme.lower() in ("s3", "gs", "az"):
            host, _, path = rest.partition("/")
            query = ""
        else:
            parts = urlsplit(url)
            host, path, query = parts.netloc.rpartition("@")[2], unquote(parts.path), parts.query
        if not host:
            raise ConfigError(f"the address {scheme}://… names no bucket or host")
        return cls(scheme.lower(), host, path.strip("/"), query)

    @property
    def shown(self) -> str:
        """The address for messages: no query, no user, no password."""
        return f"{self.scheme}://{self.host}/{self.path}".rstrip("/")

    def child(self, name: str) -> Address:
        """Return the address of a file in this folder."""
        return replace(self, path=f"{self.path}/{name}".strip("/"))

    def key(self) -> str:
        """Return a text that tells this address from others, without secrets."""
        return self.shown
