"""Recorder: keeps what is told of loaders, and writes it into the file of a trace.

The first events are kept, up to a limit, and not the last: a trace that is full then costs nothing more, and
a later stretch of a run is looked at by a `with aioload.trace(...)` around just that stretch.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from .errors import ConfigError
from .lifetime import Origin
from .target import find_target
from .timeline import Entry, events

__all__ = ["MAX_EVENTS", "Recorder"]

_log = logging.getLogger("aioload.trace")

MAX_EVENTS = 100_000
"""Kept by default: some 10 MB of JSON, a second to write at most, and a few thousand batches."""


class Recorder:
    """Keeps what is told, and writes it into a file at the end.

    Args:
        path: of the file; compressed if it ends in ".gz".
        max_events: how many events the file may have, without those that name things.

    Raises:
        ConfigError: there cannot be such a file, or it would have no event.
    """

    def __init__(self, path: str | os.PathLike[str], max_events: int = MAX_EVENTS) -> None:
        self._path = find_target(path, "the trace")
        self._left = self._most = _checked_count(max_events)
        self._lost = 0
        self._entries: list[tuple[int, Entry]] = []
        self._loaders: list[str] = []
        self._start, self._wall = time.perf_counter(), time.time()
        self._origin = Origin()
        self._over = False
        # again by the same thread: a loader may be collected, which ends its trace, wherever objects are made
        self._lock = threading.RLock()

    def enter(self, name: str) -> int:
        """Return the number of a loader that will be told of."""
        with self._lock:
            self._loaders.append(name)
            return len(self._loaders) - 1

    def add(self, loader: int, entry: Entry) -> None:
        """Keep an entry, if there is room."""
        with self._lock:
            if self._over:
                return
            weight = entry.weight
            if self._lost or weight > self._left:
                first, self._lost = not self._lost, self._lost + weight
            else:
                self._left -= weight
                self._entries.append((loader, entry))
                return
        if first:
            _log.warning(
                "the trace %s is full: it keeps its first %d events and nothing of what follows; put "
                "aioload.trace() around the stretch that matters, or raise its max_events",
                self._path,
                self._most - self._left,
            )

    def finish(self) -> None:
        """Write the file; twice is free, and what fails here is logged: no run should end for it."""
        if self._origin.is_left:
            return  # of a fork: the file is the parent's, and the lock may be held for ever
        with self._lock:
            over, self._over = self._over, True
            entries, self._entries = self._entries, []
        if over:
            return
        try:
            _write(self._path, events(entries, self._loaders, self._start), self._facts())
        except OSError as error:
            _log.warning("the trace %s could not be written: %s", self._path, error)

    def _facts(self) -> dict[str, Any]:
        """Return what the file says of itself."""
        return {
            "writer": "aioload",
            "process": os.getpid(),
            "began": self._wall,
            "seconds": time.perf_counter() - self._start,
            "max_events": self._most,
            "events_kept": self._most - self._left,
            "events_lost": self._lost,
        }


def _write(path: Path, found: Iterator[dict[str, Any]], facts: Mapping[str, Any]) -> None:
    """Write a trace beside its place and put it there: it appears whole or not at all."""
    part = path.with_name(f".trace-{os.getpid()}-{threading.get_ident()}.part")  # no longer than other names
    try:
        with _opened(part, packed=path.suffix == ".gz") as file:
            head = json.dumps({"displayTimeUnit": "ms", "otherData": facts}, allow_nan=False)
            file.write(head[:-1] + ', "traceEvents": [\n')
            between = ""
            for event in found:
                file.write(between + _dumped(event))
                between = ",\n"
            file.write("\n]}\n")
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


_dumped: Callable[[Any], str] = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def _opened(path: Path, *, packed: bool) -> IO[str]:
    if packed:
        return gzip.open(path, "wt", compresslevel=5, encoding="utf-8")  # 6 takes half as long again
    return path.open("w", encoding="utf-8")


def _checked_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"max_events must be a whole number of at least 1, got {value!r}")
    return value
