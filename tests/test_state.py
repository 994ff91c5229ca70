"""A state is small plain JSON, refused where it does not fit, and known to torch's own checkpoints."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from batches import counted
from resuming import rows, take
from torch.distributed.checkpoint.stateful import Stateful

from aioload import ClosedError, ConfigError, Loader
from aioload.state import State

RECORDS = 50


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 records."""
    return counted(tmp_path_factory.mktemp("state") / "set", RECORDS)


@pytest.fixture(scope="module")
def state(path: Path) -> dict[str, Any]:
    """The state of a block shuffle after 20 records."""
    with Loader(path, batch_size=10, num_workers=0, shuffle=True, seed=3).sync() as loader:
        take(loader, 2)
        return loader.state_dict()


def make(path: Path, **options: Any) -> Loader:
    """Return a loader like the one that the state was taken of, but for some options."""
    return Loader(path, **{"batch_size": 10, "num_workers": 0, "shuffle": True, "seed": 3, **options})


# What it is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_it_is_small_plain_json(path: Path, shuffle: Any) -> None:
    """It survives JSON as it is and takes less than 1 KB, with a long seed too."""
    loader = make(path, shuffle=shuffle, seed=2**64 - 1)

    told = loader.state_dict()

    assert json.loads(json.dumps(told)) == told
    assert len(json.dumps(told)) < 1024
    assert told["seed"] == 2**64 - 1


def test_it_names_no_rank(path: Path) -> None:
    """All ranks have the same state after the same number of steps."""
    states = []
    for rank in range(3):
        with make(path, rank=rank, world_size=3).sync() as loader:
            take(loader, 1)
            states.append(loader.state_dict())

    assert states[0] == states[1] == states[2]
    assert states[0]["position"] == 30


def test_it_can_be_told_when_closed(path: Path, state: dict[str, Any]) -> None:
    """After closing the state is still there; loading one is a ClosedError."""
    loader = make(path)
    take(loader.sync(), 2)
    loader.close()

    after = loader.state_dict()
    with pytest.raises(ClosedError):
        loader.load_state_dict(state)

    assert after == state


# Where it goes on -------------------------------------------------------------------------------------


def test_a_set_that_was_moved_goes_on(path: Path, state: dict[str, Any], tmp_path: Path) -> None:
    """The same bytes at another place, with other times, are the same set."""
    moved = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(path, moved, copy_function=shutil.copy)

    with make(moved).sync() as loader:
        loader.load_state_dict(state)
        found = take(loader)
    with make(path).sync() as loader:
        expected = take(loader)

    assert found == expected[2:]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seed": 4}, r"made with seed=3 \(here 4\)"),
        ({"shuffle": False}, r"shuffle='block' \(here 'none'\)"),
        ({"shuffle": "full"}, r"shuffle='block' \(here 'full'\)"),
        ({"lanes": 5}, r"lanes=12 \(here 5\)"),
        ({"block_bytes": 1000}, r"block_bytes=378 \(here 1000\)"),
    ],
)
def test_another_order_is_refused_or_taken(
    path: Path, state: dict[str, Any], options: dict[str, Any], told: str
) -> None:
    """A loader of another order says which, and what to do; told to adopt it, it goes on as the state's."""
    with make(path).sync() as loader:
        expected = [take(loader) for _ in range(2)]

    with make(path, **options).sync() as loader:
        before = loader.state_dict()
        with pytest.raises(ConfigError, match=told) as caught:
            loader.load_state_dict(state)
        after = loader.state_dict()
        loader.load_state_dict(state, adopt=True)
        found = [take(loader) for _ in range(2)]

    assert before == after
    assert "adopt=True" in str(caught.value)
    assert found == [expected[0][2:], expected[1]]


@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize("change", [{"records": RECORDS - 1}, {"records": RECORDS, "shard_bytes": 1500}])
def test_another_set_is_refused(
    state: dict[str, Any], tmp_path: Path, change: dict[str, Any], adopt: bool
) -> None:
    """Data that is not what the state knows is refused, adopting or not, and changes nothing."""
    other = counted(tmp_path / "set", **change)

    with make(other, seed=9).sync() as loader:
        before = loader.state_dict()
        with pytest.raises(ConfigError, match="made with other data: it knows 50 records") as caught:
            loader.load_state_dict(state, adopt=adopt)
        after = loader.state_dict()

    assert before == after
    assert "begin anew" in str(caught.value)


