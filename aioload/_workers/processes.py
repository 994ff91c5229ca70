"""Processes for work on many files: quick to start, not through `__main__`, and gone with their parent."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, parent_process

from .context import WorkerContext

__all__ = ["processes"]


def processes(num_workers: int) -> ProcessPoolExecutor:
    """Return an executor of processes; shut it down when done."""
    return ProcessPoolExecutor(num_workers, mp_context=WorkerContext(num_workers), initializer=_start)


def _start() -> None:
    """Leave Ctrl-C to the parent, watch it, and keep Pillow's warnings of odd tags to itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.filterwarnings("ignore", module=r"PIL\b")
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)  # however the parent ended: a killed one cannot tell its executor
