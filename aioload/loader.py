"""Loader: checks the options, opens and wires all parts, and hands batches to the user."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.lowlevel
import cloudpickle

from ._pipeline.deliver import Delivery, to_torch
from ._pipeline.engine import Engine, Settings
from ._pipeline.plan import Plan
from ._workers.context import warm_up
from ._workers.task import Recipe, wants_rng
from .dataset import Dataset
from .decode import for_kind
from .errors import AioloadError, ClosedError, ConfigError
from .machine import available_memory, local_world_size, parse_bytes, usable_cpus
from .report import render
from .stats import Counters, LoaderStats
from .sync import SyncLoader

if TYPE_CHECKING:
    from ._pipeline.engine import Item
    from ._pipeline.reorder import Handover

__all__ = ["BatchIterator", "Loader"]

_log = logging.getLogger("aioload.loader")

_MAX_AUTO_MEMORY = 2 << 30
_LIVENESS = 1.0  # seconds between two looks at whether the engine is alive, while waiting
_NEIGHBOURS = 0.02  # seconds after which `async for` lets other tasks run, also when batches are ready

Transform = Callable[..., Any]
Collate = Callable[[list[Any]], Any]
Decode = Mapping[str, "Callable[[memoryview], Any] | Literal['raw']"]


class Loader:
    """Streams a data set as batches: `async for batch in loader`, or `for batch in loader.sync()`.

    Each iteration is one epoch. Batches come in the order of the records, whatever workers, reads and timing
    do. With `async with` (or `with loader.sync()`) all is closed at the end of the block, else at exit.

    Args:
        dataset: a `Dataset`, or the path of one.
        batch_size: samples in a batch.
        decode: decoders by field, in place of the default ones; `"raw"` gives the stored bytes.
        transform: `transform(sample)` or, with a parameter of that name, `transform(sample, rng)`: runs in
            the workers on each decoded sample, a dict with a value for each field and `"__key__"`. `rng` is a
            `numpy.random.Generator` that depends on seed, epoch and record alone.
        collate: makes a batch of a list of samples; by default they are stacked by the rules of torch's
            `default_collate`. Runs in the workers.
        seed: of all randomness.
        drop_last: leave out a last batch that is not full.
        num_workers: processes that decode; 0 does all in this one; "auto" takes the usable CPUs.
        prefetch: batches ready ahead of the consumer; "auto" follows workers and batch size.
        memory_limit: bytes that raw records and batches on their way may take, as a number or a text such as
            "2GiB"; "auto" is 2 GiB or a quarter of what is available, if that is less.
        reads: how local files are read: "file" reads them into shared memory, and so does "auto".
        seed_globals: seed `random`, `numpy.random` and torch for each sample around user code.

    Raises:
        ConfigError: an option cannot work; nothing was started.
    """

    def __init__(
        self,
        dataset: Dataset | str | os.PathLike[str],
        *,
        batch_size: int,
        decode: Decode | None = None,
        transform: Transform | None = None,
        collate: Collate | None = None,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int | Literal["auto"] = "auto",
        prefetch: int | Literal["auto"] = "auto",
        memory_limit: int | str = "auto",
        reads: Literal["auto", "file"] = "auto",
        seed_globals: bool = True,
    ) -> None:
        self.dataset = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
        self.batch_size = _count("batch_size", batch_size, least=1)
        self.drop_last = drop_last
        self.num_workers = _workers(num_workers)
        self.seed = _count("seed", seed, least=0)
        self.epoch = 0
        self._prefetch = None if prefetch == "auto" else _count("prefetch", prefetch, least=1)
        self._memory_limit = memory_limit
        self._decode = _decoders(decode)
        self._transform = transform
        self._collate = collate
        self._seed_globals = seed_globals
        if reads not in ("auto", "file"):
            raise ConfigError(f'reads must be "auto" or "file", got {reads!r}')
        if memory_limit != "auto":
            parse_bytes(memory_limit, name="memory_limit")
        self._check_functions()

        self._counters = Counters()
        self._engine: Engine | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._current: weakref.ref[BatchIterator] | None = None  # weak: a cycle would delay collecting
        self._closed = False
        self._warned = False  # that an epoch has no batch
        self._lock = threading.Lock()

    # iterating

    def __aiter__(self) -> BatchIterator:
        return self.batches()

    def sync(self) -> SyncLoader:
        """Return the same loader behind a plain `for`."""
        return SyncLoader(self)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._plan().steps

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs."""
        self.epoch = _count("epoch", epoch, least=0)

    # closing

    async def __aenter__(self) -> Loader:
        self.check_open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End all processes and threads of the loader, within 5 s; twice is free."""
        with anyio.CancelScope(shield=True):
            ended = anyio.Event()
            wake = _waker(ended)

            def end() -> None:
                self.close()
                wake()

            threading.Thread(target=end, name="aioload-close", daemon=True).start()
            await ended.wait()

    def close(self) -> None:
        """End all processes and threads of the loader, within 5 s; twice is free."""
        with self._lock:
            self._closed = True
            engine, self._engine = self._engine, None
        if self._finalizer is not None:
            self._finalizer.detach()
        if engine is not None:
            _end(engine)

    # looking

    def stats(self) -> LoaderStats:
        """Return what was counted so far."""
        return self._counters.snapshot()

    def report(self) -> str:
        """Return where the time went, as text."""
        return render(self.stats())

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"epoch={self.epoch} workers={self.num_workers}"
        return f"<Loader {self.dataset.source!r} batch_size={self.batch_size} {state}>"

    # inside

    def _check_functions(self) -> None:
        """Refuse functions that workers could not get or call, before anything starts."""
        for name, function in (("transform", self._transform), ("collate", self._collate)):
            if function is not None and not callable(function):
                raise ConfigError(f"{name} must be a function or another callable, got {function!r}")
        if self._transform is not None:
            wants_rng(self._transform)
        if not self.num_workers:
            return
        functions = {"transform": self._transform, "collate": self._collate}
        functions |= {f"decode[{field!r}]": decode for field, decode in self._decode.items()}
        for name, function in functions.items():
            try:
                cloudpickle.dumps(function)
            except Exception as error:
                raise ConfigError(
                    f"{name} cannot be sent to the workers ({type(error).__name__}: {error}); make what it "
                    "holds (a lock, a socket, an open file) inside the function or on first use, or pass "
                    "num_workers=0",
                    cause=repr(error),
                ) from error

    def _plan(self) -> Plan:
        index = self.dataset.index
        if self.drop_last and len(index) < self.batch_size and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.dataset.source} has {len(index)} records, fewer than batch_size={self.batch_size}: "
                "with drop_last=True an epoch has no batch",
                stacklevel=3,
            )
        return Plan(index, self.epoch, self.batch_size, self.drop_last)

    def _recipe(self) -> Recipe:
        fields = self.dataset.fields
        unknown = sorted(set(self._decode) - set(fields))
        if unknown:
            source = self.dataset.source
            raise ConfigError(f"decode names {unknown}, but {source} has the fields {sorted(fields)}")
        decoders = tuple((field, self._decode.get(field) or for_kind(kind)) for field, kind in fields.items())
        return Recipe(
            self.dataset.format,
            decoders,
            self._transform,
            self._collate,
            self.seed,
            self._seed_globals,
            checked=self.dataset.index.sums is not None,
            seeded=self._transform is not None or bool(self._decode),
        )

    def _start(self) -> Engine:
        """Return the engine; the first time, make it."""
        with self._lock:
            self.check_open()
            if self._engine is None:
                if self.num_workers:
                    warm_up()
                settings = Settings(
                    self.dataset.open_storage,
                    self._recipe(),
                    self.num_workers,
                    self._prefetch,
                    self._limit(),
                    to_torch,
                    _warn_once(),
                )
                engine = Engine(settings, self._counters)
                engine.start()
                self._engine = engine
                _open_engines.add(engine)
                self._finalizer = weakref.finalize(self, _close_forgotten, engine, repr(self))
                self._finalizer.atexit = False  # the exit hook is earlier
            return self._engine

    def _limit(self) -> int:
        """Return the bytes that the pipeline may use."""
        if self._memory_limit != "auto":
            return parse_bytes(self._memory_limit, name="memory_limit")
        return min(_MAX_AUTO_MEMORY, available_memory() // 4 // local_world_size())

    def batches(self) -> BatchIterator:
        """Begin an epoch; an iteration that has not ended is taken over."""
        self.check_open()
        plan = self._plan()
        before = None if self._current is None else self._current()
        if before is not None:
            before.end()
        engine = self._start()
        iterator = BatchIterator(self, engine, engine.open_pass(plan, 0), plan.epoch)
        self._current = weakref.ref(iterator)
        return iterator

    def _finished(self, iterator: BatchIterator, epoch: int) -> None:
        """Note that an epoch was handed out to its end."""
        if self._current is not None and self._current() is iterator:
            self._current = None
            self.epoch = epoch + 1

    def check_open(self) -> None:
        """Raise a `ClosedError` if the loader was closed."""
        if self._closed:
            raise ClosedError("the loader was closed; make a new one to go on")


class BatchIterator:
    """The batches of one epoch, for `async for` and for `for`; owns nothing that would need closing."""

    def __init__(self, loader: Loader, engine: Engine, handover: Handover[Item], epoch: int) -> None:
        self._loader = loader
        self._engine = engine
        self._handover = handover
        self._epoch = epoch
        self._counters = loader._counters
        self._over = False
        self._last_checkpoint = time.monotonic()

    def __iter__(self) -> BatchIterator:
        return self

    def __aiter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        arrived = self._counters.arrive()
        while True:
            try:
                return self._take(arrived)
            except anyio.WouldBlock:
                if not self._run_errand():
                    self._handover.wait(_LIVENESS)
                    self._engine.check()
            except anyio.EndOfStream:
                raise StopIteration from None

    async def __anext__(self) -> Any:
        arrived = self._counters.arrive()
        if time.monotonic() - self._last_checkpoint > _NEIGHBOURS:
            await anyio.lowlevel.checkpoint()
            self._last_checkpoint = time.monotonic()
        while True:
            try:
                return self._take(arrived)
            except anyio.WouldBlock:
                if not self._run_errand():
                    await self._wait()
                    self._engine.check()
            except anyio.EndOfStream:
                raise StopAsyncIteration from None

    def end(self) -> None:
        """End the iteration: another one has begun."""
        self._handover.close(
            ClosedError("another iteration over this loader has begun; a loader feeds one iterator at a time")
        )

    def _take(self, arrived: float) -> Any:
        """Return the next batch if it is ready, or raise its error."""
        if self._over:
            raise anyio.EndOfStream
        try:
            item = self._handover.take_nowait()
        except anyio.EndOfStream:
            self._over = True
            self._counters.pause()
            self._loader._finished(self, self._epoch)
            raise
        if isinstance(item, AioloadError):
            self._over = True
            self._counters.pause()
            self._handover.close()
            raise item
        return self._hand_out(item, arrived)

    def _hand_out(self, item: Delivery, arrived: float) -> Any:
        self._counters.leave(arrived, item.rows, item.size)
        return item.batch

    def _run_errand(self) -> bool:
        """Do a piece of the work of a loader without workers; tell whether there was one."""
        errand = self._handover.errand()
        if errand is not None:
            errand()
        return errand is not None

    async def _wait(self) -> None:
        """Wait until there is news; a cancelled wait has taken nothing."""
        news = anyio.Event()
        wake = _waker(news)
        self._handover.call_when_ready(wake)
        try:
            with anyio.move_on_after(_LIVENESS):
                await news.wait()
        finally:
            self._handover.forget(wake)
        self._last_checkpoint = time.monotonic()


def _waker(event: anyio.Event) -> Callable[[], None]:
    """Return what sets an event of the running loop, asyncio's or trio's, from any thread."""
    post: Callable[[Callable[[], None]], object]
    try:
        post = asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        trio = sys.modules["trio"]  # the only other loop that anyio runs on
        post = trio.lowlevel.current_trio_token().run_sync_soon

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended, and whoever waited with it
            post(event.set)

    return wake


def _count(name: str, value: Any, *, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value.__index__())


def _workers(value: Any) -> int:
    if value == "auto":
        return max(1, usable_cpus() // local_world_size())
    return _count("num_workers", value, least=0)


def _decoders(decode: Decode | None) -> dict[str, Any]:
    """Check the decoders that the user gave and give names their objects."""
    if decode is not None and not isinstance(decode, Mapping):
        raise ConfigError(f"decode must be a dict of decoders by field, got {decode!r}")
    decoders: dict[str, Any] = {}
    for field, decoder in (decode or {}).items():
        if decoder == "raw":
            decoders[field] = for_kind("bytes")
        elif callable(decoder):
            decoders[field] = decoder
        else:
            raise ConfigError(f'decode[{field!r}] must be a decoder or "raw", got {decoder!r}')
    return decoders


def _warn_once() -> Callable[[], None]:
    """Return what warns, the first time, that kept batches fill the memory."""
    warned: list[bool] = []

    def warn() -> None:
        if not warned:
            warned.append(True)
            _log.warning(
                "the program keeps so many batches that they fill a quarter of memory_limit; further ones "
                "are handed over as private copies, outside the limit. Let batches go, copy what you keep, "
                "or raise memory_limit"
            )

    return warn


_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _close_forgotten(engine: Engine, name: str) -> None:
    """Close the engine of a loader that was let go without being closed."""
    if engine not in _open_engines:
        return  # the interpreter exits, and has closed it

    # in a thread: the last reference may go anywhere, in an event loop too, and nobody expects to wait there
    threading.Thread(target=_end, args=(engine,), name="aioload-close", daemon=True).start()
    warnings.warn(  # last, since it may be an error
        f"{name} was never closed; use `async with`, `with loader.sync()` or close()",
        ResourceWarning,
        stacklevel=1,  # it is nobody's line: the loader was collected
    )


def _close_all() -> None:
    """Close what is open when the interpreter exits."""
    for engine in list(_open_engines):
        _end(engine)


def _end(engine: Engine) -> None:
    engine.close()
    _open_engines.discard(engine)


# Before concurrent.futures waits for its threads, which would wait for jobs that run: an ordinary atexit hook
# is too late. Where this hook of the standard library is missing, an ordinary one must do.
getattr(threading, "_register_atexit", __import__("atexit").register)(_close_all)
