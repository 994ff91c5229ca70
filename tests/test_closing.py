"""However a loader is left, all it had is gone within five seconds; and cancelling comes through, once."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any

import anyio
import batches
import leaks
import pytest
import scripts
from batches import counted
from fakes import Gate, GateStorage

import aioload
from aioload import ClosedError, Loader
from aioload.iterate import in_thread
from aioload.shard.format import shard_name
from aioload.storage import LocalStorage, handles

PROMISE_SECONDS = 5.0


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records in several shards."""
    return counted(tmp_path_factory.mktemp("hundred") / "set", shard_bytes=4000)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A transform at which workers stay until they are let go, or ended."""
    with Gate(tmp_path) as gate:
        yield gate


@pytest.fixture
def clock() -> Callable[[], float]:
    """Seconds since it was asked last."""
    last = [time.perf_counter()]

    def look() -> float:
        before, last[0] = last[0], time.perf_counter()
        return last[0] - before

    return look


def numbers(batch: Any) -> list[int]:
    """The records of a batch."""
    return batch["n"].tolist()


async def wait_at(gate: Gate) -> None:
    """Let other tasks go on until a worker is at the gate."""
    await in_thread(gate.wait)


# Leaving the loop -------------------------------------------------------------------------------------


def leave_by_break(loader: Loader) -> None:
    """Leave by `break`."""
    with loader.sync() as source:
        for _ in source:
            break


def leave_by_return(loader: Loader) -> None:
    """Leave by `return`."""
    with loader.sync() as source:
        for _ in source:
            return


def fail_at_once(loader: Loader) -> None:
    """Raise in the body."""
    with loader.sync() as source:
        for _ in source:
            raise KeyError("of the user")


def leave_by_exception(loader: Loader) -> None:
    """Leave by an exception, which must come out as it is."""
    with pytest.raises(KeyError, match="of the user"):
        fail_at_once(loader)


def leave_async_by_break(loader: Loader) -> None:
    """Leave an `async for` by `break`."""

    async def main() -> None:
        async with loader:
            async for _ in loader:
                break

    asyncio.run(main(), debug=True)


def leave_async_by_return(loader: Loader) -> None:
    """Leave an `async for` by `return`."""

    async def main() -> None:
        async with loader:
            async for _ in loader:
                return

    asyncio.run(main(), debug=True)


def leave_async_by_exception(loader: Loader) -> None:
    """Leave an `async for` by an exception, which must come out as it is."""

    async def main() -> None:
        async with loader:
            async for _ in loader:
                raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        asyncio.run(main(), debug=True)


def stay_behind_ten(gate: Gate) -> Callable[[Any], Any]:
    """A transform that keeps the worker that makes the second batch."""

    def transform(sample: Any) -> Any:
        return gate(sample) if sample["n"] == 10 else sample

    return transform


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_break,
        leave_by_return,
        leave_by_exception,
        leave_async_by_break,
        leave_async_by_return,
        leave_async_by_exception,
    ],
)
def test_leaving_the_block_ends_busy_workers(
    hundred: Path, gate: Gate, leave: Callable[[Loader], None], clock: Callable[[], float]
) -> None:
    """`break`, `return` and an exception of the user close all, also with a worker that never comes back."""
    before = leaks.observe()
    loader = Loader(hundred, batch_size=10, num_workers=2, prefetch=2, transform=stay_behind_ten(gate))

    leave(loader)

    assert leaks.leftovers(before, grace=PROMISE_SECONDS) == []
    assert clock() < PROMISE_SECONDS + 10  # starting is no part of the promise
    with pytest.raises(ClosedError, match="make a new one"):
        loader.sync().__enter__()


@pytest.mark.parametrize("num_workers", [1, 2, 8])
def test_closing_waits_for_no_transform(
    hundred: Path, gate: Gate, num_workers: int, clock: Callable[[], float]
) -> None:
    """Every worker in a transform that never ends: closed within 5 s, and no process left then."""
    before = leaks.observe()
    loader = Loader(hundred, batch_size=5, num_workers=num_workers, transform=gate)
    iter(loader.sync())
    gate.wait(num_workers)

    clock()
    loader.close()

    assert clock() < PROMISE_SECONDS
    assert leaks.leftovers(before, grace=0.5) == []


def test_closing_while_workers_start(hundred: Path, gate: Gate, clock: Callable[[], float]) -> None:
    """Workers that are still on their way up, held by a transform that is slow to load, are ended too."""
    before = leaks.observe()
    loader = Loader(hundred, batch_size=10, num_workers=2, transform=SlowToLoad(gate))
    iter(loader.sync())
    gate.wait(2)

    clock()
    loader.close()

    assert clock() < PROMISE_SECONDS
    assert leaks.leftovers(before, grace=0.5) == []


class SlowToLoad:
    """A transform whose unpickling does not end."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def __reduce__(self) -> tuple[Any, ...]:
        return self.gate, (None,)

    def __call__(self, sample: Any) -> Any:
        return sample


