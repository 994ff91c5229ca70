"""Loader: checks the options, opens and wires all parts, and hands batches to the user."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.lowlevel
import cloudpickle

from ._pipeline.deliver import Delivery, to_torch, without_rows
from ._pipeline.engine import Engine
from ._pipeline.house import Settings
from ._pipeline.plan import Plan
from ._workers.context import warm_up
from ._workers.pool import PoolOptions
from ._workers.task import Recipe, wants_rng
from .dataset import Dataset
from .decode import for_kind
from .errors import AioloadError, ClosedError, ConfigError
from .machine import available_memory, local_world_size, parse_bytes, usable_cpus
from .order import Shuffle
from .part import Part
from .policy import OnError, Skipped, Tally, ask, choose
from .ranks import find_rank
from .report import render
from .state import State
from .stats import Counters, LoaderStats
from .sync import SyncLoader

if TYPE_CHECKING:
    from ._pipeline.passes import Item
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
        on_error: what becomes of a sample that cannot be made: "raise"; `aioload.Skip(limit)` leaves it out,
            up to a limit, so that batches become smaller but never fewer; "skip" allows ten, or one in a
            hundred; a function of the error returns "raise", "skip", or what the transform should have
            returned. It is called once for each, in the loader's own thread and ahead of time.
        worker_timeout: seconds a worker may be at one sample, or at one batch's collate, before it is ended
            like one that died; the error then has its stack. None waits for ever.
        max_jobs_per_worker: replace a worker after so many jobs, for user code that leaks memory.
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
        shuffle: bool | Literal["block", "full"] = False,
        seed: int = 0,
        lanes: int | None = None,
        block_bytes: int | None = None,
        drop_last: bool = False,
        pad: bool = True,
        num_workers: int | Literal["auto"] = "auto",
        prefetch: int | Literal["auto"] = "auto",
        memory_limit: int | str = "auto",
        reads: Literal["auto", "file"] = "auto",
        rank: int | None = None,
        world_size: int | None = None,
        on_error: OnError = "raise",
        worker_timeout: float | None = None,
        max_jobs_per_worker: int | None = None,
        seed_globals: bool = True,
    ) -> None:
        self.dataset = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
        self.batch_size = _count("batch_size", batch_size, least=1)
        self.drop_last = drop_last
        self.num_workers = _workers(num_workers)
        self.seed = _count("seed", seed, least=0)
        self.pad = pad
        self.rank, self.world_size = find_rank(rank, world_size)
        self.epoch = 0
        self._shuffle = (shuffle, lanes, block_bytes)
        Shuffle.choose(shuffle, seed=self.seed, lanes=lanes, block_bytes=block_bytes, records=0, data_bytes=0)
        self._chosen: Shuffle | None = None
        self._start_position = 0  # of the next iteration
        self._position = 0  # what was handed out of the present epoch
        self._warned_short = False
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
        self._policy = choose(on_error)
        self._tally = Tally(None if self._policy is None or callable(self._policy) else self._policy.allowed)
        self._no_rows: Any = None  # what a batch is of which nothing is left, once that is known
        self._worker_timeout = None if worker_timeout is None else _seconds("worker_timeout", worker_timeout)
        self._max_jobs = (
            None
            if max_jobs_per_worker is None
            else _count("max_jobs_per_worker", max_jobs_per_worker, least=1)
        )

        self._counters = Counters()
        self._engine: Engine | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._current: BatchIterator | None = None
        self._closed = False
        self._lock = threading.Lock()

    # iterating

    def __aiter__(self) -> BatchIterator:
        return self.batches()

    def sync(self) -> SyncLoader:
        """Return the same loader behind a plain `for`."""
        return SyncLoader(self)

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch on this rank."""
        return self._part(0).steps

    @property
    def remaining(self) -> int:
        """Batches that the next iteration yields on this rank: fewer than `len` after a state was loaded."""
        return self._part(self._start_position).steps

    @property
    def padded(self) -> int:
        """Rows of an epoch on this rank that repeat its first records: one in its last batch, or none."""
        return self._part(self._start_position).padded

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs; the present one keeps a position that was loaded."""
        epoch = _count("epoch", epoch, least=0)
        if epoch == self.epoch:
            return
        if self._start_position:
            warnings.warn(
                f"set_epoch({epoch}) drops the position {self._start_position} that was loaded for "
                f"epoch {self.epoch}",
                stacklevel=2,
            )
        self.epoch, self._start_position, self._position = epoch, 0, 0

    # state

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands, as plain JSON: what was handed out, not what was read ahead.

        Any rank's state serves every rank, also with another world size, batch size or number of workers.
        """
        return self._state(self.epoch, self._position).to_json()

    def load_state_dict(self, state: Mapping[str, Any], *, adopt: bool = False) -> None:
        """Let the next iteration go on where a state was taken.

        Args:
            state: what `state_dict` returned.
            adopt: take seed and order from the state, rather than refuse it where they differ.

        Raises:
            ConfigError: it is no state, or was made with other data, or with another seed or order.
        """
        self.check_open()
        loaded = State.from_json(state)
        if adopt:
            self._adopt(loaded)
        loaded.check_against(self._state(self.epoch, 0))
        if self._current is not None:
            self._current.end("a state was loaded; begin a new iteration to go on from it")
            self._current = None
        self.epoch, self._start_position, self._position = loaded.epoch, loaded.position, loaded.position

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
            _open_engines.discard(engine)
            engine.close()

    # looking

    def stats(self) -> LoaderStats:
        """Return what was counted so far."""
        return self._counters.snapshot()

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What was left out under `on_error`, the last thousand of it, in the order of the batches."""
        return tuple(self._tally.kept)

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

    @property
    def shuffle(self) -> Shuffle:
        """How records are ordered: mode, seed, lanes and block size, defaults filled in."""
        if self._chosen is None:
            shuffle, lanes, block_bytes = self._shuffle
            table = self.dataset.table
            self._chosen = Shuffle.choose(
                shuffle,
                seed=self.seed,
                lanes=lanes,
                block_bytes=block_bytes,
                records=len(table),
                data_bytes=table.data_bytes,
            )
        return self._chosen

    def _adopt(self, state: State) -> None:
        """Take seed and order from a state."""
        if self._engine is not None and state.seed != self.seed:
            raise ConfigError(
                "workers have started with another seed; load the state before the first iteration"
            )
        mode: Any = {"none": False}.get(state.shuffle, state.shuffle)
        block = state.shuffle == "block"
        self.seed, self._chosen = state.seed, None
        self._shuffle = (mode, state.lanes if block else None, state.block_bytes if block else None)

    def _state(self, epoch: int, position: int) -> State:
        table, shuffle = self.dataset.table, self.shuffle
        return State(
            epoch=epoch,
            position=position,
            records=len(table),
            fingerprint=table.fingerprint(),
            seed=self.seed,
            shuffle=shuffle.mode,
            lanes=shuffle.lanes,
            block_bytes=shuffle.block_bytes,
        )

    def _part(self, start: int) -> Part:
        """Return this rank's share of an epoch from a position on."""
        size = len(self.dataset.table)
        if self.drop_last and size < self.batch_size * self.world_size and not self._warned_short:
            self._warned_short = True
            warnings.warn(
                f"{self.dataset.source} has {size} records, fewer than the "
                f"{self.batch_size * self.world_size} of one step (batch_size={self.batch_size}, "
                f"{self.world_size} ranks): with drop_last=True an epoch has no batch",
                stacklevel=3,
            )
        return Part(
            size,
            self.batch_size,
            self.rank,
            self.world_size,
            start,
            interleaved=self.shuffle.mode == "block",
            drop_last=self.drop_last,
            pad=self.pad,
        )

    def _plan(self, epoch: int, start: int) -> Plan:
        part = self._part(start)
        order = self.dataset.table.order(self.shuffle, epoch)
        return Plan(self.dataset.table, order, part, epoch, (self.shuffle, part, epoch))

    def _recipe(self) -> Recipe:
        fields = self.dataset.fields
        unknown = sorted(set(self._decode) - set(fields))
        if unknown:
            source = self.dataset.source
            raise ConfigError(f"decode names {unknown}, but {source} has the fields {sorted(fields)}")
        decoders = tuple((field, self._decode.get(field) or for_kind(kind)) for field, kind in fields.items())
        return Recipe(
            tuple(source.format for source in self.dataset.sources),
            decoders,
            self._transform,
            self._collate,
            self.seed,
            self._seed_globals,
            checked=tuple(source.index.sums is not None for source in self.dataset.sources),
            seeded=self._transform is not None or bool(self._decode),
        )

    def _start(self) -> Engine:
        """Return the engine; the first time, make it."""
        with self._lock:
            self.check_open()
            if self._engine is None:
                if self.num_workers:
                    warm_up()
                settings = self._settings()
                engine = Engine(settings, self._counters)
                engine.start()
                self._engine = engine
                _open_engines.add(engine)
                self._finalizer = weakref.finalize(self, _close_forgotten, engine, repr(self))
                self._finalizer.atexit = False  # the exit hook is earlier
            return self._engine

    def _settings(self) -> Settings:
        table, sources, limit = self.dataset.table, self.dataset.sources, self._limit()
        labels = table.shards
        if len(sources) > 1:
            pairs = zip(table.shards, table.shard_sources, strict=True)
            labels = tuple(f"{sources[source].source}/{shard}" for shard, source in pairs)
        return Settings(
            open_storages=lambda: [source.open_storage() for source in sources],
            shards=table.shards,
            sources=table.shard_sources,
            labels=labels,
            record_bytes=table.data_bytes / max(len(table), 1),
            recipe=self._recipe(),
            workers=PoolOptions(self.num_workers, self._worker_timeout, self._max_jobs),
            decide=self._decide(),
            prefetch=self._prefetch,
            memory_limit=limit,
            window_bytes=self._window_bytes(limit),
            output=to_torch,
            on_kept=_warn_once(),
        )

    def _decide(self) -> Callable[[AioloadError], Any] | None:
        """Return what the engine asks about a record that fails."""
        policy = self._policy
        if policy is None:
            return None
        if not callable(policy):
            return _leave_out
        return partial(ask, policy)

    def _window_bytes(self, limit: int) -> int:
        """Return the room for pieces that are read whole: of all lanes this rank draws from, or none."""
        if self.shuffle.mode != "block":
            return 0
        table = self.dataset.table
        lanes = self.shuffle.lanes // math.gcd(self.shuffle.lanes, self.world_size)
        piece = self.shuffle.block_bytes + table.data_bytes // max(len(table), 1)
        window = min(lanes * piece, table.data_bytes) * 5 // 4 + (1 << 16)
        return window if window <= limit // 4 else 0

    def _limit(self) -> int:
        """Return the bytes that the pipeline may use."""
        if self._memory_limit != "auto":
            return parse_bytes(self._memory_limit, name="memory_limit")
        return min(_MAX_AUTO_MEMORY, available_memory() // 4 // local_world_size())

    def batches(self) -> BatchIterator:
        """Begin an epoch; an iteration that has not ended is taken over."""
        self.check_open()
        plan = self._plan(self.epoch, self._start_position)
        if self._current is not None:
            self._current.end(
                "another iteration over this loader has begun; a loader feeds one iterator at a time"
            )
        engine = self._start()
        self._tally.begin()
        self._position, self._start_position = plan.part.start, 0
        handover = engine.open_pass(plan, self._plan(self.epoch + 1, 0))
        self._current = iterator = BatchIterator(self, engine, handover, plan)
        if not plan.steps:
            self._advance(iterator)
        return iterator

    def _shaped(self, item: Delivery) -> Any:
        """Return the batch; one without rows is made like the first that had some.

        What is known here does not depend on which worker was faster.
        """
        if not item.rows:
            return {} if self._no_rows is None else copy.deepcopy(self._no_rows)
        if self._no_rows is None and self._policy is not None:
            self._no_rows = without_rows(item.batch, item.rows)
        return item.batch

    def _handed_out(self, iterator: BatchIterator, steps: int) -> None:
        """Note how far an iteration has come; after its last batch the next epoch is due."""
        if self._current is not iterator:
            return
        if steps == iterator.plan.steps:
            self._advance(iterator)
        else:
            self._position = iterator.plan.part.position_after(steps)

    def _advance(self, iterator: BatchIterator) -> None:
        """Make the epoch after an iteration's the present one."""
        self._current = None
        self.epoch, self._position = iterator.plan.epoch + 1, 0

    def check_open(self) -> None:
        """Raise a `ClosedError` if the loader was closed, or its process forked since it started."""
        if self._closed:
            raise ClosedError("the loader was closed; make a new one to go on")
        if self._engine is not None:
            self._engine.check_process()


class BatchIterator:
    """The batches of one epoch, for `async for` and for `for`; owns nothing that would need closing."""

    def __init__(self, loader: Loader, engine: Engine, handover: Handover[Item], plan: Plan) -> None:
        self.plan = plan
        self._steps = 0
        self._loader = loader
        self._engine = engine
        self._handover = handover
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
                pass  # and wait outside: Ctrl-C must not look like a fault while handling this one
            except anyio.EndOfStream:
                raise StopIteration from None
            if not self._run_errand():
                self._handover.wait(_LIVENESS)
                self._engine.check()

    async def __anext__(self) -> Any:
        arrived = self._counters.arrive()
        if time.monotonic() - self._last_checkpoint > _NEIGHBOURS:
            await anyio.lowlevel.checkpoint()
            self._last_checkpoint = time.monotonic()
        while True:
            try:
                return self._take(arrived)
            except anyio.WouldBlock:
                pass
            except anyio.EndOfStream:
                raise StopAsyncIteration from None
            if not self._run_errand():
                await self._wait()
                self._engine.check()

    def end(self, reason: str) -> None:
        """End the iteration; its next step raises a `ClosedError` with this reason."""
        self._handover.close(ClosedError(reason))

    def _take(self, arrived: float) -> Any:
        """Return the next batch if it is ready, or raise its error."""
        if self._over:
            raise anyio.EndOfStream
        self._engine.check_process()  # before any lock, which a fork may have copied while it was held
        try:
            item = self._handover.take_nowait()
        except anyio.EndOfStream:
            self._over = True
            self._counters.pause()
            raise
        if isinstance(item, AioloadError):
            self._over = True
            self._counters.pause()
            self._handover.close()
            raise item
        return self._hand_out(item, arrived)

    def _hand_out(self, item: Delivery, arrived: float) -> Any:
        if item.skipped:
            self._note_skipped(item)
        batch = self._loader._shaped(item)
        self._counters.leave(arrived, item.rows, item.size)
        self._steps += 1
        self._loader._handed_out(self, self._steps)
        return batch

    def _note_skipped(self, item: Delivery) -> None:
        """Count what a batch lacks; too much of it ends the iteration."""
        part = self.plan.part
        self._counters.add(skipped=len(item.skipped))
        try:
            self._loader._tally.add(item.skipped, self.plan.epoch, part.size // part.world_size)
        except AioloadError:
            self._over = True
            self._counters.pause()
            self._handover.close()
            raise

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


def _leave_out(error: AioloadError) -> None:
    """Leave a record out."""


def _count(name: str, value: Any, *, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value.__index__())


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{name} must be a positive number of seconds, got {value!r}")
    return value


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
    if engine.forked:
        return
    warnings.warn(
        f"{name} was never closed; use `async with`, `with loader.sync()` or close()",
        ResourceWarning,
        stacklevel=1,  # it is nobody's line: the loader was collected
    )
    _open_engines.discard(engine)
    engine.close()


def _close_all() -> None:
    """Close what is open when the interpreter exits."""
    Engine.close_all(_open_engines)


# Before concurrent.futures waits for its threads, which would wait for jobs that run: an ordinary atexit hook
# is too late. Where this hook of the standard library is missing, an ordinary one must do.
getattr(threading, "_register_atexit", __import__("atexit").register)(_close_all)
