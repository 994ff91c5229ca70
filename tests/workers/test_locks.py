"""What queues between parent and worker need: locks of one process, and slots counted between two."""

from __future__ import annotations

import os
import pickle
import threading
import time

import pytest

from aioload._workers.context import WorkerContext
from aioload._workers.locks import OneProcessLock, Slots

needs_eventfd = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="this system has no eventfd")


def test_a_lock_is_another_one_elsewhere() -> None:
    """A lock that is held arrives as one that is free: the other end of the queue is another process's."""
    lock = OneProcessLock()

    with lock:
        other = pickle.loads(pickle.dumps(lock))
        held, free = lock.acquire(False), other.acquire(False)

    assert (held, free) == (False, True)
    assert lock.acquire(False)


@needs_eventfd
def test_slots_are_counted() -> None:
    """So many can be taken, and one more for each that is given back; `_is_zero` is what a queue asks."""
    slots = Slots(2)

    taken = [slots.acquire(False) for _ in range(3)]
    empty = slots._semlock._is_zero()
    slots.release()

    assert taken == [True, True, False]
    assert empty
    assert not slots._semlock._is_zero()
    assert slots.acquire(timeout=1)


@needs_eventfd
def test_waiting_for_a_slot_ends_in_time() -> None:
    """A wait with a timeout gives up after it; one without gets the slot that another thread gives back."""
    slots = Slots(1)
    assert slots.acquire()
    began = time.monotonic()

    late = slots.acquire(timeout=0.05)
    waited = time.monotonic() - began
    giving = threading.Thread(target=slots.release)
    giving.start()
    got = slots.acquire()
    giving.join()

    assert (late, got) == (False, True)
    assert waited >= 0.05


@needs_eventfd
def test_slots_travel_only_to_a_child_that_is_started() -> None:
    """They are a descriptor: anywhere else pickling them is an error."""
    with pytest.raises(RuntimeError, match="should only be shared between processes"):
        pickle.dumps(Slots(1))


@needs_eventfd
def test_a_queue_is_full_when_its_slots_are_taken() -> None:
    """The context's queues count as multiprocessing's do."""
    queue = WorkerContext().Queue(1)

    before = queue.full()
    queue.put("one")
    after = queue.full()
    back = queue.get()
    queue.close()
    queue.join_thread()

    assert (before, after, back) == (False, True, "one")
