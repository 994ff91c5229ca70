"""The fakes do what the tests believe of them."""

from __future__ import annotations

import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from anyio.lowlevel import checkpoint
from fakes import Counting, FaultyStorage, Gate, GateStorage, Raising, Read

from aioload.storage.memory import MemoryStorage

CONTENT = bytes(range(16))


def test_gate_storage_opens_reads_one_by_one() -> None:
    """From another thread, reads are seen waiting, and end in the order they are let through."""
    storage = GateStorage(MemoryStorage({"shard": CONTENT}))
    first, second = bytearray(4), bytearray(4)

    with start_blocking_portal() as portal:
        one = portal.start_task_soon(storage.read_into, "shard", 0, memoryview(first))
        storage.wait(1)
        two = portal.start_task_soon(storage.read_into, "shard", 8, memoryview(second))
        storage.wait(2)
        waiting = storage.waiting
        storage.open()
        one.result(5)
        half_way = (bytes(first), bytes(second))
        storage.open_all()
        two.result(5)

    assert waiting == 2
    assert half_way == (CONTENT[:4], bytes(4))
    assert second == CONTENT[8:12]
    assert storage.reads == [Read("shard", 0, 4), Read("shard", 8, 12)]


async def test_gate_storage_forgets_a_cancelled_read() -> None:
    """A read that was cancelled before the gate takes nobody's turn."""
    storage = GateStorage(MemoryStorage({"shard": CONTENT}))
    out = bytearray(2)

    with anyio.move_on_after(0.01):
        await storage.read_into("shard", 0, memoryview(bytearray(1)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(storage.read_into, "shard", 4, memoryview(out))
        await checkpoint()
        storage.open()

    assert out == CONTENT[4:6]


async def test_faulty_storage_raises_at_chosen_reads() -> None:
    """Read 1 fails with the error given, the reads around it are served."""
    storage = FaultyStorage(MemoryStorage({"shard": CONTENT}), faults={1: OSError("gone")})
    out = bytearray(3)

    await storage.read_into("shard", 0, memoryview(out))
    with pytest.raises(OSError, match="gone"):
        await storage.read_into("shard", 3, memoryview(out))
    await storage.read_into("shard", 6, memoryview(out))

    assert out == CONTENT[6:9]
    assert storage.reads[1] == Read("shard", 3, 6)


def test_counting_counts_over_processes(tmp_path: Path) -> None:
    """Calls in two processes add up, and the values pass through."""
    counting = Counting(tmp_path / "calls")

    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        values = list(pool.map(counting, range(6)))

    assert values == list(range(6))
    assert counting.calls == 6


def test_raising_raises_at_chosen_values() -> None:
    """Only the values it does not like raise the error it was given."""
    raising = Raising(at=(3).__eq__, error=KeyError, then=abs)

    with pytest.raises(KeyError):
        raising(3)

    assert raising(-4) == 4


def test_gate_holds_calls_in_other_processes(tmp_path: Path) -> None:
    """A call in a worker waits until it is let through; the end of the gate lets everybody through."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with Gate(tmp_path, then=abs) as gate:
            first, second = pool.submit(gate, -1), pool.submit(gate, -2)
            gate.wait()
            held = not first.done()
            gate.open()
            opened = first.result(10)
            gate.wait()
        last = second.result(10)

    assert held
    assert (opened, last) == (1, 2)


def test_gate_works_between_threads(tmp_path: Path) -> None:
    """In the test's own process, as with `num_workers=0`, it works the same."""
    results: list[int] = []

    with Gate(tmp_path) as gate:
        thread = threading.Thread(target=lambda: results.append(gate(5)))
        thread.start()
        gate.wait()
        before = results.copy()
        gate.open()
        thread.join(10)

    assert before == []
    assert results == [5]
