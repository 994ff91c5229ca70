"""Randomness depends on seed, epoch and record alone: not on workers, batches, or what was drawn before."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import counted, take_sync
from draws import (
    Keyed,
    from_numpy,
    from_random,
    from_rng,
    from_rng_by_default,
    from_rng_by_keyword,
    from_torch,
)

from aioload import Loader

RECORDS = 30


SOURCES = [from_rng, from_rng_by_keyword, from_rng_by_default, from_random, from_numpy, from_torch]
GLOBALS = [from_random, from_numpy, from_torch]


@pytest.fixture(scope="module")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 records."""
    return counted(tmp_path_factory.mktemp("thirty") / "set", RECORDS)


@pytest.mark.parametrize("transform", SOURCES)
def test_draws_do_not_depend_on_workers_or_batches(thirty: Path, transform: Callable[..., Any]) -> None:
    """Each source gives a record the same number with 0, 1 and 2 workers and batches of any size."""
    alone = drawn(thirty, transform, num_workers=0, batch_size=7)

    found = [
        drawn(thirty, transform, num_workers=num_workers, batch_size=batch_size)
        for num_workers, batch_size in ((0, 30), (1, 1), (2, 30))
    ]

    assert found == [alone] * 3
    assert len(set(alone)) == RECORDS


@pytest.mark.parametrize("transform", SOURCES)
def test_every_epoch_draws_anew(thirty: Path, transform: Callable[..., Any]) -> None:
    """Three epochs give a record three numbers, and an epoch that is run again the same ones."""
    with Loader(thirty, batch_size=10, num_workers=0, transform=transform).sync() as loader:
        epochs = [numbers(list(loader)) for _ in range(3)]
        loader.set_epoch(1)
        again = numbers(list(loader))

    assert len({number for epoch in epochs for number in epoch}) == 3 * RECORDS
    assert again == epochs[1]


@pytest.mark.parametrize("transform", [from_rng, from_numpy])
def test_the_seed_decides(thirty: Path, transform: Callable[..., Any]) -> None:
    """Another seed gives other numbers, the same seed the same."""
    first, second, again = (drawn(thirty, transform, seed=seed) for seed in (1, 2, 1))

    assert first == again
    assert not set(first) & set(second)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_a_record_draws_does_not_move_others(thirty: Path, num_workers: int) -> None:
    """A record that draws more leaves the numbers of all others as they were."""

    def greedy(sample: Any) -> Any:
        for _ in range(sample["n"] % 3):
            random.random()
            np.random.rand()
        return from_random(sample)

    plain = drawn(thirty, from_random, num_workers=num_workers)
    with_greedy = drawn(thirty, greedy, num_workers=num_workers)

    assert [with_greedy[record] == plain[record] for record in range(3)] == [True, False, False]
    assert with_greedy[3::3] == plain[3::3]


def test_objects_partials_and_methods_get_rng(thirty: Path) -> None:
    """Whatever is callable and names `rng` gets it: an object, a bound method, a lambda."""
    expected = drawn(thirty, from_rng)

    found = [
        drawn(thirty, transform) for transform in (Keyed(), Keyed().__call__, lambda s, rng: from_rng(s, rng))
    ]

    assert found == [expected] * 3


@pytest.mark.parametrize("num_workers", [0, 1])
def test_decoders_draw_from_a_stream_of_their_own(thirty: Path, num_workers: int) -> None:
    """A decoder that draws is the same everywhere too, and does not move what a transform's rng gives."""
    decode = {"n": lambda data: random.getrandbits(60)}
    options = {"num_workers": num_workers, "decode": decode, "batch_size": 10}

    found = [numbers(take_sync(Loader(thirty, transform=from_rng, **options)), "n") for _ in range(2)]
    with_decoder = numbers(take_sync(Loader(thirty, transform=from_rng, **options)))

    assert found[0] == found[1]
    assert len(set(found[0])) == RECORDS
    assert with_decoder == drawn(thirty, from_rng)


def test_the_users_generators_are_put_back(thirty: Path) -> None:
    """With no workers the program's own draws go on as if no loader had been there."""
    expected = _draw_globals()

    _seed_globals()
    take_sync(Loader(thirty, batch_size=7, num_workers=0, transform=from_torch))
    found = _draw_globals(seed=False)

    assert found == expected


def test_the_users_generators_are_put_back_after_an_error(thirty: Path) -> None:
    """The same where the transform raises, and where the user draws between batches."""

    def transform(sample: Any) -> Any:
        if sample["n"] == 13:
            raise ValueError
        return from_numpy(sample)

    expected = _draw_globals()

    _seed_globals()
    with (
        pytest.raises(Exception, match="ValueError"),
        Loader(thirty, batch_size=7, num_workers=0, transform=transform).sync() as loader,
    ):
        list(loader)
    found = _draw_globals(seed=False)

    assert found == expected


def test_globals_may_be_left_alone(thirty: Path) -> None:
    """With `seed_globals=False` and no workers, user code draws from the program's own generators."""
    _seed_globals()
    expected = [np.random.randint(1 << 60) for _ in range(RECORDS)]

    _seed_globals()
    found = drawn(thirty, from_numpy, seed_globals=False)

    assert found == expected


def test_torch_that_a_transform_imports_late_is_seeded(thirty: Path) -> None:
    """A worker has no torch until user code imports it; even the first record's draws are right."""
    expected = drawn(thirty, from_torch, num_workers=0)

    found = drawn(thirty, from_torch, num_workers=1)

    assert found == expected


def numbers(batches: list[Any], field: str = "drawn") -> list[int]:
    """Return a field of an epoch, record by record."""
    return [number for batch in batches for number in batch[field].tolist()]


def drawn(path: Path, transform: Callable[..., Any], **options: Any) -> list[int]:
    """Return what an epoch's records draw."""
    return numbers(
        take_sync(Loader(path, transform=transform, **{"batch_size": 10, "num_workers": 0, **options}))
    )


def _seed_globals() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def _draw_globals(*, seed: bool = True) -> list[float]:
    if seed:
        _seed_globals()
    return [random.random(), np.random.rand(), torch.rand(()).item()]