def test_closing_ends_a_wait_with_a_reason(hundred: Path, gate: Gate) -> None:
    """Whoever waits for a batch in another thread gets a ClosedError when the loader is closed."""
    loader = Loader(hundred, batch_size=10, num_workers=1, transform=gate)
    source = iter(loader.sync())
    gate.wait()
    closing = threading.Thread(target=loader.close)

    closing.start()
    with pytest.raises(ClosedError, match="the loader was closed"):
        next(source)
    closing.join()


def forget(loaders: list[Loader]) -> None:
    """Let loaders go."""
    loaders.clear()
    gc.collect()


def test_a_forgotten_loader_ends_busy_workers(hundred: Path, gate: Gate, clock: Callable[[], float]) -> None:
    """A loader that is let go while its workers are busy warns, and its processes end."""
    before = leaks.observe()
    loaders = [Loader(hundred, batch_size=10, num_workers=2, transform=gate)]
    iter(loaders[0].sync())
    gate.wait(2)

    clock()
    with pytest.warns(ResourceWarning, match="was never closed"):
        forget(loaders)

    assert leaks.leftovers(before, grace=PROMISE_SECONDS) == []
    assert clock() < PROMISE_SECONDS


def test_a_closed_loader_that_is_kept_holds_nothing(hundred: Path) -> None:
    """Loader and iterator that the program keeps after closing hold neither memory nor descriptors."""
    loader = Loader(hundred, batch_size=10, num_workers=1, collate=len)
    with loader.sync() as warm:  # multiprocessing keeps a few descriptors from its first use on
        next(iter(warm))
    before = leaks.observe().descriptors

    kept = [Loader(hundred, batch_size=10, num_workers=1, collate=len) for _ in range(3)]
    sources = [iter(loader.sync()) for loader in kept]
    assert [next(source) for source in sources] == [10, 10, 10]
    for loader in kept:
        loader.close()
    gc.collect()

    assert leaks.observe().descriptors <= before


# Reads that never answer ------------------------------------------------------------------------------


