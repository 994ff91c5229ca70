"""Context: workers start from a fork server of our own, and never through the user's `__main__`.

`multiprocessing` has each spawned process run the main script again, so that functions of it can be found by
name. Our functions travel by value (cloudpickle), hence workers need no `__main__`, and scripts without a
main guard, notebooks, `python -c` and standard input work. What is left out is left out here, in the data
sent to the new process; nothing in the user's process is patched, and the user's own fork server, if any, is
another one.

The server imports what every worker needs once; a worker is then a fork of a small process without threads of
ours, event loop, torch or CUDA, and starts in milliseconds. It ends by itself when no process of ours is
left.
"""

from __future__ import annotations

import io
import os
from multiprocessing import connection, context, forkserver, popen_forkserver, process, reduction, spawn, util
from typing import Any

__all__ = ["WorkerContext", "WorkerProcess", "warm_up"]

_PRELOAD = ["aioload._workers.task", "aioload.decode"]

_server = forkserver.ForkServer()  # one a process, like multiprocessing's own
_server.set_forkserver_preload(_PRELOAD)


class _Popen(popen_forkserver.Popen):
    """Start a process from our server, with nothing about the main module."""

    _fds: list[int]  # what `duplicate_for_child` has collected

    def _launch(self, process_obj: process.BaseProcess) -> None:
        data = spawn.get_preparation_data(process_obj.name)
        for name in ("init_main_from_name", "init_main_from_path"):
            data.pop(name, None)
        message = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(data, message)
            reduction.dump(process_obj, message)
        finally:
            context.set_spawning_popen(None)

        self.sentinel, write_end = _server.connect_to_new_process(self._fds)
        # a second write end stays open here: the child knows by its closing that the parent has gone
        alive = os.dup(write_end)
        self.finalizer = util.Finalize(self, _close, (alive, self.sentinel))
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(message.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


class WorkerProcess(context.ForkServerProcess):
    """A process of the pool."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _Popen(process_obj)


class WorkerContext(context.ForkServerContext):
    """What `ProcessPoolExecutor` makes queues and processes with; `processes` lists those it has started."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[WorkerProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> WorkerProcess:  # type: ignore[override]  # a class there
        """Make a process; a method, so that what was made is known."""
        worker = WorkerProcess(*args, **kwargs, daemon=True)
        self.processes.append(worker)
        return worker

    def kill(self) -> None:
        """End by force what runs."""
        for worker in self.processes:
            # once it has ended, its number may be another's
            if worker.pid is not None and not connection.wait([worker.sentinel], 0):
                worker.kill()

    def close(self) -> None:
        """Give back what is kept of processes that have ended: two descriptors each."""
        for worker in self.processes:
            worker.close()
        self.processes.clear()


def warm_up() -> None:
    """Start the server, so that it imports while the data set is opened."""
    _server.ensure_running()


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
