"""Shards that the disk cache has whole are mapped by workers, as those of a local set are."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from batches import counted, plain, take_sync
from servers.ranges import RangeServer

import aioload

RECORDS = 2000
MOST_EPOCHS = 40


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of several shards."""
    return counted(tmp_path_factory.mktemp("mapped") / "set", RECORDS, shard_bytes=8000)


@pytest.fixture
def server(packed: Path) -> Iterator[RangeServer]:
    """A server of its files."""
    with RangeServer(packed) as server:
        yield server


@pytest.fixture
def dataset(server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> aioload.Dataset:
    """The set behind it, all of it in a cache, however slow the disk is."""
    monkeypatch.setattr("aioload.storage.cache._LEAST_PATIENCE", 30.0)
    fills = aioload.Dataset(server.url, cache_dir=tmp_path / "cache")
    take_sync(aioload.Loader(fills, batch_size=16, num_workers=0))
    server.requests.clear()
    return aioload.Dataset(server.url, cache_dir=tmp_path / "cache")


def wanted(packed: Path, epochs: int, **options: Any) -> list[Any]:
    """Take epochs of the local set."""
    return epochs_of(aioload.Loader(packed, batch_size=16, num_workers=0, **options), epochs)[0]


def epochs_of(
    loader: aioload.Loader, epochs: int, *, until: Callable[[aioload.LoaderStats], bool] = bool
) -> tuple[list[Any], aioload.LoaderStats]:
    """Take epochs, comparable, and further ones until the counts are as they should be; return both."""
    with loader.sync() as batches:
        found = [[plain(batch) for batch in batches] for _ in range(epochs)]
        while not until(batches.stats()) and len(found) < MOST_EPOCHS:
            time.sleep(0.3)  # what a cache has is looked at once a second
            found.append([plain(batch) for batch in batches])
        return found, batches.stats()


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_what_is_cached_whole_is_mapped(
    packed: Path, server: RangeServer, dataset: aioload.Dataset, shuffle: Any
) -> None:
    """The batches are those of the local set, no byte comes over the network, and reads are not needed."""
    loader = aioload.Loader(dataset, batch_size=16, num_workers=2, shuffle=shuffle)

    # more bytes than were read: the rest came without
    found, stats = epochs_of(loader, 1, until=lambda stats: stats.record_bytes > stats.read_bytes)

    assert found == wanted(packed, len(found), shuffle=shuffle)
    assert len(found) < MOST_EPOCHS
    assert stats.mapped
    assert stats.cache_misses == 0
    assert len(server.requests) == 2  # manifest and index


def test_it_is_mapped_once_it_is_whole(packed: Path, server: RangeServer, tmp_path: Path) -> None:
    """A loader that fills the cache in its first epoch takes a later one from mappings."""
    dataset = aioload.Dataset(server.url, cache_dir=tmp_path / "cache")
    loader = aioload.Loader(dataset, batch_size=16, num_workers=1, shuffle=True)

    found, stats = epochs_of(loader, 1, until=lambda stats: stats.mapped)

    assert found == wanted(packed, len(found), shuffle=True)
    assert stats.mapped
    assert stats.network_bytes < 1.5 * stats.record_bytes / len(found)


def damage(cache: Path) -> int:
    """Change one byte in the middle of each cached file; return how many there are."""
    files = list(cache.rglob("bytes-*"))
    for file in files:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    return len(files)


def test_a_damaged_byte_of_the_cache_is_fetched_again(
    packed: Path, server: RangeServer, dataset: aioload.Dataset, tmp_path: Path
) -> None:
    """Whoever maps the cache's file finds the damage by the record's sum; nobody meets an error."""
    assert damage(tmp_path / "cache") > 2
    loader = aioload.Loader(aioload.Dataset(server.url, cache_dir=tmp_path / "cache"), batch_size=16)

    found, stats = epochs_of(loader, 2)

    assert found == wanted(packed, 2)
    assert stats.cache_errors > 0


def test_a_cache_that_goes_away_is_done_without(
    packed: Path, dataset: aioload.Dataset, tmp_path: Path
) -> None:
    """Somebody removes the folder between two epochs, which a lock does not hinder."""
    loader = aioload.Loader(dataset, batch_size=16, num_workers=1)
    with loader.sync() as batches:
        first = [plain(batch) for batch in batches]
        shutil.rmtree(tmp_path / "cache")
        later = [[plain(batch) for batch in batches] for _ in range(3)]

    assert [first, *later] == wanted(packed, 4)


def test_two_cached_sets_are_mapped_side_by_side(packed: Path, tmp_path: Path) -> None:
    """Shards of equal names in one cache, and a local set beside them."""
    counted(tmp_path / "other", 500, shard_bytes=8000)
    with RangeServer(packed) as one, RangeServer(tmp_path / "other") as other:
        sets = [aioload.Dataset(url.url, cache_dir=tmp_path / "cache") for url in (one, other)]
        joined = aioload.Concat([*sets, aioload.Dataset(packed)])
        for each in sets:
            take_sync(aioload.Loader(each, batch_size=16, num_workers=0))
        loader = aioload.Loader(joined, batch_size=16, num_workers=2, shuffle=True)
        found, stats = epochs_of(loader, 1, until=lambda stats: stats.mapped)

    local = aioload.Concat([aioload.Dataset(place) for place in (packed, tmp_path / "other", packed)])
    assert (
        found == epochs_of(aioload.Loader(local, batch_size=16, num_workers=0, shuffle=True), len(found))[0]
    )
    assert stats.mapped


def test_without_sums_the_cache_is_read(packed: Path, server: RangeServer, tmp_path: Path) -> None:
    """Records that nobody checks come through the cache, which checks them itself."""
    loader = aioload.Loader(
        aioload.Dataset(server.url, cache_dir=tmp_path / "cache"), batch_size=16, num_workers=1, reads="file"
    )

    found, stats = epochs_of(loader, 2)

    assert found == wanted(packed, 2)
    assert not stats.mapped
