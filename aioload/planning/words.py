"""Words: numbers as people read them."""

from __future__ import annotations

__all__ = ["time_text"]


def time_text(seconds: float) -> str:
    """Return a time as people read it."""
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:,.1f} min"
    if seconds >= 10:
        return f"{seconds:,.0f} s"
    return f"{seconds:,.2f} s" if seconds >= 0.01 or not seconds else f"{1000 * seconds:.1g} ms"