class DeafStorage:
    """A storage whose reads wait for the test, whoever cancels them."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.opened = threading.Event()

    async def size(self, name: str) -> int:
        raise NotImplementedError

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        self.arrived.set()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.opened.wait)


def test_a_storage_that_cannot_be_cancelled_is_left_behind(
    hundred: Path, monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]
) -> None:
    """Closing gives up on it within 5 s and says so; workers are gone, and the thread once it is answered."""
    storage = DeafStorage()
    dataset = aioload.Dataset(hundred)
    assert len(dataset) == 100
    monkeypatch.setattr(dataset, "open_storage", lambda: storage)
    before = leaks.observe()
    loader = Loader(dataset, batch_size=10, num_workers=2)
    iter(loader.sync())
    storage.arrived.wait()

    clock()
    with batches.Warnings() as warned:
        loader.close()
    seconds = clock()
    processes = leaks.observe().processes - before.processes
    storage.opened.set()

    assert seconds < PROMISE_SECONDS
    assert processes == set()
    assert "is left behind" in warned.messages[0]
    assert leaks.leftovers(before) == []


def test_a_file_that_does_not_open_is_left_behind(
    tmp_path: Path, clock: Callable[[], float], caplog: pytest.LogCaptureFixture
) -> None:
    """A read that is stuck in the kernel (a named pipe, a dead mount) holds up closing for 5 s at most."""
    path = counted(tmp_path / "set")
    shard = path / shard_name(0)
    dataset = aioload.Dataset(path)
    assert len(dataset) == 100
    shard.unlink()
    os.mkfifo(shard)
    before = leaks.observe()
    loader = Loader(dataset, batch_size=10, num_workers=2)
    iter(loader.sync())
    with shard.open(
        "wb"
    ):  # returns when the reader has come; it finds an end and tries again, record by record
        pass

    clock()
    loader.close()
    seconds = clock()
    processes = leaks.observe().processes - before.processes
    os.close(os.open(shard, os.O_RDWR | os.O_NONBLOCK))

    assert seconds < PROMISE_SECONDS
    assert processes == set()
    let_go(shard, before)


def let_go(shard: Path, before: leaks.Traces) -> None:
    """Let the threads of a test end that wait for a writer."""
    deadline = time.monotonic() + PROMISE_SECONDS
    while leaks.observe().threads - before.threads and time.monotonic() < deadline:
        os.close(os.open(shard, os.O_RDWR | os.O_NONBLOCK))


class StuckFile(FileIO):
    """A file whose reads stay in the kernel until the test lets them go."""

    arrived: threading.Event
    opened: threading.Event

    def readinto(self, view: Any, /) -> int:
        self.arrived.set()
        self.opened.wait()
        return super().readinto(view)


def test_a_read_stuck_in_a_thread_is_left_behind(
    hundred: Path, monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]
) -> None:
    """Its memory stays what it is until it returns, and closing does not wait for that."""
    monkeypatch.setattr(StuckFile, "arrived", threading.Event(), raising=False)
    monkeypatch.setattr(StuckFile, "opened", threading.Event(), raising=False)
    dataset = aioload.Dataset(hundred)
    assert len(dataset) == 100
    monkeypatch.setattr(handles, "FileIO", StuckFile)
    before = leaks.observe()
    loader = Loader(dataset, batch_size=10, num_workers=2, reads="file")
    iter(loader.sync())
    StuckFile.arrived.wait()

    clock()
    with batches.Warnings() as warned:
        loader.close()
    seconds = clock()
    processes = leaks.observe().processes - before.processes
    StuckFile.opened.set()

    assert seconds < PROMISE_SECONDS
    assert processes == set()
    assert "stuck" in "".join(warned.messages)
    assert leaks.leftovers(before) == []


def test_reads_before_the_gate_are_cancelled(hundred: Path, clock: Callable[[], float]) -> None:
    """A storage that can be cancelled costs closing nothing."""
    storage = GateStorage(LocalStorage(hundred))
    dataset = aioload.Dataset(hundred)
    assert len(dataset) == 100
    dataset.open_storage = lambda: storage  # type: ignore[method-assign]
    loader = Loader(dataset, batch_size=10, num_workers=2)
    iter(loader.sync())
    storage.wait(1)

    clock()
    loader.close()

    assert clock() < 2
    assert storage.waiting == 0


# Cancelling -------------------------------------------------------------------------------------------


async def test_a02_a_cancelled_wait_loses_no_batch(hundred: Path, gate: Gate) -> None:
    """A02: cancelling a wait arrives once, within a second; whoever goes on gets every batch, in order."""
    async with Loader(hundred, batch_size=10, num_workers=1, transform=gate) as loader:
        source = loader.batches()
        waiting = asyncio.create_task(anext(source))
        await wait_at(gate)

        waiting.cancel()
        done, _ = await asyncio.wait([waiting], timeout=1)
        state = loader.state_dict()
        gate.open(200)
        found = [numbers(batch) async for batch in source]

    assert done == {waiting}
    assert waiting.cancelled()
    assert state["position"] == 0
    assert list(chain(*found)) == list(range(100))


async def test_a02_state_is_that_of_the_last_batch(hundred: Path, gate: Gate) -> None:
    """A02: after a cancelled wait the state is that of the last batch, and a new loader goes on from it."""
    transform = stay_behind_ten(gate)
    async with Loader(hundred, batch_size=5, num_workers=1, prefetch=4, transform=transform) as loader:
        source = loader.batches()
        first = [numbers(await anext(source)), numbers(await anext(source))]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(source), 0.05)
        state = loader.state_dict()

    async with Loader(hundred, batch_size=5, num_workers=0) as again:
        again.load_state_dict(state)
        rest = [numbers(batch) async for batch in again]

    assert list(chain(*first, *rest)) == list(range(100))


@pytest.mark.parametrize("num_workers", [0, 1])
async def test_a02_asyncio_timeout(hundred: Path, num_workers: int) -> None:
    """A02: `asyncio.timeout` around the block gives TimeoutError and nothing else, and the block closes."""
    storage = GateStorage(LocalStorage(hundred))
    dataset = aioload.Dataset(hundred)
    assert len(dataset) == 100
    dataset.open_storage = lambda: storage  # type: ignore[method-assign]
    loader = Loader(dataset, batch_size=10, num_workers=num_workers)

    async def train() -> None:
        async with asyncio.timeout(0.1), loader:
            async for _ in loader:
                pass

    with pytest.raises(TimeoutError):
        await train()

    with pytest.raises(ClosedError):
        loader.check_open()


async def test_a02_move_on_after(hundred: Path, gate: Gate) -> None:
    """A02: anyio's scopes cancel a wait, and leave the task free to go on with the same iteration."""
    async with Loader(hundred, batch_size=10, num_workers=1, transform=gate) as loader:
        source = loader.batches()

        with anyio.move_on_after(0.05) as scope:
            await anext(source)
        gate.open(200)
        found = [numbers(batch) async for batch in source]

    assert scope.cancelled_caught
    assert list(chain(*found)) == list(range(100))


