"""Tracing: which traces run, and which loaders tell them what they do.

Without a trace each place that could tell something finds None and does nothing. With one it finds a teller,
and the trace's recorder keeps what is told and writes the file that Perfetto and chrome://tracing show.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from .recorder import MAX_EVENTS, Recorder
from .teller import Teller

__all__ = ["MAX_EVENTS", "Recorder", "Teller", "Traced", "trace", "traced"]


class Traced(Protocol):
    """Whatever parts of a loader look at to see whether they are to tell what they do."""

    trace: Teller | None


@contextmanager
def trace(path: str | os.PathLike[str], *, max_events: int = MAX_EVENTS) -> Iterator[None]:
    """Write down what all loaders of this process do inside of the block, for Perfetto or chrome://tracing.

    The file is written at the end of the block, however that is left, and appears whole or not at all. It has
    a lane for each stage, worker, copy thread and device, and an arrow for each batch from its read to the
    moment in which it was taken. Loaders may have been made before or in the block. What lies beyond
    `max_events` is not kept; the file and a warning say so.

    Args:
        path: of the file; compressed if it ends in ".gz".
        max_events: how many events it may have: 15 for each batch, and more where jobs or reads are several.

    Raises:
        ConfigError: there cannot be such a file, or it would have no event.
    """
    recorder = Recorder(path, max_events)
    _tellers.begin(recorder)
    try:
        yield
    finally:
        _tellers.end(recorder)
        recorder.finish()


def traced(loader: Traced, name: str, own: Recorder | None = None) -> None:
    """Have a loader's parts tell what they do, to traces that run and to those that begin later.

    Args:
        loader: where its parts look.
        name: of the loader.
        own: a recorder for this loader alone.
    """
    _tellers.add(loader, name, own)


class _Tellers:
    """The loaders that can be traced, and the traces of all loaders that run."""

    def __init__(self) -> None:
        # again by the same thread, which may be ended anywhere by a signal's handler
        self._lock = threading.RLock()
        self._names: weakref.WeakKeyDictionary[Traced, str] = weakref.WeakKeyDictionary()
        self._running: list[Recorder] = []

    def loaders(self) -> list[Traced]:
        """Return all that can be traced; without the lock, which may be held for ever."""
        return list(self._names)

    def add(self, loader: Traced, name: str, own: Recorder | None) -> None:
        with self._lock:
            self._names[loader] = name
            recorders = self._running if own is None else [own, *self._running]
            _tell_to(loader, [(recorder, recorder.enter(name)) for recorder in recorders])

    def begin(self, recorder: Recorder) -> None:
        with self._lock:
            self._running.append(recorder)
            for loader, name in list(self._names.items()):
                _tell_to(loader, [*_sinks(loader), (recorder, recorder.enter(name))])

    def end(self, recorder: Recorder) -> None:
        with self._lock:
            if recorder not in self._running:
                return  # this is a fork of the process in which it began
            self._running.remove(recorder)
            for loader in list(self._names):
                _tell_to(loader, [sink for sink in _sinks(loader) if sink[0] is not recorder])


def _sinks(loader: Traced) -> tuple[tuple[Recorder, int], ...]:
    return () if loader.trace is None else loader.trace.sinks


def _tell_to(loader: Traced, sinks: Sequence[tuple[Recorder, int]]) -> None:
    loader.trace = Teller(sinks) if sinks else None


_tellers = _Tellers()  # loaders that run when a trace begins are known to nobody else


def _forget() -> None:
    """Trace nothing in a copy of this process: the file is the parent's, and the lock may stay held."""
    global _tellers
    for loader in _tellers.loaders():
        loader.trace = None
    _tellers = _Tellers()


os.register_at_fork(after_in_child=_forget)
