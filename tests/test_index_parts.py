"""An index that is larger than the memory it may take: order, batches and errors of one in memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import pack, plain, take_sync
from fakes import FaultyStorage
from hypothesis import given, settings
from hypothesis import strategies as st
from servers.ranges import RangeServer

import aioload
from aioload import Dataset, Loader
from aioload.errors import ConfigError, ShardError
from aioload.shard.format import INDEX_NAME, MANIFEST_NAME
from aioload.shard.index import Index, open_index, parse_index
from aioload.shard.manifest import Manifest
from aioload.shard.pages import PAGE_BYTES, PagedArray, Pages
from aioload.storage import LocalStorage, MemoryStorage

RECORDS = 12_000
LITTLE = 1 << 16  # of memory: less than any index here


@pytest.fixture(autouse=True)
def few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep so few pages that most must be read again and again."""
    monkeypatch.setattr("aioload.shard.pages._LEAST_PAGES", 2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set whose index takes some pages: several shards, records of many sizes, columns."""
    samples = ({"n": n, "share": n / 7, "text": "x" * (n * 7919 % 61)} for n in range(RECORDS))
    fields = {"n": "int", "share": "float", "text": "str"}
    folder = tmp_path_factory.mktemp("parts") / "set"
    return pack(folder, fields, samples, shard_bytes=150_000, index_fields=["n", "share"])


@pytest.fixture
def served(path: Path) -> Iterator[RangeServer]:
    """A server of its files."""
    with RangeServer(path) as server:
        yield server


def in_parts(folder: Path, room: int = 0) -> Index:
    """Open a set's index in parts."""
    manifest = Manifest.parse((folder / MANIFEST_NAME).read_bytes(), MANIFEST_NAME)
    steps = open_index(Pages(str(folder / INDEX_NAME), room, INDEX_NAME), manifest)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            index: Index = end.value
            return index


def test_it_is_the_same_index(path: Path) -> None:
    """Long arrays stay in the file; every question has the whole index's answer, fingerprint included."""
    whole, parts = Dataset(path).index, in_parts(path)
    records = np.random.default_rng(2).integers(0, RECORDS, 500)

    found, expected = parts.locate(records), whole.locate(records)

    long = (parts.positions, parts.sums, *parts.columns.values())
    assert [type(array) for array in long] == [PagedArray] * 4
    assert parts.nbytes == whole.nbytes > 4 * PAGE_BYTES
    assert parts.fingerprint() == whole.fingerprint()
    for name in ("shard", "start", "stop", "sums"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert parts.columns["share"][records].tolist() == whole.columns["share"][records].tolist()
    assert repr(parts) == repr(whole)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_batches_are_the_same(path: Path, shuffle: Any, workers: int) -> None:
    """Order, batches and states are those of the whole index, bit for bit, also after a resume."""
    options: dict[str, Any] = {"batch_size": 500, "shuffle": shuffle, "num_workers": workers}
    loaders = [Loader(Dataset(path, index_memory=room), **options) for room in ("1GiB", LITTLE)]

    states, found = [], []
    for loader in loaders:
        with loader.sync() as batches:
            first = [plain(batch) for batch, _ in zip(batches, range(5), strict=False)]
            states.append(batches.state_dict())
            batches.load_state_dict(states[0])
            found.append(first + [plain(batch) for batch in batches])

    assert states[0] == states[1]
    assert found[0] == found[1]
    assert type(loaders[1].dataset.table.index.positions) is PagedArray  # type: ignore[union-attr] - of a set


def by_address(served: RangeServer, path: Path, cache: Path) -> Dataset:
    """Return the set behind a web server."""
    return Dataset(served.url, cache_dir=cache, index_memory=LITTLE)


def by_storage(served: RangeServer, path: Path, cache: Path) -> Dataset:
    """Return the set in a storage of the user's."""
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    return Dataset(MemoryStorage(files), index_memory=LITTLE)


@pytest.mark.parametrize("make", [by_address, by_storage])
def test_an_index_from_elsewhere_is_brought_here(
    path: Path, served: RangeServer, tmp_path: Path, make: Callable[..., Dataset]
) -> None:
    """Behind an address or in a user's storage: it comes to this disk; batches are those of a local set."""
    options: dict[str, Any] = {"batch_size": 700, "shuffle": True, "num_workers": 0}

    dataset = make(served, path, tmp_path / "cache")
    found = [plain(batch) for batch in take_sync(Loader(dataset, **options))]

    assert type(dataset.index.positions) is PagedArray
    assert found == [plain(batch) for batch in take_sync(Loader(path, **options))]


def test_an_index_is_brought_once(path: Path, served: RangeServer, tmp_path: Path) -> None:
    """Another opening, as by another process, asks for the manifest and finds the index here."""
    first = by_address(served, path, tmp_path)
    assert first.index.fingerprint() == Dataset(path).index.fingerprint()
    index_bytes = (path / INDEX_NAME).stat().st_size
    before = first.traffic()["network_bytes"]

    second = by_address(served, path, tmp_path)

    assert second.index.fingerprint() == first.index.fingerprint()
    assert before >= index_bytes
    assert second.traffic()["network_bytes"] < 5000


def test_a_damaged_index_is_not_taken(path: Path, tmp_path: Path) -> None:
    """D2: a flipped bit is an error in a storage, too, and nothing of it serves the next opening."""
    files = {file.name: bytearray(file.read_bytes()) for file in path.iterdir()}
    files[INDEX_NAME][-100] ^= 4

    class Named(FaultyStorage):
        async def version(self, name: str) -> str:
            return "1"

        def __repr__(self) -> str:
            return f"<Named {tmp_path}>"

    storage = Named(MemoryStorage(files), {})
    with pytest.raises(ShardError, match="checksum"):
        len(Dataset(storage, index_memory=LITTLE))
    files[INDEX_NAME][-100] ^= 4

    assert len(Dataset(storage, index_memory=LITTLE)) == RECORDS


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=60)
def test_every_byte_is_checked(
    path: Path, tmp_path_factory: pytest.TempPathFactory, place: float, bit: int
) -> None:
    """D2: with any bit of the file flipped it is refused, as a whole index is."""
    data = bytearray((path / INDEX_NAME).read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    manifest = (path / MANIFEST_NAME).read_bytes()
    folder = tmp_path_factory.getbasetemp() / "flipped"
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST_NAME).write_bytes(manifest)
    (folder / INDEX_NAME).write_bytes(data)

    with pytest.raises(ShardError) as whole:
        parse_index(bytes(data), Manifest.parse(manifest, MANIFEST_NAME), INDEX_NAME)
    with pytest.raises(ShardError) as parts:
        in_parts(folder)

    assert (str(parts.value), parts.value.field) == (str(whole.value), whole.value.field)


def test_an_index_of_another_size_is_refused(path: Path, tmp_path: Path) -> None:
    """One that was cut says so."""
    (tmp_path / MANIFEST_NAME).write_bytes((path / MANIFEST_NAME).read_bytes())
    (tmp_path / INDEX_NAME).write_bytes((path / INDEX_NAME).read_bytes()[:-8])

    with pytest.raises(ShardError, match="bytes long, the manifest says"):
        in_parts(tmp_path)


def test_a_change_under_way_is_an_error_at_its_batch(path: Path, tmp_path: Path) -> None:
    """F4: batches of what was read before come first, then the error, and never a wrong record."""
    folder = tmp_path / "set"
    folder.mkdir()
    for file in path.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    loader = Loader(Dataset(folder, index_memory=LITTLE), batch_size=100, num_workers=0, prefetch=1)
    seen: list[int] = []

    with loader.sync() as batches:
        iterator = iter(batches)
        seen += next(iterator)["n"].tolist()
        with (folder / INDEX_NAME).open("r+b") as file:
            file.seek(PAGE_BYTES + 1000)
            file.write(b"\xff" * 3000)
        with pytest.raises(ShardError, match="has changed"):
            seen.extend(number for batch in iterator for number in batch["n"].tolist())

    assert 100 < len(seen) < RECORDS
    assert seen == [*range(len(seen))]


def test_what_is_made_of_it(path: Path) -> None:
    """Selections, several sets, batches by a column and single samples ask it, too."""
    whole, parts = Dataset(path), Dataset(path, index_memory=LITTLE)
    budget = aioload.batching.Budget(max_cost=50_000, cost="n", max_rows=64)

    for make in (
        lambda one: Loader(one.select(range(5, RECORDS, 3)), batch_size=999, shuffle=True, num_workers=0),
        lambda one: Loader(aioload.Concat([one, whole]), batch_size=3000, shuffle=True, num_workers=0),
        lambda one: Loader(one, batch_size=budget, num_workers=0),
    ):
        found, expected = take_sync(make(parts)), take_sync(make(whole))
        assert plain(found) == plain(expected)
    assert parts[-1] == whole[-1]
    assert pickle.loads(pickle.dumps(parts)).index.positions[-1] == whole.index.positions[-1]
    assert type(pickle.loads(pickle.dumps(parts)).index.positions) is PagedArray


@pytest.mark.parametrize("room", [0, -1, "much", 1.5, True])
def test_room_that_cannot_be(path: Path, room: Any) -> None:
    """It is a number of bytes, or a text that means one."""
    with pytest.raises(ConfigError, match="index_memory must be"):
        Dataset(path, index_memory=room)


def test_an_index_that_fits_is_held(path: Path) -> None:
    """By default, and where there is just room enough, it is in memory."""
    exactly = (path / INDEX_NAME).stat().st_size

    kinds = [type(Dataset(path, **room).index.positions) for room in ({}, {"index_memory": exactly})]

    assert kinds == [np.ndarray] * 2
    assert type(Dataset(path, index_memory=exactly - 1).index.positions) is PagedArray


def test_a_disk_of_another_machine_is_not_asked_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M4: there the index is brought to this disk, since plans are made without waiting."""
    monkeypatch.setattr("aioload.home.is_local", lambda path: False)
    opened: list[str] = []
    monkeypatch.setattr(
        "aioload.home.Pages", lambda place, room, where: opened.append(place) or Pages(place, room, where)
    )

    assert len(Dataset(path, index_memory=LITTLE)) == RECORDS

    assert [place.startswith(LocalStorage(path).path("")) for place in opened] == [False]
