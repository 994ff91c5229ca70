"""Case rows A01 and A03: leaving a loop early, and a plain `for` where a loop runs already."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import leaks
import pytest
import scripts
from batches import counted, gather, plain, take_sync

from aioload import Loader


class Stop(Exception):
    """Raised by the body of a loop."""


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records."""
    return counted(tmp_path_factory.mktemp("hundred") / "set")


@pytest.fixture(scope="module")
def expected(hundred: Path) -> list[object]:
    """An epoch without workers."""
    return [plain(batch) for batch in take_sync(Loader(hundred, batch_size=7, num_workers=0))]


@pytest.mark.parametrize("num_workers", [0, 2])
async def test_a01_break_and_a_new_pass_in_async_with(
    hundred: Path, expected: list[object], num_workers: int
) -> None:
    """A01: `break` after one batch, then a whole pass at once; clean when the block ends."""
    before = leaks.observe()

    async with Loader(hundred, batch_size=7, num_workers=num_workers) as loader:
        async for _ in loader:
            break
        second = [plain(batch) for batch in await gather(loader)]
    left = leaks.leftovers(before, grace=1)

    assert second == expected
    assert left == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a01_break_and_a_new_pass_in_a_plain_with(
    hundred: Path, expected: list[object], num_workers: int
) -> None:
    """A01: the same in a plain `for`."""
    before = leaks.observe()

    with Loader(hundred, batch_size=7, num_workers=num_workers).sync() as loader:
        for _ in loader:
            break
        second = [plain(batch) for batch in loader]
    left = leaks.leftovers(before, grace=1)

    assert second == expected
    assert left == []


async def test_a01_an_exception_in_the_body(hundred: Path, expected: list[object]) -> None:
    """A01: after an exception in the body that was caught, the next pass is whole, and the end is clean."""

    async def leave() -> None:
        async for _ in loader:
            raise Stop

    before = leaks.observe()

    async with Loader(hundred, batch_size=7, num_workers=2) as loader:
        with pytest.raises(Stop):
            await leave()
        second = [plain(batch) for batch in await gather(loader)]
    left = leaks.leftovers(before, grace=1)

    assert second == expected
    assert left == []


@pytest.mark.parametrize("way", scripts.WAYS)
@pytest.mark.parametrize("face", ["async", "sync"])
def test_a01_without_a_with(hundred: Path, tmp_path: Path, face: str, way: str) -> None:
    """A01: without `with`, a script that breaks, passes again and ends does so in 5 s, and says nothing."""
    script = """
        import asyncio, sys, time
        import aioload

        loader = aioload.Loader(sys.argv[1], batch_size=10, num_workers=2, collate=len)

        async def main():
            async for batch in loader:
                break
            print([batch async for batch in loader])

        if sys.argv[2] == "async":
            asyncio.run(main())
        else:
            for batch in loader.sync():
                break
            print(list(loader.sync()))
        print(time.time())
    """

    ended = scripts.run(script, hundred, face, folder=tmp_path, way=way)

    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(str([10] * 10))
    assert ended.after_last_line < 5


async def test_a03_a_plain_for_inside_a_running_loop_twice(hundred: Path, expected: list[object]) -> None:
    """A03: in a notebook's running loop the plain `for` just works, again and again, and ends clean."""
    before = leaks.observe()

    with Loader(hundred, batch_size=7, num_workers=2).sync() as loader:
        first = [plain(batch) for batch in loader]
        await asyncio.sleep(0)
        second = [plain(batch) for batch in loader]
    left = leaks.leftovers(before, grace=1)

    assert [first, second] == [expected, expected]
    assert left == []


def test_a03_a_plain_for_in_a_thread(hundred: Path, expected: list[object]) -> None:
    """A03: a thread that has no loop iterates as well."""
    found: list[object] = []

    def iterate() -> None:
        found.extend(plain(batch) for batch in take_sync(Loader(hundred, batch_size=7, num_workers=2)))

    thread = threading.Thread(target=iterate)
    thread.start()
    thread.join()

    assert found == expected


async def test_a03_a_plain_for_in_a_thread_beside_a_running_loop(
    hundred: Path, expected: list[object]
) -> None:
    """A03: the same in a thread of a running loop."""
    found = await asyncio.to_thread(take_sync, Loader(hundred, batch_size=7, num_workers=2))
    await asyncio.get_running_loop().shutdown_default_executor()

    assert [plain(batch) for batch in found] == expected
