"""Engine: passes that come in order, stay within their memory, and end however they are ended."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio
import numpy as np
import pytest
from fakes import FaultyStorage, GateStorage

from aioload._pipeline.deliver import Delivery, to_numpy
from aioload._pipeline.engine import Engine
from aioload._pipeline.house import Settings
from aioload._pipeline.needs import UNKNOWN, Need
from aioload._pipeline.passes import Item
from aioload._pipeline.plan import Plan
from aioload._pipeline.reorder import Handover
from aioload._workers.jobs import Recipe
from aioload._workers.pool import PoolOptions
from aioload.errors import AioloadError, ClosedError, ConfigError, SampleError, ShardError, StorageError
from aioload.order import Shuffle
from aioload.part import Part
from aioload.shard.format import NativeFormat, crc32c
from aioload.shard.index import Index
from aioload.shard.kinds import encode
from aioload.stats import Counters
from aioload.storage import MemoryStorage
from aioload.table import IndexTable

from .runs import make_recipe

FIELDS = {"x": "ndarray", "n": "int"}


def packed(records: int, width: int = 8, shards: int = 2) -> tuple[Index, dict[str, bytes]]:
    """Pack records into shards in memory."""
    format_ = NativeFormat(tuple(FIELDS.items()))
    data = [
        b"".join(
            bytes(part)
            for part in format_.join(
                None, {"x": encode("ndarray", np.full(width, n, "f4")), "n": encode("int", n)}
            )
        )
        for n in range(records)
    ]
    groups = [data[len(data) * s // shards : len(data) * (s + 1) // shards] for s in range(shards)]
    names = tuple(f"shard-{number}" for number in range(shards))
    sizes = np.array([sum(map(len, group)) for group in groups], np.uint64)
    index = Index(
        names,
        np.cumsum([0, *map(len, groups)], dtype=np.int64),
        np.cumsum([0, *sizes.tolist()]).astype(np.uint64),
        np.zeros(shards, np.uint64),
        sizes,
        np.cumsum([0, *map(len, data)]).astype(np.uint64),
        np.array([crc32c(record) for record in data], np.uint32),
    )
    return index, {name: b"".join(group) for name, group in zip(names, groups, strict=True)}


def planned(index: Index, batch_size: int, *, epoch: int = 0, start: int = 0, mode: Any = "none") -> Plan:
    """Plan an epoch, from a position on."""
    table = IndexTable(index)
    part = Part(len(table), batch_size, start=start, interleaved=mode == "block")
    order = table.order(Shuffle(mode, 1, 2, 1 << 12), epoch)
    return Plan(table, order, part, epoch, (batch_size, epoch, start, mode))


class User:
    """Takes batches as a plain `for` does, and does errands meanwhile."""

    def __init__(self, engine: Engine, counters: Counters) -> None:
        self.engine = engine
        self.counters = counters

    def take(self, handover: Handover[Item], count: int = 1 << 30) -> list[Any]:
        """Take so many items, or all."""
        items: list[Any] = []
        deadline = time.monotonic() + 20
        while len(items) < count:
            assert time.monotonic() < deadline, f"only {len(items)} items came"
            try:
                items.append(handover.take_nowait())
            except anyio.WouldBlock:
                errand = handover.errand()
                errand() if errand is not None else handover.wait(1)
                self.engine.check()
            except anyio.EndOfStream:
                break
        return items

    def labels(self, handover: Handover[Item], count: int = 1 << 30) -> list[int]:
        """Take so many batches, or all, and return the records in them."""
        return [int(n) for item in self.take(handover, count) for n in item.batch["n"]]

    def open(self, plan: Plan, following: Plan | None = None) -> Handover[Item]:
        """Begin a pass."""
        return self.engine.open_pass(plan, following)

    @property
    def memory(self) -> Any:
        """The engine's, with all counted that finalisers gave back."""
        house: Any = self.engine._turns._house  # type: ignore[union-attr]  # it runs
        gc.collect()
        asyncio.run_coroutine_threadsafe(settled(house), self.engine._loop).result(5)  # type: ignore[arg-type]  # it runs
        return house.memory


@contextmanager
def engine(
    index: Index,
    files: Mapping[str, bytes] | Callable[[], Any],
    *,
    num_workers: int = 0,
    prefetch: int | None = None,
    memory_limit: int = 16 << 20,
    window_bytes: int = 0,
    recipe: Recipe | None = None,
    on_kept: Callable[[], None] = int,
    need: Need = UNKNOWN,
) -> Iterator[User]:
    """Start an engine over files in memory, and close it."""
    open_storage = files if callable(files) else lambda: MemoryStorage(files)
    settings = Settings(
        open_storages=lambda: [open_storage()],
        shards=index.shards,
        sources=[0] * len(index.shards),
        labels=index.shards,
        record_bytes=float(index.positions[-1]) / max(len(index), 1),
        data_bytes=int(index.positions[-1]),
        reads="auto",
        recipe=recipe or make_recipe(FIELDS),
        workers=PoolOptions(num_workers),
        decide=None,
        prefetch=prefetch,
        memory_limit=memory_limit,
        window_bytes=window_bytes,
        output=to_numpy,
        on_kept=on_kept,
        need=need,
    )
    counters = Counters()
    started = Engine(settings, counters)
    started.start()
    try:
        yield User(started, counters)
    finally:
        started.close()


