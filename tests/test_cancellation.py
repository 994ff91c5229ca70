"""However an iteration ends (break, error, timeout, Ctrl-C, neighbours), it ends cleanly, losing nothing."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import leaks
import pytest
from anyio.lowlevel import checkpoint
from batches import counted, gather
from fakes import Gate

import aioload.loader
from aioload import ClosedError, Dataset, Loader
from aioload.iterate import in_thread
from aioload.storage import LocalStorage, Storage

BACKENDS: list[dict[str, Any]] = [
    {"backend": "asyncio"},
    {"backend": "asyncio", "backend_options": {"use_uvloop": True}},
    {"backend": "trio"},
]


class OfTheUser(Exception):
    """What the body of a loop raises."""


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records."""
    return counted(tmp_path_factory.mktemp("hundred") / "set")


class LateDataset(Dataset):
    """A set that cannot be opened before it is let."""

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self.tried = threading.Event()
        self.let = threading.Event()

    def open_storage(self) -> Storage:
        self.tried.set()
        assert self.let.wait(10), "whoever lets it was blocked"
        return LocalStorage(self.source)


@pytest.fixture
def gated(hundred: Path, tmp_path: Path) -> Any:
    """A loader of ten batches whose transform waits, in its one worker, until it is let through."""
    with Gate(tmp_path) as gate:
        loader = Loader(hundred, batch_size=10, num_workers=1, transform=gate)
        yield loader, gate
        loader.close()


# Leaving ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", BACKENDS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("num_workers", [0, 2])
def test_it_iterates_in_every_loop(hundred: Path, options: dict[str, Any], num_workers: int) -> None:
    """Under asyncio, uvloop and trio two epochs come in order, and a pass that was left does no harm."""

    async def main() -> list[list[int]]:
        async with Loader(hundred, batch_size=30, num_workers=num_workers) as loader:
            async for _ in loader:
                break
            return [[batch["n"][0].item() for batch in await gather(loader)] for _ in range(2)]

    epochs = anyio.run(main, **options)

    assert epochs == [[0, 30, 60, 90]] * 2


