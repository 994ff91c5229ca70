"""Moves: where redirects have led of late, so that not every read asks the way; pure.

A place that is signed expires, and a server may send each who asks elsewhere. So a way is remembered for a
short while only, not at all where a server says so, and is forgotten when what it leads to answers badly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from yarl import URL

__all__ = ["STALE", "Hop", "Moves", "may_be_kept"]

STALE = frozenset({400, 401, 403, 404, 410})
"""What an address that has expired answers; some servers say that it is a bad one."""

_UNKEPT = frozenset({"no-store", "no-cache", "max-age=0"})
_SECONDS = 60.0
_MOST = 4096


@dataclass(frozen=True, slots=True)
class Hop:
    """Where to ask, and with what."""

    url: URL
    trusted: bool = True
    """Whether credentials and the user's headers go there: it is of the origin they were given for."""

    def to(self, url: URL) -> Hop:
        """Return the next one; what has once gone elsewhere is not trusted again."""
        return Hop(url, self.trusted and url.origin() == self.url.origin())


class Moves:
    """Remembers the last hop of each file.

    Args:
        clock: tells the time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[str, tuple[Hop, float]] = {}

    def get(self, name: str) -> Hop | None:
        """Return where a file was found last, if that is not long ago."""
        hop, until = self._found.get(name, (None, 0.0))
        return hop if self._clock() < until else None

    def keep(self, name: str, hop: Hop) -> None:
        """Remember where a file was found."""
        if len(self._found) >= _MOST:
            self._found.clear()
        self._found[name] = hop, self._clock() + _SECONDS

    def forget(self, name: str) -> None:
        """Have the way asked for again."""
        self._found.pop(name, None)


def may_be_kept(headers: Mapping[str, str]) -> bool:
    """Tell whether a redirect with such headers, to be asked by any case, may be remembered."""
    said = {part.strip().lower() for part in headers.get("Cache-Control", "").split(",")}
    return said.isdisjoint(_UNKEPT)
