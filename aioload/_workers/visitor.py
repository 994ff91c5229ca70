"""Visitor: what is done with a parcel in a process, or thread, of somebody else's.

The process keeps what it has been sent once, recipes and open storages, for as long as it is asked for; all
else comes and goes with a job. It may do several jobs at once, in threads. Where user code has the global
generators set for each record, these take turns: the generators are the process's.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from .._version import __version__
from .failures import describe, message_of, shortened
from .files import Unmapped
from .jobs import TABLE, Answer, Decode, Job, Outcome
from .parcel import Blob, Kit, Parcel, Reply
from .space import Span
from .task import Worker

if TYPE_CHECKING:
    from .jobs import Recipe
    from .reach import Reach

__all__ = ["greet", "visit"]

_MOST_KITS = 8  # loaders that a process works for at a time


def greet() -> None:
    """Do nothing, where jobs will be done: what a worker imports for one is there when the first comes."""


def visit(parcel: Parcel) -> Reply:
    """Do a job."""
    who = f"{socket.gethostname()}:{os.getpid()}"
    try:
        own = _unpacked(parcel)
    except BaseException as error:  # what user code raises while it is loaded may not be had elsewhere
        trouble = f"{type(error).__name__}: {message_of(error)}"
        return Reply(who, trouble=trouble, trace=shortened(traceback.format_exc()))
    if own is None:
        return Reply(who)
    began = time.perf_counter()
    try:
        guest = _Guest(parcel, own)
    except Unmapped as error:
        outcomes = _unread(parcel.job, error)
        return Reply(who, Answer(outcomes), parts=((Blob(b""), Blob(b"")),) * len(outcomes))
    recipe = own.recipe
    with _turns if recipe.seeds else nullcontext():
        answer = guest.run(parcel.job)
    answer = replace(answer, work_seconds=time.perf_counter() - began)
    return Reply(who, answer, parts=tuple(guest.made(answer)))


@dataclass(frozen=True, slots=True)
class _Own:
    """A kit as it is used."""

    recipe: Recipe
    reach: Reach | None


class _Guest(Worker):
    """A worker over the bytes of one parcel.

    Raises:
        Unmapped: its records cannot be read from here.
    """

    def __init__(self, parcel: Parcel, own: _Own) -> None:
        self._job = parcel.job
        self._entries = parcel.table.array.view(TABLE)
        self._base = parcel.base
        self._inputs = parcel.inputs.array
        if self._inputs.ctypes.data % 16:  # as it came over a network: arrays in it are looked at as they lie
            self._inputs = self._inputs.copy()
        records = parcel.records.array
        if own.reach is not None and isinstance(parcel.job, Decode) and self._entries["mapped"].any():
            records, self._entries = own.reach.fetch(self._entries)
        # zeros: what lies between arrays is sent too, and is nobody's business
        super().__init__(np.zeros(parcel.size, np.uint8), own.recipe)
        self._records = records

    def made(self, answer: Answer) -> list[tuple[Blob, Blob]]:
        """Return the bytes of each outcome."""
        if not isinstance(self._job, Decode):
            (outcome,) = answer.outcomes
            return [(Blob(b""), self._blob(self._job.place, outcome.used))]
        parts = []
        for segment, outcome in zip(self._job.segments, answer.outcomes, strict=True):
            rows = Blob(b"")
            if segment.batch is not None and not (outcome.failure or outcome.misfit or outcome.need):
                rows = self._blob(segment.batch, len(segment.batch))
            parts.append((rows, self._blob(segment.place, outcome.used)))
        return parts

    def _blob(self, span: Span, used: int) -> Blob:
        return Blob(self._place(span)[:used])

    def _place(self, span: Span) -> NDArray[np.uint8]:
        if span.start < self._base:
            return self._inputs[span.start : span.stop]
        return self._array[span.start - self._base : span.stop - self._base]

    def _table(self, span: Span) -> NDArray[Any]:
        return self._entries


class _Kits:
    """The kits of this process: what it must keep between jobs, so module state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: OrderedDict[bytes, _Own] = OrderedDict()

    def get(self, key: bytes) -> _Own | None:
        """Return a kit that was loaded before."""
        with self._lock:
            if key in self._own:
                self._own.move_to_end(key)
            return self._own.get(key)

    def load(self, kit: Kit) -> _Own:
        """Return a kit that has come, loaded."""
        with self._lock:
            own = self._own.get(kit.key)
            if own is None:
                reach = cloudpickle.loads(kit.reach) if kit.reach else None
                own = self._own[kit.key] = _Own(cloudpickle.loads(kit.recipe), reach)
                if len(self._own) > _MOST_KITS:
                    _, old = self._own.popitem(last=False)
                    if old.reach is not None:
                        old.reach.close()
            return own


_kits = _Kits()
_turns = threading.Lock()  # for the global generators, which are the process's as well


def _unpacked(parcel: Parcel) -> _Own | None:
    """Return the kit of a parcel; None if it is lacking."""
    own = _kits.get(parcel.key)
    if own is not None or parcel.kit is None:
        return own
    if parcel.kit.version != __version__:
        raise RuntimeError(f"it has aioload {__version__}, and the loader {parcel.kit.version}")
    return _kits.load(parcel.kit)


def _unread(job: Job, error: Unmapped) -> tuple[Outcome, ...]:
    """Return the outcomes of a job whose records cannot be read: the loader reads them itself."""
    failure = describe(error, None, None, None, None)
    return (Outcome(failure=failure),) * (len(job.segments) if isinstance(job, Decode) else 1)
