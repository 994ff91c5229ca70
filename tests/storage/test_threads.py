"""Threads for reading: few, in order, and never in the way of an end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from aioload import errors
from aioload.storage.threads import DaemonExecutor


@pytest.fixture
def executor() -> Iterator[DaemonExecutor]:
    """Two threads at most."""
    executor = DaemonExecutor(2)
    yield executor
    executor.shutdown()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What calls wait for; opened at the end, so that a failing test ends too."""
    gate = threading.Event()
    yield gate
    gate.set()


def stand_at(gate: threading.Event, arrived: threading.Barrier) -> None:
    """Tell that the call has begun, then wait."""
    arrived.wait(10)
    gate.wait()


def test_calls_give_results_and_errors(executor: DaemonExecutor) -> None:
    """A future tells how its call ended."""
    good = executor.submit(divmod, 7, 2)
    bad = executor.submit(int, "no number")

    assert good.result(10) == (3, 1)
    with pytest.raises(ValueError, match="no number"):
        bad.result(10)


def test_threads_are_daemons_with_names(executor: DaemonExecutor) -> None:
    """Whoever lists the threads sees what they are for."""
    thread = executor.submit(threading.current_thread).result(10)

    assert thread.name == "aioload-read-0"
    assert thread.daemon


def test_threads_start_only_when_needed(executor: DaemonExecutor) -> None:
    """No call, no thread; one call at a time, one thread."""
    idle = repr(executor)

    names = [executor.submit(threading.current_thread).result(10).name for _ in range(20)]

    assert idle == "<DaemonExecutor threads=0 of 2 waiting=0>"
    assert set(names) <= {"aioload-read-0", "aioload-read-1"}


def test_no_more_threads_than_allowed(executor: DaemonExecutor, gate: threading.Event) -> None:
    """What exceeds them waits, and can still be cancelled."""
    arrived = threading.Barrier(3)
    begun = [executor.submit(stand_at, gate, arrived) for _ in range(2)]
    waiting = [executor.submit(int) for _ in range(5)]
    arrived.wait(10)

    state = repr(executor)
    cancelled = waiting[0].cancel()
    gate.set()

    assert state == "<DaemonExecutor threads=2 of 2 waiting=5>"
    assert cancelled
    assert not begun[0].cancel()
    assert [future.result(10) for future in waiting[1:]] == [0] * 4


def test_calls_begin_in_the_order_they_came() -> None:
    """With one thread, calls are made one after the other."""
    executor, order = DaemonExecutor(1), list[int]()

    for number in range(50):
        executor.submit(order.append, number)
    executor.shutdown()

    assert order == list(range(50))


def test_shutdown_makes_the_calls_already_taken(executor: DaemonExecutor, gate: threading.Event) -> None:
    """Nothing that was accepted is lost."""
    arrived = threading.Barrier(3)
    begun = [executor.submit(stand_at, gate, arrived) for _ in range(2)]
    waiting = executor.submit(int)
    arrived.wait(10)

    executor.shutdown(wait=False)
    ended_before = executor.ended.done()
    gate.set()

    assert waiting.result(10) == 0
    assert [future.result(10) for future in begun] == [None, None]
    assert not ended_before
    assert executor.ended.result(10) is None


def test_shutdown_can_drop_what_waits(executor: DaemonExecutor, gate: threading.Event) -> None:
    """Calls in a thread finish, the others are cancelled."""
    arrived = threading.Barrier(3)
    begun = [executor.submit(stand_at, gate, arrived) for _ in range(2)]
    waiting = executor.submit(int)
    arrived.wait(10)

    executor.shutdown(wait=False, cancel_futures=True)
    gate.set()

    assert waiting.cancelled()
    assert [future.result(10) for future in begun] == [None, None]


def test_shutdown_ends_idle_threads(executor: DaemonExecutor) -> None:
    """After waiting for it, no thread is left."""
    thread = executor.submit(threading.current_thread).result(10)

    executor.shutdown()

    assert not thread.is_alive()
    assert repr(executor) == "<DaemonExecutor threads=0 of 2 waiting=0 closed>"


def test_shutdown_without_threads_ends_at_once(executor: DaemonExecutor) -> None:
    """An executor that was never used has nothing to wait for, and closes twice for free."""
    executor.shutdown()
    executor.shutdown()

    assert executor.ended.done()


def test_call_after_shutdown_is_a_closed_error(executor: DaemonExecutor) -> None:
    """A late call is refused."""
    executor.shutdown()

    with pytest.raises(errors.ClosedError):
        executor.submit(int)


def test_who_waits_for_the_end_can_give_up(executor: DaemonExecutor) -> None:
    """Giving up does not take the answer from others."""
    given_up = executor.ended.cancel()
    executor.shutdown()

    assert not given_up
    assert executor.ended.result(10) is None


def test_forgotten_executor_ends_its_threads() -> None:
    """An executor that is collected takes its idle threads along."""
    executor = DaemonExecutor(1)
    thread = executor.submit(threading.current_thread).result(10)

    del executor
    gc.collect()
    thread.join(10)

    assert not thread.is_alive()


@pytest.mark.parametrize("call", [len, int])  # int fails on a set
def test_idle_thread_keeps_no_arguments_alive(call: Callable[[object], int]) -> None:
    """Memory that was read into is free when its call is done, however it ended."""
    executor, argument = DaemonExecutor(1), {1, 2}
    alive = weakref.ref(argument)
    executor.submit(call, argument)

    executor.submit(int).result(10)
    del argument

    assert alive() is None
    executor.shutdown()


def test_no_thread_at_all_is_an_error(executor: DaemonExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system gives no thread the call is refused, not kept for ever."""
    monkeypatch.setattr(threading.Thread, "start", refuse)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        executor.submit(int)

    assert repr(executor) == "<DaemonExecutor threads=0 of 2 waiting=0>"


def test_one_thread_does_the_work_of_two(
    executor: DaemonExecutor, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system gives no second thread, calls wait for the first."""
    arrived = threading.Barrier(2)
    executor.submit(stand_at, gate, arrived)
    arrived.wait(10)
    monkeypatch.setattr(threading.Thread, "start", refuse)

    waiting = executor.submit(int)
    gate.set()

    assert waiting.result(10) == 0


async def test_event_loop_runs_calls_in_it(executor: DaemonExecutor) -> None:
    """It is an executor like any other to asyncio."""
    result = await asyncio.get_running_loop().run_in_executor(executor, int, "17")

    assert result == 17


def test_exit_does_not_wait_for_a_stuck_thread() -> None:
    """A finished program ends, whatever its threads are stuck in."""
    script = (
        "import threading\n"
        "from aioload.storage.threads import DaemonExecutor\n"
        "executor, begun = DaemonExecutor(2), threading.Event()\n"
        "executor.submit(lambda: (begun.set(), threading.Event().wait()))\n"
        "executor.submit(int).result()\n"
        "begun.wait()\n"
        "print('finished', flush=True)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        finished = process.stdout.readline()
        began = time.monotonic()

        status = process.wait(10)

    assert finished == "finished\n"
    assert status == 0
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("max_threads", [0, -1])
def test_executor_without_threads_is_refused(max_threads: int) -> None:
    """It could never make a call."""
    with pytest.raises(ValueError, match="must be positive"):
        DaemonExecutor(max_threads)


def refuse(thread: threading.Thread) -> None:
    """Stand in for a system that is out of threads."""
    raise RuntimeError("can't start new thread")
