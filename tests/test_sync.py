"""The plain `for`: in scripts, threads and running loops, with the habits of a torch `DataLoader`."""

from __future__ import annotations

import asyncio
import copy
import gc
import multiprocessing
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import leaks
import pytest
import scripts
import torch
from batches import counted, plain
from fakes import Gate
from torch.utils.data import DataLoader

import aioload
from aioload import ClosedError, ConfigError, Loader


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records."""
    return counted(tmp_path_factory.mktemp("hundred") / "set")


def test_it_has_the_habits_of_a_data_loader(hundred: Path) -> None:
    """A trainer finds length, batch size, data set, epoch and workers where a DataLoader has them."""
    loader = Loader(hundred, batch_size=30, num_workers=0, drop_last=True)
    face = loader.sync()

    face.set_epoch(4)

    assert (len(face), face.batch_size, face.num_workers, face.drop_last, face.epoch) == (3, 30, 0, True, 4)
    assert face.dataset is loader.dataset
    assert len(face.dataset) == 100


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (iter, "`for batch in loader.sync\\(\\)`"),
        (DataLoader, "No DataLoader belongs around"),
        (lambda loader: DataLoader(loader.sync()), "No DataLoader belongs around"),
        (lambda loader: DataLoader(loader.sync(), batch_size=None), "No DataLoader belongs around"),
    ],
    ids=["plain for", "wrapped", "face wrapped", "batches wrapped"],
)
def test_batches_have_no_numbers(hundred: Path, wrong: Callable[[Loader], Any], told: str) -> None:
    """Whoever forgets `sync()`, or wraps a loader in a DataLoader, reads what to do instead."""
    loader = Loader(hundred, batch_size=50, num_workers=0)

    with pytest.raises(ConfigError, match=told):
        list(wrong(loader))


@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
@pytest.mark.parametrize("face", [lambda loader: loader, Loader.sync], ids=["loader", "sync"])
def test_a_loader_stays_in_its_process(hundred: Path, face: Any, send: Callable[[Any], Any]) -> None:
    """As when it is sent to the workers of a DataLoader: the error says what to do."""
    given = face(Loader(hundred, batch_size=50, num_workers=0))

    with pytest.raises(TypeError, match="make a loader there"):
        send(given)


def test_workers_of_others_start_none(hundred: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a worker of a DataLoader or of a Pool a loader, and what makes sets, say what goes there."""
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]  # as in one

    with pytest.raises(ConfigError, match="pass num_workers=0"):
        iter(Loader(hundred, batch_size=50, num_workers=1).sync())
    with pytest.raises(ConfigError, match="pass num_workers=0"):
        aioload.map(hundred, dict, tmp_path / "mapped", num_workers=1)
    with Loader(hundred, batch_size=50, num_workers=0).sync() as loader:
        assert len(list(loader)) == 2


def test_several_faces_are_one_loader(hundred: Path) -> None:
    """`loader.sync()` twice gives two faces of one loader: epochs, counts and closing are shared."""
    loader = Loader(hundred, batch_size=50, num_workers=0)

    list(loader.sync())
    list(loader.sync())
    loader.sync().close()

    assert loader.epoch == 2
    assert loader.sync().stats() == loader.stats()
    assert loader.sync().stats().batches == 4
    with pytest.raises(ClosedError):
        iter(loader.sync())


def test_a_with_block_closes(hundred: Path) -> None:
    """After the block nothing of the loader runs, and using it again is a ClosedError that says so."""
    before = leaks.observe()

    with Loader(hundred, batch_size=10, num_workers=2).sync() as loader:
        iterator = iter(loader)
        next(iterator)
    left = leaks.leftovers(before)

    assert left == []
    with pytest.raises(ClosedError, match="was closed"):
        next(iterator)
    with pytest.raises(ClosedError, match="make a new one"):
        iter(loader)
    with pytest.raises(ClosedError):
        loader.__enter__()


def test_closing_twice_is_free(hundred: Path) -> None:
    """A loader may be closed again, before its first use too."""
    unused = Loader(hundred, batch_size=10, num_workers=2)
    used = Loader(hundred, batch_size=10, num_workers=0)
    list(used.sync())

    for loader in (unused, used):
        loader.close()
        loader.close()
        loader.sync().close()

    with pytest.raises(ClosedError):
        iter(unused.sync())


def test_two_loaders_at_once(hundred: Path) -> None:
    """Two loaders in one loop do not disturb each other, with workers or without."""
    with (
        Loader(hundred, batch_size=10, num_workers=1).sync() as first,
        Loader(hundred, batch_size=10, num_workers=0).sync() as second,
    ):
        same = [plain(one) == plain(other) for one, other in zip(first, second, strict=True)]

    assert same == [True] * 10


def test_it_is_used_from_another_thread(hundred: Path) -> None:
    """A loader made here is iterated in one thread and closed in another."""
    loader = Loader(hundred, batch_size=25, num_workers=1)
    sums: list[int] = []

    worker = threading.Thread(target=lambda: sums.extend(int(batch["n"].sum()) for batch in loader.sync()))
    worker.start()
    worker.join()
    closer = threading.Thread(target=loader.close)
    closer.start()
    closer.join()

    assert sums == [sum(range(start, start + 25)) for start in range(0, 100, 25)]


def test_closing_ends_a_wait_in_another_thread(hundred: Path, tmp_path: Path) -> None:
    """Whoever waits for a batch while another thread closes gets a ClosedError, at once."""
    caught: list[BaseException] = []

    def iterate() -> None:
        try:
            next(iter(loader.sync()))
        except ClosedError as error:
            caught.append(error)

    with Gate(tmp_path) as gate:
        loader = Loader(hundred, batch_size=10, num_workers=1, transform=gate)
        waiting = threading.Thread(target=iterate)
        waiting.start()
        gate.wait()
        loader.close()
        waiting.join(5)

    assert [type(error) for error in caught] == [ClosedError]


