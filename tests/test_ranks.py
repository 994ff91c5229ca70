"""The rank is what was told, or torch.distributed says, or the environment; what does not fit is an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import counted, pack, plain, take_sync

from aioload import ConfigError, Loader
from aioload.options import warn_of_lanes
from aioload.order import Shuffle
from aioload.ranks import find_rank


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without torchrun's variables."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture
def one_process_group(tmp_path: Path) -> Iterator[None]:
    """torch.distributed with gloo, one process."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_alone_by_default() -> None:
    """Nothing said anywhere: rank 0 of 1."""
    assert find_rank(None, None) == (0, 1)


def test_what_is_given_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments come before the environment; numpy's whole numbers will do."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    assert find_rank(2, 8) == (2, 8)
    assert find_rank(np.int64(2), np.int32(8)) == (2, 8)


def test_the_environment_counts_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's RANK and WORLD_SIZE are taken."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", " 4 ")

    assert find_rank(None, None) == (3, 4)


def test_torch_distributed_comes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, one_process_group: None
) -> None:
    """Once initialised, torch.distributed says who is who."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")

    assert find_rank(None, None) == (0, 1)


def test_a_rank_that_has_become_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that were set up after the loader was made do not all read all of the data."""
    loader = Loader(counted(tmp_path / "set", 8), batch_size=2, num_workers=0)
    told = Loader(tmp_path / "set", batch_size=2, num_workers=0, rank=0, world_size=1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)

    with pytest.raises(ConfigError, match=r"made as rank 0 of 1.*rank 1 of 2; make the loader after"):
        iter(loader.sync())

    with told.sync() as batches:
        assert len(list(batches)) == 4


def test_torch_distributed_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch built without it is no obstacle."""
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)

    assert find_rank(None, None) == (0, 1)


@pytest.mark.parametrize(
    ("rank", "world_size", "told"),
    [
        (1, None, "both or not at all"),
        (None, 2, "both or not at all"),
        (2, 2, "rank 2 of world size 2"),
        (-1, 2, "rank -1"),
        (0, 0, "world size 0"),
        (0.0, 1, "rank 0.0"),
        (True, 2, "rank True"),
        ("0", 1, "rank '0'"),
    ],
)
def test_arguments_that_do_not_fit(rank: Any, world_size: Any, told: str) -> None:
    """Only one of the two, or a rank outside the world, is a ConfigError that says so."""
    with pytest.raises(ConfigError, match=told):
        find_rank(rank, world_size)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"RANK": "1"}, "RANK='1' and WORLD_SIZE=None"),
        ({"WORLD_SIZE": "2"}, "RANK=None"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK=''"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of world size 2"),
    ],
)
def test_an_environment_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: str
) -> None:
    """Half an environment, or one that contradicts itself, is a ConfigError."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ConfigError, match=told):
        find_rank(None, None)


def test_a_loader_knows_its_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader shows what it found, and refuses before anything starts."""
    path = counted(tmp_path / "set", 10)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    loader = Loader(path, batch_size=2, num_workers=0)
    with pytest.raises(ConfigError, match="both or not at all"):
        Loader(path, batch_size=2, rank=0)

    assert (loader.rank, loader.world_size, len(loader)) == (1, 2, 3)


@pytest.mark.parametrize("shuffle", [False, True, "full"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_ranks_share_a_set(tmp_path: Path, world_size: int, shuffle: Any) -> None:
    """Over all ranks each record comes once, beside the rows that `padded` counts; all have `len` batches."""
    path = counted(tmp_path / "set", 61)
    options = {"batch_size": 4, "num_workers": 0, "shuffle": shuffle, "world_size": world_size}
    loaders = [Loader(path, rank=rank, **options) for rank in range(world_size)]
    lengths = [len(loader) for loader in loaders]
    padded = [loader.padded for loader in loaders]

    found = [take_sync(loader) for loader in loaders]

    rows = [[n for batch in one for n in batch["n"].tolist()] for one in found]
    own = [one[: len(one) - pad] for one, pad in zip(rows, padded, strict=True)]
    assert [len(one) for one in found] == lengths == [-(-61 // (4 * world_size))] * world_size
    assert sorted(n for one in own for n in one) == list(range(61))
    assert sum(padded) == -61 % world_size


@pytest.mark.parametrize("wasted", [1 << 20, 1 << 30])
def test_ranks_that_share_pieces_of_large_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wasted: int
) -> None:
    """O1: where others have most of a piece, a rank reads only its own records; batches are the same."""
    rng = np.random.default_rng(4)
    samples = ({"n": n, "array": rng.integers(0, 99, 300_000, np.uint8)} for n in range(40))
    path = pack(tmp_path / "set", {"n": "int", "array": "ndarray"}, samples, shard_bytes=4 << 20)
    options: dict[str, Any] = {"shuffle": True, "lanes": 2, "block_bytes": 4 << 20, "num_workers": 0}
    options |= {"batch_size": 2, "reads": "file", "rank": 3, "world_size": 5}
    expected = [plain(batch) for batch in take_sync(Loader(path, **options))]
    monkeypatch.setattr("aioload.part._WASTED", wasted)

    loader = Loader(path, **options)
    with loader.sync() as batches:
        found, stats = [plain(batch) for batch in batches], batches.stats()

    assert found == expected
    assert (stats.read_bytes / stats.record_bytes < 1.5) is (wasted == 1 << 20)
    assert (stats.window_bytes == 0) is (wasted == 1 << 20)


@pytest.mark.parametrize(
    ("world_size", "lanes", "data_bytes", "told"),
    [
        (1000, 192, 1 << 40, "lanes=1000"),
        (100, 192, 1 << 40, "lanes=200"),
        (1000, 192, 1 << 20, None),
        (8, 192, 1 << 40, None),
    ],
)
def test_lanes_that_do_not_fit_are_told(
    caplog: pytest.LogCaptureFixture, world_size: int, lanes: int, data_bytes: int, told: str | None
) -> None:
    """Where many ranks read the same pieces, a warning names lanes with which they would not."""
    warn_of_lanes(Shuffle("block", 0, lanes, 1 << 18), world_size, data_bytes)

    assert [told in record.message for record in caplog.records if told] == [True] * bool(told)
    assert bool(caplog.records) is bool(told)
