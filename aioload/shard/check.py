"""Verify: every byte of a set compared with its sums and its neighbours.

Damaged data is never raised: each part that is wrong becomes a `Problem`, and what can still be checked is.
The records of a shard are checked with the index where that is whole, else with the shard's own footer; where
both are whole they must agree. Memory: one piece of a shard, one footer, and the index.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import NotFoundError, ShardError
from .footer import Footer
from .format import DATA_START, INDEX_NAME, MANIFEST_NAME, NativeFormat, crc32c, shard_name
from .index import Index, parse_index
from .kinds import Fields
from .manifest import Manifest
from .reader import Reader, read_exactly, read_footer, read_header, read_trailer, read_whole

__all__ = ["MAX_PROBLEMS", "Problem", "VerifyReport", "verify"]

T = TypeVar("T")

PIECE_BYTES = 8 << 20  # read at a time; a larger record is summed piece by piece
MAX_MISSING = 100  # shards in a row: beyond that a manifest's count is not worth believing
MAX_PROBLEMS = 10_000  # kept in the report, the rest is counted: a set may be damaged from end to end


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a set."""

    shard: str
    """Name of the file: a shard, the index or the manifest."""
    record: int | None
    """The record, counted over the whole set, where the problem lies in one and its number is known."""
    region: str
    """Part of the file: manifest, index, file, header, records, footer or trailer."""
    offset: int | None
    """Byte of the file, where it is known."""
    message: str
    """What is wrong, for people."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found."""

    records: int
    """Records whose bytes were compared with their sum, good and bad."""
    data_bytes: int
    """Bytes of these records."""
    shards: int
    """Shards looked at."""
    problems: tuple[Problem, ...]
    """What is wrong, in the order of the set."""
    omitted: int = 0
    """Further problems, which were only counted."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(reader: Reader, *, progress: Callable[[int], object] | None = None) -> VerifyReport:
    """Check every byte of a set.

    Args:
        reader: gives the files of the set.
        progress: called with the number of record bytes that were checked since its last call.

    Raises:
        StorageError: the storage failed, which says nothing about the data. A missing file is a problem.
    """
    check = _Check(reader, progress)
    manifest = check.manifest()
    index = check.index(manifest) if manifest else None

    for number in check.numbers(manifest, index):
        check.shard(number, manifest, index)

    return check.report()


def _load_manifest(reader: Reader) -> Manifest:
    return Manifest.parse(read_whole(reader, MANIFEST_NAME), MANIFEST_NAME)


def _load_index(reader: Reader, manifest: Manifest) -> Index:
    return parse_index(read_whole(reader, INDEX_NAME), manifest, INDEX_NAME)


@dataclass(frozen=True, slots=True)
class _Table:
    """Where the records of one shard lie: its part of the index, or its footer."""

    fields: Fields
    ends: npt.NDArray[np.uint64]
    sums: npt.NDArray[np.uint32]
    columns: dict[str, npt.NDArray[Any]]
    first: int | None  # number of the first record in the set; unknown behind a shard that cannot be counted

    @classmethod
    def from_index(cls, index: Index, number: int) -> _Table:
        begin, end = (int(record) for record in index.shard_records[number : number + 2])
        sums = np.empty(0, np.uint32) if index.sums is None else index.sums[begin:end]
        ends = index.positions[begin + 1 : end + 1] - index.shard_starts[number]
        return cls(index.fields, ends, sums, {name: c[begin:end] for name, c in index.columns.items()}, begin)

    def record(self, place: int) -> int | None:
        """Return the number in the set of a record of this shard."""
        return None if self.first is None else self.first + place


class _Check:
    """One run of `verify`: what it has read, and what it has found."""

    def __init__(self, reader: Reader, progress: Callable[[int], object] | None) -> None:
        self._reader = reader
        self._progress = progress
        self._problems: list[Problem] = []
        self._omitted = 0
        self._records = 0
        self._data_bytes = 0
        self._shards = 0
        self._next: int | None = 0  # number of the next shard's first record
        self._last = False  # whether the shard looked at says that none follows
        self._missing = 0  # shards in a row that are not there

    def report(self) -> VerifyReport:
        return VerifyReport(
            self._records, self._data_bytes, self._shards, tuple(self._problems), self._omitted
        )

    def manifest(self) -> Manifest | None:
        return self._attempt(MANIFEST_NAME, "manifest", _load_manifest, self._reader)

    def index(self, manifest: Manifest) -> Index | None:
        return self._attempt(INDEX_NAME, "index", _load_index, self._reader, manifest)

    def numbers(self, manifest: Manifest | None, index: Index | None) -> Iterator[int]:
        """Yield the numbers of the shards to look at."""
        if manifest is None:
            yield from self._present()
        elif index is None:
            yield from self._claimed(manifest.shards)
        else:
            yield from range(manifest.shards)  # as many as the index has room for

    def _claimed(self, shards: int) -> Iterator[int]:
        """Yield the numbers up to a manifest's count, for which nothing but the manifest speaks."""
        for number in range(shards):
            yield number
            if self._missing == MAX_MISSING:
                message = (
                    f"counts {shards} shards, but the last {MAX_MISSING} looked for are not there; stopped"
                )
                self._note(MANIFEST_NAME, "manifest", message)
                return

    def _present(self) -> Iterator[int]:
        """Yield the numbers of the shards that are there, where no manifest says how many should be."""
        for number in itertools.count():
            name = shard_name(number)
            try:
                self._reader.size(name)
            except NotFoundError:
                break
            yield number

        if not self._last:
            self._note(name, "file", "is missing, and the shard before it is not the last of the set")

    def shard(self, number: int, manifest: Manifest | None, index: Index | None) -> None:
        """Check all of one shard."""
        name = shard_name(number)
        self._shards += 1
        table = None if index is None else _Table.from_index(index, number)

        size = self._attempt(name, "file", self._reader.size, name)
        self._missing = self._missing + 1 if size is None else 0
        if size is not None:
            if index is not None and size != index.shard_bytes[number]:
                message = f"is {size} bytes long, the index says {index.shard_bytes[number]}"
                self._note(name, "file", message, offset=min(size, int(index.shard_bytes[number])))

            footer = self._check_ends(number, manifest)
            if footer is not None and table is not None:
                self._compare(name, footer, table)
            elif footer is not None:
                table = _Table(footer.fields, footer.ends, footer.sums, footer.columns, self._next)

            if table is not None:
                self._attempt(name, "records", self._check_records, name, size, table)

        self._next = None if table is None else table.record(len(table.ends))

    def _check_ends(self, number: int, manifest: Manifest | None) -> Footer | None:
        """Check what lies before and behind the records, and return the footer if it is whole."""
        name = shard_name(number)
        self._last = False
        header = self._attempt(name, "header", read_header, self._reader, number)
        trailer = self._attempt(name, "trailer", read_trailer, self._reader, number)
        footer = None
        if trailer is not None:
            footer = self._attempt(name, "footer", read_footer, self._reader, number, trailer)

        if footer is not None:
            self._last = footer.last
            if header is not None and header["fields"] != len(footer.fields):
                self._note(
                    name, "header", f"counts {header['fields']} fields, the footer {len(footer.fields)}"
                )
            if manifest is not None:
                self._check_description(name, footer, manifest, last=number == manifest.shards - 1)
        return footer

    def _check_description(self, name: str, footer: Footer, manifest: Manifest, *, last: bool) -> None:
        if footer.fields != tuple(manifest.fields.items()) or [*footer.columns] != [*manifest.index_fields]:
            self._note(name, "footer", "names other fields than the manifest")
        if footer.last != last:
            self._note(name, "footer", f"says that it is {'' if footer.last else 'not '}the last of the set")
        if footer.last and _differ(footer.metadata, manifest.metadata):
            self._note(name, "footer", "keeps other metadata than the manifest")

    def _compare(self, name: str, footer: Footer, table: _Table) -> None:
        """Note the first record about which footer and index do not agree."""
        if len(footer.ends) != len(table.ends):
            self._note(name, "footer", f"counts {len(footer.ends)} records, the index {len(table.ends)}")
            return

        different = (footer.ends != table.ends) | (footer.sums != table.sums)
        for column in footer.columns.keys() & table.columns.keys():  # compared as bits: NaN equals itself
            different |= footer.columns[column].view("<u8") != table.columns[column].view("<u8")

        if different.any():
            record = table.record(int(different.argmax()))
            self._note(name, "footer", f"does not agree with the index about record {record}", record)

    def _check_records(self, name: str, size: int, table: _Table) -> None:
        """Check the records in pieces of whole records; all that the file no longer holds is one problem."""
        present = int(np.searchsorted(table.ends, max(size - DATA_START, 0), side="right"))
        cut = NativeFormat(table.fields)
        first = 0

        while first < present:
            start = int(table.ends[first - 1]) if first else 0
            stop = max(
                int(np.searchsorted(table.ends[:present], start + PIECE_BYTES, side="right")), first + 1
            )
            bounds = [start, *table.ends[first:stop].tolist()]
            self._check_piece(name, table, first, bounds, cut)
            first = stop

        if present < len(table.ends):
            record = table.record(present)
            message = f"ends at byte {size}: its last {len(table.ends) - present} records are cut off"
            self._note(name, "records", message, record, size)

    def _check_piece(
        self, name: str, table: _Table, first: int, bounds: list[int], cut: NativeFormat
    ) -> None:
        """Check consecutive records that lie between the bounds."""
        if bounds[-1] - bounds[0] > PIECE_BYTES:
            self._check_large(name, table, first, bounds, cut)
        else:
            data = memoryview(
                read_exactly(self._reader, name, DATA_START + bounds[0], DATA_START + bounds[-1])
            )
            for place, (start, stop) in enumerate(itertools.pairwise(bounds), first):
                record = data[start - bounds[0] : stop - bounds[0]]
                self._judge(name, table, place, start, crc32c(record), partial(cut.split, record))

        self._records += len(bounds) - 1
        self._data_bytes += bounds[-1] - bounds[0]
        if self._progress is not None:
            self._progress(bounds[-1] - bounds[0])

    def _check_large(
        self, name: str, table: _Table, place: int, bounds: list[int], cut: NativeFormat
    ) -> None:
        """Check one record that is too large to be held."""
        start, stop = DATA_START + bounds[0], DATA_START + bounds[1]
        head, found = b"", 0

        for begin in range(start, stop, PIECE_BYTES):
            piece = read_exactly(self._reader, name, begin, min(begin + PIECE_BYTES, stop))
            head = head or piece[: cut.header_bytes]
            found = crc32c(piece, value=found)

        self._judge(name, table, place, bounds[0], found, partial(cut.ends, head, stop - start))

    def _judge(
        self, name: str, table: _Table, place: int, start: int, found: int, split: Callable[[], object]
    ) -> None:
        """Note a record whose sum is wrong, or whose sum is right and whose lengths are not."""
        message = f"record {table.record(place)} at byte {DATA_START + start} "
        try:
            if found == table.sums[place]:
                split()
                return
            message += "failed its checksum"
        except ShardError as error:
            message += f"was written wrongly: {error}"

        self._note(name, "records", message, table.record(place), DATA_START + start)

    def _attempt(self, name: str, region: str, read: Callable[..., T], *args: object) -> T | None:
        """Call, and turn an error about the data into a problem."""
        try:
            return read(*args)
        except NotFoundError:
            self._note(name, "file", "is missing")
        except ShardError as error:
            self._note(name, region, str(error), error.record, error.offset)
        return None

    def _note(
        self, name: str, region: str, message: str, record: int | None = None, offset: int | None = None
    ) -> None:
        if len(self._problems) < MAX_PROBLEMS:
            whole = message if message.startswith(name) else f"{name}: {message}"
            self._problems.append(Problem(name, record, region, offset, whole))
        else:
            self._omitted += 1


def _differ(metadata: Any, other: Any) -> bool:
    """Tell whether two pieces of metadata differ; what is nested too deep to compare does."""
    try:
        return bool(metadata != other)
    except RecursionError:
        return True
