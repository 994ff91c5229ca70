"""Profiled: shows the waits for batches to a torch profiler that runs.

In an `async for` other tasks run during a wait, and what they do is shown inside of it.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["profiling", "shown"]


def profiling() -> bool:
    """Tell whether a torch profiler watches the calling thread."""
    # hot: once per batch; guarded by benchmarks/bench_trace.py
    torch: Any = sys.modules.get("torch")
    try:
        return torch is not None and bool(torch.autograd._profiler_enabled())
    except AttributeError:  # another thread imports it just now, or it is a torch that has no such thing
        return False


def shown() -> AbstractContextManager[Any]:
    """Return a context that the profiler shows as `aioload.next`."""
    found: AbstractContextManager[Any] = sys.modules["torch"].profiler.record_function("aioload.next")
    return found
