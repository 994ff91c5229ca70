"""Keeping: what does a worker spend on a sample that it keeps, or finds, beside one that it only makes?

    python benchmarks/keeping.py
    python benchmarks/keeping.py --window 1024 --hop 256 --backed 4096

The sounds, `prepare` and `transform` of `audio_cache.py`, one worker in this process, CPU time of its thread.
Ways take turns job by job, 32 samples each, in an order that is drawn anew: what whole epochs differ by on a
shared machine is many times what is asked here. Who takes part:

- none: samples are made and transformed.
- memory, disk: they are kept as well, each for the first time.
- found: they were kept in memory, and are found there.
- singly: the same, each sample through all steps before the next one is begun.

Ratios are of rates, medians within a turn. As to `--backed`, see `audio_cache.py`.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from _measure import MIB, backed
from audio_cache import Mel, add_options, sound, transform

from aioload._workers import process, task
from aioload._workers.jobs import TABLE, Decode, Recipe, Segment
from aioload._workers.space import Span
from aioload._workers.task import Worker
from aioload.cache.folder import SampleFolder
from aioload.cache.memory import MemoryStore
from aioload.cache.stock import TO_KEEP, StockPlan
from aioload.decode import for_kind
from aioload.shard.format import NativeFormat
from aioload.shard.kinds import encode

BATCH, TABLES = 32, 6
ARENA, LIMIT = 128 << 20, 12 << 30
GROUP = task._MOST_IN_GROUP
KEEPERS = ("memory", "disk", "found")
WAYS = ("none", *(name + how for name in KEEPERS for how in ("", " singly")))


class Arena:
    """Records, a table, room for a batch.

    Args:
        recipe: what to do with records.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.array = np.zeros(ARENA, np.uint8)
        self._tables = np.zeros((TABLES, BATCH), TABLE)
        place = 0
        for number, row in enumerate(self._tables.reshape(-1)):
            payloads = {"audio": encode("audio", sound(number)), "label": encode("int", number % 10)}
            data = b"".join(map(bytes, recipe.formats[0].join(None, payloads)))
            stop = place + len(data)
            self.array[place:stop] = np.frombuffer(data, np.uint8)
            row["start"], row["stop"], row["sum"] = place, stop, google_crc32c.value(data)
            place = stop
        start = -(-place // 64) * 64
        self._table = Span(start, start + BATCH * TABLE.itemsize)
        room = Span(-(-self._table.stop // 4096) * 4096, ARENA - MIB)
        self._texts = Span(ARENA - MIB, ARENA)
        first = Decode(self._put(0, 0, 0), (Segment(0, 0, BATCH, BATCH, room),), learn=True)
        layout = Worker(self.array, recipe).run(first).outcomes[0].layout
        assert layout is not None
        self._layout = layout
        self._batch = Span(room.start, room.start + layout.starts(BATCH)[-1])

    def job(self, turn: int, record: int, tier: int) -> Decode:
        """Return the job that makes a batch of records from this number on."""
        segment = Segment(turn, 0, BATCH, BATCH, self._texts, self._layout, self._batch)
        return Decode(self._put(turn, record, tier), (segment,))

    def _put(self, turn: int, record: int, tier: int) -> Span:
        rows = self._tables[turn % TABLES].copy()
        rows["record"], rows["tier"] = np.arange(record, record + BATCH), tier
        self.array[self._table.start : self._table.stop] = rows.view(np.uint8)
        return self._table


@contextmanager
def workers(arena: Arena, recipe: Recipe, records: int) -> Iterator[dict[str, Worker]]:
    """Make a worker for each way."""
    with ExitStack() as stack:
        memory = MemoryStore.create(records, LIMIT)
        stack.callback(memory.close)
        folder = Path(tempfile.mkdtemp(prefix="aioload-keeping-"))
        stack.callback(shutil.rmtree, folder)
        stack.callback(SampleFolder(folder, LIMIT).open("set", {}).close)
        stocks = {
            "memory": StockPlan((0,)),
            "found": StockPlan((0,)),
            "disk": StockPlan((0,), str(folder), LIMIT, ("set",)),
        }
        made = {"none": Worker(arena.array, recipe)}
        for way in WAYS[1:]:
            stock = stocks[way.split()[0]]
            store = None if stock.folder else memory
            made[way] = Worker(arena.array, replace(recipe, stock=stock), memory=store)
            stack.callback(made[way].close)
        yield made


def measure(mel: Mel, turns: int, names: list[str]) -> None:
    """Print the table."""
    process._keep_freed_memory()
    process._use_one_thread()
    format_ = NativeFormat((("audio", "audio"), ("label", "int")))
    decoders = (("audio", for_kind("audio")), ("label", for_kind("int")))
    recipe = Recipe((format_,), decoders, transform, None, 0, True, (True,), True, prepare=mel)
    arena = Arena(recipe)
    fresh = TABLES * BATCH  # before these, those that are found
    took: dict[str, list[float]] = {name: [] for name in names}
    drawn = random.Random(0)
    with workers(arena, recipe, fresh + turns * BATCH * len(names)) as made:
        for turn in range(TABLES):
            made["memory"].run(arena.job(turn, turn * BATCH, TO_KEEP))
        for turn in range(turns):
            for name in drawn.sample(names, len(names)):
                task._MOST_IN_GROUP = 1 if name.endswith("singly") else GROUP
                finds = name.startswith("found")
                job = arena.job(turn, turn % TABLES * BATCH if finds else fresh, TO_KEEP * (name != "none"))
                fresh += 0 if finds else BATCH
                began = time.thread_time()
                answer = made[name].run(job)
                took[name].append((time.thread_time() - began) / BATCH * 1e6)
                _check(name, answer)
    _print(took)


def _check(name: str, answer: Any) -> None:
    """Refuse figures of a worker that did something else."""
    assert answer.outcomes[0].failure is None, answer.outcomes[0].failure
    kept = answer.kept
    counts = (0, 0) if kept is None else (kept.stored, kept.late)
    assert counts == {"none": (0, 0), "found": (0, BATCH)}.get(name.split()[0], (BATCH, 0)), counts


def _print(took: dict[str, list[float]]) -> None:
    print(f"{'':13}  CPU us a sample     min  x none  middle half of these  x singly")
    for name, times in took.items():
        to_none = sorted(_ratios(took, "none", name)) or [1.0] * len(times)
        half = f"{to_none[len(times) // 4]:.2f} to {to_none[3 * len(times) // 4]:.2f}"
        to_singly = _ratios(took, f"{name} singly", name)
        gain = f"{statistics.median(to_singly):.2f}" if to_singly else ""
        median, middle = statistics.median(times), statistics.median(to_none)
        print(f"{name:13}  {median:15.0f}  {min(times):6.0f}  {middle:6.3f}  {half:>20}  {gain:>8}")


def _ratios(took: dict[str, list[float]], slow: str, fast: str) -> list[float]:
    """Return by how much one way was faster than another, turn by turn."""
    return [one / other for one, other in zip(took.get(slow, []), took[fast], strict=False)]


def main() -> None:
    """Read the options, and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--only", default=",".join(WAYS), help="names, with commas between them")
    add_options(parser)
    options = parser.parse_args()
    with backed(options.backed * MIB):
        measure(Mel(options.window, options.hop), options.turns, options.only.split(","))


if __name__ == "__main__":
    main()