def test_adopting_comes_before_the_first_iteration(path: Path, state: dict[str, Any]) -> None:
    """Workers that have started with one seed cannot take another; the same one is no change."""
    with make(path, seed=8).sync() as started:
        take(started, 1)
        with pytest.raises(ConfigError, match="before the first iteration"):
            started.load_state_dict(state, adopt=True)
        found = take(started)
    with make(path).sync() as same:
        take(same, 1)
        same.load_state_dict(state, adopt=True)
        rest = take(same)

    assert len(found) == 5
    assert len(rest) == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 99}, "version 99"),
        ({"version": None}, "version None"),
        ({"position": RECORDS + 1}, "position 51 lies behind its 50 records"),
        ({"position": -1}, "position is -1"),
        ({"position": 2.0}, "position is 2.0"),
        ({"epoch": True}, "epoch is True"),
        ({"epoch": "0"}, "epoch is '0'"),
        ({"fingerprint": 7}, "fingerprint is 7"),
        ({"shuffle": "random"}, "shuffle='random'"),
        ({"lanes": 0}, "lanes=0"),
        ({"more": 1}, "unknown: .*'more'"),
    ],
)
def test_what_is_no_state_is_refused(
    path: Path, state: dict[str, Any], change: dict[str, Any], told: str
) -> None:
    """Each member that cannot be is named in a ConfigError."""
    loader = make(path)

    with pytest.raises(ConfigError, match=told):
        loader.load_state_dict({**state, **change})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (None, "got NoneType"),
        (3, "got int"),
        ("text", "got str"),
        ([], "got list"),
        ({}, r"a dict of \[\]; what state_dict\(\) returned"),
        ({"model": {}, "loader": {}}, r"a dict of \['loader', 'model'\]; what state_dict\(\) returned"),
    ],
    ids=["None", "number", "text", "list", "empty", "checkpoint"],
)
def test_something_else_is_refused(path: Path, wrong: Any, told: str) -> None:
    """What is no state, such as the whole checkpoint around it, is a ConfigError that says what is wanted."""
    loader = make(path)

    with pytest.raises(ConfigError, match=told):
        loader.load_state_dict(wrong)


def test_it_reads_what_it_wrote(state: dict[str, Any]) -> None:
    """The structure is the JSON and back; a member that is missing is named."""
    short = {name: value for name, value in state.items() if name != "seed"}

    read = State.from_json(state)
    with pytest.raises(ConfigError, match=r"missing or unknown.*seed"):
        State.from_json(short)

    assert read.to_json() == state


# Other people's checkpoints ---------------------------------------------------------------------------


def test_torch_checkpoints_save_and_load_it(path: Path, tmp_path: Path) -> None:
    """`torch.distributed.checkpoint` takes both faces of a loader as they are."""
    first, second = make(path), make(path)
    expected = take(first.sync())
    first.set_epoch(0)
    begun = take(first.sync(), 3)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells that there is but one process
        dcp.save({"loader": first.sync(), "step": 3}, checkpoint_id=tmp_path / "checkpoint")
        dcp.load({"loader": second, "step": 0}, checkpoint_id=tmp_path / "checkpoint")
    rest = take(second.sync())
    first.close()
    second.close()

    assert isinstance(second, Stateful)
    assert isinstance(second.sync(), Stateful)
    assert begun + rest == expected


def test_the_names_are_those_of_torchdata(path: Path, state: dict[str, Any]) -> None:
    """The plain face takes and gives states by torchdata's names, and tells what is left."""
    with make(path).sync() as loader:
        loader.load_state_dict(state)
        left, padded = loader.remaining, loader.padded
        first = rows(next(iter(loader)))
        position = loader.state_dict()["position"]

    assert (left, padded, len(first), position) == (3, 0, 10, 30)
