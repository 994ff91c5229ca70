"""Lifetime: which process this is, apart from copies that a fork makes of it, and what is done at its end."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import process, thread  # noqa: F401 - their hooks, which wait, are to run after ours

__all__ = ["Origin", "at_exit"]


class Origin:
    """The process in which something was made; asking the system which one it is would cost each step."""

    def __init__(self) -> None:
        self._process = _process

    @property
    def is_left(self) -> bool:
        """Whether this is a copy that a fork has made, without the threads of that process."""
        return self._process is not _process


def at_exit(function: Callable[[], None]) -> None:
    """Have something done when the interpreter exits, before concurrent.futures waits for its threads.

    These would wait for jobs that run, so an ordinary hook is too late. Where this hook of the standard
    library is missing, an ordinary one must do.
    """
    getattr(threading, "_register_atexit", atexit.register)(function)


_process = object()  # of this process, and of no copy that a fork makes


def _note_fork() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_note_fork)
