"""Where a set lies: on a disk of this machine or elsewhere, packed or not, mapped or read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import TinySet
from servers.ranges import RangeServer

from aioload import Dataset, Loader
from aioload.benching import Setup
from aioload.benching.place import is_local, is_mapped, opened, path_of
from aioload.benching.shape import access_of
from aioload.storage import LocalStorage, MemoryStorage

FIXTURES = Path(__file__).parent.parent / "fixtures"


def elsewhere(folder: Path) -> Dataset:
    """Return a set in a storage of the user's."""
    return Dataset(MemoryStorage({path.name: path.read_bytes() for path in folder.iterdir()}))


def unpacked(folder: Path) -> Dataset:
    """Return a set whose shards are compressed as a whole."""
    return Dataset(shutil.copytree(FIXTURES / "mds" / "gz", folder / "mds"))


def test_files_of_this_machine_are_local(tiny_set: TinySet, tmp_path: Path) -> None:
    """Also those that are unpacked here; not what comes from a server or out of a storage of the user's."""
    with RangeServer(tiny_set.path) as server:
        found = [
            is_local(dataset)
            for dataset in (
                Dataset(tiny_set.path),
                unpacked(tmp_path),
                Dataset(server.url),
                elsewhere(tiny_set.path),
            )
        ]

    assert found == [True, True, False, False]


def test_reads_of_a_network_alone_are_asked_for_in_parts(tiny_set: TinySet, tmp_path: Path) -> None:
    """What lies on a disk is one request for each read, however it is wrapped."""
    with RangeServer(tiny_set.path) as server:
        parts = [
            access_of(dataset, Setup()).part_bytes
            for dataset in (Dataset(server.url), unpacked(tmp_path), Dataset(tiny_set.path))
        ]

    assert [part is None for part in parts] == [False, True, True]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_it_is_told_whether_workers_map_the_files(tiny_set: TinySet, num_workers: int) -> None:
    """As a loader then does."""
    dataset = Dataset(tiny_set.path)
    loader = Loader(dataset, batch_size=24, num_workers=num_workers)

    with loader.sync() as batches:
        list(batches)

    assert is_mapped(dataset, num_workers=num_workers) == loader.stats().mapped
    assert not is_mapped(elsewhere(tiny_set.path), num_workers=num_workers)


def test_a_set_has_a_path_or_an_address(tiny_set: TinySet) -> None:
    """A file on the very disk, so that it can be asked what it is; else what the set is called."""
    here, there = Dataset(tiny_set.path), elsewhere(tiny_set.path)

    assert Path(path_of(here)).parent == tiny_set.path
    assert path_of(there) == there.source


def test_a_storage_that_was_looked_at_is_closed(tiny_set: TinySet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where looking at it fails."""
    closed: list[LocalStorage] = []

    async def aclose(storage: LocalStorage) -> None:
        closed.append(storage)

    monkeypatch.setattr(LocalStorage, "aclose", aclose)

    with pytest.raises(RuntimeError), opened(Dataset(tiny_set.path)) as storage:
        raise RuntimeError

    assert closed == [storage]
