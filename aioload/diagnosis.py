"""Diagnosis: which one stage limits a loop, told from what was counted; pure.

Three questions, in this order. Did the loop wait at all? If not, the model limits. Were the workers busy?
Then the stage that took most of their time limits, since the batches that the loop waited for stood in line
for them. If workers were idle while the loop waited, something kept work from them: bytes that were on their
way (storage), room that was not there (memory), or the way batches follow each other (order): single samples
that take long and hold up all behind them, too few batches ahead, or the handing over itself.

What happened before the first batch says nothing about what follows, and is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .words import count, share, size

if TYPE_CHECKING:
    from .stats import LoaderStats

__all__ = ["Diagnosis", "Stage", "diagnose"]

Stage = Literal["storage", "decode", "prepare", "transform", "collate", "order", "memory", "copy", "model"]

_LIMITING = 0.05  # share of the loop's time from which waiting is worth a look
_FULL = 0.75  # of the workers busy: then there are too few of them, or they have too much to do
_NEARLY_FULL = 0.9  # likewise, where more memory would give them more: that costs less than less work
_MOST = 0.5  # of the waits, or of the work
_FEW_BATCHES = 8
_NEW_WORKER = 1.0  # seconds that it takes to replace one, about, with the work that is done again
_SMALL_READ = 128 << 10  # bytes, below which a read is mostly the way there


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What limits a loop, and what would help."""

    stage: Stage
    """The one that limits."""
    stall: float
    """The share of its time in which the loop waited for data."""
    rate: float
    """Samples a second."""
    reach: float
    """Samples a second that the next stage would allow if this one cost nothing."""
    evidence: str
    """What tells so, in words."""
    advice: str
    """What to do next, in words."""


def diagnose(stats: LoaderStats) -> Diagnosis:
    """Return what limits a loop.

    Args:
        stats: of the loader: of all it did, of an epoch, or of a stretch of time (`LoaderStats.since`).
    """
    loop = _Loop.of(stats)
    if loop.seconds <= 0 or not loop.stats.batches:
        few = "one batch is too few to tell" if stats.batches else "no batch has been handed out yet"
        return Diagnosis("model", 0.0, 0.0, 0.0, few, "look again later")
    stage = loop.limit()
    evidence, advice = _TOLD[stage](loop)
    if loop.stats.batches < _FEW_BATCHES:
        batches = "1 batch" if loop.stats.batches == 1 else f"{loop.stats.batches} batches"
        evidence += f" (of {batches} only, so far)"
    if not loop.stats.samples:
        evidence += "; not one sample came of it, all were left out"
    if loop.stats.restarts * _NEW_WORKER > _LIMITING * loop.stats.worker_seconds:  # no stage is to blame
        evidence += f"; {count(loop.stats.restarts, 'worker')} died meanwhile and had to be replaced"
        advice = f"find out first why workers die; then {advice}"
    return Diagnosis(stage, loop.stall, loop.rate, loop.reach(stage), evidence, advice)