async def test_a_blocked_loop_does_not_stop_the_reads(hundred: Path) -> None:
    """The plain `for` works inside a running loop although it blocks it: the engine has its own."""
    with Loader(hundred, batch_size=20, num_workers=1).sync() as loader:
        numbers = [number for batch in loader for number in batch["n"].tolist()]
    await asyncio.sleep(0)

    assert numbers == list(range(100))


def test_a_mix_of_both_faces(hundred: Path) -> None:
    """One epoch by `async for` and the next by `for` are the same, and a half-read one is taken over."""

    async def main() -> list[int]:
        async with loader:
            numbers = [batch["n"][0].item() async for batch in loader]
            async for _ in loader:
                break
            return numbers + [batch["n"][0].item() for batch in loader.sync()]

    loader = Loader(hundred, batch_size=50, num_workers=1)

    assert asyncio.run(main()) == [0, 50, 0, 50]
    assert loader.epoch == 2


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_forgotten_loader_is_collected(hundred: Path, num_workers: int) -> None:
    """A loader that is let go without closing ends all it had, and says so with a ResourceWarning."""
    before = leaks.observe()
    loader = Loader(hundred, batch_size=10, num_workers=num_workers)
    batch = next(iter(loader.sync()))
    alive = weakref.ref(loader)

    with pytest.warns(ResourceWarning, match="was never closed"):
        del loader

    assert alive() is None
    assert batch["n"].tolist() == list(range(10))
    assert leaks.leftovers(before) == []


def test_an_iterator_keeps_its_loader(hundred: Path) -> None:
    """An iterator whose loader nobody else holds works to its end."""
    iterator = iter(Loader(hundred, batch_size=10, num_workers=1).sync())

    numbers = [number for batch in iterator for number in batch["n"].tolist()]
    iterator._loader.close()

    assert numbers == list(range(100))


def test_a_closed_loader_is_collected_in_silence(hundred: Path) -> None:
    """A loader that was closed is no ResourceWarning, even though its batches live on."""
    loader = Loader(hundred, batch_size=10, num_workers=1)
    kept = list(loader.sync())
    loader.close()

    del loader
    gc.collect()

    assert torch.cat([batch["n"] for batch in kept]).tolist() == list(range(100))


LEFT_OPEN = """
    import sys, time
    import aioload

    loader = aioload.Loader(sys.argv[1], batch_size=10, num_workers=int(sys.argv[2]), collate={collate})
    for batch in loader.sync():
        break
    print(time.time())
"""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_exit_without_closing(hundred: Path, num_workers: int, tmp_path: Path) -> None:
    """A script that breaks out and never closes ends with status 0 in less than 5 s, without a word."""
    script = LEFT_OPEN.format(collate="None")

    ended = scripts.run(script, hundred, num_workers, folder=tmp_path)

    assert (ended.status, ended.err) == (0, "")
    assert ended.after_last_line < 5


def test_exit_with_workers_in_a_long_transform(hundred: Path, tmp_path: Path) -> None:
    """The exit of a script waits neither for jobs that run nor for those that wait."""
    script = """
        import sys, time
        import aioload

        def transform(sample):
            if sample["n"] >= 10:
                time.sleep(60)
            return sample["n"]

        loader = aioload.Loader(sys.argv[1], batch_size=10, num_workers=2, transform=transform, collate=sum)
        for batch in loader.sync():
            break
        print(time.time())
    """

    ended = scripts.run(script, hundred, folder=tmp_path)

    assert (ended.status, ended.err) == (0, "")
    assert ended.after_last_line < 5


def test_an_exception_ends_a_script_by_itself(hundred: Path, tmp_path: Path) -> None:
    """A script whose loop body fails, with no `with`, ends with its own traceback alone."""
    script = """
        import sys
        import aioload

        for batch in aioload.Loader(sys.argv[1], batch_size=10, num_workers=2, collate=len).sync():
            raise KeyError("of the user")
    """

    ended = scripts.run(script, hundred, folder=tmp_path)

    assert ended.status == 1
    assert ended.err.startswith("Traceback")
    assert ended.err.rstrip().endswith("KeyError: 'of the user'")
    assert ended.err.count("Traceback") == 1


def test_loading_at_exit_of_asyncio_run(hundred: Path, tmp_path: Path) -> None:
    """An async script that breaks out and returns ends its loop and its process at once, without a word."""
    script = """
        import asyncio, sys, time
        from aioload import Loader

        async def main():
            asyncio.get_running_loop().slow_callback_duration = 5  # not about the machine's load
            loader = Loader(sys.argv[1], batch_size=10, num_workers=2, collate=len)
            async for batch in loader:
                break

        asyncio.run(main(), debug=True)
        print(time.time())
    """

    ended = scripts.run(script, hundred, folder=tmp_path)

    assert (ended.status, ended.err) == (0, "")
    assert ended.after_last_line < 5


def test_importing_under_warnings_as_errors(hundred: Path, tmp_path: Path) -> None:
    """Nothing of ours warns, even where every warning is an error."""
    script = """
        import warnings
        warnings.simplefilter("error")
        import sys
        import aioload

        with aioload.Loader(sys.argv[1], batch_size=10, num_workers=1).sync() as loader:
            print(sum(int(batch["n"].sum()) for batch in loader))
    """

    ended = scripts.run(script, hundred, folder=tmp_path)

    assert (ended.status, ended.err) == (0, "")
    assert ended.out.split() == ["4950"]
