"""Report: what a loader counted, as about ten lines that a person reads."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from .diagnosis import diagnose
from .words import byte_rate, count, share, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .stats import LoaderStats

__all__ = ["render"]

_SETTINGS = {"num_workers": "workers", "prefetch": "batches ahead", "reads_in_flight": "reads at once"}


def render(stats: LoaderStats, reasons: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return where the time went, what limits, and what to do next.

    Args:
        stats: of the loader.
        reasons: why settings are what they are, by their names in the stats.
    """
    if not stats.batches:
        return "no batch has been handed out yet"
    found, first = diagnose(stats), stats.first_batch_seconds
    waited = f"waited {share(found.stall)} of its time for data"
    lines = [
        f"{stats.batches:,} batches, {stats.samples:,} samples, {size(stats.batch_bytes)} of arrays",
        f"loop:    {found.rate:,.0f} samples/s; it {waited}, and {first:.2f} s for its first batch",
        f"limit:   {found.stage}: {found.evidence}",
        f"reach:   {found.reach:,.0f} samples/s, if that cost nothing",
        f"next:    {found.advice}",
        *_work(stats),
        *_copies(stats),
        *_settings(stats, reasons),
        _memory(stats),
    ]
    return "\n".join(lines)


def _work(stats: LoaderStats) -> list[str]:
    """Say what reading and working took."""
    each = 1000 / stats.samples if stats.samples else 0.0
    prepares = ("prepare",) if stats.prepare_seconds else ()
    names = ("decode", *prepares, "transform", "collate")
    took = ", ".join(f"{name} {each * getattr(stats, f'{name}_seconds'):.3f} s" for name in names)
    where = count(stats.num_workers, "worker") if stats.num_workers else "the training thread"
    lines = [f"work:    {took} per 1,000 samples, in {where}"]
    if stats.reads:
        rate = stats.read_bytes / stats.read_seconds if stats.read_seconds else 0.0
        times = stats.read_bytes / stats.record_bytes if stats.record_bytes else 1.0
        told = f"{stats.reads:,} of {size(stats.read_bytes)} ({times:.2f} x the records)"
        told += f", {byte_rate(rate)} in each"
        lines.append(f"reads:   {told}")
    elif stats.mapped:
        lines.append("reads:   none: workers map the shards")
    return lines


def _copies(stats: LoaderStats) -> list[str]:
    """Say what the copies to the device were like, if there were any."""
    if not stats.device_batches:
        return []
    rate = stats.device_bytes / stats.device_seconds if stats.device_seconds else 0.0
    told = f"{size(stats.device_bytes)}, {byte_rate(rate)}"
    told += f", {share(stats.device_overlap)} behind the model's work"
    told += f", {size(stats.locked_bytes)} page-locked"
    if stats.device_staged:
        told += f"; {stats.device_staged:,} of {stats.device_batches:,} batches through staging buffers"
    return [f"copies:  {told}"]


def _settings(stats: LoaderStats, reasons: Mapping[str, str]) -> list[str]:
    """Return the numbers that the loader runs with, and why."""
    told = [
        f"{label}: {getattr(stats, name):,} ({reasons[name]})"
        for name, label in _SETTINGS.items()
        if name in reasons
    ]
    return ["runs on: " + "; ".join(told)] if told else []


def _memory(stats: LoaderStats) -> str:
    """Say what was used of the memory."""
    told = f"memory:  at most {size(stats.memory_peak)} of {size(stats.memory_limit)} in use"
    told += f"; {stats.copies:,} batches handed over as copies"
    if stats.window_bytes:
        told += f"; {size(stats.window_bytes)} hold the pieces that the shuffle draws from"
    return told