@dataclass(frozen=True, slots=True)
class _Loop:
    """The user's loop since its first batch, and what the stages did meanwhile."""

    stats: LoaderStats
    wait: float  # seconds
    seconds: float  # of waits and of the user's own time
    lost: float  # of these, for copies to a device
    parts: dict[Stage, float]  # seconds that workers spent, by stage
    workers: float  # that there were, in the mean

    @classmethod
    def of(cls, stats: LoaderStats) -> _Loop:
        """Return the loop that was counted."""
        steady = stats.steady
        wait = max(steady.wait_seconds - steady.first_batch_seconds, 0.0)
        seconds = wait + steady.consumer_seconds
        lost = steady.device_stall_seconds + steady.device_wait_seconds
        workers = steady.worker_seconds / seconds if seconds > 0 else 0.0
        return cls(steady, wait, seconds, lost, _parts(steady), workers)

    @property
    def stall(self) -> float:
        """The share of time spent waiting."""
        return self.wait / self.seconds

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.stats.samples / self.seconds

    @property
    def busy(self) -> float:
        """The share of workers that had something to do."""
        return min(self.stats.busy_seconds / (self.stats.worker_seconds or math.inf), 1.0)

    @property
    def inline(self) -> bool:
        """Whether samples are made in the user's own thread."""
        return not self.stats.num_workers

    @property
    def work(self) -> float:
        """Seconds that samples and batches took."""
        return sum(self.parts.values())

    @property
    def uneven(self) -> float:
        """The share of work by which single samples took longer than others."""
        # slow samples are told without the time in which they had no CPU: so is the whole
        whole = self.work - self.stats.queued_seconds
        return min(self.stats.uneven_seconds / whole, 1.0) if whole > 0 else 0.0

    def waits(self, seconds: float) -> float:
        """Return the share of waits that some seconds are."""
        return min(seconds / self.wait, 1.0) if self.wait > 0 else 0.0

    def limit(self) -> Stage:
        """Return the stage that limits."""
        if self.lost >= max(_LIMITING * self.seconds, self.wait - self.stats.device_wait_seconds):
            return "copy"
        if self.wait < _LIMITING * self.seconds:
            return "model"
        reading, working = self.stats.wait_read_seconds, self.stats.wait_work_seconds
        if self.waits(self.stats.wait_memory_seconds) >= _MOST and self._is_idle(_NEARLY_FULL):
            return "memory"
        if not self._is_idle(_FULL):
            return self._in_workers()
        if reading >= max(working, self.wait - reading - working):
            return "storage"
        return "order"

    def _is_idle(self, full: float) -> bool:
        """Tell whether those who make samples had less to do than they could."""
        if self.inline:
            return self.stats.wait_read_seconds > self.stats.wait_work_seconds
        return self.busy < full

    def _in_workers(self) -> Stage:
        """Return the stage that limits where workers are busy."""
        stage = max(self.parts, key=self.parts.__getitem__)
        if stage in ("decode", "prepare", "transform") and self._is_uneven:
            return "order"
        return stage

    @property
    def _is_uneven(self) -> bool:
        """Whether single slow samples hold others up, which takes a second worker that makes them."""
        return self.stats.num_workers > 1 and self.uneven >= _MOST

    def reach(self, stage: Stage) -> float:
        """Return the samples a second that other stages allow."""
        stats, samples = self.stats, self.stats.samples
        limits = []
        if stats.read_seconds > 0 and stage != "storage":
            limits.append(samples * max(stats.reads_in_flight, 1) / stats.read_seconds)
        own = stats.consumer_seconds if stage != "model" else 0.0
        if stage == "copy":
            own = max(own - stats.device_stall_seconds, 0.0)
        work = self.work - self.parts.get(stage, 0.0) - (stats.uneven_seconds if stage == "order" else 0.0)
        work = max(work, 0.0)
        if self.inline:
            own, work = own + work, 0.0
        limits += [samples / own] if own > 0 else []
        limits += [samples * max(self.workers, 1.0) / work] if work > 0 else []
        return max(min(limits, default=0.0), self.rate)


def _parts(stats: LoaderStats) -> dict[Stage, float]:
    """Return what workers spent their time on, by stage."""
    # sums are compared where a record is first touched: that is where a mapped file is waited for
    touched = stats.check_seconds if stats.mapped else 0.0
    known = stats.decode_seconds + stats.sample_cache_seconds + stats.prepare_seconds
    known += stats.transform_seconds + stats.collate_seconds
    return {
        "decode": max(stats.decode_seconds - touched, 0.0) + stats.sample_cache_seconds,
        "prepare": stats.prepare_seconds,
        "transform": stats.transform_seconds,
        "collate": stats.collate_seconds + max(stats.work_seconds - known, 0.0),  # writing rows is, too
        "storage": touched,
        "order": max(stats.busy_seconds - max(stats.work_seconds, known), 0.0),  # the way there and back
    }


# What is told of each: the evidence, and what to do --------------------------------------------------------


def _of_model(loop: _Loop) -> tuple[str, str]:
    return f"the loop waited {share(loop.stall)} of its time", "nothing: the model limits"


def _of_storage(loop: _Loop) -> tuple[str, str]:
    stats = loop.stats
    if stats.mapped and loop.parts["storage"] >= stats.wait_read_seconds:
        touched = share(loop.parts["storage"] / (loop.work or 1.0))
        told = f"{touched} of the workers' time went by until bytes of mapped files were there"
        return told, "a faster disk, memory that the whole set fits into, or fewer bytes (smaller pictures)"
    read = stats.read_bytes / max(stats.reads, 1)
    took = 1000 * stats.read_seconds / max(stats.reads, 1)
    told = f"{share(loop.waits(stats.wait_read_seconds))} of the waits were for bytes on their way"
    if stats.reads:
        told += f"; a read of {size(read)} took {took:.1f} ms, up to {stats.reads_in_flight} at once"
    again = " (cache_dir= keeps them for the next epoch)" if stats.requests and not stats.cache_hits else ""
    if stats.reads and read < _SMALL_READ:
        return told, "larger reads: shuffle=True rather than 'full', and a larger block_bytes" + again
    return told, "faster or nearer storage, or fewer bytes" + again


