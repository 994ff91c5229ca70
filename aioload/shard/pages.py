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
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ShardError, StorageError
from .format import crc32c

__all__ = ["PAGE_BYTES", "PagedArray", "Pages"]

Array = npt.NDArray[Any]

PAGE_BYTES = 64 << 10
"""Of a page: its sum takes 4 bytes, so that those of 120 GB take 8 MB."""

_LEAST_PAGES = 16  # that are kept in any case
_AT_ONCE = 64  # pages that are read together where a range is wanted


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
        self.room = max(room // PAGE_BYTES, _LEAST_PAGES) * PAGE_BYTES
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unreadable(error) from error
        weakref.finalize(self, os.close, self._fd).atexit = False
        self.size = os.fstat(self._fd).st_size
        self._sums: npt.NDArray[np.uint32] | None = None
        self._kept: OrderedDict[int, Array] = OrderedDict()
        self._lock = threading.Lock()

    def add_up(self) -> Iterator[None]:
        """Read all of the file and note the sums of its pages, some at each step; `crc32c` is known then."""
        sums = np.zeros(-(-self.size // PAGE_BYTES), np.uint32)
        whole = 0
        for first in range(0, len(sums), _AT_ONCE):
            data = self._read(first * PAGE_BYTES, min((first + _AT_ONCE) * PAGE_BYTES, self.size))
            whole = crc32c(data, value=whole)
            for page, start in enumerate(range(0, len(data), PAGE_BYTES), first):
                sums[page] = crc32c(data[start : start + PAGE_BYTES])
            yield
        self.crc32c, self._sums = whole, sums

    def take(self, start: int, stop: int) -> Array:
        """Return the bytes `start` to `stop`, not to be written to; what is more than a page is not kept."""
        first, last = start // PAGE_BYTES, (max(stop, start + 1) - 1) // PAGE_BYTES
        if first == last:
            return self.page(first)[start - first * PAGE_BYTES : stop - first * PAGE_BYTES]
        found = np.empty(stop - start, np.uint8)
        for number in range(first, last + 1, _AT_ONCE):
            begin, end = number * PAGE_BYTES, min((number + _AT_ONCE) * PAGE_BYTES, (last + 1) * PAGE_BYTES)
            data = self._checked(number, self._read(begin, min(end, self.size)))
            low, high = max(start, begin), min(stop, end)
            found[low - start : high - start] = data[low - begin : high - begin]
        found.flags.writeable = False
        return found

    def page(self, number: int) -> Array:
        """Return a page, which is kept for the next time."""
        with self._lock:
            page = self._kept.get(number)
            if page is not None:
                self._kept.move_to_end(number)
                return page
        begin = number * PAGE_BYTES
        page = self._checked(number, self._read(begin, min(begin + PAGE_BYTES, self.size)))
        with self._lock:
            self._kept[number] = page
            while len(self._kept) * PAGE_BYTES > self.room:
                self._kept.popitem(last=False)
        return page

    @property
    def kept_bytes(self) -> int:
        """Memory that pages take."""
        return len(self._kept) * PAGE_BYTES

    def __repr__(self) -> str:
        return f"<Pages {self.where!r} size={self.size} kept={self.kept_bytes} of {self.room}>"

    def _checked(self, first: int, data: Array) -> Array:
        """Compare pages with their sums."""
        assert self._sums is not None, "the file was read to its end first"
        for page, start in enumerate(range(0, len(data), PAGE_BYTES), first):
            if crc32c(data[start : start + PAGE_BYTES]) != self._sums[page]:
                raise self._changed(first * PAGE_BYTES + start)
        return data

    def _read(self, start: int, stop: int) -> Array:
        data = np.empty(stop - start, np.uint8)
        view, filled = data.data, 0
        while filled < len(data):
            try:
                count = os.preadv(self._fd, [view[filled:]], start + filled)
            except OSError as error:
                raise self._unreadable(error) from error
            if not count:
                raise self._changed(start + filled)
            filled += count
        data.flags.writeable = False
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
        found = self._items(np.where(numbers < 0, numbers + len(self), numbers).ravel())
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

    def _items(self, numbers: npt.NDArray[np.int64]) -> Array:
        """Return items from anywhere, having looked at each page once."""
        # hot: some times for each run's plan
        size = self.dtype.itemsize
        page, inside = np.divmod(self._start // size + numbers, PAGE_BYTES // size)
        found = np.empty(len(numbers), self.dtype)
        by_page = np.argsort(page, kind="stable")
        cuts = np.flatnonzero(np.diff(page[by_page])) + 1
        for group in np.split(by_page, cuts) if len(numbers) else ():
            data = self._pages.page(int(page[group[0]]))
            found[group] = data[: len(data) // size * size].view(self.dtype)[inside[group]]
        return found
