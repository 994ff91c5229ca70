"""Statistics: what the parts of a loader count, and the frozen picture of it that users get."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .teller import Teller

__all__ = ["Counters", "LoaderStats"]


def _level() -> Any:
    """Return a field that tells how things are, and not what was counted: it has no difference."""
    return field(default=0, metadata={"level": True})


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader has done since it was made. Times are in seconds, sizes in bytes.

    Seconds of stages that run side by side (reads, workers) are summed over all that ran at once. Counts can
    be subtracted (`since`); what is said to be "as of now" stays what it is.
    """

    batches: int = 0
    """Batches handed to the user."""
    samples: int = 0
    """Rows of these batches."""
    batch_bytes: int = 0
    """Bytes of their arrays."""
    reads: int = 0
    """Reads from storage."""
    read_bytes: int = 0
    """Bytes these reads brought."""
    record_bytes: int = 0
    """Bytes of the records they were made for; whole pieces bring more where only a part of them is due."""
    read_seconds: float = 0.0
    """Time in reads."""
    decode_seconds: float = 0.0
    """Workers' time in checking and decoding."""
    check_seconds: float = 0.0
    """Of it, time in which they compared sums. Where files are mapped they wait for the disk here."""
    prepare_seconds: float = 0.0
    """Workers' time in the user's `prepare`."""
    transform_seconds: float = 0.0
    """Workers' time in the user's transform."""
    collate_seconds: float = 0.0
    """Workers' time in putting batches together."""
    work_seconds: float = 0.0
    """Worker processes' time in jobs, all in all."""
    blocked_seconds: float = 0.0
    """Of it, time in which they neither computed nor waited for a CPU: in reads or waits of user code."""
    queued_seconds: float = 0.0
    """Of it, time in which they could have computed, and had no CPU."""
    uneven_seconds: float = 0.0
    """Of it, time by which single samples took much longer than those beside them."""
    decoded_bytes: int = 0
    """Bytes of the batches that were made, those that nobody has taken yet included."""
    plan_seconds: float = 0.0
    """Time in which it was planned what comes next."""
    deliver_seconds: float = 0.0
    """Time in which finished memory was made batches of."""
    jobs: int = 0
    """Jobs that workers did."""
    jobs_again: int = 0
    """Of these, jobs that were repeated because their outcome needed another place."""
    skipped: int = 0
    """Records that were left out."""
    restarts: int = 0
    """Worker processes that were replaced because they died."""
    first_batch_seconds: float = 0.0
    """From the start of the first iteration to its first batch."""
    wait_seconds: float = 0.0
    """Time the user waited for batches, those of `first_batch_seconds` included."""
    consumer_seconds: float = 0.0
    """Time the user spent between batches."""
    wait_read_seconds: float = 0.0
    """Of the waits after the first batch, time in which bytes of the very batch were on their way."""
    wait_work_seconds: float = 0.0
    """Of them, time in which that batch was with the workers."""
    wait_memory_seconds: float = 0.0
    """Of them, time in which batches could not be begun for want of memory."""
    wait_held_seconds: float = 0.0
    """Of them, time in which further batches were held back for being too far ahead."""
    wait_late_seconds: float = 0.0
    """Of them, time in which later batches were ready and the one whose turn it was was not."""
    worker_seconds: float = 0.0
    """Time since the first batch in which workers were there for an iteration, summed over them."""
    busy_seconds: float = 0.0
    """Of it, time in which they had something to do."""
    copies: int = 0
    """Batches that were handed over as private copies, since too many were kept or room was short."""
    memory_limit: int = _level()
    """The byte budget of the pipeline."""
    memory_peak: int = _level()
    """Most bytes of it in use at once."""
    memory_used: int = _level()
    """Bytes of it in use, as of now."""
    leases: int = _level()
    """Stretches of it that are in use, as of now."""
    lease_waits: int = 0
    """How often a batch had to wait for memory."""
    window_bytes: int = _level()
    """Of it, what the block shuffle has for pieces that are read whole; 0 if records are read one by one."""
    mapped: bool = field(default=False, metadata={"level": True})
    """Whether workers map the shards, so that records are not read into shared memory first."""
    requests: int = 0
    """Requests to servers, retries and hedges included; these counts are of all loaders over a set."""
    retries: int = 0
    """Of these, requests that were sent because an earlier one failed."""
    hedges: int = 0
    """Requests that were sent because an earlier one was late."""
    hedges_won: int = 0
    """Of these, those that answered first."""
    throttles: int = 0
    """Answers that asked for less (429, 503)."""
    network_bytes: int = 0
    """Bytes that came over the network."""
    cache_hits: int = 0
    """Reads that the disk cache answered alone."""
    cache_misses: int = 0
    """Reads of which something was fetched."""
    cache_bytes: int = 0
    """Bytes that came from the disk cache."""
    cache_stored: int = 0
    """Bytes that were written to it."""
    cache_errors: int = 0
    """Cached ranges that were damaged and fetched again, and writes to the cache that failed."""
    prepared_samples: int = 0
    """Samples that were decoded (and prepared), rather than found in `cache`."""
    measured_samples: int = 0
    """Of these, those whose size was looked at."""
    prepared_bytes: int = 0
    """Bytes that these take when they are kept."""
    sample_hits: int = 0
    """Samples that were found in `cache`, from when a batch or a few have been made of them."""
    sample_misses: int = 0
    """Samples that had to be made, where there is a `cache`."""
    sample_cache_bytes: int = 0
    """Bytes of what was found."""
    sample_cache_seconds: float = 0.0
    """Workers' time in bringing it back."""
    sample_stored: int = 0
    """Bytes that were kept anew."""
    sample_errors: int = 0
    """Samples that were not what had been kept, and were made anew."""
    saved_seconds: float = 0.0
    """Workers' time that making what was found had taken."""
    device_batches: int = 0
    """Batches that were copied to a device."""
    device_bytes: int = 0
    """Bytes that were copied there, but for those of things that have a `to` of their own."""
    device_seconds: float = 0.0
    """The device's time in these copies, and in the conversion that follows them."""
    device_stall_seconds: float = 0.0
    """Of it, time in which the stream that the user computes on stood still for a copy."""
    device_wait_seconds: float = 0.0
    """Time the user waited for batches that were ready on the host, those of `wait_seconds` included."""
    device_staged: int = 0
    """Batches of which something went through a staging buffer, as it was not page-locked where it lay."""
    locked_bytes: int = _level()
    """Bytes of the pipeline's memory that are page-locked for the device, as of now."""
    num_workers: int = _level()
    """Worker processes as of now; 0 when samples are made in the user's thread."""
    prefetch: int = _level()
    """Batches that may be under way or ready, as of now."""
    reads_in_flight: int = _level()
    """Reads that may be under way at once, as of now."""
    adaptations: int = 0
    """How often workers, batches ahead or reads at once were changed by what was measured."""
    cpus: int = _level()
    """CPUs that this process may use."""
    batches_ready: int = _level()
    """Batches that wait for the user, as of now."""
    runs_under_way: int = _level()
    """Runs of neighbouring batches that are being made, as of now."""
    jobs_waiting: int = _level()
    """Jobs that wait for a worker, as of now."""
    jobs_running: int = _level()
    """Jobs that workers have, as of now."""
    reads_running: int = _level()
    """Reads that are under way, as of now."""
    start: LoaderStats | None = field(default=None, repr=False)
    """How all this was when the first batch was handed out, which says nothing about what follows."""

    @property
    def device_overlap(self) -> float:
        """The share of `device_seconds` in which nobody stood still for it; 1 where nothing is copied."""
        if not self.device_seconds:
            return 1.0
        return max(1 - (self.device_stall_seconds + self.device_wait_seconds) / self.device_seconds, 0.0)

    @property
    def steady(self) -> LoaderStats:
        """What was counted since the first batch: without the start of workers, first reads and imports."""
        return self if self.start is None else self.since(self.start)

    def since(self, earlier: LoaderStats) -> LoaderStats:
        """Return what has happened since an earlier look at the same loader.

        Args:
            earlier: what its `stats()` were then.
        """
        counted = {name: getattr(self, name) - getattr(earlier, name) for name in _COUNTED}
        start = None if self.start is None or earlier.batches else self.start.since(earlier)
        return replace(self, **counted, start=start)