def _of_work(loop: _Loop, stage: Stage, less: str) -> tuple[str, str]:
    """Tell of a stage that workers do."""
    stats = loop.stats
    told = f"{share(loop.parts[stage] / (loop.work or 1.0))} of the work on samples"
    if loop.inline:
        return f"{told}, all of it in the training thread", f"num_workers='auto', or {less}"
    told += f", while {share(loop.busy)} of the workers' time was taken"
    blocked = stats.blocked_seconds / (stats.work_seconds or math.inf)
    queued = stats.queued_seconds / (stats.work_seconds or math.inf)
    if blocked >= _MOST:
        told += f"; {share(blocked)} of it they waited rather than computed"
        return told, f"more workers (num_workers={2 * stats.num_workers}), since they mostly wait; or {less}"
    if queued >= _MOST:
        told += f"; {share(queued)} of it they waited for a CPU"
        return told, f"CPUs that nobody else uses, or {less}"
    if stats.num_workers < stats.cpus:
        return told, f"more workers (num_workers={stats.cpus}), or {less}"
    return told, f"{less}; or more CPUs"


def _of_decode(loop: _Loop) -> tuple[str, str]:
    return _of_work(
        loop, "decode", "less to decode: smaller pictures, the extra `fast`, or pack them decoded"
    )


def _of_prepare(loop: _Loop) -> tuple[str, str]:
    kept = "cache=, which keeps what prepare returns"
    if loop.stats.sample_misses:
        kept = "later epochs find it in the cache, or in a larger one"
    return _of_work(loop, "prepare", f"{kept}, or do it once with `aioload map`")


def _of_transform(loop: _Loop) -> tuple[str, str]:
    return _of_work(
        loop, "transform", "do what is not random once: in prepare=, with cache=, or before packing"
    )


def _of_collate(loop: _Loop) -> tuple[str, str]:
    return _of_work(
        loop, "collate", "less in collate: what is done for each sample belongs into the transform"
    )


def _of_memory(loop: _Loop) -> tuple[str, str]:
    stats = loop.stats
    short = share(loop.waits(stats.wait_memory_seconds))
    told = f"in {short} of the waits no batch could be begun for want of memory"
    told += f", and workers were idle {share(1 - loop.busy)} of their time"
    return told, f"a larger memory_limit (it is {size(stats.memory_limit)}), or smaller batches"


def _of_order(loop: _Loop) -> tuple[str, str]:
    stats = loop.stats
    late, idle = loop.waits(stats.wait_late_seconds), 1 - loop.busy
    if loop.uneven >= _MOST / 2:
        told = f"{share(loop.uneven)} of the work were single samples that took far longer than others"
        told += f"; later batches were ready in {share(late)} of the waits"
        return told, f"make slow samples faster or fewer, or raise prefetch (it is {stats.prefetch})"
    if loop.waits(stats.wait_held_seconds) >= _MOST:
        told = f"workers were idle {share(idle)} of their time, while further batches were held back"
        return told, f"raise prefetch (it is {stats.prefetch})"
    told = f"samples cost little, and workers were idle {share(idle)} of their time"
    told += ": it went into planning, and into handing batches over"
    return told, "larger batches, or fewer workers"


def _of_copy(loop: _Loop) -> tuple[str, str]:
    stats = loop.stats
    lost = share(loop.lost / loop.seconds)
    told = f"copies to the device, for which the model stood still {lost} of the time"
    if 2 * stats.device_staged > stats.device_batches:
        return told, "see the warning about page-locked memory, for want of which each batch is copied twice"
    return told, "send fewer bytes: uint8 pictures, which dtype= converts on the device"


_TOLD = {
    "model": _of_model,
    "storage": _of_storage,
    "decode": _of_decode,
    "prepare": _of_prepare,
    "transform": _of_transform,
    "collate": _of_collate,
    "memory": _of_memory,
    "order": _of_order,
    "copy": _of_copy,
}
