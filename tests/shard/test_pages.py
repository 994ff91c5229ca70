"""Arrays that stay in their file: as numpy's, in bounded memory, never other bytes than at first."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.errors import ShardError, StorageError
from aioload.shard.pages import PAGE_BYTES, PagedArray, Pages

COUNT = 3 * PAGE_BYTES // 8 + 17
START = 40  # of the array in the file
MIB = 1 << 20


def opened(path: Path, content: bytes, room: int = 0) -> Pages:
    """Write a file and open it in pages."""
    path.write_bytes(content)
    pages = Pages(str(path), room, "set/file")
    for _ in pages.add_up():
        pass
    return pages


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, PagedArray]:
    """An array of some pages, in memory and in a file."""
    array = np.random.default_rng(3).integers(0, 1 << 63, COUNT, np.uint64)
    pages = opened(tmp_path_factory.mktemp("pages") / "file", bytes(START) + array.tobytes() + b"end!")
    return array, PagedArray(pages, START, "<u8", COUNT)


@given(
    key=st.one_of(
        st.integers(-COUNT, COUNT - 1),
        st.slices(COUNT),
        st.lists(st.integers(-COUNT, COUNT - 1), min_size=1, max_size=50).map(np.array),
        st.lists(st.integers(0, COUNT - 1), min_size=4, max_size=4).map(
            lambda some: np.array(some, np.uint32).reshape(2, 2)
        ),
    )
)
def test_items_are_those_of_the_array(pair: tuple[Any, PagedArray], key: Any) -> None:
    """Numbers, slices and arrays of numbers give what they give of an array in memory."""
    array, paged = pair

    found = paged[key]

    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array[key])


def test_as_a_whole_it_is_the_array(pair: tuple[Any, PagedArray]) -> None:
    """Length, size, last item, other dtypes, masks, and all of it."""
    array, paged = pair

    assert (len(paged), paged.nbytes, paged.shape, paged[-1]) == (COUNT, array.nbytes, array.shape, array[-1])
    np.testing.assert_array_equal(np.asarray(paged), array)
    np.testing.assert_array_equal(paged.astype(np.float64), array.astype(np.float64))
    np.testing.assert_array_equal(paged[array > 1 << 62], array[array > 1 << 62])
    assert len(paged[np.zeros(0, np.int64)]) == len(paged[5:5]) == len(paged[9:2]) == 0


@pytest.mark.parametrize("key", [COUNT, -COUNT - 1, np.array([0, COUNT])])
def test_items_that_are_not_there_are_an_error(pair: tuple[Any, PagedArray], key: Any) -> None:
    """Behind the end and before the beginning there are none."""
    with pytest.raises(IndexError, match=f"0 to {COUNT - 1}"):
        pair[1][key]


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Whatever is asked for, pages take no more than their room, and ranges of many pages none of it."""
    count = 8 * MIB // 8
    pages = opened(tmp_path / "file", np.arange(count).tobytes(), room=MIB)
    paged, places = PagedArray(pages, 0, "<i8", count), np.random.default_rng(1).integers(0, count, 3000)

    tracemalloc.start()
    for some in np.split(places, 60):
        assert np.array_equal(paged[some], some)
    kept, (_, peak) = pages.kept, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    taken = paged[10 : count // 2]

    assert pages.room == MIB
    assert kept == pages.kept == MIB // PAGE_BYTES
    assert peak < MIB / 4  # beside that room
    assert np.array_equal(taken, np.arange(10, count // 2))


@pytest.mark.parametrize("step", [1, 7, 4000])
def test_more_pages_than_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Items that lie in more pages than there is room for, or in just as many, are there all the same."""
    monkeypatch.setattr("aioload.shard.pages._LEAST_PAGES", 3)
    count = 12 * PAGE_BYTES // 4 + 5
    paged = PagedArray(opened(tmp_path / "file", np.arange(count).astype("<u4").tobytes()), 0, "<u4", count)
    rows = np.random.default_rng(step).permutation(count)[: count // step]

    for some in (rows, np.sort(rows), rows[: len(rows) // 2], np.sort(rows)[: 3 * PAGE_BYTES // 4 // step]):
        assert np.array_equal(paged[some], some)


@pytest.mark.parametrize("take", [lambda paged: paged[5000], lambda paged: paged[100:-100]])
def test_a_file_that_changes_is_an_error(tmp_path: Path, take: Any) -> None:
    """D2: bytes that are other ones than when it was opened are never given out; the error says where."""
    path = tmp_path / "file"
    pages = opened(path, bytes(8 * COUNT))
    with path.open("r+b") as file:
        file.seek(5000 * 8 + 3)
        file.write(b"\1")

    with pytest.raises(ShardError, match="set/file has changed") as caught:
        take(PagedArray(pages, 0, "<u8", COUNT))

    assert caught.value.offset == 5000 * 8 // PAGE_BYTES * PAGE_BYTES


def test_a_file_that_is_cut_is_an_error(tmp_path: Path) -> None:
    """D2: no signal ends the process, and nothing is made up."""
    path = tmp_path / "file"
    pages = opened(path, bytes(8 * COUNT))
    with path.open("r+b") as file:
        file.truncate(PAGE_BYTES + 5)

    with pytest.raises(ShardError, match="has changed at byte"):
        PagedArray(pages, 0, "<u8", COUNT)[-1]


def test_a_file_that_is_replaced_or_removed_is_still_read(tmp_path: Path) -> None:
    """Another file of the same name is another file."""
    path = tmp_path / "file"
    pages = opened(path, np.arange(COUNT).tobytes())
    (tmp_path / "other").write_bytes(bytes(8 * COUNT))
    (tmp_path / "other").replace(path)
    path.unlink()

    assert PagedArray(pages, 0, "<i8", COUNT)[[5, COUNT - 1]].tolist() == [5, COUNT - 1]


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """It is typed, and names the file."""
    with pytest.raises(StorageError, match="cannot read set/file"):
        Pages(str(tmp_path / "none"), 0, "set/file")
