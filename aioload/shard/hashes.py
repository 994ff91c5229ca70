"""Sums of whole files, by whatever algorithm an index names."""

from __future__ import annotations

import hashlib
import importlib
import logging
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Protocol

from ..errors import ShardError
from .format import crc32c

__all__ = ["Digest", "Sums", "check_hashes", "known_hashes"]

_log = logging.getLogger("aioload.shard")


class Digest(Protocol):
    """A sum in the making, as `hashlib` has them."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes."""

    def hexdigest(self) -> str:
        """Return the sum so far."""


def known_hashes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the algorithms among these that can be computed here; of the others the log tells once each."""
    return tuple(name for name in names if _is_known(name))


class Sums:
    """Adds up the bytes of one file, and compares.

    Args:
        name: of the file, for the error.
        hashes: hexadecimal sums by algorithm; those that cannot be computed here are not checked.
    """

    def __init__(self, name: str, hashes: Mapping[str, str]) -> None:
        self._name = name
        self._digests = {algorithm: _new(algorithm) for algorithm in known_hashes(hashes)}
        self._hashes = hashes

    def __bool__(self) -> bool:
        """Whether anything is compared."""
        return bool(self._digests)

    def add(self, data: bytes | memoryview) -> None:
        """Add the next bytes."""
        for digest in self._digests.values():
            digest.update(data)

    def check(self) -> None:
        """Compare, when all bytes have been added.

        Raises:
            ShardError: a sum is another; `.category` is "checksum".
        """
        for algorithm, digest in self._digests.items():
            if digest.hexdigest() != self._hashes[algorithm].lower():
                raise ShardError(
                    f"{self._name} failed its checksum: its {algorithm} is {digest.hexdigest()}, and its "
                    f"index says {self._hashes[algorithm][:80]!r}; copy the file again",
                    shard=self._name,
                    category="checksum",
                    algorithm=algorithm,
                )


class _Crc32c:
    """The sum of our own format, with the face of the others."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes."""
        self._value = crc32c(data, value=self._value)

    def hexdigest(self) -> str:
        """Return the sum so far."""
        return f"{self._value:08x}"


def check_hashes(name: str, data: bytes | memoryview, hashes: Mapping[str, str]) -> tuple[str, ...]:
    """Compare all bytes of a file with its sums.

    Args:
        name: of the file, for the error.
        data: all of it.
        hashes: hexadecimal sums by algorithm.

    Returns:
        The algorithms that were checked; those that are unknown here are not.

    Raises:
        ShardError: a sum is another; `.category` is "checksum".
    """
    sums = Sums(name, hashes)
    sums.add(data)
    sums.check()
    return known_hashes(hashes)


@cache
def _is_known(name: str) -> bool:
    try:
        _new(name).hexdigest()  # which some want to be told the length of, whatever they are called
    except (ValueError, TypeError, AttributeError, ImportError):
        package = " (the package xxhash knows it)" if name.startswith("xxh") else ""
        _log.warning("sums of the kind %.40r are not checked: it is unknown here%s", name, package)
        return False
    return True


def _new(name: str) -> Digest:
    """Begin a sum."""
    if name == "crc32c":
        return _Crc32c()
    if name.startswith("xxh"):
        package = importlib.import_module("xxhash")
        if name not in package.algorithms_available:
            raise ValueError(name)
        digest: Digest = getattr(package, name)()
        return digest
    return hashlib.new(name, usedforsecurity=False)
