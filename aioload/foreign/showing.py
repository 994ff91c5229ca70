"""Showing: how far an index is that is made on first use: a line on stderr where that is a terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from ..screens import is_terminal
from ..words import byte_rate, clock, share, size
from .build import Progress

__all__ = ["first_bar"]

_log = logging.getLogger("aioload.index")

_QUIET_SECONDS = 1.0  # what is done by then needs no line
_REFRESH_SECONDS = 0.2
_CLEAR = "\r\x1b[K"


@contextmanager
def first_bar(what: str, total: int) -> Iterator[Progress]:
    """Show how far a work of so many bytes is, once it takes a while; the log has its beginning and end."""
    _log.info("%s: %s", what, size(total))
    began = time.monotonic()
    line = _Line(what, total, began, sys.stderr if is_terminal(sys.stderr) else None)
    try:
        yield line.advance
    finally:
        line.clear()
    _log.info("%s: done in %.1f s", what, time.monotonic() - began)


class _Line:
    """A line that is written over and over.

    Args:
        what: is being done.
        total: bytes of it.
        began: when, of the monotonic clock.
        stream: a terminal; None: nothing is shown.
    """

    def __init__(self, what: str, total: int, began: float, stream: TextIO | None) -> None:
        self._what = what
        self._total = max(total, 1)
        self._began = began
        self._stream = stream
        self._done = 0
        self._due = began + _QUIET_SECONDS
        self._is_shown = False

    def advance(self, num_bytes: int) -> None:
        """Count, and show it now and then."""
        self._done += num_bytes
        now = time.monotonic()
        if self._stream is not None and now >= self._due:
            self._due = now + _REFRESH_SECONDS
            self._is_shown = True
            self._stream.write(f"{_CLEAR}{self._text(now - self._began)}")
            self._stream.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._is_shown and self._stream is not None:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def _text(self, seconds: float) -> str:
        done = min(self._done / self._total, 1.0)
        rate = self._done / seconds
        left = (self._total - self._done) / rate if rate and done < 1 else 0
        return f"{self._what}: {share(done)} of {size(self._total)}, {byte_rate(rate)}, {clock(left)} left"
