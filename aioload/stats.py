"""Statistics: what the parts of a loader count, and the frozen picture of it that users get."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["Counters", "LoaderStats"]


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader has done since it was made. Times are in seconds, sizes in bytes.

    Seconds of stages that run side by side (reads, workers) are summed over all that ran at once.
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
    transform_seconds: float = 0.0
    """Workers' time in the user's transform."""
    collate_seconds: float = 0.0
    """Workers' time in putting batches together."""
    work_seconds: float = 0.0
    """Worker processes' time in jobs, all in all."""
    blocked_seconds: float = 0.0
    """Of it, time in which they neither computed nor waited for a CPU: in reads or waits of user code."""
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
    copies: int = 0
    """Batches that were handed over as private copies, since too many were kept or room was short."""
    memory_limit: int = 0
    """The byte budget of the pipeline."""
    memory_peak: int = 0
    """Most bytes of it in use at once."""
    window_bytes: int = 0
    """Of it, what the block shuffle has for pieces that are read whole; 0 if records are read one by one."""
    mapped: bool = False
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
    locked_bytes: int = 0
    """Bytes of the pipeline's memory that are page-locked for the device, as of now."""
    num_workers: int = 0
    """Worker processes as of now; 0 when samples are made in the user's thread."""
    prefetch: int = 0
    """Batches that may be under way or ready, as of now."""
    reads_in_flight: int = 0
    """Reads that may be under way at once, as of now."""
    adaptations: int = 0
    """How often workers, batches ahead or reads at once were changed by what was measured."""

    @property
    def device_overlap(self) -> float:
        """The share of `device_seconds` in which nobody stood still for it; 1 where nothing is copied."""
        if not self.device_seconds:
            return 1.0
        return max(1 - (self.device_stall_seconds + self.device_wait_seconds) / self.device_seconds, 0.0)


class Counters:
    """What is counted while a loader runs; plain numbers, each written by one thread."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {field.name: 0 for field in fields(LoaderStats)}
        self.reasons: dict[str, str] = {}  # why a setting is what it is, by the name of its counter
        self._left_at: float | None = None
        self._arrived_at: float | None = None

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
        self._arrived_at = now
        return now

    def leave(self, arrived: float, samples: int, size: int) -> None:
        """Note that the user goes away with a batch."""
        self._left_at = now = time.perf_counter()
        self._arrived_at = None
        if not self._values["batches"]:
            self._values["first_batch_seconds"] = now - arrived
        self.add(batches=1, samples=samples, batch_bytes=size, wait_seconds=now - arrived)

    @property
    def pace(self) -> tuple[int, float]:
        """The batches that the user took, and the seconds between them; from any thread."""
        return int(self._values["batches"]), self._values["consumer_seconds"]

    def pause(self) -> None:
        """Note that an iteration ended: what the user does until the next is nobody's business."""
        self._left_at = self._arrived_at = None

    @property
    def waited(self) -> float:
        """Seconds that the user has waited, those of a wait that goes on included; from any thread."""
        arrived = self._arrived_at
        return self._values["wait_seconds"] + (0.0 if arrived is None else time.perf_counter() - arrived)

    def snapshot(self) -> LoaderStats:
        """Return all counters as they are now."""
        counts = {field.name for field in fields(LoaderStats) if field.type == "int"}
        values: dict[str, Any] = {
            name: int(value) if name in counts else float(value) for name, value in self._values.items()
        }
        return LoaderStats(**values)