@pytest.mark.parametrize("options", BACKENDS, ids=lambda options: "-".join(map(str, options.values())))
def test_break_while_workers_are_busy(hundred: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """Leaving the block ends workers that are deep in a transform, and all else, within 5 s."""

    async def main() -> float:
        async with Loader(hundred, batch_size=1, num_workers=2, prefetch=1, transform=gate) as loader:
            gate.open()
            async for _ in loader:
                break
            gate.wait(2)
            left_at = time.monotonic()
        return time.monotonic() - left_at

    with Gate(tmp_path) as gate:
        before = leaks.observe()
        seconds = anyio.run(main, **options)
        left = leaks.leftovers(before, grace=0.1)

    assert seconds < 5
    assert left == []


@pytest.mark.parametrize("num_workers", [0, 1])
async def test_an_exception_in_the_body_passes_bare(hundred: Path, num_workers: int) -> None:
    """What the body raises leaves `async with` as it is, no group around it, and all is closed."""
    error = OfTheUser("body")
    loader = Loader(hundred, batch_size=10, num_workers=num_workers)

    async def main() -> None:
        async with loader:
            async for _ in loader:
                raise error

    with pytest.raises(OfTheUser) as caught:
        await main()

    assert caught.value is error
    assert caught.value.__context__ is None
    with pytest.raises(ClosedError):
        aiter(loader)


def test_an_exception_in_a_plain_body_passes_bare(hundred: Path) -> None:
    """The same behind a plain `for`."""
    error = OfTheUser("body")

    def main() -> None:
        with Loader(hundred, batch_size=10, num_workers=1).sync() as loader:
            for _ in loader:
                raise error

    with pytest.raises(OfTheUser) as caught:
        main()

    assert caught.value is error
    assert caught.value.__context__ is None


async def test_return_from_within(hundred: Path) -> None:
    """A function that returns out of the middle of an epoch has closed everything before it returns."""

    async def first() -> list[int]:
        async with Loader(hundred, batch_size=10, num_workers=1) as loader:
            async for batch in loader:
                return batch["n"].tolist()
        raise AssertionError

    before = leaks.observe()
    numbers = await first()
    left = leaks.leftovers(before, grace=0.1)

    assert numbers == list(range(10))
    assert left == []


@pytest.mark.parametrize("options", BACKENDS, ids=lambda options: "-".join(map(str, options.values())))
def test_closing_twice_and_using_after(hundred: Path, options: dict[str, Any]) -> None:
    """Closing again is free in either way; iterating, going on and entering are ClosedErrors."""

    async def main() -> None:
        loader = Loader(hundred, batch_size=10, num_workers=1)
        iterator = aiter(loader)
        await anext(iterator)
        await loader.aclose()
        await loader.aclose()
        loader.close()

        with pytest.raises(ClosedError, match="was closed"):
            await anext(iterator)
        with pytest.raises(ClosedError, match="make a new one"):
            aiter(loader)
        with pytest.raises(ClosedError):
            async with loader:
                pass

    anyio.run(main, **options)


@pytest.mark.parametrize("options", BACKENDS, ids=lambda options: "-".join(map(str, options.values())))
def test_starting_leaves_the_users_loop_alone(hundred: Path, options: dict[str, Any]) -> None:
    """Opening the set and starting, which may take long, happen beside the loop: a timeout strikes."""

    async def main() -> list[int]:
        late = LateDataset(hundred)
        async with Loader(late, batch_size=50, num_workers=0) as loader:
            iterator = aiter(loader)
            with anyio.move_on_after(0.01):
                await anext(iterator)
            assert late.tried.wait(10)
            late.let.set()
            return [batch["n"][0].item() async for batch in iterator]

    assert anyio.run(main, **options) == [0, 50]


async def test_closing_while_it_starts(hundred: Path) -> None:
    """A loader that is closed while another task waits for its start ends that wait, and leaves nothing."""
    late = LateDataset(hundred)
    loader = Loader(late, batch_size=50, num_workers=0)
    waiting = asyncio.create_task(anext(aiter(loader)))
    await anyio.wait_all_tasks_blocked()
    closing = asyncio.create_task(loader.aclose())
    await anyio.wait_all_tasks_blocked()

    late.let.set()
    await closing

    with pytest.raises(ClosedError):
        await waiting


async def test_close_before_the_first_batch(hundred: Path) -> None:
    """A loader that was closed while its workers still start leaves nothing."""
    loader = Loader(hundred, batch_size=10, num_workers=2)
    aiter(loader)

    started = time.monotonic()
    await loader.aclose()

    assert time.monotonic() - started < 5


async def test_closing_is_not_cut_off_by_cancelling(gated: tuple[Loader, Gate]) -> None:
    """A timeout that strikes while the block is left does not leave workers behind."""
    loader, gate = gated
    before = leaks.observe()

    with anyio.move_on_after(60) as scope:
        async with loader:
            loader.batches()  # begins at once
            gate.wait()
            scope.cancel()
    left = leaks.leftovers(before, grace=0.1)

    assert left == []


async def test_tasks_that_iterate_and_close_may_differ(hundred: Path) -> None:
    """An iteration begun in one task goes on in a second and is closed in a third."""
    loader = Loader(hundred, batch_size=10, num_workers=1)

    async def begin() -> Any:
        iterator = aiter(loader)
        return iterator, await anext(iterator)

    async def go_on(iterator: Any) -> Any:
        return await anext(iterator)

    iterator, first = await asyncio.create_task(begin())
    second = await asyncio.create_task(go_on(iterator))
    await asyncio.create_task(loader.aclose())

    assert (first["n"][0].item(), second["n"][0].item()) == (0, 10)


# Cancelling a wait ------------------------------------------------------------------------------------


async def test_a_timeout_is_a_timeout_and_loses_no_batch(gated: tuple[Loader, Gate]) -> None:
    """`asyncio.timeout` around a wait gives TimeoutError, and the batch still comes first afterwards."""
    loader, gate = gated
    iterator = aiter(loader)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await anext(iterator)
    with anyio.move_on_after(0.05) as scope:
        await anext(iterator)
    gate.open(100)
    firsts = [batch["n"][0].item() async for batch in iterator]

    assert scope.cancelled_caught
    assert firsts == list(range(0, 100, 10))


async def test_time_between_cancelled_waits_counts_once(hundred: Path) -> None:
    """Whoever gives up waiting again and again has waited no longer than all of it took."""
    async with Loader(hundred, batch_size=1, num_workers=1) as loader:
        iterator = aiter(loader)
        await anext(iterator)
        began = time.perf_counter()
        with anyio.move_on_after(0):
            await anext(iterator)
        before = loader.stats()  # whose last moment is one after `began`

        taken = 0
        while taken < 20:
            with anyio.move_on_after(0):
                await anext(iterator)
                taken += 1
            await checkpoint()
        found, took = loader.stats().since(before), time.perf_counter() - began

    assert found.batches == 20
    assert found.wait_seconds + found.consumer_seconds <= took


@pytest.mark.parametrize("options", BACKENDS, ids=lambda options: "-".join(map(str, options.values())))
def test_cancelled_waits_lose_no_batch(hundred: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """Waits cancelled before each of ten batches change nothing in what comes."""

    async def main() -> list[int]:
        firsts = []
        async with Loader(hundred, batch_size=10, num_workers=1, prefetch=1, transform=gate) as loader:
            iterator = aiter(loader)
            for _ in range(10):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(anext, iterator)
                    await anyio.wait_all_tasks_blocked()
                    tasks.cancel_scope.cancel()
                gate.open(10)
                firsts.append((await anext(iterator))["n"][0].item())
        return firsts

    with Gate(tmp_path) as gate:
        assert anyio.run(main, **options) == list(range(0, 100, 10))


async def test_cancelling_arrives_once_and_at_once(gated: tuple[Loader, Gate]) -> None:
    """A cancelled task ends with CancelledError within a second, though its worker is stuck."""
    loader, gate = gated
    waiting = asyncio.create_task(anext(aiter(loader)))
    await in_thread(gate.wait)

    started = time.monotonic()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert time.monotonic() - started < 1


async def test_a_failing_neighbour_ends_the_wait(gated: tuple[Loader, Gate]) -> None:
    """In a TaskGroup whose other task fails, the wait is cancelled and the group holds that error alone."""
    loader, gate = gated

    async def fail() -> None:
        await anyio.wait_all_tasks_blocked()
        raise OfTheUser("neighbour")

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gather(loader))
            tasks.create_task(fail())

    with pytest.raises(ExceptionGroup) as caught:
        await main()
    gate.open(100)

    assert [type(error) for error in caught.value.exceptions] == [OfTheUser]
    assert [batch["n"][0].item() for batch in await gather(loader)] == list(range(0, 100, 10))


async def test_closing_wakes_who_waits(gated: tuple[Loader, Gate]) -> None:
    """A task that waits for a batch while another closes gets a ClosedError."""
    loader, gate = gated
    waiting = asyncio.create_task(anext(aiter(loader)))
    await in_thread(gate.wait)

    await loader.aclose()

    with pytest.raises(ClosedError):
        await waiting


async def test_a_new_iteration_wakes_who_waits_in_the_old(gated: tuple[Loader, Gate]) -> None:
    """A waiting iteration that is taken over says so, and the new one is whole."""
    loader, gate = gated
    waiting = asyncio.create_task(anext(aiter(loader)))
    await in_thread(gate.wait)

    new = aiter(loader)
    with pytest.raises(ClosedError, match="another iteration"):
        await waiting
    gate.open(200)

    assert [batch["n"][0].item() async for batch in new] == list(range(0, 100, 10))


async def test_two_tasks_at_one_iterator_share_its_batches(hundred: Path) -> None:
    """Tasks that draw from one iterator get each batch once between them, and both see the end."""
    seen: list[int] = []

    async def draw(iterator: Any) -> None:
        seen.extend([batch["n"][0].item() async for batch in iterator])

    async with Loader(hundred, batch_size=5, num_workers=1) as loader, asyncio.TaskGroup() as tasks:
        iterator = aiter(loader)
        tasks.create_task(draw(iterator))
        tasks.create_task(draw(iterator))

    assert sorted(seen) == list(range(0, 100, 5))


async def test_neighbours_live_while_batches_are_ready(
    hundred: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop over batches that are all ready lets other tasks run now and then."""
    monkeypatch.setattr(aioload.iterate, "_NEIGHBOURS", 0.0)
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await checkpoint()

    async with Loader(hundred, batch_size=5, num_workers=0) as loader, anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        async for _ in loader:
            pass
        tasks.cancel_scope.cancel()

    assert turns >= 20


async def test_a_timeout_strikes_while_batches_are_ready(
    hundred: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled scope ends a loop that never has to wait."""
    monkeypatch.setattr(aioload.iterate, "_NEIGHBOURS", 0.0)
    taken = 0

    async with Loader(hundred, batch_size=1, num_workers=0) as loader:
        with anyio.CancelScope() as scope:
            async for _ in loader:
                taken += 1
                scope.cancel()

    assert scope.cancelled_caught
    assert taken == 1


# Ctrl-C -----------------------------------------------------------------------------------------------


def _wait_sync(loader: Loader) -> None:
    with loader.sync() as batches:
        for _ in batches:
            pass


def _wait_async(loader: Loader) -> None:
    async def main() -> None:
        async with loader:
            await gather(loader)

    asyncio.run(main())


@pytest.mark.parametrize("wait", [_wait_sync, _wait_async])
def test_ctrl_c_ends_a_wait(gated: tuple[Loader, Gate], wait: Callable[[Loader], None]) -> None:
    """An interrupt while waiting for a batch is a KeyboardInterrupt, and all is closed within 5 s."""
    loader, gate = gated
    user = threading.get_ident()

    def interrupt() -> None:
        gate.wait()
        signal.pthread_kill(user, signal.SIGINT)

    before = leaks.observe()
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait(loader)
    seconds = time.monotonic() - started
    interrupting.join()
    left = leaks.leftovers(before, grace=0.1)

    assert seconds < 5
    assert left == []


def test_ctrl_c_in_a_transform_without_workers(hundred: Path) -> None:
    """With `num_workers=0` an interrupt in the user's own transform is a KeyboardInterrupt there."""

    def transform(sample: Any) -> Any:
        if sample["n"] == 25:
            signal.raise_signal(signal.SIGINT)
        return sample

    taken = []
    loader = Loader(hundred, batch_size=10, num_workers=0, transform=transform)
    with pytest.raises(KeyboardInterrupt), loader.sync() as source:
        taken.extend(batch["n"][0].item() for batch in source)

    with pytest.raises(ClosedError):
        loader.batches()


def test_a_pass_after_ctrl_c_is_whole(hundred: Path) -> None:
    """In a notebook: an interrupted pass is followed by a whole one over the same loader."""
    strike = [KeyboardInterrupt()]

    def transform(sample: Any) -> Any:
        if sample["n"] == 25 and strike:
            raise strike.pop()
        return sample

    with Loader(hundred, batch_size=10, num_workers=0, transform=transform).sync() as loader:
        with pytest.raises(KeyboardInterrupt):
            list(loader)
        firsts = [batch["n"][0].item() for batch in loader]

    assert firsts == list(range(0, 100, 10))
