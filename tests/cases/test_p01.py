"""Case row P01: an exception that cannot be rebuilt arrives with class, message, traceback and record."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import scripts
from batches import counted, plain, take_sync
from raises import HoldsALock, TwoArguments, raising

from aioload import Loader, SampleError

MAKES = {
    "TwoArguments: a and b": lambda: TwoArguments("a", "b"),
    "HoldsALock: held": lambda: HoldsALock("held"),
}


@pytest.mark.parametrize("told", MAKES)
def test_the_cause_arrives(tmp_path: Path, told: str) -> None:
    """The text has the class name, the message and the record, and the cause the worker's traceback."""
    path = counted(tmp_path / "set", 20)
    transform = functools.partial(raising, MAKES[told])

    with pytest.raises(SampleError) as error:
        take_sync(Loader(path, batch_size=4, transform=transform, num_workers=2))

    assert told in str(error.value)
    assert "record 13" in str(error.value)
    assert "in raising" in error.value.cause
    assert "in raising" in "".join(error.value.__notes__)


@pytest.mark.parametrize("make", MAKES.values())
def test_the_pool_lives(tmp_path: Path, make: Callable[[], BaseException]) -> None:
    """With the skip policy the rest is the same as with no workers, in this epoch and the next."""
    path = counted(tmp_path / "set", 20)
    options = {"batch_size": 4, "transform": functools.partial(raising, make), "on_error": "skip"}

    epochs = []
    for workers in (0, 2):
        with Loader(path, num_workers=workers, **options).sync() as batches:
            epochs.append(plain([list(batches), list(batches)]))
            restarts = batches.stats().restarts

    assert epochs[0] == epochs[1]
    assert restarts == 0


def test_a_class_of_main_arrives(tmp_path: Path) -> None:
    """So does an exception class of the user's own script."""
    path = counted(tmp_path / "set", 20)
    script = """
        import sys, threading, aioload

        class E(Exception):
            def __init__(self, first, second):
                super().__init__(first + second)
                self.lock = threading.Lock()

        def transform(sample):
            if sample["n"] == 13:
                raise E("one", "two")
            return sample["n"]

        for policy in ("raise", "skip"):
            loader = aioload.Loader(
                sys.argv[1], batch_size=20, transform=transform, collate=list, num_workers=1, on_error=policy
            )
            with loader.sync() as batches:
                try:
                    print(*list(batches))
                except aioload.SampleError as error:
                    print(error)
    """

    ended = scripts.run(script, path, folder=tmp_path)

    assert ended.out.splitlines() == [
        "record 13 (key 'k13', shard-00000.aio): E: onetwo",
        str([n for n in range(20) if n != 13]),
    ]
    assert (ended.err, ended.status) == ("", 0)
