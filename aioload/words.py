"""Words: counts, sizes, rates and times as people read them.

Sizes go by 1024, as memory limits are given; rates by 1000, as disks and networks are sold.
"""

from __future__ import annotations

__all__ = ["byte_rate", "clock", "count", "number", "share", "size", "time_text"]


def count(number: int, noun: str) -> str:
    """Return a number and what is counted, in the plural where it is not one."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number(value: float) -> str:
    """Return a number of which small ones matter to a tenth."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


def share(part: float) -> str:
    """Return a part of one as a percentage."""
    return f"{part:.0%}"


def size(num_bytes: float) -> str:
    """Return a number of bytes: 512 bytes, 86.1 MiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:,.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"


def byte_rate(bytes_per_second: float) -> str:
    """Return a rate of bytes in three or four signs: 1.5 MB/s, 122 MB/s."""
    for unit in ("B", "kB", "MB"):
        if bytes_per_second < 999.5:
            whole = unit == "B" or bytes_per_second >= 99.95
            return f"{bytes_per_second:.{0 if whole else 1}f} {unit}/s"
        bytes_per_second /= 1000
    return f"{bytes_per_second:,.1f} GB/s"


def time_text(seconds: float) -> str:
    """Return how long something takes: 0.35 s, 16 s, 3.3 min."""
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:,.1f} min"
    if seconds >= 10:
        return f"{seconds:,.0f} s"
    return f"{seconds:,.2f} s" if seconds >= 0.01 or not seconds else f"{1000 * seconds:.1g} ms"


def clock(seconds: float) -> str:
    """Return a time as a clock shows it: 1:15, 25:01:01."""
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
