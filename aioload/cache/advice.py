"""Advice: what a cache does for a loader, or would do; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..words import size

if TYPE_CHECKING:
    from ..stats import LoaderStats

__all__ = ["Rooms", "advise", "describe"]

_PAYS = 1.3  # times the rate, from which a cache is worth a line
_LEAST_SAMPLES = 256  # that were made, before anything is said
_READ_BYTES_PER_SECOND = 2e9  # at which a worker brings back what was kept: copy and sum


@dataclass(frozen=True, slots=True)
class Rooms:
    """What there is to keep samples in."""

    records: int
    """Of all sets."""
    memory: int
    """Bytes that memory can spare."""


def advise(stats: LoaderStats, rooms: Rooms) -> list[str]:
    """Return the lines that say whether a cache would pay, for a loader that has none.

    Args:
        stats: of the loader.
        rooms: what there is.
    """
    made = stats.prepared_samples
    if made < _LEAST_SAMPLES or not stats.samples:
        return []
    fixed = stats.decode_seconds + stats.prepare_seconds
    rest = stats.transform_seconds + stats.collate_seconds
    per_sample = stats.prepared_bytes / max(stats.measured_samples, 1)
    brought = made * per_sample / _READ_BYTES_PER_SECOND
    gain = (fixed + rest) / max(rest + brought, 1e-9)
    if gain < _PAYS:
        return []
    total = per_sample * rooms.records
    what = "decode and prepare take" if stats.prepare_seconds else "decode takes"
    share = fixed / (fixed + rest)
    room = size(max(total * 1.02, 1024))  # in a unit that the option takes
    where = f'cache=Memory("{room}")'
    if total > rooms.memory:
        where = f'cache=Disk(path, "{room}"), as memory has {size(rooms.memory)} to spare'
    return [
        f"cache:   {what} {share:.0%} of the workers' time, for what is always the same; kept, all samples "
        f"take {size(total)}",
        f"         {where} could make the workers up to {gain:.1f} x as fast from the second epoch on",
    ]


def describe(stats: LoaderStats, names: list[str]) -> list[str]:
    """Return the lines that say what a cache has done.

    Args:
        stats: of the loader.
        names: under which samples are kept, and what these were made of.
    """
    asked = stats.sample_hits + stats.sample_misses
    if not asked:
        return []
    saved = stats.saved_seconds - stats.sample_cache_seconds
    lines = [
        f"cache:   {stats.sample_hits / asked:.0%} of {asked:,} samples were found "
        f"({size(stats.sample_cache_bytes)}), which saved {max(saved, 0.0):.1f} s of the workers' time; "
        f"{size(stats.sample_stored)} kept anew",
    ]
    if stats.sample_errors:
        lines.append(f"         {stats.sample_errors:,} were not what had been kept, and were made anew")
    return [*lines, *(f"         kept as {name}" for name in names[:4])]
