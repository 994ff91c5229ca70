"""Pages: a file whose bytes are read when they are needed, and are those that its sum was compared with.

The index of ten billion records is 120 GB. What is used of it at a time is little: the places of the pieces
that a rank draws from just now. So the arrays of a large index stay in their file. The file is read once from
end to end when it is opened, which compares it with its sum and notes a sum for each page; whatever is read
later is compared with these. A file that is changed meanwhile, or whose disk fails, is an error, where a
mapped one would give other bytes, or end the process by a signal.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ShardError, StorageError
from .format import crc32c

__all__ = ["PAGE_BYTES", "PagedArray", "Pages"]

Array = npt.NDArray[Any]

PAGE_BYTES = 16 << 10
"""Of a page. What is known of it takes 8 bytes, so that for a file of 120 GB they are 60 MB."""

_LEAST_PAGES = 64  # that are kept in any case
_AT_ONCE = 256  # pages that are read together where a range is wanted
_NOWHERE = -1


class Pages:
    """A file in pages. Usable from several threads; the file stays open for as long as this lives.

    Args:
        path: of the file.
        room: bytes of pages that are kept in memory, those used last.
        where: the file's name, for errors.

    Raises:
        StorageError: it cannot be opened.
    """

    def __init__(self, path: str, room: int, where: str) -> None:
        self.where = where
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unreadable(error) from error
        weakref.finalize(self, os.close, self._fd).atexit = False
        self.size = os.fstat(self._fd).st_size
        self.crc32c = 0
        """Of the whole file, once `add_up` has come to its end."""
        count = -(-self.size // PAGE_BYTES)
        self._sums = np.zeros(count, np.uint32)
        self._slot = np.full(count, _NOWHERE, np.int32)  # of each page, where it is kept
        slots = min(max(room // PAGE_BYTES, _LEAST_PAGES), max(count, 1))
        self._memory = np.empty((slots, PAGE_BYTES), np.uint8)  # takes none before it is written to
        self._page = np.full(slots, _NOWHERE, np.int64)  # in each slot
        self._used = np.zeros(slots, np.int64)  # when each slot was used last, in turns
        self._turn = 0
        self._lock = threading.Lock()

    @property
    def room(self) -> int:
        """Most bytes of pages that are kept."""
        return self._memory.nbytes

    @property
    def kept(self) -> int:
        """Pages that are kept."""
        return int((self._page != _NOWHERE).sum())

    def add_up(self) -> Iterator[None]:
        """Read all of the file, some at each step, and note the sums of its pages."""
        whole = 0
        for first in range(0, len(self._sums), _AT_ONCE):
            data = self._read(first, first + _AT_ONCE)
            whole = crc32c(data, value=whole)
            self._sums[first : first + _AT_ONCE] = _sums_of(data)
            yield
        self.crc32c = whole

    def take(self, start: int, stop: int) -> Array:
        """Return the bytes `start` to `stop`; pages that are read for it are not kept."""
        found = np.empty(stop - start, np.uint8)
        pages_stop = -(-stop // PAGE_BYTES) if stop > start else 0
        for first in range(start // PAGE_BYTES, pages_stop, _AT_ONCE):
            data, begin = self._checked(first, min(first + _AT_ONCE, pages_stop)), first * PAGE_BYTES
            low, high = max(start, begin), min(stop, begin + len(data))
            found[low - start : high - start] = data[low - begin : high - begin]
        found.flags.writeable = False
        return found

    def gather(self, places: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> Array:
        """Return items from anywhere; the pages they are in are kept.

        Args:
            places: of the items in the file, counted in items.
            dtype: theirs; a page has a whole number of them.
        """
        # hot: some times for each run's plan
        page, inside = np.divmod(places, PAGE_BYTES // dtype.itemsize)
        found = np.empty(len(places), dtype)
        memory = self._memory.view(dtype)
        with self._lock:
            slot = self._slot[page]
            if (slot == _NOWHERE).any():
                wanted = np.unique(page)
                if len(wanted) > len(self._page):
                    return self._gather_in_turn(page, inside, dtype)
                self._bring(wanted)
                slot = self._slot[page]
            self._turn += 1
            self._used[slot] = self._turn
            found[:] = memory[slot, inside]
        return found

    def _gather_in_turn(
        self, page: npt.NDArray[np.int64], inside: npt.NDArray[np.int64], dtype: np.dtype[Any]
    ) -> Array:
        """Return items from more pages than can be kept."""
        found = np.empty(len(page), dtype)
        by_page = np.argsort(page, kind="stable")
        for group in np.split(by_page, np.flatnonzero(np.diff(page[by_page])) + 1):
            number = int(page[group[0]])
            data = self._checked(number, number + 1)
            found[group] = data[: len(data) // dtype.itemsize * dtype.itemsize].view(dtype)[inside[group]]
        return found

    def _bring(self, wanted: npt.NDArray[np.int64]) -> None:
        """See to it that all of these pages are kept, in place of those that were used longest ago."""
        self._turn += 1
        slot = self._slot[wanted]
        self._used[slot[slot != _NOWHERE]] = self._turn
        for number in wanted[slot == _NOWHERE].tolist():
            data = self._checked(number, number + 1)  # first: it may fail
            oldest = int(self._used.argmin())
            if self._page[oldest] != _NOWHERE:
                self._slot[self._page[oldest]] = _NOWHERE
            self._memory[oldest, : len(data)] = data
            self._page[oldest], self._slot[number], self._used[oldest] = number, oldest, self._turn

    def __repr__(self) -> str:
        return f"<Pages {self.where!r} size={self.size} kept={self.kept} of {len(self._page)}>"

    def _checked(self, first: int, stop: int) -> Array:
        """Return the bytes of some pages, which are those that were added up."""
        data = self._read(first, stop)
        sums = _sums_of(data)
        if sums != self._sums[first : first + len(sums)].tolist():
            wrong = next(page for page, found in enumerate(sums, first) if found != self._sums[page])
            raise self._changed(wrong * PAGE_BYTES)
        return data

    def _read(self, first: int, stop: int) -> Array:
        start = first * PAGE_BYTES
        data = np.empty(min(stop * PAGE_BYTES, self.size) - start, np.uint8)
        view, filled = data.data, 0
        while filled < len(data):
            try:
                count = os.preadv(self._fd, [view[filled:]], start + filled)
            except OSError as error:
                raise self._unreadable(error) from error
            if not count:
                raise self._changed(start + filled)
            filled += count
        return data

    def _changed(self, offset: int) -> ShardError:
        return ShardError(
            f"{self.where} has changed at byte {offset} since it was opened, or its disk fails; open the set "
            "again",
            shard=self.where,
            offset=offset,
        )

    def _unreadable(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot read {self.where}: {error.strerror}; check the disk and the file's mode",
            shard=self.where,
            errno=error.errno,
            cause=error.strerror,
        )


def _sums_of(data: Array) -> list[int]:
    """Return the sum of each page."""
    return [crc32c(data[start : start + PAGE_BYTES]) for start in range(0, len(data), PAGE_BYTES)]


class PagedArray:
    """An array of one dimension that lies in a file. What is taken from it are ordinary arrays.

    Args:
        pages: of the file.
        start: byte of the file where it begins: a multiple of the size of an item.
        dtype: of its items, whose size divides that of a page.
        count: number of items.
    """

    ndim = 1

    def __init__(self, pages: Pages, start: int, dtype: npt.DTypeLike, count: int) -> None:
        self._pages = pages
        self._start = start
        self.dtype = np.dtype(dtype)
        self.shape = (count,)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return len(self) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            first, stop, step = key.indices(len(self))
            return self._range(first, stop) if step == 1 else self._range(0, len(self))[key]
        numbers = np.asarray(key)
        if numbers.dtype.kind not in "iu":
            return self._range(0, len(self))[key]
        numbers = numbers.astype(np.int64)  # also of unsigned ones, which have no negatives
        outside = (numbers < -len(self)) | (numbers >= len(self))
        if outside.any():
            raise IndexError(f"items are 0 to {len(self) - 1}, asked for {numbers[outside].flat[0]}")
        numbers = np.where(numbers < 0, numbers + len(self), numbers)
        places = numbers.ravel() + self._start // self.dtype.itemsize
        found = self._pages.gather(places, self.dtype)
        return found.reshape(numbers.shape) if numbers.ndim else found[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return all of it, in memory."""
        if copy is False:
            raise ValueError("an array that lies in a file is copied when it is taken as a whole")
        return np.asarray(self._range(0, len(self)), dtype)

    def astype(self, dtype: Any) -> Array:
        """Return all of it, in memory, as another dtype."""
        return self._range(0, len(self)).astype(dtype)

    def __repr__(self) -> str:
        return f"<PagedArray {self.dtype} of {len(self)} in {self._pages!r}>"

    def _range(self, first: int, stop: int) -> Array:
        size = self.dtype.itemsize
        found = self._pages.take(self._start + first * size, self._start + max(stop, first) * size)
        return found.view(self.dtype)
