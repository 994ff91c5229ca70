"""The check after every test sees each kind of thing that a test could leave behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import leaks
import pytest

LASTING = [sys.executable, "-c", "input()"]


def test_a_clean_test_costs_next_to_nothing() -> None:
    """Two looks and a comparison take under two milliseconds, in the best of ten."""
    before = leaks.observe()

    times = [_seconds(lambda: leaks.leftovers(before)) for _ in range(10)]

    assert min(times) < 0.002


def test_a_child_process_is_seen_and_named() -> None:
    """A child that still runs is told with its command line; one that has ended is not."""
    before = leaks.observe()

    with subprocess.Popen(LASTING, stdin=subprocess.PIPE) as child:
        running = leaks.leftovers(before, grace=0)
        child.communicate(b"\n")
    ended = leaks.leftovers(before)

    assert running == [f"process {child.pid}: {' '.join(LASTING)}"]
    assert ended == []


def test_an_orphan_is_seen() -> None:
    """A grandchild whose parent was killed is told too, and is gone for the check once it has ended."""
    before = leaks.observe()
    script = f"import subprocess; print(subprocess.Popen({LASTING!r}).pid, flush=True); input()"

    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        running = leaks.leftovers(before, grace=0)
    os.kill(orphan, signal.SIGKILL)
    ended = leaks.leftovers(before)

    assert [line for line in running if line.startswith(f"process {orphan}:")]
    assert ended == []


def test_a_thread_is_seen_and_named() -> None:
    """A thread that still runs is told by its name."""
    before = leaks.observe()
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name="forgotten")

    thread.start()
    running = leaks.leftovers(before, grace=0)
    leave.set()
    thread.join()

    assert running == ["thread 'forgotten'"]
    assert leaks.leftovers(before) == []


@pytest.mark.parametrize(
    ("folder", "message"),
    [("/dev/shm", "shared memory /dev/shm/aioload-forgotten"), (None, "temporary file aioload-forgotten")],
)
def test_a_file_is_seen_and_named(folder: str | None, message: str) -> None:
    """A name in /dev/shm, and one of ours among the temporary files, is told."""
    before = leaks.observe()
    forgotten = Path(folder or tempfile.gettempdir()) / "aioload-forgotten"

    forgotten.touch()
    found = leaks.leftovers(before, grace=0)
    forgotten.unlink()

    assert found == [message]
    assert leaks.leftovers(before) == []


def test_descriptors_are_counted_and_named() -> None:
    """More open descriptors than the spare ones are told with what they stand for."""
    before = leaks.observe()

    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(leaks.SPARE_DESCRIPTORS + 1)]
    found = leaks.leftovers(before, grace=0)
    for fd in opened:
        os.close(fd)

    assert found == [f"descriptor {fd}: /dev/null" for fd in opened]
    assert leaks.leftovers(before) == []


async def test_a_pending_task_is_seen_and_named() -> None:
    """A task that waits for ever is told, the asking one is not."""
    task = asyncio.create_task(asyncio.Event().wait(), name="forgotten")

    found = leaks.pending_tasks()
    task.cancel()
    await asyncio.wait([task])

    assert len(found) == 1
    assert "name='forgotten'" in found[0]
    assert leaks.pending_tasks() == []


def test_a_destroyed_task_is_heard(nothing_left_behind: leaks.LoopErrors) -> None:
    """What an event loop logs as an error is kept."""
    loop = asyncio.new_event_loop()

    loop.call_exception_handler({"message": "Task was destroyed but it is pending!"})
    heard = nothing_left_behind.messages.copy()
    loop.close()
    nothing_left_behind.messages.clear()

    assert heard == ["Task was destroyed but it is pending!"]


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
