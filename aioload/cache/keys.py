"""Keys: under which name samples of a set are kept, so that no other code and no other set reads them."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib import metadata
from typing import Any

from .._version import __version__
from ..errors import ConfigError
from ..identity import Identity, identity

__all__ = ["Key", "key_of"]

_FORMAT = 2  # of packed samples: another reads none of these
_PACKAGES = ("numpy", "pillow", "opencv-python-headless", "simplejpeg", "soundfile")  # what decoders call


@dataclass(frozen=True, slots=True)
class Key:
    """A name for what samples are made of."""

    digest: str
    """32 hexadecimal digits."""
    about: Mapping[str, Any]
    """What it was made of, for people."""
    doubts: tuple[str, ...] = ()
    """Why it may not change when the code does; none where a version stands for the code."""
    is_found_again: bool = True
    """Whether another run, or another rank, has the same."""

    def __str__(self) -> str:
        parts = [f"set {self.about['set'][:8]}", *self.about["decoders"].values()]
        if self.about["prepare"]:
            parts.append(f"prepare {self.about['prepare']}")
        if self.about["version"]:
            parts.append(f"version {self.about['version']!r}")
        return f"{self.digest[:8]} ({', '.join(parts)})"


def key_of(
    content: str | None,
    source: int | None,
    decoders: Sequence[tuple[str, Any]],
    prepare: Any,
    version: str | None,
) -> Key:
    """Return the key of a set's samples.

    Args:
        content: names the set; None: nothing tells it from others.
        source: its number, where samples know it.
        decoders: by field.
        prepare: the user's function, if there is one.
        version: stands for the user's code.
    """
    by_field = {field: identity(decode) for field, decode in decoders}
    named = None if prepare is None else identity(prepare)
    known = [*by_field.values()] if named is None else [*by_field.values(), named]
    about = {
        "format": _FORMAT,
        "set": content or f"unnamed-{secrets.token_hex(8)}",
        "source": source,
        "decoders": {field: _told(found, version) for field, found in by_field.items()},
        "prepare": None if named is None else _told(named, version),
        "version": version,
        "aioload": __version__,
        "packages": _versions(),
        "byteorder": sys.byteorder,
    }
    code = [version] if version is not None else [found.digest for found in known]
    # with a version, the names alone
    facts = (about, [] if version is None else [found.text for found in known], code)
    digest = blake2b(repr(facts).encode(), digest_size=16).hexdigest()
    doubts = () if version is not None else tuple(doubt for found in known for doubt in found.doubts)
    return Key(digest, about, doubts, content is not None)


def check_certain(keys: Sequence[Key]) -> None:
    """Refuse to keep what might be read by other code.

    Raises:
        ConfigError: it cannot be told whether code has changed.
    """
    doubts = [doubt for key in keys for doubt in key.doubts]
    if doubts:
        raise ConfigError(
            f"cache=Disk(…) must know when prepare or a decoder changes, and cannot tell: {doubts[0]}; pass "
            "version=… and change it with the code"
        )


def _told(found: Identity, version: str | None) -> str:
    return found.text if version is not None else str(found)


def _versions() -> dict[str, str]:
    """Return the versions of the packages that decoders call, as far as they are installed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
