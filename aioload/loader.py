"""Loader: checks the options, opens and wires all parts, and hands batches to the user."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import anyio

from . import executor as executors
from ._device.choose import choose as choose_device
from ._device.convert import Convert, PerChannel
from ._pipeline.engine import Engine
from ._pipeline.exits import close_forgotten, end, remember
from ._pipeline.house import Settings
from ._pipeline.needs import Need, foresee
from ._pipeline.sizes import MOST_PARTS
from ._workers.context import check_children, warm_up
from ._workers.jobs import Recipe
from ._workers.pool import PoolOptions
from .accounts import Accounts
from .batching import Budget
from .blocking import Stop
from .cache.advice import Rooms, advise, describe
from .cache.guard import affordable
from .cache.guard import read as read_memory
from .cache.keys import check_certain, key_of
from .cache.shelf import Holding
from .cache.tiers import Disk, Memory
from .collection import Collection
from .compose import Mix
from .course import Batching, Course
from .dataset import Dataset
from .errors import ClosedError, ConfigError
from .importing import by_value
from .iterate import BatchIterator, LateIterator, in_thread
from .live import progress as show_progress
from .machine import local_world_size, parse_bytes
from .options import (
    Collate,
    Decode,
    Prepare,
    Transform,
    byte_limit,
    cache_tiers,
    check_functions,
    count,
    decoders,
    is_users,
    output_of,
    packages,
    seconds,
    warn_of_lanes,
    warn_once,
    workers,
)
from .order import Shuffle
from .policy import OnError, Skipped, choose
from .ranks import check_rank, find_rank
from .remains import Remains
from .report import render
from .stats import Counters, LoaderStats
from .sync import SyncLoader, no_numbers
from .table import largest_record
from .tracing import Recorder, traced

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ._pipeline.deliver import Delivery
    from ._pipeline.needs import Growth

__all__ = ["Loader"]

_PATIENCE = 3.0  # seconds for a set that was being opened to be closed again: files, sockets, processes


class Loader:
    """Streams a data set as batches: `async for batch in loader`, or `for batch in loader.sync()`.

    Each iteration is one epoch. Batches come in the order that set, `shuffle`, `seed` and epoch decide,
    whatever workers, reads and timing do. With `async with` (or `with loader.sync()`) all is closed at the
    end of the block, else at exit.

    Args:
        dataset: a `Dataset` or its path, a selection of one, a `Concat` or a `Mix`.
        batch_size: samples in a batch, on each rank; or a `batching.Budget`, for batches of variable length.
        decode: decoders by field, in place of the default ones; `"raw"` gives the stored bytes.
        prepare: `prepare(sample)` returns a dict that depends on the record alone; runs in the workers on
            each decoded sample, a dict with a value for each field and `"__key__"`, before `transform` does.
            What is expensive and not random belongs here, since `cache` may keep it. With a cache it may be
            called for up to eight samples before `transform` is for the first: neither may rely on what
            the other has just done.
        transform: `transform(sample)` or, with a parameter of that name, `transform(sample, rng)`: runs in
            the workers on each decoded (and prepared) sample, a dict with `"__key__"`. `rng` is a
            `numpy.random.Generator` that depends on seed, epoch and record alone.
        cache: where samples are kept as they are before `transform`, to be made once and not in each epoch:
            `aioload.cache.Memory("4GiB")`, `aioload.cache.Disk(path, "200GiB")`, or both as a tuple, memory
            first. They are kept under a name made of the set, the decoders and the code of `prepare`; what is
            full keeps what it has.
        collate: makes a batch of a list of samples; by default they are stacked by the rules of torch's
            `default_collate`. Runs in the workers.
        shuffle: False keeps the records as they lie; True, or "block", mixes them and reads storage in large
            pieces; "full" draws each record by itself, for storage that can afford small reads.
        seed: of all randomness.
        lanes: of the block shuffle: places of the set that are drawn from at once. The default, 192, or a
            divisor of it for a small set, depends on the set alone.
        block_bytes: of the block shuffle: what lies together and is read together; by default 256 KiB, less
            in small sets.
        drop_last: leave out, on all ranks, a last global batch that is not full.
        pad: fill the last global batch up to a multiple of the world size with the epoch's first records, so
            that all ranks have the same number of batches; without it each record comes exactly once, and
            ranks may end unevenly (rank 0 never before another: take states from there).
        num_workers: processes that decode; 0 does all in this one; "auto" begins with the usable CPUs, shared
            among the ranks of a machine, and takes more where they mostly wait, fewer where they idle.
        prefetch: batches ready ahead of the consumer; "auto" keeps the workers busy, and takes more where
            costs vary so much that the consumer waits although workers have time.
        memory_limit: bytes that raw records and batches on their way may take, as a number or a text such as
            "2GiB"; "auto" is 2 GiB or, if that is less, this rank's share of a quarter of what is available.
            It must hold the raw records of the largest batch there may be, and twice what becomes of them: a
            smaller one is a `ConfigError` before the first batch, whose `.needed` is the least that works.
        reads: how local files are read: "file" reads them into shared memory; with "mmap" the workers map
            them, and nothing is copied before it is decoded. "auto" maps files on a disk of this machine that
            take no more than a quarter of its memory. Without workers files are read in any case.
        rank: of this process; by default what torch.distributed says, else `RANK`, else 0.
        world_size: ranks in all; by default what torch.distributed says, else `WORLD_SIZE`, else 1.
        output: "torch" gives tensors; "numpy" gives arrays over the same memory, yours to keep and to write
            to, which JAX and others take by DLPack. Torch is then never imported here.
        device: where batches arrive, as `torch.device` takes it: "cuda" (the one that is current when the
            loader is made), "cuda:1". A thread copies them on a stream of its own, while you work with those
            before; two batches (one, if they take more than 1 GiB) wait there at most. The tensors of a batch
            share one block: of a small one that you keep for long, keep a clone. With None or "cpu" batches
            stay in memory, and there is no such thread.
        channels_last: give tensors of four dimensions as (N, C, H, W) in torch's channels_last memory format;
            those of decoded pictures, (N, H, W, C), are that already. Done on the device, as the next is.
        dtype: floating-point dtype that pictures (uint8, four dimensions) get; or a dict of dtypes by field,
            for these fields alone.
        mean: taken from them before, in their own units (0 to 255); a number, or one for each channel.
        std: what they are then divided by.
        on_error: what becomes of a sample that cannot be made: "raise"; `aioload.Skip(limit)` leaves it out,
            up to a limit, so that batches become smaller but never fewer; "skip" allows ten, or one in a
            hundred; a function of the error returns "raise", "skip", or what the transform should have
            returned. It is called once for each, in the loader's own thread and ahead of time.
        worker_timeout: seconds a worker may be at one sample, or at one batch's collate, before it is ended
            like one that died; the error then has its stack. None waits for ever.
        max_jobs_per_worker: replace a worker after so many jobs, for user code that leaks memory.
        seed_globals: seed `random`, `numpy.random` and torch for each sample around user code.
        trace: a file that is written when the loader is closed, and shows in Perfetto what it did until then;
            see `aioload.trace`, which traces a stretch of a run.
        executor: who decodes, in place of worker processes of the loader's own: a
            `concurrent.futures.Executor` of yours. Threads work on shared memory; the workers of any other,
            such as `dask.distributed.Client(...).get_executor()`, are sent records, and send batches. The
            batches are the same. It must stay open for as long as the loader is used, which never shuts it
            down; `num_workers` is how many jobs it does at once, "auto" asks it.
        remote_reads: workers of an executor read records themselves, from the folder or address that the set
            was opened by. What they cannot read, the loader does.

    Raises:
        ConfigError: an option cannot work; nothing was started.
    """

    def __init__(
        self,
        dataset: Collection | str | os.PathLike[str],
        *,
        batch_size: int | Budget,
        decode: Decode | None = None,
        prepare: Prepare | None = None,
        transform: Transform | None = None,
        cache: Memory | Disk | tuple[Memory, Disk] | None = None,
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
        reads: Literal["auto", "file", "mmap"] = "auto",
        rank: int | None = None,
        world_size: int | None = None,
        output: Literal["torch", "numpy"] = "torch",
        device: Any = None,
        channels_last: bool = False,
        dtype: Any | Mapping[str, Any] | None = None,
        mean: PerChannel = None,
        std: PerChannel = None,
        on_error: OnError = "raise",
        worker_timeout: float | None = None,
        max_jobs_per_worker: int | None = None,
        seed_globals: bool = True,
        trace: str | os.PathLike[str] | None = None,
        executor: Executor | None = None,
        remote_reads: bool = False,
    ) -> None:
        executors.check(
            executor,
            remote_reads=remote_reads,
            worker_timeout=worker_timeout,
            max_jobs_per_worker=max_jobs_per_worker,
            cache=cache,
        )
        self.dataset = dataset if isinstance(dataset, Collection) else Dataset(dataset)
        self.batch_size = None if isinstance(batch_size, Budget) else count("batch_size", batch_size, least=1)
        self.drop_last = drop_last
        most_workers = None
        if executor is None:
            self.num_workers, most_workers = workers(num_workers)
        else:
            self.num_workers = executors.workers(executor, num_workers)
        self._executor = executor
        self._remote_reads = remote_reads
        self.rank, self.world_size = find_rank(rank, world_size)
        self._rank_is_found = rank is None
        batching = Batching(self.batch_size or batch_size, self.rank, self.world_size, drop_last, pad)
        self._course = Course(
            self.dataset, batching, (shuffle, lanes, block_bytes), count("seed", seed, least=0)
        )
        self._prefetch = None if prefetch == "auto" else count("prefetch", prefetch, least=1)
        self._memory_limit = memory_limit
        self._decode = decoders(decode)
        self._prepare = prepare
        self._cache = cache_tiers(cache, self._decode)
        self._holding: Holding | None = None
        if self.dataset.items is not None and (prepare is not None or cache is not None):
            raise ConfigError(
                "prepare and cache go with records that are read and decoded; a dataset with __getitem__ "
                "does all of it by itself: pack it, or leave them out"
            )
        self._transform = transform
        self._collate = collate
        self._seed_globals = seed_globals
        if reads not in ("auto", "file", "mmap"):
            raise ConfigError(f'reads must be "auto", "file" or "mmap", got {reads!r}')
        self._reads = reads
        if memory_limit != "auto":
            parse_bytes(memory_limit, name="memory_limit")
        travel = executors.travels(executor, self.num_workers)
        check_functions(prepare, transform, collate, self._decode, travel=travel)
        executors.check_seeds(executor, seeded=seed_globals and self._runs_user_code)
        converts = channels_last or any(each is not None for each in (dtype, mean, std))
        self._output = output_of(output, device, converts=converts)
        self._convert = Convert(channels_last=channels_last, dtype=dtype, mean=mean, std=std)
        self._device = choose_device(device)
        policy = choose(on_error)
        self._remains = Remains(policy)
        for source in self.dataset.sources if policy is not None else ():
            source.tolerate()
        self._pool_options = PoolOptions(
            self.num_workers,
            None if worker_timeout is None else seconds("worker_timeout", worker_timeout),
            None
            if max_jobs_per_worker is None
            else count("max_jobs_per_worker", max_jobs_per_worker, least=1),
            most_workers,
        )

        self.counters = Counters()
        self._recorder = None if trace is None else Recorder(trace)
        if self._recorder is not None:
            weakref.finalize(self, self._recorder.finish)  # a loader that is forgotten has its trace as well
        traced(self.counters, str(self.dataset.source), self._recorder)
        self._accounts = Accounts(self.counters, partial(_traffic, self.dataset))
        self._engine: Engine | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._iterator: weakref.ref[BatchIterator] | None = None  # weak: a cycle would delay collecting
        self._closed = False
        self._stop = Stop()
        # signal handlers may close while these are held; whoever closes does not wait for the first
        self._starting, self._lock = threading.RLock(), threading.RLock()

    # iterating

    def __aiter__(self) -> BatchIterator | LateIterator:
        self.check_open()
        if self._engine is None:  # opening and starting take a while, and must not block the user's loop
            return LateIterator(self._start, self.batches)
        return self.batches()

    if not TYPE_CHECKING:  # checkers know that there is none

        def __getitem__(self, number: object) -> NoReturn:
            # a plain `for`, which finds no __iter__, asks for number 0
            raise no_numbers("iterate with `async for batch in loader` or `for batch in loader.sync()`")

    def sync(self, *, progress: bool = False) -> SyncLoader:
        """Return the same loader behind a plain `for`.

        Args:
            progress: show how far an epoch is, as `aioload.progress` does.
        """
        return show_progress(self) if progress else SyncLoader(self)

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch on this rank."""
        return self._course.part(self.epoch, 0).steps

    @property
    def remaining(self) -> int:
        """Batches that the next iteration yields on this rank: fewer than `len` after a state was loaded."""
        return self._course.part(self.epoch, self._course.start_position).steps

    @property
    def padded(self) -> int:
        """Rows of this rank that repeat the epoch's first records: the last row of the last batch, or none.

        It speaks of the iteration that was begun last; before any, and after loading a state, of the next.
        """
        return self._course.padded

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs.

        The present epoch keeps a position that was loaded; another drops it, with a warning, and ends an
        iteration that is under way.
        """
        epoch = count("epoch", epoch, least=0)
        if epoch == self.epoch:
            return
        loaded = self._course.start_position
        if loaded:
            warnings.warn(
                f"set_epoch({epoch}) drops the position {loaded} that was loaded for epoch {self.epoch}",
                stacklevel=2,
            )
        self._end_current(f"set_epoch({epoch}) was called; begin a new iteration")
        self._course.go_to(epoch, 0)

    # state

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands, as plain JSON: what was handed out, not what was read ahead.

        Any rank's state serves every rank, also with another world size, batch size or number of workers.
        """
        return self._course.state().to_json()

    def load_state_dict(self, state: Mapping[str, Any], *, adopt: bool = False) -> None:
        """Let the next iteration go on where a state was taken.

        Args:
            state: what `state_dict` returned.
            adopt: take seed and order from the state, rather than refuse it where they differ.

        Raises:
            ConfigError: it is no state, or was made with other data, or with another seed or order.
        """
        self.check_open()
        self._course.load(state, adopt=adopt, started=self._engine is not None)
        self._end_current("a state was loaded; begin a new iteration to go on from it")

    # copies to a device

    def pause(self) -> AbstractContextManager[None]:
        """Return a context in which nothing is done to the device, as for the capture of a CUDA graph.

        All copies are complete when it is entered. Batches that are ready by then can be taken inside, though
        not into a graph. With a device it starts the loader, if nothing has yet.
        """
        return nullcontext() if self._device is None else self._start().pause()

    # closing

    async def __aenter__(self) -> Loader:
        self.check_open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End all processes and threads of the loader, within 5 s; twice is free."""
        with anyio.CancelScope(shield=True):
            await in_thread(self.close)

    def close(self) -> None:
        """End all processes and threads of the loader, within 5 s; twice is free."""
        self._stop.set()  # first: the set may be just being opened, which can take hours
        self.counters.pause()
        with self._lock:
            self._closed = True
            engine, self._engine = self._engine, None
            self._accounts.levels = dict
        if engine is None and self._starting.acquire(timeout=_PATIENCE):
            self._starting.release()  # what was being opened is closed by now
        if self._finalizer is not None:
            self._finalizer.detach()
        try:
            if engine is not None:
                end(engine)
        finally:
            if self._recorder is not None:
                self._recorder.finish()

    # looking

    def stats(self, epoch: int | None = None) -> LoaderStats:
        """Return what was counted so far.

        Args:
            epoch: what was counted while the user went through this epoch, the last time if it was several
                times. The loader is ahead of the user, so some of its work on an epoch counts for the one
                before. The numbers of a hundred epochs are kept.

        Raises:
            ConfigError: there are none of this epoch.
        """
        return self._accounts.of(epoch)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What was left out under `on_error`, the last thousand of it, in the order of the batches."""
        return self._remains.skipped

    def report(self) -> str:
        """Return where the time went, as text."""
        stats = self.stats()
        return "\n".join([render(stats, self.counters.reasons), *self._report_cache(stats)])

    def _report_cache(self, stats: LoaderStats) -> list[str]:
        if self._holding is not None:
            return describe(stats, [str(key) for key in self._holding.keys])
        draws = any(getattr(decoder, "draws", False) for decoder in self._decode.values())
        if draws or not stats.prepared_samples or self._executor is not None:
            return []  # with an executor nothing can be kept
        records = sum(len(source.index) for source in self.dataset.sources)
        return advise(stats, Rooms(records, affordable(read_memory(), byte_limit(self._memory_limit))))

    def paused(self, iterator: BatchIterator) -> None:
        """Note that an iteration has ended; one that was taken over had ended before."""
        current = None if self._iterator is None else self._iterator()
        if current is None or current is iterator:
            self._accounts.end()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be copied or sent to another process; make a loader there, which finds its "
            "place with load_state_dict()"
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"epoch={self.epoch} workers={self.num_workers}"
        if self._holding is not None:
            state += f" cache={'+'.join(key.digest[:8] for key in self._holding.keys)}"
        return f"<Loader {self.dataset.source!r} batch_size={self.batch_size} {state}>"

    # inside

    @property
    def epoch(self) -> int:
        """The epoch that is under way, or that the next iteration runs."""
        return self._course.epoch

    @property
    def seed(self) -> int:
        """Of all randomness."""
        return self._course.seed

    @property
    def shuffle(self) -> Shuffle:
        """How records are ordered: mode, seed, lanes and block size, defaults filled in."""
        return self._course.shuffle

    def _recipe(self) -> Recipe:
        fields = self.dataset.fields
        unknown = sorted(set(self._decode) - set(fields))
        if unknown:
            source = self.dataset.source
            raise ConfigError(f"decode names {unknown}, but {source} has the fields {sorted(fields)}")
        decoders = tuple(self.dataset.decoders_of(fields, self._decode).items())
        return Recipe(
            tuple(source.format for source in self.dataset.sources),
            decoders,
            self._transform,
            self._collate,
            self.seed,
            self._seed_globals,
            checked=tuple(source.index.sums is not None for source in self.dataset.sources),
            seeded=self._runs_user_code,
            items=self.dataset.items,
            prepare=self._prepare,
        )

    @property
    def _runs_user_code(self) -> bool:
        """Whether code of the user's, which may draw random numbers, makes samples."""
        users = (self._transform, self._prepare, self.dataset.items)
        return any(one is not None for one in users) or any(map(is_users, self._decode.values()))

    def _kept(self, recipe: Recipe, limit: int) -> Holding | None:
        """Return what is kept of samples, and under which names."""
        if self._cache is None:
            return None
        sources, version = self.dataset.sources, self._cache.version
        several = len(sources) > 1 and self._prepare is not None  # which then knows the number of the set
        keys = tuple(
            key_of(source.content, number if several else None, recipe.decoders, self._prepare, version)
            for number, source in enumerate(sources)
        )
        if self._cache.disk is not None:
            check_certain(keys)
        records = tuple(len(source.index) for source in sources)
        return Holding(self._cache, keys, records, local_world_size(), limit)

    def _start(self) -> Engine:
        """Return the engine; the first time, make it."""
        with self._starting:
            self.check_open()
            if self._engine is not None:
                return self._engine
            if self._rank_is_found:
                check_rank(self.rank, self.world_size)
            if self.num_workers and self._executor is None:
                check_children()
                warm_up([*packages(self._decode), *self.dataset.packages])
            with self._stop.heeded():
                settings = self._settings()
            if self._executor is not None:
                executors.greet(self._executor)
            with self._lock:
                self.check_open()
                self._engine = engine = self._started(settings)
                self._accounts.levels = engine.levels
                self._finalizer = weakref.finalize(self, close_forgotten, engine, repr(self))
                self._finalizer.atexit = False  # the exit hook is earlier
            return engine

    def _started(self, settings: Settings) -> Engine:
        engine = Engine(settings, self.counters)
        remember(engine)
        try:
            with by_value():  # functions of a script that is being imported
                engine.start()
        except BaseException as error:  # Ctrl-C among them: what has started by then must end
            end(engine)
            if isinstance(error, ConfigError) and "needed" in error.facts:
                raise self._too_small(error) from error
            raise
        return engine

    def _settings(self) -> Settings:
        table, sources, limit = self.dataset.table, self.dataset.sources, byte_limit(self._memory_limit)
        labels, recipe = table.shards, self._recipe()
        if self.rank == 0:
            warn_of_lanes(self.shuffle, self.world_size, table.data_bytes)
        self._holding = self._kept(recipe, limit)
        growth = foresee(recipe, self.num_workers, MOST_PARTS)
        if len(sources) > 1:
            pairs = zip(table.shards, table.shard_sources, strict=True)
            labels = tuple(f"{sources[source].source}/{shard}" for shard, source in pairs)
        return Settings(
            open_storages=lambda: [source.open_storage() for source in sources],
            shards=table.shards,
            sources=table.shard_sources,
            labels=labels,
            record_bytes=table.data_bytes / max(sum(table.lines), 1),
            data_bytes=table.data_bytes,
            reads=self._reads,
            recipe=recipe,
            workers=self._pool_options,
            decide=self._remains.decide,
            prefetch=self._prefetch,
            memory_limit=limit,
            window_bytes=self._course.window_bytes(limit),
            output=self._output,
            extents=lambda: [extent for source in sources for extent in source.index.extents()],
            on_kept=warn_once(),
            device=self._device,
            convert=self._convert,
            need=self._need(growth, limit),
            growth=growth,
            holding=self._holding,
            executor=self._executor,
            reach=executors.make_reach(sources, table.shards, table.shard_sources)
            if self._remote_reads
            else None,
        )

    def _need(self, growth: Growth | None, limit: int) -> Need:
        """Return what any batch needs on its way; roughly, where much more would fit as well."""
        if growth is not None and self.batch_size is not None and not isinstance(self.dataset, Mix):
            rough = Need.of(self.batch_size, self.dataset.table.data_bytes, growth)
            if rough.run <= limit // 4:
                return rough
        return Need.of(*self._course.largest_batch(), growth)

    def _too_small(self, error: ConfigError) -> ConfigError:
        """Return the error of a memory limit; it names the record if a single one is the reason."""
        found = largest_record(self.dataset.table)
        if found is None or found.data_bytes * 2 < self._course.largest_batch()[1]:
            return error
        shard = self.dataset.table.shards[found.shard]
        told = f"{error}; record {found.record} ({shard}) alone has {found.data_bytes} bytes"
        return ConfigError(told, **error.facts, record=found.record, shard=shard)

    def batches(self) -> BatchIterator:
        """Begin an epoch; an iteration that has not ended is taken over."""
        self.check_open()
        engine = self._start()
        self._end_current(
            "another iteration over this loader has begun; a loader feeds one iterator at a time"
        )
        plan = self._course.begin()
        self._remains.begin()
        self._accounts.begin(plan.epoch)
        iterator = BatchIterator(self, engine, engine.open_pass(plan, self._course.following(plan)), plan)
        # of one that is left by `break` nobody asks any more, and what follows is not of the loop
        self._iterator = weakref.ref(iterator, self._accounts.left)
        return iterator

    def handed_out(self, iterator: BatchIterator, steps: int) -> None:
        """Note how far an iteration has come."""
        if self._iterator is not None and self._iterator() is iterator:
            self._course.handed_out(iterator.plan, steps)
            if steps == iterator.plan.steps:
                self._iterator = None  # it has had its last batch, and nobody takes it over

    def received(self, iterator: BatchIterator, item: Delivery) -> Any:
        """Return the batch of a delivery, having counted what it lacks; too much of it is an error."""
        part = iterator.plan.part
        self.counters.add(skipped=len(item.skipped))
        if self._device is None and self._convert.active:
            item = replace(item, batch=self._convert.on_host(item.batch))
        return self._remains.received(item, iterator.plan.epoch, part.size // part.world_size)

    def _end_current(self, reason: str) -> None:
        """End the iteration that is under way, if anybody still has it."""
        self.counters.pause()  # first: what is done about it must not count as done in the loop
        current = None if self._iterator is None else self._iterator()
        if current is not None:
            current.end(reason)
        self._iterator = None

    def check_open(self) -> None:
        """Raise a `ClosedError` if the loader was closed, or its process forked since it started."""
        if self._closed:
            raise ClosedError("the loader was closed; make a new one to go on")
        if self._engine is not None:
            self._engine.check_process()


def _traffic(dataset: Collection) -> dict[str, int]:
    """Return what went over the network for the sets of a loader."""
    total: Counter[str] = Counter()
    for source in {id(source): source for source in dataset.sources}.values():
        total.update(source.traffic())
    return total
