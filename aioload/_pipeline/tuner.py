"""Tuner: measures how the run goes, and carries out what the controller decides; in the engine's loop.

It looks when the user takes a batch or a read ends, at most a few times a second: no timer runs, and a
loader that nobody takes from is left as it is.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..machine import available_memory, local_world_size
from .adapt import Controller, Range, Seen, depth

if TYPE_CHECKING:
    from .._workers.borrowed import Borrowed
    from .._workers.pool import PoolOptions, WorkerPool
    from ..stats import Counters, LoaderStats
    from .adapt import Change, Knob
    from .memory import Memory
    from .sizes import Sizes
    from .slots import Slots

__all__ = ["FIRST_READS", "Tuner"]

_log = logging.getLogger("aioload.engine")

FIRST_READS = 4  # a local disk is busy with these
_FIRST_AHEAD = 2  # runs: one that is being read, one that waits for the user
_MOST_AHEAD = 16
_WINDOW_SECONDS = 0.25
_WINDOW_BATCHES = 4
_LONG_WINDOW_SECONDS = 2.0  # then fewer batches do
_WINDOW_READS = 4  # or so many for each that may be under way
_SPARE_BYTES = 4 << 20  # of a batch, up to which a second one may wait for each worker
_KEPT = 2 / 3  # of the depth: above it, it is not taken back
_SHARE = 0.75  # of the shared memory that batches ahead may fill: the rest is for those in work

_BUSY = "keeps the workers busy"
_SCARCE = "memory is scarce on this machine"
_NO_ROOM = "what memory_limit has room for"
_STAGES = ("decode_seconds", "prepare_seconds", "transform_seconds", "collate_seconds")
_COUNTERS: dict[Knob, str] = {"workers": "num_workers", "reads": "reads_in_flight"}


class Tuner:
    """Measures and adapts.

    Args:
        options: of the workers.
        prefetch: batches ahead that the user asked for; None adapts.
        most_reads: that the storages can have under way at once.
        counters: read, and told of what is chosen.
        sizes: what is known about samples.
        memory: the arena's.
        slots: of the reads.
        clock: seconds.
    """

    def __init__(
        self,
        options: PoolOptions,
        prefetch: int | None,
        most_reads: int,
        counters: Counters,
        sizes: Sizes,
        memory: Memory,
        slots: Slots,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.pool: WorkerPool | Borrowed | None = None
        self.on_change: Callable[[], object] = int
        self.on_hold: Callable[[], object] = int  # before a run is held back or let go
        self._prefetch = prefetch
        self._counters = counters
        self._sizes = sizes
        self._memory = memory
        self._slots = slots
        self._clock = clock
        cpus = max(options.num_workers, 1)
        most = options.most_workers or options.num_workers
        adapts = most > options.num_workers
        self._controller = Controller(
            workers=Range(cpus, 1, most) if adapts else Range.only(cpus),
            ahead=Range.only(1) if prefetch is not None else Range(_FIRST_AHEAD, 1, _MOST_AHEAD),
            reads=Range(slots.total, 1, most_reads),
            cpus=cpus,
        )
        self._holders = 0
        self._held_since = self._held_seconds = 0.0
        self._before: LoaderStats | None = None
        self._waited = 0.0
        self._began = -math.inf
        self._depth = 0
        self._short = False
        self._why_ahead = _BUSY
        self._is_squeezed = False
        self._reads_per_batch = 1.0
        self._tell(adapts)

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Count the time as one in which a run is held back for being too far ahead."""
        self.on_hold()
        if not self._holders:
            self._held_since = self._clock()
        self._holders += 1
        try:
            yield
        finally:
            self.on_hold()
            self._holders -= 1
            if not self._holders:
                self._held_seconds += self._clock() - self._held_since

    @property
    def holds(self) -> bool:
        """Whether a run is held back; from any thread."""
        return self._holders > 0

    @property
    def short_of_room(self) -> bool:
        """Whether a run is held back that would not be if there were more memory; from any thread."""
        return self._holders > 0 and self._short

    def depth(self, rows: int, steps: int) -> int:
        """Return how many batches may lie between the user and the last one under way.

        Args:
            rows: of a batch.
            steps: batches that walk together.
        """
        if self._prefetch is not None:
            return 1 if self._is_squeezed else self._prefetch
        wanted = 1 if self._is_squeezed else self._wanted_depth(rows, steps)
        if self._depth * _KEPT <= wanted <= self._depth:
            wanted = self._depth  # measured costs waver, and nothing is won by following them
        room = int(_SHARE * self._memory.shareable / self._sizes.batch_bytes(rows))
        found = min(wanted, max(room, self._controller["workers"] + 1))
        self._short = found < wanted
        if found != self._depth:
            self._depth = found
            self._counters.set(prefetch=found)
            why = _SCARCE if self._is_squeezed else self._why_ahead
            self._counters.reasons["prefetch"] = _NO_ROOM if found < wanted else why
        return found

    def squeeze(self, is_on: bool) -> None:
        """Have as little as possible under way, or as much as is good again."""
        self._is_squeezed = is_on
        self._depth = 0  # to be found anew
        self.on_change()

    def foresee(self, batches: int, reads: int) -> None:
        """Note how many reads some batches are planned to take, which counts until it has been measured."""
        if reads and self._before is None:
            self._reads_per_batch = reads / batches

    @property
    def due(self) -> bool:
        """Whether `look` may find something to do; from any thread."""
        return self._clock() - self._began >= _WINDOW_SECONDS

    def look(self) -> None:
        """See how it goes, if that has not just been done."""
        # hot: once per read
        if not self.due:
            return
        now, stats, waited = self._clock(), self._counters.snapshot(), self._counters.waited
        if not stats.batches:
            return  # the start says nothing about what follows
        if self._before is not None:
            if not self._is_whole(now, stats, self._before):
                return
            self._take_in(now, self._seen(now, stats, waited))
        self._before, self._waited, self._began = stats, waited, now
        self._held_seconds, self._held_since = 0.0, now

    def _is_whole(self, now: float, stats: LoaderStats, before: LoaderStats) -> bool:
        """Tell whether a window has gone on for long enough to say something."""
        return (
            stats.batches - before.batches >= _WINDOW_BATCHES
            or stats.reads - before.reads >= _WINDOW_READS * self._controller["reads"]
            or now - self._began >= _LONG_WINDOW_SECONDS
        )

    def _seen(self, now: float, after: LoaderStats, waited: float) -> Seen:
        """Return what has happened since the last look."""
        assert self._before is not None
        before, seconds = self._before, now - self._began
        wait = max(waited - self._waited, 0.0)
        work = after.work_seconds - before.work_seconds
        blocked = after.blocked_seconds - before.blocked_seconds
        if self.pool is None:  # samples are made while the user waits for them, and only then
            work = sum(getattr(after, name) - getattr(before, name) for name in _STAGES)
        capacity = seconds if self.pool is not None else wait
        batches, reads = after.batches - before.batches, after.reads - before.reads
        if batches and reads:
            self._reads_per_batch += (reads / batches - self._reads_per_batch) / 2
        return Seen(
            seconds=seconds,
            batches=batches,
            wait_seconds=wait,
            consumer_seconds=after.consumer_seconds - before.consumer_seconds,
            busy=work / capacity if capacity > 0 else 0.0,
            blocked=min(blocked / work, 1.0) if work > 0 else 0.0,
            reads=reads,
            read_bytes=after.read_bytes - before.read_bytes,
            read_seconds=after.read_seconds - before.read_seconds,
            held=min(self._held() / seconds, 1.0),
        )

    def _take_in(self, now: float, seen: Seen) -> None:
        """Let the controller decide about a window, unless workers are on their way."""
        if self.pool is not None and not self.pool.settled:
            return
        if self.pool is not None and self.pool.num_workers < self._controller["workers"]:
            self._refuse(self.pool.num_workers, "further workers did not start")
            return
        change = self._controller.observe(now, seen)
        if change is not None:
            self._carry_out(change)

    def _carry_out(self, change: Change) -> None:
        """Make a change."""
        if change.knob == "workers" and not self._resize(change.value):
            return
        if change.knob == "reads":
            self._slots.resize(change.value)
        value = self._controller[change.knob]
        self._counters.add(adaptations=1)
        if change.knob == "ahead":
            self._why_ahead = change.reason
            self._depth = 0  # to be found anew
        else:
            self._counters.set(**{_COUNTERS[change.knob]: value})
            self._counters.reasons[_COUNTERS[change.knob]] = change.reason
        self.on_change()
        _log.debug("%s: %d, since %s", change.knob, value, change.reason)

    def _resize(self, count: int) -> bool:
        """Have so many workers, if there is memory for them."""
        assert self.pool is not None
        present = self.pool.num_workers
        needed = (count - present) * self.pool.worker_bytes
        if needed > 0 and needed > available_memory() // 4 // local_world_size():
            self._refuse(present, "there is no memory for more")
            return False
        self.pool.resize(count)
        return True

    def _refuse(self, present: int, why: str) -> None:
        self._controller.refuse("workers", present)
        self._counters.set(num_workers=present)
        self._counters.reasons["num_workers"] = why

    def _wanted_depth(self, rows: int, steps: int) -> int:
        """Return the depth that keeps the workers and the storage busy."""
        jobs = self._sizes.parts(rows) if steps == 1 else 1
        wanted = depth(
            workers=self._controller["workers"],
            jobs=jobs,
            steps=steps,
            ahead=self._controller["ahead"],
            spare=steps > 1 or self._sizes.batch_bytes(rows) <= _SPARE_BYTES,
        )
        more_reads = self._controller["reads"] - FIRST_READS
        if more_reads > 0:  # there must be something to read
            wanted += math.ceil(more_reads / max(self._reads_per_batch, 1e-3))
        return wanted

    def _held(self) -> float:
        """Return the seconds of this window in which runs were held back."""
        if not self._holders:
            return self._held_seconds
        return self._held_seconds + self._clock() - self._held_since

    def _tell(self, adapts: bool) -> None:
        """Say what the numbers are at first, and why."""
        auto = "the CPUs that this process may use" if adapts else "as asked for"
        self._counters.reasons.update(
            num_workers=auto,
            prefetch=_BUSY if self._prefetch is None else "as asked for",
            reads_in_flight="more where reads are waited for",
        )
        self._counters.set(reads_in_flight=self._controller["reads"], prefetch=self._prefetch or 0)