_COUNTED = tuple(one.name for one in fields(LoaderStats) if one.name != "start" and not one.metadata)
_INTEGERS = frozenset(one.name for one in fields(LoaderStats) if one.type == "int")


class Counters:
    """What is counted while a loader runs; plain numbers, each written by one thread."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {one.name: 0 for one in fields(LoaderStats) if one.name != "start"}
        self.warned: set[str] = set()  # what the user was told once
        self.reasons: dict[str, str] = {}  # why a setting is what it is, by the name of its counter
        self.trace: Teller | None = None  # told of what happens, while somebody wants to know
        self._left_at: float | None = None
        self._arrived_at: float | None = None
        self._start: LoaderStats | None = None
        self.pauses = 0  # at each of which the time of the loop may go back

    def __getitem__(self, name: str) -> float:
        """Return a counter as it is now."""
        return self._values[name]

    def add(self, **amounts: float) -> None:
        """Add to some counters."""
        values = self._values
        for name, amount in amounts.items():
            values[name] += amount

    def set(self, **amounts: float) -> None:
        """Set some counters."""
        self._values.update(amounts)

    def read(self, size: int, seconds: float) -> None:
        """Count a read."""
        self.add(reads=1, read_bytes=size, read_seconds=seconds)

    def arrive(self) -> float:
        """Note that the user asks for a batch; return the time."""
        now = time.perf_counter()
        if self._left_at is not None:
            self._values["consumer_seconds"] += now - self._left_at
            self._left_at = None
        self._arrived_at = now
        return now

    def leave(self, arrived: float, samples: int, size: int) -> None:
        """Note that the user goes away with a batch."""
        self._left_at = now = time.perf_counter()
        self._arrived_at = None
        first = not self._values["batches"]
        self.add(wait_seconds=now - arrived, batches=1, samples=samples, batch_bytes=size)
        if first:  # waits for it that were broken off included
            self._values["first_batch_seconds"] = self._values["wait_seconds"]
            self._start = self.snapshot()

    @property
    def pace(self) -> tuple[int, float]:
        """The batches that the user took, and the seconds between them; from any thread."""
        return int(self._values["batches"]), self._values["consumer_seconds"]

    def give_up(self) -> None:
        """Note that the user no longer waits, and has no batch: after a timeout of theirs, say, or Ctrl-C."""
        arrived, self._arrived_at = self._arrived_at, None
        if arrived is None:
            return  # the iteration is over
        now = time.perf_counter()
        self.add(wait_seconds=now - arrived)
        if self._values["batches"]:
            self._left_at = now

    def pause(self) -> None:
        """Note that an iteration ended: what the user does until the next is nobody's business."""
        self._left_at = self._arrived_at = None
        self.pauses += 1

    @property
    def waited(self) -> float:
        """Seconds that the user has waited, those of a wait that goes on included; from any thread."""
        arrived = self._arrived_at
        return self._values["wait_seconds"] + (0.0 if arrived is None else time.perf_counter() - arrived)

    def loop(self) -> tuple[float, float]:
        """Return the seconds of waits after the first batch, and of the whole loop since; from any thread.

        What goes on is included. They may seem to go back for a moment, while the user's thread counts.
        """
        values, arrived, left = self._values, self._arrived_at, self._left_at
        if not values["batches"]:
            return 0.0, 0.0
        now = time.perf_counter()
        waited = values["wait_seconds"] - values["first_batch_seconds"]
        spent = values["consumer_seconds"]
        if arrived is not None:
            waited += now - arrived
        elif left is not None:
            spent += now - left
        return waited, waited + spent

    def snapshot(self, **now: float) -> LoaderStats:
        """Return all counters as they are now.

        Args:
            **now: how some of them have grown that are counted from time to time, and what else is known.
        """
        found: dict[str, float] = self._values | {"wait_seconds": self.waited} | now
        values: dict[str, Any] = {
            name: int(value) if name in _INTEGERS else float(value) for name, value in found.items()
        }
        return LoaderStats(**values | {"mapped": bool(found["mapped"])}, start=self._start)