async def test_a02_waiting_after_a_cancel_is_idle(hundred: Path, gate: Gate) -> None:
    """A02: neither a cancelled wait nor the next one spins."""
    async with Loader(hundred, batch_size=10, num_workers=1, transform=gate) as loader:
        source = loader.batches()
        with anyio.move_on_after(0.05):
            await anext(source)
        await wait_at(gate)

        before = time.process_time()
        with anyio.move_on_after(1):
            await anext(source)
        used = time.process_time() - before

    assert used < 0.2


async def test_a02_a_failing_neighbour(hundred: Path, gate: Gate) -> None:
    """A02: when a neighbour in a task group fails, its error is the only one, and the loader closes."""
    loader = Loader(hundred, batch_size=10, num_workers=1, transform=gate)

    async def train() -> None:
        async with loader:
            async for _ in loader:
                pass

    async def fail() -> None:
        await wait_at(gate)
        raise KeyError("of the neighbour")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(train())
            group.create_task(fail())

    with pytest.raises(ExceptionGroup) as caught:
        await main()

    assert [type(error) for error in caught.value.exceptions] == [KeyError]
    with pytest.raises(ClosedError):
        loader.check_open()


async def test_a02_tasks_take_turns(hundred: Path) -> None:
    """A02: begun in one task, gone on with in another, closed in a third: the same batches, no error."""
    loader = Loader(hundred, batch_size=50, num_workers=1)

    async def take(source: Any) -> list[int]:
        return numbers(await anext(source))

    async def begin() -> Any:
        return loader.batches()

    source = await asyncio.create_task(begin())
    first = await asyncio.create_task(take(source))
    second = await asyncio.create_task(take(source))
    await asyncio.create_task(loader.aclose())

    assert first + second == list(range(100))


async def test_a_cancelled_close_goes_on_by_itself(hundred: Path, gate: Gate) -> None:
    """Who is cancelled while closing may leave; what was to end ends all the same."""
    before = leaks.observe()
    loader = Loader(hundred, batch_size=10, num_workers=2, transform=gate)
    loader.batches()
    await wait_at(gate)
    closing = asyncio.create_task(loader.aclose())
    await asyncio.sleep(0)

    closing.cancel()
    await asyncio.wait([closing])

    assert closing.cancelled()
    assert leaks.leftovers(before) == []


# Signals and exits ------------------------------------------------------------------------------------

SYNC = """
    import sys, time
    import aioload

    def transform(sample):
        if sample["n"] == 10:
            time.sleep(60)
        return sample

    options = dict(batch_size=10, num_workers=2, transform=transform, prefetch=2, collate=len)
    with aioload.Loader(sys.argv[1], **options).sync() as loader:
        for batch in loader:
            print("one batch", flush=True)
            {then}
"""

ASYNC = """
    import asyncio, sys, time
    import aioload

    def transform(sample):
        if sample["n"] == 10:
            time.sleep(60)
        return sample

    async def main():
        options = dict(batch_size=10, num_workers=2, transform=transform, prefetch=2, collate=len)
        async with aioload.Loader(sys.argv[1], **options) as loader:
            async for batch in loader:
                print("one batch", flush=True)
                {then}

    asyncio.run(main())
"""

UNCLOSED = """
    import sys, time
    import aioload

    def transform(sample):
        if sample["n"] == 10:
            time.sleep(60)
        return sample

    options = dict(batch_size=10, num_workers=1, transform=transform, prefetch=2, collate=len)
    loaders = [aioload.Loader(sys.argv[1], **options) for _ in range(3)]
    sources = [iter(loader.sync()) for loader in loaders]
    for source in sources:
        next(source)
    print("one batch", flush=True)
    {then}
"""

PLAIN_ASYNCIO = """
    import asyncio

    async def main():
        print("one batch", flush=True)
        await asyncio.sleep(60)

    asyncio.run(main())
"""

