"""Tracing: writes down what loaders do, and when, as a file that Perfetto and chrome://tracing show.

Without a trace each place that could tell something finds None and does nothing. With one, what is recorded
are numbers and short texts, once for each read, run, job and batch, and never for a record.

The first events are kept, up to a limit, and not the last: a trace that is full then costs nothing more, and
a later stretch of a run is looked at by a `with aioload.trace(...)` around just that stretch.

All times are `time.perf_counter`'s. On Linux, macOS and Windows it counts from the machine's start, so that
workers have the same. Where they have not, a job seems to have been done when it cannot have been, and is put
at the end of the time in which it was away.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from .errors import ConfigError
from .lifetime import Origin
from .timeline import Batch, Entry, Level, Mark, Span, events

__all__ = ["MAX_EVENTS", "Recorder", "Teller", "Traced", "trace", "traced"]

_log = logging.getLogger("aioload.trace")

MAX_EVENTS = 100_000
"""Kept by default: some 10 MB of JSON, a second to write at most, and a few thousand batches."""

_SHORTEST = 1e-4  # seconds; a wait of the engine's below it is none that anybody would look for


class Traced(Protocol):
    """Whatever parts of a loader look at to see whether they are to tell what they do."""

    trace: Teller | None


class Recorder:
    """Keeps what is told, and writes it into a file at the end.

    Args:
        path: of the file; compressed if it ends in ".gz".
        max_events: how many events the file may have, without those that name things.

    Raises:
        ConfigError: there cannot be such a file.
    """

    def __init__(self, path: str | os.PathLike[str], max_events: int = MAX_EVENTS) -> None:
        self._path = _checked(path)
        self._left = self._most = max_events
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


class Teller:
    """Tells recorders what one loader does.

    Args:
        sinks: the recorders, each with the loader's number there.
    """

    # hot while a trace runs: once or twice for each read, job and batch; guarded by benchmarks/bench_trace.py

    def __init__(self, sinks: Sequence[tuple[Recorder, int]]) -> None:
        self.sinks = tuple(sinks)
        self._process = os.getpid()
        self._workers: dict[int, str] = {}
        self._left: tuple[Any, int, float] | None = None  # which batch was taken last, and when

    def read(self, shard: str, began: float, size: int, run: Batch) -> None:
        """Tell of a read that has just ended, and the pass and run whose records are in it."""
        self._tell(Span("read", shard, began, time.perf_counter(), {"bytes": size}, run=run))

    def planned(self, began: float, run: Batch, steps: range, records: int) -> None:
        """Tell of a run that has just been planned."""
        facts = {"pass": run[0], "run": run[1], "records": records}
        batches = tuple((run[0], step) for step in steps)
        self._tell(Span("order", _named(steps), began, time.perf_counter(), facts, batches, run=run))

    def held(self, began: float, why: str) -> None:
        """Tell what has held up planning until now."""
        now = time.perf_counter()
        if now - began > _SHORTEST:
            self._tell(Span("order", why, began, now))

    def started(self, process: int, began: float) -> None:
        """Tell of a worker that is up."""
        self._tell(Span(self._worker(process), "starts", began, time.perf_counter()))

    def job(
        self,
        what: str,
        batches: tuple[Batch, ...],
        asked: float,
        place: tuple[int, float, float],
        parts: tuple[tuple[str, float], ...],
    ) -> None:
        """Tell of a job that has come back.

        Args:
            what: it did, if it did not make them whole.
            batches: of which something was made.
            asked: when it was asked for.
            place: the process that did it, and from when to when.
            parts: what took how long there.
        """
        process, began, stopped = place
        now = time.perf_counter()
        if not asked <= began <= stopped <= now:  # another clock
            began, stopped = max(asked, now - (stopped - began)), now
        facts = {"waited_ms": round((began - asked) * 1e3, 3)}
        name = _named([step for _, step in batches])
        self._tell(
            Span(
                self._worker(process),
                f"{what} {name}" if what else name,
                began,
                stopped,
                facts,
                batches,
                parts,
            )
        )

    def died(self, how: str, batches: tuple[Batch, ...]) -> None:
        """Tell of a worker that died over a job."""
        steps = [step for _, step in batches]
        self._tell(Mark("worker", "a worker died", time.perf_counter(), {"how": how, "batches": steps}))

    def ready(self, began: float, batches: tuple[Batch, ...]) -> None:
        """Tell of batches that are about to be handed over."""
        name, now = _named([step for _, step in batches]), time.perf_counter()
        self._tell(Span("hand-over", name, began, now, batches=batches))

    def failed(self, name: str, step: int | None) -> None:
        """Tell of an error that the user meets."""
        self._tell(Mark("consumer", name, time.perf_counter(), {} if step is None else {"batch": step}))

    def waiting(self, count: int) -> None:
        """Tell how many batches wait at the hand-over."""
        self._tell(Level("batches ready", time.perf_counter(), count))

    def taken(self, arrived: float, batch: Batch | None, at: tuple[Any, int], rows: int) -> None:
        """Tell of a batch that the user has just got, and of what the user did before asking for it.

        Args:
            arrived: when it was asked for.
            batch: which one it is, if it is known from before.
            at: its epoch and step.
            rows: in it.
        """
        now, (epoch, step) = time.perf_counter(), at
        if self._left is not None and self._left[:2] == (epoch, step - 1):
            self._tell(Span("consumer", "your code", self._left[2], arrived))
        self._left = epoch, step, now
        facts = {"epoch": epoch, "rows": rows}
        batches = () if batch is None else (batch,)
        self._tell(Span("consumer", f"wait for batch {step}", arrived, now, facts, batches))

    def sent(self, began: float, batch: Batch | None, step: int, size: int) -> None:
        """Tell of a batch whose copies have just been asked for."""
        batches = () if batch is None else (batch,)
        now = time.perf_counter()
        self._tell(Span("copy thread", f"batch {step}", began, now, {"bytes": size}, batches))

    def copied(self, began: float, seconds: float, batch: Batch | None, step: int) -> None:
        """Tell of a batch that a device has copied."""
        batches = () if batch is None else (batch,)
        self._tell(Span("copy stream", f"batch {step}", began, began + seconds, batches=batches))

    def _worker(self, process: int) -> str:
        """Return the lane of a process that does jobs."""
        name = self._workers.get(process)
        if name is None:
            here = process == self._process
            name = "worker: this process" if here else f"worker process {process}"
            self._workers[process] = name
        return name

    def _tell(self, entry: Entry) -> None:
        for recorder, loader in self.sinks:
            recorder.add(loader, entry)


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
        ConfigError: there cannot be such a file.
    """
    recorder = Recorder(path, _checked_count(max_events))
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
    _tellers = _Tellers()


os.register_at_fork(after_in_child=_forget)


def _named(steps: Sequence[int]) -> str:
    """Return what batches are called."""
    if not steps:
        return "no batch"
    return f"batch {steps[0]}" if len(steps) == 1 else f"batches {steps[0]} to {steps[-1]}"


def _checked_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"max_events must be a whole number of at least 1, got {value!r}")
    return value


def _checked(path: str | os.PathLike[str]) -> Path:
    """Return the path of a trace, whose folder can be written to."""
    try:
        found = Path(os.fsdecode(path)).absolute()
    except TypeError:
        raise ConfigError(f"a trace needs the path of a file to be written, got {path!r}") from None
    if found.is_dir():
        raise ConfigError(f"the trace {found} would take the place of a folder; name a file")
    try:
        with tempfile.TemporaryFile(dir=found.parent):
            pass
    except OSError as error:
        told = error.strerror or error
        raise ConfigError(
            f"the trace {found} cannot be written: {told}; name a file in a folder that can be"
        ) from error
    return found


def _write(path: Path, found: Iterator[dict[str, Any]], facts: Mapping[str, Any]) -> None:
    """Write a trace beside its place and put it there: it appears whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
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
