"""Processes for work on many files: quick to start, not through `__main__`, and gone with their parent."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, parent_process

from .context import WorkerContext, check_children

__all__ = ["Processes"]

_GRACE = 0.5  # seconds for jobs that have begun; a process may only just have started when it is ended
_TRIES = 3


class Processes(ProcessPoolExecutor):
    """An executor of processes; shut it down when done.

    Args:
        num_workers: processes at most.

    Raises:
        ConfigError: this process may start none.
    """

    def __init__(self, num_workers: int) -> None:
        check_children()
        self._ours = WorkerContext(num_workers)
        super().__init__(num_workers, mp_context=self._ours, initializer=_start)

    def give_up(self) -> None:
        """Drop jobs that wait, and end those that have begun, by force where they take long. It blocks."""
        ending = threading.Thread(target=self.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        ending.start()
        for _ in range(_TRIES):
            ending.join(_GRACE)
            if not ending.is_alive():
                return
            self._ours.hang_up()
            self._ours.kill()
        ending.join(_GRACE)


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