def failing(sample: dict[str, Any]) -> Any:
    """Fail at one record."""
    if sample["n"] == 21:
        raise ValueError("no")
    return sample


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("records", "batch_size"), [(0, 4), (1, 4), (3, 4), (50, 7), (500, 1), (40, 40)])
def test_every_record_comes_once_and_in_order(num_workers: int, records: int, batch_size: int) -> None:
    """Whatever the sizes: no record, one, fewer than a batch, many tiny batches."""
    index, files = packed(records)
    with engine(index, files, num_workers=num_workers) as user:
        found = user.labels(user.open(planned(index, batch_size)))
        again = user.labels(user.open(planned(index, batch_size, epoch=1)))

    assert found == again == list(range(records))


def test_a_pass_can_begin_in_the_middle() -> None:
    """Steps before the first are neither read nor made."""
    index, files = packed(40)
    with engine(index, files) as user:
        found = user.labels(user.open(planned(index, 4, start=28)))

    assert found == list(range(28, 40))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_comes_at_its_own_step(num_workers: int) -> None:
    """Batches before it come out first; the error names the step."""
    index, files = packed(40)
    with engine(index, files, num_workers=num_workers, recipe=make_recipe(FIELDS, failing)) as user:
        items = user.take(user.open(planned(index, 4)), 6)

    assert [type(item) for item in items] == [*[Delivery] * 5, SampleError]
    assert (items[5].step, items[5].record) == (5, 21)


def test_a_read_that_fails_comes_at_its_own_step() -> None:
    """A damaged shard fails the batches that need it, each at its step, with shard and record."""
    index, files = packed(40)
    files["shard-1"] = files["shard-1"][:-10]
    with engine(index, files) as user:
        items = user.take(user.open(planned(index, 4)))

    assert [type(item) for item in items] == [*[Delivery] * 9, ShardError]
    assert (items[9].step, items[9].record, items[9].shard) == (9, 39, "shard-1")


