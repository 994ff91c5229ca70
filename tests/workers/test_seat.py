"""Seat: one process, started and ended once, whatever happens to it meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import cloudpickle
import pytest
from pool_bench import make_recipe

from aioload._workers.arena import Arena, ArenaHandle
from aioload._workers.jobs import MARK
from aioload._workers.seat import Seat, SeatState, signal_name
from aioload._workers.space import Span
from aioload.storage.threads import DaemonExecutor


@pytest.fixture
def seat() -> Iterator[Seat]:
    """A seat that has not been started; closed at the end."""
    threads = DaemonExecutor(4, name="test-start")
    with Arena(1 << 16) as arena:
        seat = Seat(ArenaHandle(arena), Span(0, MARK.itemsize), cloudpickle.dumps(make_recipe()), threads)
        yield seat
        seat.close(0.5)
    threads.shutdown()


def wait_until_stopped(pid: int) -> None:
    """Wait until a signal to stop has arrived."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        pass


def test_a_seat_starts_and_ends(seat: Seat) -> None:
    """It runs in between, and an orderly end leaves exit code 0."""
    startup = seat.start()
    ran = seat.runs
    seat.close(5)

    assert startup.trace is None
    assert startup.pid != os.getpid()
    assert (ran, seat.runs) == (True, False)
    assert seat.exit_code == 0
    assert seat.state is SeatState.STARTING  # what it can be used for is the pool's to say


def test_a_killed_process_leaves_its_signal(seat: Seat) -> None:
    """The exit code of a process that was killed is the signal's number, negative."""
    startup = seat.start()

    os.kill(startup.pid, signal.SIGKILL)
    seat.close(5)

    assert seat.exit_code == -9
    assert signal_name(9) == "SIGKILL"
    assert signal_name(250) == "signal 250"


def test_a_seat_that_was_closed_does_not_start(seat: Seat) -> None:
    """Closing may come before the start: then there is none."""
    seat.close(0.5)

    with pytest.raises(BrokenProcessPool):
        seat.start()

    assert seat.exit_code is None


def test_who_closes_second_waits_for_the_first(seat: Seat) -> None:
    """After any `close` the process has ended."""
    startup = seat.start()
    os.kill(startup.pid, signal.SIGSTOP)
    first = threading.Thread(target=seat.close, args=(1.0,))

    first.start()
    seat.close(1.0)
    ran = seat.runs
    first.join()

    assert not ran
    assert seat.exit_code == -9


def test_a_stack_can_be_asked_for_at_any_time(seat: Seat) -> None:
    """Before the start, twice while it runs, after a kill and after the end: a text, and never an error."""
    before = seat.dump_stack()
    startup = seat.start()
    first, second = seat.dump_stack(), seat.dump_stack()
    os.kill(startup.pid, signal.SIGKILL)
    seat.dump_stack()
    seat.close(5)

    assert (before, seat.dump_stack()) == ("", "")
    assert "process_worker" in first
    assert abs(len(first) - len(second)) < len(first) / 2  # the second is not behind the first


def test_time_counts_only_while_the_worker_is_at_the_same_thing(seat: Seat) -> None:
    """An idle worker, one that goes on, and one that is stopped are not at anything for long."""
    startup = seat.start()
    mark = seat._array

    idle = [seat.seconds_at(1.0) for _ in range(3)]
    mark[0] = (4, 1.5)
    busy = [seat.seconds_at(1.0) for _ in range(3)]
    os.kill(startup.pid, signal.SIGSTOP)
    wait_until_stopped(startup.pid)
    stopped = [seat.seconds_at(1.0) for _ in range(3)]
    os.kill(startup.pid, signal.SIGCONT)
    mark[0] = (5, 2.5)
    gone_on = seat.seconds_at(1.0)

    assert idle == [0, 0, 0]
    assert busy == [0, 1, 2]
    assert stopped == [2, 2, 2]
    assert gone_on == 0
