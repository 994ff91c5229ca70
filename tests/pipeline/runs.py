"""Runs whose records lie in an arena already, and a runner that does jobs on the spot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import anyio.lowlevel
import google_crc32c
import numpy as np

from aioload._pipeline.careful import Suspects
from aioload._pipeline.decode import Decoder
from aioload._pipeline.deliver import Joined, Made, deliver, deliver_joined, to_numpy
from aioload._pipeline.memory import Lease, Memory
from aioload._pipeline.plan import Run
from aioload._pipeline.sizes import Sizes
from aioload._workers.arena import Arena
from aioload._workers.jobs import TABLE, Answer, Job, Recipe
from aioload._workers.pool import Order
from aioload._workers.task import Worker
from aioload.decode import for_kind
from aioload.errors import AioloadError
from aioload.shard.format import NativeFormat
from aioload.shard.kinds import encode
from aioload.stats import Counters

__all__ = ["Here", "Walked", "make_recipe", "walked"]

Sample = Mapping[str, Any]


class Here:
    """Does jobs in this thread, and notes them."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.jobs: list[Job] = []

    async def run(self, job: Job, order: Order, done: Callable[[], None]) -> Answer:
        self.jobs.append(job)
        await anyio.lowlevel.checkpoint()
        answer = self.worker.run(job)
        done()
        return answer


def make_recipe(
    fields: Mapping[str, str], transform: Any = None, collate: Any = None, decoders: Any = None
) -> Recipe:
    """Make the recipe for records of these fields."""
    found = {name: for_kind(kind) for name, kind in fields.items()} | (decoders or {})
    format_ = NativeFormat(tuple(fields.items()))
    seeded = transform is not None
    return Recipe((format_,), tuple(found.items()), transform, collate, 0, True, (True,), seeded)


class Walked:
    """A memory with a decoder over it, and what came out."""

    def __init__(self, memory: Memory, recipe: Recipe, sizes: Sizes) -> None:
        self.memory = memory
        self.recipe = recipe
        self.sizes = sizes
        self.counters = Counters()
        self.here = Here(Worker(memory.arena.array, recipe))
        self.items: dict[int, Any] = {}
        self.leases: dict[int, Lease | None] = {}

    async def make(
        self, batches: Sequence[Sequence[Sample]], *, number: int = 0, first_step: int = 0
    ) -> None:
        """Make batches of these samples, as one run that is the head."""
        order = (1, number)
        self.memory.move_head(order)
        table, data = self._records([sample for batch in batches for sample in batch])
        offsets, sizes = table["start"].astype(np.int64), (table["stop"] - table["start"]).astype(np.int64)
        raw = await self.memory.lease(len(data) + table.nbytes, order)
        table["start"] += np.uint64(raw.span.start)
        table["stop"] += np.uint64(raw.span.start)
        place, array = raw.span.start + len(data), self.memory.arena.array
        array[raw.span.start : place] = data
        array[place : place + table.nbytes] = table.view(np.uint8)
        rows = tuple(map(len, batches))
        alone = np.full(len(table), -1, np.int64)
        run = Run(order, first_step, rows, table, offsets, sizes, alone, (), 0, len(table))
        decoder = Decoder(
            self.here,
            self.memory,
            self.sizes,
            ["shard-0"],
            stacks=self.recipe.collate is None,
            plain=self.recipe.collate is None and not self.recipe.seeded,
            counters=self.counters,
            suspects=Suspects(),
            decide=None,
        )
        try:
            await decoder.make(run, [raw], place, {}, self._put, run.steps)
        finally:
            raw.release()

    def _records(self, samples: Sequence[Sample]) -> tuple[np.ndarray, np.ndarray]:
        format_: Any = self.recipe.formats[0]
        chunks = [
            b"".join(
                map(
                    bytes,
                    format_.join(None, {name: encode(kind, sample[name]) for name, kind in format_.fields}),
                )
            )
            for sample in samples
        ]
        ends = np.cumsum([0, *map(len, chunks)])
        table = np.zeros(len(chunks), TABLE)
        table["start"], table["stop"], table["record"] = ends[:-1], ends[1:], np.arange(len(chunks))
        table["sum"] = [google_crc32c.value(chunk) for chunk in chunks]
        data = np.zeros(-(-int(ends[-1]) // 64) * 64, np.uint8)
        data[: int(ends[-1])] = np.frombuffer(b"".join(chunks), np.uint8)
        return table, data

    def _put(self, step: int, result: Made | Joined | AioloadError) -> None:
        assert step not in self.items, f"step {step} came twice"
        if isinstance(result, AioloadError):
            self.items[step] = result
            return
        finish: Any = deliver_joined if isinstance(result, Joined) else deliver
        found = finish(result, self.memory, to_numpy, lambda: self.counters.add(copies=1))
        for place, delivery in enumerate(found if isinstance(found, list) else [found], step):
            self.items[place], self.leases[place] = delivery.batch, delivery.lease


@contextmanager
def walked(recipe: Recipe, *, workers: int = 1, limit: int = 16 << 20) -> Iterator[Walked]:
    """Open a memory for runs of this recipe; at the end all of it must have come back."""
    with Arena(limit) as arena:
        walk = Walked(Memory(arena, int), recipe, Sizes(workers, 100, limit // 16))
        yield walk
        walk.items.clear()
        walk.leases.clear()
        walk.memory.move_head((9, 0))
        assert walk.memory.used == 0, "leases were lost"
