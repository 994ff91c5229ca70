"""Memory of samples: what was put comes back, within the limit, for whoever has the memory open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from aioload.cache.memory import MemoryStore
from aioload.cache.packed import Packed

LIMIT = 1 << 20
RECORDS = 400


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    """Make one of a mebibyte."""
    store = MemoryStore.create(RECORDS, LIMIT)
    yield store
    store.close()


def data_of(record: int, size: int = 4096) -> np.ndarray:
    """Return bytes that tell their record."""
    return np.full(size, record % 251, np.uint8)


def put(store: MemoryStore, record: int, size: int = 4096) -> bool:
    """Keep bytes of a record."""
    data = data_of(record, size)
    return store.put(record, Packed([data], len(data), google_crc32c.value(data)))


def got(store: MemoryStore, record: int) -> bytes | None:
    """Return what is kept of a record."""
    place, size, sum_ = store.index[record].tolist()
    data = np.zeros(size, np.uint8)
    whole = bool(place) and store.get(place, data) and google_crc32c.value(data) == sum_
    return data.tobytes() if whole else None


def test_what_was_put_comes_back(store: MemoryStore) -> None:
    """Each record has its own bytes, and those that were not put have none."""
    assert all(put(store, record) for record in range(0, 100, 2))

    found = [got(store, record) for record in range(100)]

    assert found[::2] == [data_of(record).tobytes() for record in range(0, 100, 2)]
    assert found[1::2] == [None] * 50


def test_the_limit_is_kept(store: MemoryStore) -> None:
    """What is full takes no more, keeps what it has, and is filled to the last chunk."""
    taken = [put(store, record) for record in range(RECORDS)]

    kept = sum(taken)
    assert taken == [True] * kept + [False] * (RECORDS - kept)
    assert LIMIT * 0.98 - MemoryStore.least(RECORDS) <= kept * 4096 <= LIMIT
    assert os.fstat(store.fd).st_blocks * 512 <= LIMIT
    assert all(got(store, record) == data_of(record).tobytes() for record in range(kept))


def test_two_who_write_share_the_room(store: MemoryStore) -> None:
    """Whoever has the memory open sees what others put there, and nobody writes over it."""
    other = MemoryStore(os.dup(store.fd))

    for record in range(RECORDS):
        put((store, other)[record % 2], record)
    other.close()

    found = [got(store, record) for record in range(RECORDS)]
    kept = [record for record, data in enumerate(found) if data is not None]
    assert len(kept) * 4096 >= LIMIT * 0.95 - MemoryStore.least(RECORDS)
    assert all(found[record] == data_of(record).tobytes() for record in kept)


def test_a_sample_larger_than_a_chunk_is_kept(store: MemoryStore) -> None:
    """Chunks are for many small samples, and no bound for large ones."""
    assert put(store, 1, 300_000)

    assert got(store, 1) == data_of(1, 300_000).tobytes()


def test_small_samples_go_where_a_large_one_does_not(store: MemoryStore) -> None:
    """One that is too large for what is left does not close the door for others."""
    large = put(store, 0, LIMIT)

    assert (large, put(store, 1, 100)) == (False, True)


def test_nothing_more_is_taken_while_memory_is_scarce(store: MemoryStore) -> None:
    """Admission can be stopped and goes on again; what is kept stays."""
    other = MemoryStore(os.dup(store.fd))
    put(store, 1)

    store.close_admission(True)
    refused = put(other, 2)
    store.close_admission(False)
    taken = put(other, 2)
    other.close()

    assert (refused, taken, got(store, 1)) == (False, True, data_of(1).tobytes())


def test_what_is_forgotten_can_be_kept_anew(store: MemoryStore) -> None:
    """A sample that was damaged is made again and takes another place."""
    put(store, 5)
    store.forget(np.array([5]))
    gone = got(store, 5)

    put(store, 5, 64)

    assert (gone, got(store, 5)) == (None, data_of(5, 64).tobytes())


def test_a_closed_memory_is_given_back_at_once(store: MemoryStore) -> None:
    """Whoever still holds the object holds nothing of what it had."""
    put(store, 1)
    before = Path("/proc/self/maps").read_text().count("memfd:aioload-cache")

    store.close()
    store.close()

    assert before == 1
    assert "memfd:aioload-cache" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("size", [LIMIT, 10], ids=["other", "short"])
def test_what_is_no_such_memory_is_refused(size: int) -> None:
    """Memory of another make is never read as if it were samples, and is closed."""
    fd = os.memfd_create("other")
    os.ftruncate(fd, size)

    with pytest.raises(ValueError, match="no memory of kept samples"):
        MemoryStore(fd)

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