@pytest.mark.parametrize("mode", ["none", "block"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_leaving_early_again_and_again_loses_no_memory(num_workers: int, mode: str) -> None:
    """A pass that is taken over gives all back: the hundredth has the room of the first."""
    index, files = packed(64, width=1000)
    options: Any = {"num_workers": num_workers, "memory_limit": 500_000, "window_bytes": 1 << 16}
    with engine(index, files, **options) as user:
        for _ in range(30):
            handover = user.open(planned(index, 4, mode=mode), planned(index, 4, epoch=1, mode=mode))
            user.take(handover, 2)
            handover.close()
        found = user.labels(user.open(planned(index, 4, mode=mode)))
        used = user.memory.used

    assert sorted(found) == list(range(64))
    assert used == 0


async def settled(house: Any) -> None:
    """Have what finalisers gave back counted."""
    house.memory._serve()


def test_an_error_that_is_kept_keeps_no_memory() -> None:
    """However many errors of reads the user collects, the memory of their batches is there for others."""
    index, files = packed(64, width=1000)
    files["shard-1"] = b""
    kept: list[Any] = []
    with engine(index, files, memory_limit=400_000, prefetch=1) as user:
        for epoch in range(20):
            kept += user.take(user.open(planned(index, 4, epoch=epoch)))[8:]
        used = user.memory.used

    assert {type(error) for error in kept} == {ShardError}
    assert (len(kept), used) == (160, 0)


def test_the_next_epoch_begins_ahead_and_is_taken_if_it_is_the_same() -> None:
    """Its first batches are there while the last of the epoch before are taken; another plan drops them."""
    index, files = packed(40)
    counters: list[int] = []
    with engine(index, files) as user:
        found = [user.labels(user.open(planned(index, 4), planned(index, 4, epoch=1)))]
        for epoch, following in ((1, 2), (5, 6)):
            plan = planned(index, 4, epoch=epoch)
            found.append(user.labels(user.open(plan, planned(index, 4, epoch=following))))
            counters.append(user.engine._begun)

    assert found == [list(range(40))] * 3
    assert counters == [1, 2]


def test_an_interruption_loses_no_batch() -> None:
    """After Ctrl-C in a transform, whoever goes on iterating gets the same batch."""
    index, files = packed(8)
    times: list[int] = []

    def interrupted(sample: dict[str, Any]) -> Any:
        times.append(sample["n"])
        if len(times) == 6:
            raise KeyboardInterrupt
        return sample

    with engine(index, files, recipe=make_recipe(FIELDS, interrupted)) as user:
        handover = user.open(planned(index, 4))
        with pytest.raises(KeyboardInterrupt):
            user.take(handover)
        found = user.labels(handover)

    assert found[-4:] == [4, 5, 6, 7]


def test_what_is_ahead_stays_within_the_limit() -> None:
    """A slow consumer is waited for: no copies are made to get further ahead than memory allows."""
    index, files = packed(256, width=8000)
    with engine(index, files, num_workers=2, prefetch=60, memory_limit=2 << 20) as user:
        handover = user.open(planned(index, 4))
        first = user.labels(handover, 1)
        quiet(user)
        ahead = handover.ready
        rest = user.labels(handover)

    assert first + rest == list(range(256))
    assert 0 < ahead < 20
    assert user.counters.snapshot().memory_peak <= 2 << 20


def quiet(user: User) -> None:
    """Wait until the engine does nothing any more."""
    seen, same = -1.0, 0
    ticks = threading.Event()
    while same < 10:
        ticks.wait(0.02)
        now = user.counters.snapshot().jobs
        seen, same = now, same + 1 if now == seen else 0


def test_a_user_who_keeps_all_batches_gets_all() -> None:
    """Nobody waits for memory that only the user could free, and somebody is told."""
    index, files = packed(128, width=4000)
    told: list[bool] = []
    with engine(index, files, memory_limit=1 << 20, on_kept=lambda: told.append(True)) as user:
        items = user.take(user.open(planned(index, 4)))

    assert [item.batch["x"][:, 0].tolist() for item in items] == [
        [float(n) for n in range(first, first + 4)] for first in range(0, 128, 4)
    ]
    assert told
    assert user.counters.snapshot().copies > 0


def test_a_limit_too_small_for_a_batch_is_a_config_error_that_helps() -> None:
    """The limit that the error names is enough."""
    index, files = packed(16, width=10_000)
    need = Need.of(8, int(index.positions[8]), None)
    with engine(index, files, memory_limit=400_000, need=need) as user:
        error = user.take(user.open(planned(index, 8)), 1)[0]
    with engine(index, files, memory_limit=error.needed, need=need) as user:
        found = user.labels(user.open(planned(index, 8)))

    assert isinstance(error, ConfigError)
    assert found == list(range(16))


def test_a_limit_that_holds_nothing_fails_the_start() -> None:
    """What cannot work at all is told before anything runs."""
    index, files = packed(8)
    with pytest.raises(ConfigError, match="memory_limit"), engine(index, files, memory_limit=100):
        pass


def test_reads_go_on_while_the_user_does_something_else() -> None:
    """Up to the window, reads are under way without the user's doing."""
    index, files = packed(64, width=10_000)
    gates: list[GateStorage] = []

    def gated() -> GateStorage:
        gates.append(GateStorage(MemoryStorage(files)))
        return gates[0]

    with engine(index, gated, prefetch=4) as user:
        handover = user.open(planned(index, 8))
        gates[0].wait(4)
        gates[0].open_all()
        found = user.labels(handover)

    assert found == list(range(64))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_closing_in_the_middle_of_a_read_leaves_nothing(num_workers: int) -> None:
    """An engine whose reads hang in the air is closed as fast as any."""
    index, files = packed(64)
    gates: list[GateStorage] = []

    def gated() -> GateStorage:
        gates.append(GateStorage(MemoryStorage(files)))
        return gates[0]

    with engine(index, gated, num_workers=num_workers) as user:
        handover = user.open(planned(index, 8))
        gates[0].wait(1)
        began = time.monotonic()
        user.engine.close()

    assert time.monotonic() - began < 5
    with pytest.raises(ClosedError):
        handover.take_nowait()


def test_after_closing_everything_is_refused() -> None:
    """A closed engine begins no pass; closing it again is free."""
    index, files = packed(8)
    with engine(index, files) as user:
        user.engine.close()
        user.engine.close()

        with pytest.raises(ClosedError):
            user.open(planned(index, 4))
        with pytest.raises(ClosedError):
            user.engine.check()


def test_a_storage_that_cannot_be_opened_fails_the_start() -> None:
    """What goes wrong before the first pass is raised where the engine is started."""

    index, _ = packed(8)

    def broken() -> Any:
        raise StorageError("no such place")

    with pytest.raises(StorageError, match="no such place"), engine(index, broken):
        pass


def test_a_fault_of_our_own_is_told_as_such() -> None:
    """An error that is nobody's but ours says so, and ends the pass rather than hanging it."""
    index, files = packed(8)
    storage = FaultyStorage(MemoryStorage(files), {0: RuntimeError("a bug"), 1: RuntimeError("a bug")})
    with engine(index, lambda: storage) as user:
        item = user.take(user.open(planned(index, 8)), 1)[0]

    assert type(item) is AioloadError
    assert "please report it" in str(item)
    assert "a bug" in str(item.cause)
