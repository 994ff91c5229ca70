"""A storage as a user would write it keeps the contract, and a set is read from it."""

from __future__ import annotations

import importlib.util
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from conftest import TINY_RECORDS, TinySet
from contract import FILES, StorageContract

import aioload
from aioload.storage import Lent, MemoryStorage, Storage

EXAMPLE = Path(__file__).parents[2] / "examples" / "11_own_storage.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example, imported and not run."""
    spec = importlib.util.spec_from_file_location("own_storage", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestZipStorage(StorageContract):
    @pytest.fixture
    def storage(self, example: ModuleType, tmp_path: Path) -> Iterator[Storage]:
        with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
            for name, data in FILES.items():
                archive.writestr(name, data)
        storage = example.ZipStorage(tmp_path / "set.zip")
        yield storage
        storage.close()


class TestLent(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return Lent(MemoryStorage(FILES))


class ClosedStorage(MemoryStorage):
    """One whose closing is noticed."""

    max_reads = 3
    closed = False

    async def aclose(self) -> None:
        self.closed = True


def held(tiny_set: TinySet) -> ClosedStorage:
    """The files of the tiny set, in memory."""
    return ClosedStorage({path.name: path.read_bytes() for path in tiny_set.path.iterdir()})


def test_a_set_is_read_from_a_storage_which_stays_open(tiny_set: TinySet) -> None:
    """Two loaders, one after the other, and a look at a record leave the storage to its owner."""
    storage = held(tiny_set)
    dataset = aioload.Dataset(storage)

    with aioload.Loader(dataset, batch_size=8, num_workers=0).sync() as batches:
        first = [label for batch in batches for label in batch["label"].tolist()]
    with aioload.Loader(dataset, batch_size=8, num_workers=0).sync() as batches:
        second = [label for batch in batches for label in batch["label"].tolist()]

    assert first == second == tiny_set.labels
    assert dataset[3]["label"] == tiny_set.labels[3]
    assert not storage.closed


def test_a_storage_is_described_and_travels(tiny_set: TinySet) -> None:
    """Messages show its `repr`; a set that is pickled takes its storage along."""
    dataset = aioload.Dataset(held(tiny_set))

    again = pickle.loads(pickle.dumps(dataset))

    assert "MemoryStorage" in repr(dataset)
    assert len(again) == TINY_RECORDS


def test_what_a_storage_has_besides_is_lent_too(tiny_set: TinySet) -> None:
    """How many reads it takes at once counts; closing does not."""
    lent = Lent(held(tiny_set))

    assert lent.max_reads == 3
    assert not hasattr(lent, "aclose")
    assert repr(lent).startswith("<MemoryStorage")
