"""Process: how a process becomes a worker, and all that it keeps between jobs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import replace
from multiprocessing import connection, parent_process
from pathlib import Path

import cloudpickle

from ..cache.memory import MemoryStore
from .arena import ArenaHandle
from .clock import CpuClock
from .failures import message_of, shortened
from .jobs import MARK, Answer, Job, Startup
from .space import Span
from .task import Worker
from .trace import StackFileHandle

__all__ = ["ping", "run_job", "start_worker"]

_BLAS_THREADS = tuple(  # of the builds that numpy comes with, and of the systems'
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")
)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def start_worker(handle: ArenaHandle, mark: Span, recipe: bytes, stacks: StackFileHandle) -> None:
    """Make this process a worker: map the arena, load the recipe, watch the parent. Once in each process.

    Args:
        handle: the arena.
        mark: where in it this worker's `MARK` lies.
        recipe: pickled `Recipe`.
        stacks: where to write down where this process is, when asked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it ends its workers
    # blocked up to here; what user code starts may need it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a worker never holds a context on a device
    if not any(name in os.environ for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")):
        _use_one_thread()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch, say: the other cores have workers of their own
    _keep_freed_memory()
    threading.Thread(target=_end_with_parent, name="aioload-parent-watch", daemon=True).start()
    try:
        stacks.listen()
        array = handle.attach().array
        memory = None if handle.beside is None else MemoryStore(handle.beside)
        own_mark = array[mark.start : mark.stop].view(MARK)
        _process.worker = Worker(array, cloudpickle.loads(recipe), mark=own_mark, memory=memory)
        if (cv2 := sys.modules.get("cv2")) is not None:
            cv2.setNumThreads(1)  # likewise
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)  # the server may have imported it before the variable was set
        _process.startup = Startup(os.getpid())
    except BaseException as error:  # an initialiser that raises would end the process with its cause lost
        message = f"{type(error).__name__}: {message_of(error)}"
        _process.startup = Startup(os.getpid(), message, shortened(traceback.format_exc()))


def run_job(job: Job) -> Answer:
    """Run a job in a worker process."""
    assert _process.worker is not None, "start_worker was not run"
    began, (computed, queued) = time.perf_counter(), _process.cpu.seconds()
    answer = _process.worker.run(job)
    took, (computed_now, queued_now) = time.perf_counter() - began, _process.cpu.seconds()
    computed, queued = computed_now - computed, queued_now - queued
    blocked = max(took - computed - queued, 0.0)
    return replace(answer, work_seconds=took, blocked_seconds=blocked, queued_seconds=queued)


def ping() -> Startup:
    """Tell how the start went."""
    return _process.startup


class _Process:
    """What a worker process keeps between jobs: the one piece of module state there is."""

    worker: Worker | None = None
    cpu = CpuClock()
    startup = Startup(0, "start_worker was not run", "")


_process = _Process()


def _keep_freed_memory() -> None:
    """Have malloc keep what is freed.

    It gives arrays of more than 128 KiB back to the system, and each new one's pages must then be made again:
    a quarter of the time that Pillow's usual calls take for a photo.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)


def _use_one_thread() -> None:
    """Have numpy's linear algebra use one thread, as the other cores have workers of their own.

    The server has imported numpy before any variable was set. Where each worker computes with as many threads
    as there are cores, these wait for each other: a product of two matrices in each sample took ten times the
    CPU time with two workers on two cores.
    """
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        for path in {line.split(maxsplit=5)[-1] for line in maps if "openblas" in line}:
            library = ctypes.CDLL(path)
            for name in _BLAS_THREADS:
                if (set_threads := getattr(library, name, None)) is not None:
                    set_threads(1)


def _end_with_parent() -> None:
    """End this process when its parent has gone, however it went."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
