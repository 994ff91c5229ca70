"""Report: what a loader counted, as text that a person reads."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .stats import LoaderStats

__all__ = ["render"]

_LIMITING = 0.05  # share of the loop's time from which a stage is what limits it


def render(stats: LoaderStats, reasons: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return where the time went.

    Args:
        stats: of the loader.
        reasons: why settings are what they are, by their names in the stats.
    """
    if not stats.batches:
        return "no batch has been handed out yet"
    steady = max(stats.wait_seconds - stats.first_batch_seconds, 0.0)
    loop = steady + stats.consumer_seconds
    lines = [
        f"{stats.batches:,} batches, {stats.samples:,} samples, {_size(stats.batch_bytes)} of arrays",
        f"the training loop waited {_share(steady, loop)} of its time for data "
        f"({steady:.2f} s of {loop:.2f} s), and {stats.first_batch_seconds:.2f} s for its first batch",
    ]
    if loop > 0:
        lines.append(f"throughput {stats.samples / (loop + stats.first_batch_seconds):,.0f} samples/s")
    lines += _stages(stats)
    lines += _limit(stats, steady, loop)
    lines += _settings(stats, reasons)
    lines.append(
        f"memory: at most {_size(stats.memory_peak)} of {_size(stats.memory_limit)} in use; "
        f"{stats.copies:,} batches handed over as copies"
    )
    if stats.window_bytes:
        lines.append(f"        of it {_size(stats.window_bytes)} hold the pieces that the shuffle draws from")
    return "\n".join(lines)


def _stages(stats: LoaderStats) -> list[str]:
    """Return a line for each stage, with its work per thousand samples."""
    thousand = 1000 / stats.samples if stats.samples else 0.0
    where = f"{stats.num_workers} workers" if stats.num_workers else "the training thread"
    rate = stats.read_bytes / stats.read_seconds if stats.read_seconds else 0.0
    times = stats.read_bytes / stats.record_bytes if stats.record_bytes else 1.0
    size = f"{_size(stats.read_bytes)} ({times:.2f} x the records)"
    read = f"{stats.reads:,} reads, {size}, {_size(rate)}/s in each"
    rows = [
        ("read", stats.read_seconds, read),
        ("decode", stats.decode_seconds, f"in {where}"),
        ("transform", stats.transform_seconds, f"in {where}"),
        ("collate", stats.collate_seconds, f"in {where}"),
    ]
    if stats.device_batches:
        rows.append(("copy", stats.device_seconds, _copies(stats)))
    return [
        f"  {name:<10}{seconds:8.2f} s  {seconds * thousand:7.3f} s per 1,000 samples   {note}"
        for name, seconds, note in rows
    ]


def _copies(stats: LoaderStats) -> str:
    """Say what the copies to the device were like."""
    rate = stats.device_bytes / stats.device_seconds if stats.device_seconds else 0.0
    told = f"{_size(stats.device_bytes)}, {_size(rate)}/s, {stats.device_overlap:.0%} behind the model's work"
    told += f", {_size(stats.locked_bytes)} page-locked"
    if stats.device_staged:
        told += f"; {stats.device_staged:,} of {stats.device_batches:,} batches through staging buffers"
    return told


def _limit(stats: LoaderStats, steady: float, loop: float) -> list[str]:
    """Name the copies to the device where they are what the loop waits for, and what would help."""
    lost = stats.device_stall_seconds + stats.device_wait_seconds
    others = steady - stats.device_wait_seconds
    if loop <= 0 or lost < max(_LIMITING * loop, others):
        return []
    cure = "send fewer bytes: uint8 pictures, which dtype= converts on the device"
    if 2 * stats.device_staged > stats.device_batches:
        cure = "see the warning about page-locked memory, for want of which each batch is copied twice"
    return [
        f"limit: copies to the device, for which the model stood still {_share(lost, loop)} of the time;",
        f"       {cure}",
    ]


def _settings(stats: LoaderStats, reasons: Mapping[str, str]) -> list[str]:
    """Return a line for each number that the loader runs with, and why."""
    names = {"num_workers": "workers", "prefetch": "batches ahead", "reads_in_flight": "reads at once"}
    return [
        f"{label}: {getattr(stats, name):,} ({reasons[name]})"
        for name, label in names.items()
        if name in reasons
    ]


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "0%"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError
