"""Context: workers start from a fork server of our own, and never through the user's `__main__`.

`multiprocessing` has each spawned process run the main script again, so that functions of it can be found by
name. Our functions travel by value (cloudpickle), hence workers need no `__main__`, and scripts without a
main guard, notebooks, `python -c` and standard input work. What is left out is left out here, in the data
sent to the new process; nothing in the user's process is patched, and the user's own fork server, if any, is
another one.

The server imports what every worker needs once; a worker is then a fork of a small process
without threads of ours, event loop, torch or CUDA, and starts in milliseconds. It ends by itself when no
process of ours is left.

A process that the user forks has copies of all this, but server and workers stay its parent's: the copy gives
up what would keep them alive after the parent, and starts a server of its own when it needs one.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import site
import sys
import sysconfig
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing import (
    connection,
    context,
    forkserver,
    popen_forkserver,
    process,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .locks import OneProcessLock, Slots

__all__ = ["WorkerContext", "WorkerProcess", "check_children", "warm_up"]

# what workers need of others
_PRELOAD = [
    "cloudpickle",
    "concurrent.futures.process",
    "faulthandler",
    "google_crc32c",
    "hashlib",
    "json",
    "numpy.random",
    "pathlib",
    "resource",
]


_ENTRY = f"{__package__}.process"


def _make_server() -> forkserver.ForkServer:
    server = forkserver.ForkServer()
    server.set_forkserver_preload(_PRELOAD)
    return server


_server: Any = _make_server()  # one a process, like multiprocessing's own


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

        with _deaf_to_ctrl_c():  # the server may have to be started
            self.sentinel, write_end = _server.connect_to_new_process(self._fds)
        # a second write end stays open here: the child knows by its closing that the parent has gone
        self.alive = os.dup(write_end)
        self.finalizer = util.Finalize(self, _close, (self.alive, self.sentinel))
        _started.add(self)
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(message.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


def check_children() -> None:
    """Refuse where Python lets no process be started, before one is.

    Raises:
        ConfigError: this process is another pool's.
    """
    if process.current_process().daemon:
        raise ConfigError(
            "this process is a worker of something else, such as a DataLoader or a multiprocessing.Pool, and "
            "may not start workers: pass num_workers=0. A DataLoader around a loader is better left out, "
            "since each of its workers would go through all batches"
        )


class WorkerProcess(context.ForkServerProcess):
    """A process of the pool."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _Popen(process_obj)


class WorkerContext(context.ForkServerContext):
    """What one `ProcessPoolExecutor` makes queues and processes with, and what knows them.

    Args:
        num_workers: processes of the executor. Several share one end of a queue, and then need a lock that
            they share too; those of `multiprocessing` have names.
    """

    def __init__(self, num_workers: int = 1) -> None:
        super().__init__()
        self._shared = num_workers > 1
        self.processes: list[WorkerProcess] = []
        self._results: Any = None

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        # once one has ended, its number may be another's
        return [
            worker.pid
            for worker in self.processes
            if worker.pid is not None and not connection.wait([worker.sentinel], 0)
        ]

    def Process(self, *args: Any, **kwargs: Any) -> WorkerProcess:  # type: ignore[override]  # a class there
        """Make a process; a method, so that what was made is known."""
        worker = WorkerProcess(*args, **kwargs, daemon=True)
        self.processes.append(worker)
        return worker

    def SimpleQueue(self) -> Any:
        """Make the queue that results come through."""
        self._results = super().SimpleQueue()
        return self._results

    def Lock(self) -> Any:
        """Make a lock for one end of a queue; with one worker, each end is one process's."""
        return super().Lock() if self._shared else OneProcessLock()

    def BoundedSemaphore(self, value: int = 1) -> Any:
        """Make what bounds a queue."""
        named = self._shared or not hasattr(os, "eventfd")
        return super().BoundedSemaphore(value) if named else Slots(value)

    def kill(self) -> None:
        """End by force what runs."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """Let whoever waits for results see the end of them, if no process runs.

        One that was killed in the middle of a message never sends the rest, and the pipe's other end is open
        in this process too.
        """
        if self._results is not None and not self.pids:
            self._results._writer.close()

    def close(self) -> int | None:
        """Give back what is kept of processes that have ended, two descriptors each; return the exit code."""
        exit_code = None
        processes, self.processes = self.processes, []
        for worker in processes:
            exit_code = worker.exitcode
            if exit_code is not None or worker.pid is None:  # else it is left behind
                worker.close()
        return exit_code


def warm_up(packages: Sequence[str] = ()) -> None:
    """Start the server, so that it imports while the data set is opened.

    Args:
        packages: of others, that workers will need beside the usual. A server that runs goes without.
    """
    wanted = [*_PRELOAD, *packages]
    if _is_shadowed(wanted):
        wanted = []  # workers import by themselves, with the program's path
    elif _is_found():
        wanted.append(_ENTRY)
    _server.set_forkserver_preload(wanted)
    with _deaf_to_ctrl_c():
        _server.ensure_running()


def _working_directory() -> list[str]:
    """Return where the server looks for modules first, and the program maybe not at all."""
    if not sys.flags.safe_path:
        with contextlib.suppress(OSError):  # it is gone
            return [os.getcwd()]  # noqa: PTH109 - a text, as other places
    return []


def _is_shadowed(packages: Sequence[str]) -> bool:
    """Tell whether the server would import something else than what it should.

    It looks where `python -c` does, first in the working directory. A program looks in its own folder first,
    and what lies in the working directory may have nothing to do with it.
    """
    names = sys.stdlib_module_names | {package.partition(".")[0] for package in packages}
    return any(_has(place, name) for place in _working_directory() for name in names)


def _is_found() -> bool:
    """Tell whether the server would find this very package, and not another of its name.

    It knows nothing of what the program has added to its path. Where it finds nothing, or something else,
    workers import the package by themselves.
    """
    told = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    places = [*_working_directory(), *filter(None, told.split(os.pathsep)), sysconfig.get_paths()["stdlib"]]
    places += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    package = Path(__file__).parents[1]
    for place in (*places, *site.getsitepackages()):
        if _has(place, package.name):
            return os.path.realpath(os.path.join(place, package.name)) == os.path.realpath(package)  # noqa: PTH118
    return False


def _has(place: str, name: str) -> bool:
    """Tell whether a folder has a module of this name; not one that cannot be looked into."""
    return os.path.exists(f"{place}/{name}.py") or os.path.exists(f"{place}/{name}/__init__.py")  # noqa: PTH110


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Hold Ctrl-C back in this thread; what is started meanwhile never gets it.

    The terminal sends it to every process. It is this process's to handle, and one that only begins to live
    would print a traceback of its own.
    """
    resource_tracker.ensure_running()  # which, when it starts, would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


_started: weakref.WeakSet[_Popen] = weakref.WeakSet()


def _let_go() -> None:
    """Give up, in a process that was just forked, what is the parent's."""
    global _server
    for started in list(_started):
        if started.finalizer.still_active():
            os.close(started.alive)  # else workers would not notice that the parent has gone
            started.finalizer.cancel()
    _started.clear()
    if _server._forkserver_alive_fd is not None:
        os.close(_server._forkserver_alive_fd)
    _server = _make_server()
    children: set[process.BaseProcess] = vars(process)["_children"]
    # else multiprocessing would end the parent's workers when this process exits
    children -= {child for child in children if isinstance(child, WorkerProcess)}


os.register_at_fork(after_in_child=_let_go)