WAIT = "sys.stdin.readline()"


@pytest.mark.parametrize(("script", "plain"), [(SYNC, "raise KeyboardInterrupt"), (ASYNC, PLAIN_ASYNCIO)])
def test_one_ctrl_c_is_enough(hundred: Path, tmp_path: Path, script: str, plain: str) -> None:
    """Ctrl-C, told to the script and all its processes, ends it within 3 s with the usual traceback."""
    with scripts.running(plain, folder=tmp_path) as other:
        other.line()
        other.interrupt()
        expected = other.end()

    with scripts.running(script.format(then="pass"), hundred, folder=tmp_path) as running:
        running.line()
        running.interrupt()
        ended = running.end()

    assert ended.status == -signal.SIGINT
    assert ended.after_last_line < 3
    assert ended.err.count("Traceback") == expected.err.count("Traceback")
    assert ended.err.rstrip().endswith("KeyboardInterrupt")


def test_ctrl_c_never_reaches_a_worker_or_the_server(hundred: Path) -> None:
    """What is about to become a worker holds Ctrl-C back, workers ignore it: no traceback but the user's."""

    def masks(sample: Any) -> list[str]:
        status = Path(f"/proc/{os.getppid() if sample['n'] else os.getpid()}/status").read_text()
        return [line.split()[1] for line in status.splitlines() if line.startswith(("SigBlk", "SigIgn"))]

    with Loader(hundred, batch_size=2, num_workers=1, transform=masks, collate=list).sync() as loader:
        worker, server = next(iter(loader))

    bit = 1 << signal.SIGINT - 1
    assert [bool(int(mask, 16) & bit) for mask in worker] == [False, True]
    assert [bool(int(mask, 16) & bit) for mask in server] == [True, True]


@pytest.mark.parametrize(
    ("script", "number"), [(SYNC, signal.SIGTERM), (ASYNC, signal.SIGKILL), (UNCLOSED, signal.SIGKILL)]
)
def test_a_killed_script_leaves_nothing(
    hundred: Path, tmp_path: Path, script: str, number: signal.Signals
) -> None:
    """SIGTERM or SIGKILL: workers busy for a minute are gone within 10 s, and nothing stays in /dev/shm."""
    before = leaks.observe()

    with scripts.running(script.format(then=WAIT), hundred, folder=tmp_path) as running:
        running.line()
        running.kill(number)
        ended = running.end()

    assert (ended.status, ended.err) == (-number, "")
    assert leaks.leftovers(before, grace=10) == []


@pytest.mark.parametrize("script", [SYNC, ASYNC, UNCLOSED])
def test_sys_exit(hundred: Path, tmp_path: Path, script: str) -> None:
    """`sys.exit` with workers in a 60 s transform, in the block or with three loaders open: 5 s, silence."""
    ended = scripts.run(script.format(then="print(time.time()); sys.exit(3)"), hundred, folder=tmp_path)

    assert (ended.status, ended.err) == (3, "")
    assert ended.after_last_line < PROMISE_SECONDS


def test_exit_with_reads_that_never_answer(tmp_path: Path) -> None:
    """Three loaders whose reads are stuck, none of them closed: one deadline for all at exit."""
    path = counted(tmp_path / "set")
    script = """
        import os, sys, time
        import aioload

        datasets = [aioload.Dataset(sys.argv[1]) for _ in range(3)]
        lengths = [len(dataset) for dataset in datasets]
        os.unlink(sys.argv[2])
        os.mkfifo(sys.argv[2])
        sources = [iter(aioload.Loader(dataset, batch_size=10, num_workers=1).sync()) for dataset in datasets]
        time.sleep(1)
        print(time.time())
    """

    ended = scripts.run(script, path, path / shard_name(0), folder=tmp_path)

    assert ended.status == 0
    assert ended.after_last_line < PROMISE_SECONDS
    assert all("left a thread behind" in line for line in ended.err.splitlines())


# Forks ------------------------------------------------------------------------------------------------

FORKING = """
    import os, sys, warnings
    import aioload

    warnings.simplefilter("ignore", DeprecationWarning)  # of os.fork beside threads
    loader = aioload.Loader(sys.argv[1], batch_size=10, num_workers=2, prefetch=2, collate=len)
    source = iter(loader.sync())
    kept = next(source)
    if os.fork() == 0:
        {child}
        sys.exit(0)
    _, status = os.wait()
    total = sum(source)
    stats = loader.stats()
    loader.close()
    print("parent", status, total, stats.restarts, flush=True)
"""


