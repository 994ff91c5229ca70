"""Addresses of network storage: taken apart once, and shown without what is secret in them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlencode, urlsplit

from ..errors import ConfigError

__all__ = ["SCHEMES", "Address"]

SCHEMES = ("s3", "gs", "az", "http", "https")
"""Schemes of addresses."""

_WEB = ("http", "https")
_INSTEAD = {
    "file": "give the path alone, without file://",
    "gcs": "write gs://",
    **dict.fromkeys(("s3a", "s3n"), "write s3://"),
    **dict.fromkeys(("abfs", "abfss", "adl", "azure", "wasb", "wasbs"), "write az://container/…"),
    "hf": "write https://huggingface.co/datasets/…/resolve/main/…",
}
"""What to write for schemes that other programs know."""
_ESCAPED = re.compile(r"%(?![0-9A-Fa-f]{2})|[^!$&'()*+,\-./0-9:;=@A-Z_a-z~%]")
_BUCKET = re.compile(r"[\w$][\w.$-]*", re.ASCII)
_ESCAPED_QUERY = re.compile(r"%(?![0-9A-Fa-f]{2})|[^!$&'()*+,\-./0-9:;=?@A-Z_a-z~%]")
_USUAL_PORTS = {"http": ":80", "https": ":443"}
_SIGNING = re.compile(
    r"x-(?:amz|goog|oss|cos|obs|bce)-.*|.*(?:token|signature).*|awsaccesskeyid|googleaccessid|ossaccesskeyid"
    r"|expires|policy|key-pair-id|sig",
    re.IGNORECASE,
)
"""Names in a query that sign, and so differ between two addresses of the same file."""

_SIGNING_BESIDE_SIG = frozenset(
    {"se", "sp", "spr", "sr", "st", "sv", "sip", "ske", "sks", "skt", "skv", "skoid", "sktid", "sdd"}
    | {"saoid", "suoid", "scid"}
)
"""Such names that are too short to be known for that where no `sig` is with them."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a folder or file lies in the network."""

    scheme: str
    """One of `SCHEMES`."""

    host: str
    """The bucket; or host and port, without the port that is usual."""

    path: str
    """Without a slash at its beginning or end; of http(s) as it goes into a request, percent-encoded."""

    query: str = field(default="", repr=False)
    """What follows a question mark; it may hold a signature."""

    userinfo: str = field(default="", repr=False)
    """User and password of http(s), as they stood before the host."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Take an address apart.

        Raises:
            ConfigError: it is none of a kind that is known; the message quotes nothing of it that could be
                secret.
        """
        scheme, mark, rest = url.partition("://")
        scheme = scheme.lower()
        if not mark or scheme not in SCHEMES:
            found = f"scheme {scheme[:20]!r}" if mark else "a text without one"
            hint = f"; {_INSTEAD[scheme]}" if scheme in _INSTEAD else ""
            raise ConfigError(f"an address begins with one of {', '.join(SCHEMES)}, got {found}{hint}")
        return _web(scheme, url) if scheme in _WEB else _bucket(scheme, rest)

    @property
    def is_web(self) -> bool:
        """Whether it is of http or https."""
        return self.scheme in _WEB

    @property
    def shown(self) -> str:
        """The address for messages: no query, no user, no password."""
        return f"{self.scheme}://{self.host}/{self.path}".rstrip("/")

    @property
    def url(self) -> str:
        """The address for a request: with the query, without user and password."""
        return f"{self.scheme}://{self.host}/{self.path}{'?' if self.query else ''}{self.query}"

    @property
    def credentials(self) -> tuple[bytes, bytes] | None:
        """User and password, decoded; None where the address has none."""
        if not self.userinfo:
            return None
        user, _, password = self.userinfo.partition(":")
        return unquote_to_bytes(user), unquote_to_bytes(password)

    def child(self, name: str) -> Address:
        """Return the address of a file in this folder; a query stays, as it may sign for all of them."""
        inner = quote(name, safe="/") if self.is_web else name
        return replace(self, path=f"{self.path}/{inner}".strip("/"))

    def key(self, endpoint: str | None = None) -> str:
        """Return a text that tells this address from others, without secrets.

        Two addresses of the same files give the same text, also where they are signed anew. What else stands
        in the query is told by a sum.

        Args:
            endpoint: where buckets are, if not at the usual place.
        """
        place = f"{_place_of(endpoint)}!" if endpoint else ""
        pairs = parse_qsl(self.query, keep_blank_values=True)
        beside = _SIGNING_BESIDE_SIG if any(name == "sig" for name, _ in pairs) else ()
        telling = sorted(pair for pair in pairs if not _SIGNING.fullmatch(pair[0]) and pair[0] not in beside)
        if not telling:
            return place + self.shown
        digest = hashlib.sha256(urlencode(telling).encode()).hexdigest()[:16]
        return f"{place}{self.shown}?{digest}"


def _bucket(scheme: str, rest: str) -> Address:
    bucket, _, path = rest.partition("/")
    if not bucket:
        raise ConfigError(f"the address {scheme}://… names no bucket")
    if re.search(r"\?\w+=", rest):
        raise ConfigError(
            f"the address {scheme}://… has a query, which buckets do not take; keys and signatures go into "
            "storage_options or the environment"
        )
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(
            f"the address {scheme}://… does not begin with the name of a bucket; keys go into "
            "storage_options, not into the address"
        )
    if "//" in f"/{path.rstrip('/')}":
        raise ConfigError(
            f"the address {scheme}://{bucket}/… has two slashes side by side: take one out; if names in the "
            "bucket are such, copy the files to others"
        )
    return Address(scheme, bucket, path.strip("/"))


def _web(scheme: str, url: str) -> Address:
    try:
        parts = urlsplit(url)
        port = parts.port
        name = (parts.hostname or "").encode("idna").decode() if parts.hostname else ""
    except ValueError:
        # from None: the cause's text may quote the password
        raise ConfigError(f"the address {scheme}://… has a host or port that cannot be") from None
    if not name or not re.fullmatch(r"[\w.~:%-]+", name, re.ASCII):
        raise ConfigError(f"the address {scheme}://… names no host, or one that cannot be")
    host = f"[{name}]" if ":" in name else name
    if port is not None and f":{port}" != _USUAL_PORTS[scheme]:
        host += f":{port}"
    userinfo, _, _ = parts.netloc.rpartition("@")
    path = _ESCAPED.sub(_escape, parts.path).strip("/")
    return Address(scheme, host, path, _ESCAPED_QUERY.sub(_escape, parts.query), userinfo)


def _escape(match: re.Match[str]) -> str:
    return quote(match[0], safe="")


def _place_of(endpoint: str) -> str:
    """Return host and port of an endpoint, and its path, without user and password."""
    parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
    return f"{parts.netloc.rpartition('@')[2].lower()}{parts.path.rstrip('/')}"
