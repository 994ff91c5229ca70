"""Records in memory and jobs over them, as the pipeline would make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np

from aioload._workers.jobs import TABLE, Answer, Decode, Outcome, Recipe, Segment
from aioload._workers.leaf import NoRoom
from aioload._workers.packed import descriptor, unpack
from aioload._workers.space import Span
from aioload._workers.task import Worker
from aioload.decode import for_kind
from aioload.shard.format import NativeFormat
from aioload.shard.kinds import encode

__all__ = ["Bench", "make_recipe", "roomy"]


def make_recipe(
    fields: Mapping[str, str],
    *,
    decoders: Mapping[str, Callable[[memoryview], Any]] | None = None,
    transform: Callable[..., Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    seed: int = 0,
    seed_globals: bool = True,
    sources: int = 1,
) -> Recipe:
    """Make what workers need for records of these fields."""
    given = decoders or {}
    return Recipe(
        (NativeFormat(tuple(fields.items())),) * sources,
        tuple((name, given.get(name) or for_kind(kind)) for name, kind in fields.items()),
        transform,
        collate,
        seed,
        seed_globals,
        checked=(True,) * sources,
        seeded=transform is not None or bool(given),
    )


@dataclass
class Bench:
    """Memory with records at its beginning, then their table, then room for outcomes."""

    recipe: Recipe
    samples: Sequence[Mapping[str, Any]]
    keys: Sequence[str | None] = ()
    size: int = 1 << 20
    array: np.ndarray | None = None
    first_record: int = 0
    epoch: int = 0
    source: int = 0
    table: Span = field(init=False)
    room: Span = field(init=False)

    def __post_init__(self) -> None:
        self.array = np.zeros(self.size, np.uint8) if self.array is None else self.array
        format_: Any = self.recipe.formats[self.source]
        kinds = dict(format_.fields)
        table = np.zeros(len(self.samples), TABLE)
        place = 0
        for row, sample in enumerate(self.samples):
            payloads = {name: encode(kind, sample[name]) for name, kind in kinds.items()}
            data = b"".join(map(bytes, format_.join(self.keys[row] if self.keys else None, payloads)))
            self.array[place : place + len(data)] = np.frombuffer(data, np.uint8)
            record = self.first_record + row
            sum_ = google_crc32c.value(data)
            table[row] = (place, place + len(data), record, 0, sum_, self.epoch, self.source, 0, 0)
            place += len(data)
        start = -(-place // 64) * 64
        self.table = Span(start, start + table.nbytes)
        self.array[self.table.start : self.table.stop] = table.view(np.uint8)
        self.room = Span(-(-self.table.stop // 64) * 64, self.size)

    def worker(self, caught: type[BaseException] = BaseException) -> Worker:
        """Make a worker over this memory."""
        assert self.array is not None
        return Worker(self.array, self.recipe, caught=caught)

    def rows(self, first: int, stop: int) -> Span:
        """Return the table of some rows."""
        begin = self.table.start
        return Span(begin + first * TABLE.itemsize, begin + stop * TABLE.itemsize)

    def job(self, first: int, stop: int, place: Span, **options: Any) -> Decode:
        """Return the job that packs some rows into a place."""
        segment = Segment(7, first, stop - first, len(self.samples), place)
        return Decode(self.rows(first, stop), (segment,), **options)

    def whole(self, place: Span | None = None, **options: Any) -> Decode:
        """Return the job that makes one batch of all rows."""
        return self.job(0, len(self.samples), place or self.room, **options)

    def read(self, outcome: Outcome, place: Span | None = None) -> Any:
        """Return what lies packed in a place."""
        assert self.array is not None
        assert outcome.descriptor is not None, outcome
        where = place or self.room
        part = self.array[where.start : where.stop]
        return unpack(part, descriptor(part, outcome.descriptor))

    def batch(self, worker: Worker | None = None, **options: Any) -> Any:
        """Return the batch of all rows."""
        answer: Answer = (worker or self.worker()).run(self.whole(**options))
        return self.read(answer.outcomes[0])


def roomy(pack: Callable[[np.ndarray], Any]) -> tuple[np.ndarray, Any]:
    """Pack into a place that is too small at first, and then just large enough."""
    place = np.zeros(0, np.uint8)
    try:
        return place, pack(place)
    except NoRoom as small:
        place = np.zeros(small.need, np.uint8)
        return place, pack(place)