def in_child(*lines: str) -> str:
    """The script with these lines in the child."""
    return FORKING.format(child="\n        ".join(lines))


def test_a_forked_child_is_told(hundred: Path, tmp_path: Path) -> None:
    """The child's next step, a new pass and loading a state are a ClosedError; closing there is free."""
    script = in_child(
        "def tell(use):",
        "    try:",
        "        use()",
        "    except aioload.ClosedError as error:",
        '        print("child", "forked" in str(error), flush=True)',
        "tell(lambda: next(source))",
        "tell(lambda: next(iter(loader.sync())))",
        "tell(lambda: loader.load_state_dict(loader.state_dict()))",
        "loader.close()",
    )

    ended = scripts.run(script, hundred, folder=tmp_path)

    assert ended.err == ""
    assert ended.out.splitlines() == ["child True"] * 3 + ["parent 0 90 0"]


def test_a_forked_child_makes_a_loader_of_its_own(hundred: Path, tmp_path: Path) -> None:
    """The child iterates over a new loader; parent's workers and batches are as if there had been no fork."""
    script = in_child(
        "with aioload.Loader(sys.argv[1], batch_size=50, num_workers=1, collate=len).sync() as own:",
        '    print("child", sum(own), flush=True)',
    )

    ended = scripts.run(script, hundred, folder=tmp_path)

    assert ended.err == ""
    assert ended.out.splitlines() == ["child 100", "parent 0 90 0"]


def test_a_loader_forked_before_it_started_works(hundred: Path, tmp_path: Path) -> None:
    """A loader that was made before a fork and first iterated after it works in parent and child."""
    script = """
        import os, sys
        import aioload

        loader = aioload.Loader(sys.argv[1], batch_size=10, num_workers=1, collate=len)
        child = os.fork()
        print(sum(loader.sync()), flush=True)
        loader.close()
        if child:
            os.wait()
    """

    ended = scripts.run(script, hundred, folder=tmp_path)

    assert ended.err == ""
    assert ended.out.split() == ["100", "100"]


def test_a_forked_child_does_not_keep_workers_alive(hundred: Path, tmp_path: Path) -> None:
    """The parent is killed while a child that it forked lives on: the workers end all the same."""
    script = """
        import os, sys, time
        import aioload

        def end_of(process):
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                try:
                    if open(f"/proc/{process}/stat").read().split()[2] == "Z":
                        return "gone"
                except FileNotFoundError:
                    return "gone"
                time.sleep(0.01)

        loader = aioload.Loader(sys.argv[1], batch_size=1, num_workers=1, collate=lambda samples: os.getpid())
        worker = next(iter(loader.sync()))
        if os.fork() == 0:
            print("forked", flush=True)
            print(end_of(worker), flush=True)
            os._exit(0)
        sys.stdin.readline()
    """
    before = leaks.observe()

    with scripts.running(script, hundred, folder=tmp_path) as running:
        running.line()
        running.kill(signal.SIGKILL)
        told = running.line()

    assert told == "gone"
    assert leaks.leftovers(before, grace=10) == []


# while the set is being opened


class Endless:
    """A storage that answers nobody, and says so when it is no longer asked."""

    def __init__(self) -> None:
        self.is_asked, self.is_left = threading.Event(), threading.Event()

    async def size(self, name: str) -> int:
        """Never return."""
        self.is_asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.is_left.set()
        return 0

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Never be asked."""


async def test_cancelling_ends_a_set_that_is_being_opened() -> None:
    """That can take hours: whoever leaves meanwhile waits for none of it, and nothing of it stays."""
    storage = Endless()

    async def take() -> None:
        async with Loader(aioload.Dataset(storage), batch_size=1) as loader:
            await anext(aiter(loader))

    async with anyio.create_task_group() as group:
        group.start_soon(take)
        await in_thread(storage.is_asked.wait)
        group.cancel_scope.cancel()

    assert storage.is_left.is_set()


def test_closing_ends_a_set_that_is_being_opened_in_another_thread() -> None:
    """Whoever waits there for the first batch gets a ClosedError, as does whoever comes later."""
    storage, errors = Endless(), list[BaseException]()
    loader = Loader(aioload.Dataset(storage), batch_size=1)

    def take() -> None:
        try:
            next(iter(loader.sync()))
        except ClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    storage.is_asked.wait()
    loader.close()
    thread.join()
    take()

    assert len(errors) == 2
    assert storage.is_left.is_set()
