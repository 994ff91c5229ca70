"""Case row P08: functions of any make reach the workers, or are refused before anything starts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import leaks
import pytest
import scripts
from batches import counted

from aioload import ConfigError, Dataset, Loader

SCRIPT = """
    import collections, dataclasses, functools, sys
    import aioload

    Point = collections.namedtuple("Point", ["number", "text"])

    @dataclasses.dataclass
    class Pair:
        point: Point
        extra: dict

    class Adder:
        def __init__(self, amount):
            self.amount = amount

        def __call__(self, sample):
            return sample["n"] + self.amount

    def add(amount, sample):
        return sample["n"] + amount

    def closure(amount):
        return lambda sample: sample["n"] + amount

    def make(sample):
        return Pair(Point(sample["n"], sample["text"]), {"deep": [sample["n"], (sample["n"],)]})

    for transform in (lambda sample: sample["n"] + 3, closure(3), Adder(3), functools.partial(add, 3)):
        options = {"batch_size": 4, "num_workers": 2, "collate": list}
        with aioload.Loader(sys.argv[1], transform=transform, **options).sync() as loader:
            print(list(loader))

    with aioload.Loader(sys.argv[1], batch_size=3, num_workers=1, transform=make).sync() as loader:
        for batch in loader:
            assert type(batch) is Pair and type(batch.point) is Point
            print(batch.point.number.tolist(), batch.point.text, batch.extra["deep"][1][0].tolist())
"""


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six records."""
    return counted(tmp_path_factory.mktemp("six") / "set", 6)


@pytest.mark.parametrize("way", scripts.WAYS)
def test_p08_functions_of_main_reach_the_workers(six: Path, tmp_path: Path, way: str) -> None:
    """P08: lambda, closure, object of `__main__` and partial work without a main guard; classes come back."""
    ended = scripts.run(SCRIPT, six, folder=tmp_path, way=way)

    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        *["[[3, 4, 5, 6], [7, 8]]"] * 4,
        "[0, 1, 2] ['t0', 't1', 't2'] [0, 1, 2]",
        "[3, 4, 5] ['t3', 't4', 't5'] [3, 4, 5]",
    ]


class Holder:
    """A transform that holds what only its own process can use."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __call__(self, sample: Any) -> Any:
        return sample


@pytest.mark.parametrize(("name", "make"), [("lock", threading.Lock), ("socket", socket.socket)])
@pytest.mark.parametrize("argument", ["transform", "collate"])
def test_p08_what_cannot_travel_is_refused(
    tmp_path: Path, name: str, make: Callable[[], Any], argument: str
) -> None:
    """P08: an object that holds a lock or a socket is an error at construction, with nothing begun."""
    held = make()
    before = leaks.observe()

    with pytest.raises(ConfigError) as caught:
        Loader(tmp_path / "never opened", batch_size=2, num_workers=2, **{argument: Holder(held)})
    left = leaks.leftovers(before, grace=0)
    getattr(held, "close", bool)()

    assert left == []
    assert argument in str(caught.value)
    assert name in str(caught.value)
    assert "on first use" in str(caught.value)
    assert "cannot pickle" in caught.value.cause


def test_p08_without_workers_anything_goes(six: Path) -> None:
    """P08: with `num_workers=0` nothing has to travel."""
    with Loader(
        Dataset(six), batch_size=6, num_workers=0, transform=Holder(threading.Lock())
    ).sync() as loader:
        numbers = [batch["n"].tolist() for batch in loader]

    assert numbers == [[0, 1, 2, 3, 4, 5]]
