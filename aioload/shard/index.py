"""The index: where each record lies, its sum, and the columns asked for (FORMAT.md, section 4).

All record bytes of all shards, laid end to end, are the *line*; record i is its piece from `positions[i]`
to `positions[i + 1]`, and a small table says where on the line each shard begins. So a record costs 8 bytes
of place and 4 of sum, in the file as in memory, where the arrays are views of the file: nothing is copied. Of
an index that would take too much memory the long arrays stay in the file (`open_index`).
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from .footer import Footer
from .format import DATA_START, FORMAT_VERSION, INDEX_HEADER, MAX_PAYLOAD_BYTES, crc32c, shard_name
from .kinds import Fields
from .manifest import Manifest
from .pages import PagedArray, Pages

__all__ = ["Index", "Located", "join_footers", "make_manifest", "open_index", "parse_index", "render_index"]

Array = npt.NDArray[Any]

_STRIDE = 1 << 16  # records checked at a time: what the check allocates stays in the cache


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Where records lie, in the order in which they were asked for."""

    shard: npt.NDArray[np.int64]
    """Number of the shard."""
    start: npt.NDArray[np.uint64]
    """First byte in the shard's file."""
    stop: npt.NDArray[np.uint64]
    """Byte after the last."""
    sums: npt.NDArray[np.uint32] | None
    """CRC-32C of each record, where the format has them."""


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """Where each record of a set lies."""

    shards: tuple[str, ...]
    """Names of the shards, relative to the set."""
    shard_records: npt.NDArray[np.int64]
    """[shards + 1] the record with which a shard begins; the last is the number of records."""
    shard_starts: npt.NDArray[np.uint64]
    """[shards + 1] the place on the line where a shard begins; the last is the line's length."""
    shard_data: npt.NDArray[np.uint64]
    """[shards] the byte of a shard's file where its first record begins."""
    shard_bytes: npt.NDArray[np.uint64]
    """[shards] size of a shard's file."""
    positions: npt.NDArray[np.uint64]
    """[records + 1] the place on the line where a record begins."""
    sums: npt.NDArray[np.uint32] | None = None
    """[records] CRC-32C of each record."""
    columns: dict[str, Array] = field(default_factory=dict)
    """[records] each: values of the index fields, int64 or float64."""
    fields: Fields = ()
    """Names and kinds of the fields."""
    far: npt.NDArray[np.int64] | None = None
    """[k, 2] ascending: records whose bytes begin before their place on the line, and the byte of the shard's
    file where they do; they end where the line says. Only archives with links have any."""
    is_foreign: bool = False
    """Whether sums and fields are as whoever opens the set wants them, and say nothing of its content."""
    _fingerprint: list[str] = field(default_factory=list, init=False, repr=False)  # a frozen object's cache

    def __len__(self) -> int:
        return len(self.positions) - 1

    def __repr__(self) -> str:
        return f"<Index records={len(self)} shards={len(self.shards)} bytes={int(self.positions[-1])}>"

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, in memory or in their file."""
        return sum(array.nbytes for array in self._arrays())

    def locate(self, records: npt.NDArray[np.int64]) -> Located:
        """Return where the records lie.

        Raises:
            IndexError: one of them is not in the set.
        """
        if len(records) and not 0 <= int(records.min()) <= int(records.max()) < len(self):
            raise IndexError(
                f"records are 0 to {len(self) - 1}, asked for {records.min()} to {records.max()}"
            )

        shard, shift = self._shift(records)
        start, stop = self.positions[records] + shift, self.positions[records + 1] + shift
        if self.far is not None and len(self.far):
            at = np.clip(np.searchsorted(self.far[:, 0], records), 0, len(self.far) - 1)
            start = np.where(self.far[at, 0] == records, self.far[at, 1].astype(np.uint64), start)
        return Located(shard, start, stop, None if self.sums is None else self.sums[records])

    def line_starts(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return where in its shard's file the place of each record on the line begins."""
        return self.positions[records] + self._shift(records)[1]

    def extents(self) -> list[tuple[int, int]]:
        """Return for each shard where its records begin in its file, and where they end."""
        starts = self.shard_data.tolist()
        if self.far is not None and len(self.far):
            starts = [0] * len(starts)  # some lie elsewhere
        stops = (self.shard_data + self.shard_starts[1:] - self.shard_starts[:-1]).tolist()
        return list(zip(starts, stops, strict=True))

    def fingerprint(self) -> str:
        """Return a name for the content: the same wherever the set lies, another when any record differs.

        Made from counts, places, sums and fields; never from names of files, places or times. Of a foreign
        set, counts and places have to do.
        """
        if not self._fingerprint:
            sums = 0 if self.sums is None or self.is_foreign else _sum_of(self.sums)
            fields = () if self.is_foreign else self.fields
            places = _sum_of(self.positions), crc32c(self.shard_records)
            text = repr((len(self), len(self.shards), int(self.positions[-1]), *places, sums, fields))
            self._fingerprint.append(hashlib.blake2b(text.encode(), digest_size=16).hexdigest())
        return self._fingerprint[0]

    def _shift(self, records: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Return the shard of each record, and what leads from its place on the line to that in the file."""
        # the last shard that begins at or before the record: passes over empty shards
        shard = np.searchsorted(self.shard_records, records, side="right") - 1
        return shard, self.shard_data[shard] - self.shard_starts[shard]  # may wrap around, as will the sum

    def _arrays(self) -> Iterator[Array]:
        """Yield all arrays in the order of the file."""
        yield from (self.shard_records, self.shard_starts, self.shard_data, self.shard_bytes, self.positions)
        yield from self.columns.values()
        if self.sums is not None:
            yield self.sums


def parse_index(buffer: bytes | mmap.mmap, manifest: Manifest, where: str) -> Index:
    """Return the index that a file holds, as views of the buffer; every byte of it is checked.

    Args:
        buffer: the whole file, read or mapped.
        manifest: the set's manifest.
        where: the file's name, for the error.

    Raises:
        ShardError: it is damaged, cut short, or not the one that the manifest means; `.field` names the part.
    """
    raw = np.frombuffer(buffer, np.uint8)
    raw.flags.writeable = False  # views of it go everywhere

    _check_size(len(raw), manifest, where)
    _check_crc32c(crc32c(raw), manifest, where)
    _check_header(bytes(raw[: INDEX_HEADER.size]), manifest, where)

    def cut(start: int, dtype: str, count: int) -> Array:
        return raw[start : start + np.dtype(dtype).itemsize * count].view(dtype)

    index = _view(cut, cut, manifest, where)
    _check_shards(index, manifest, where)
    for _ in _check_positions(index, where):
        pass
    return index


def open_index(pages: Pages, manifest: Manifest) -> Generator[None, None, Index]:
    """Return the index that a file holds, whose long arrays stay there; every byte of it is checked.

    It is a generator of many steps, since it reads all of a large file, and returns the index at its end.

    Args:
        pages: of the file.
        manifest: the set's manifest.

    Raises:
        ShardError: as `parse_index` does.
        StorageError: the file cannot be read.
    """
    where = pages.where
    _check_size(pages.size, manifest, where)
    yield from pages.add_up()
    _check_crc32c(pages.crc32c, manifest, where)
    _check_header(bytes(pages.take(0, INDEX_HEADER.size)), manifest, where)

    def cut(start: int, dtype: str, count: int) -> Array:
        return pages.take(start, start + np.dtype(dtype).itemsize * count).view(dtype)

    def leave(start: int, dtype: str, count: int) -> Any:
        return PagedArray(pages, start, dtype, count)

    index = _view(cut, leave, manifest, where)
    _check_shards(index, manifest, where)
    yield from _check_positions(index, where)
    return index


def render_index(index: Index) -> bytes:
    """Return the file of an index of the own format."""
    header = INDEX_HEADER.pack(
        version=FORMAT_VERSION,
        fields=len(index.fields),
        records=len(index),
        shards=len(index.shards),
        columns=len(index.columns),
    )
    arrays = [np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for array in index._arrays()]
    return b"".join([header, *(array.view(np.uint8).data for array in arrays), bytes(-4 * len(index) % 8)])


def make_manifest(index: Index, rendered: bytes, metadata: Any) -> Manifest:
    """Return the manifest for an index and its rendering."""
    kinds = dict(index.fields)
    return Manifest(
        fields=kinds,
        records=len(index),
        shards=len(index.shards),
        data_bytes=int(index.positions[-1]),
        index_bytes=len(rendered),
        index_crc32c=crc32c(rendered),
        index_fields={name: kinds[name] for name in index.columns},
        metadata=metadata,
    )


def join_footers(footers: Sequence[Footer], file_bytes: Sequence[int]) -> Index:
    """Return the index of a set from what its shards know about themselves.

    Args:
        footers: one a shard, in order, of the same fields.
        file_bytes: the size of each shard's file.
    """
    starts = _running_sum([footer.data_bytes for footer in footers]).astype(np.uint64)
    placed = [footer.ends + start for footer, start in zip(footers, starts, strict=False)]
    return Index(
        shards=tuple(shard_name(number) for number in range(len(footers))),
        shard_records=_running_sum([len(footer.ends) for footer in footers]),
        shard_starts=starts,
        shard_data=np.full(len(footers), DATA_START, np.uint64),
        shard_bytes=np.array(file_bytes, np.uint64),
        positions=np.concatenate([np.zeros(1, np.uint64), *placed]),
        sums=np.concatenate([footer.sums for footer in footers]),
        columns={
            name: np.concatenate([footer.columns[name] for footer in footers]) for name in footers[0].columns
        },
        fields=footers[0].fields,
    )


def _running_sum(counts: list[int]) -> npt.NDArray[np.int64]:
    return np.cumsum([0, *counts], dtype=np.int64)


def _sum_of(array: Array) -> int:
    """Return the CRC-32C of an array, which need not be in memory."""
    found = 0
    for first in range(0, len(array), _STRIDE):
        found = crc32c(array[first : first + _STRIDE], value=found)
    return found


def _check_size(size: int, manifest: Manifest, where: str) -> None:
    if size != manifest.index_bytes:
        what = f"is {size} bytes long, the manifest says {manifest.index_bytes}"
        raise _wrong(where, "size", what, size)


def _check_crc32c(found: int, manifest: Manifest, where: str) -> None:
    if found != manifest.index_crc32c:
        raise _wrong(where, "crc32c", "failed its checksum")


def _check_header(header: bytes, manifest: Manifest, where: str) -> None:
    """Compare the counts of the header with the manifest's."""
    counts = INDEX_HEADER.unpack(header, where)
    expected = {
        "fields": len(manifest.fields),
        "records": manifest.records,
        "shards": manifest.shards,
        "columns": len(manifest.index_fields),
    }
    for name, count in expected.items():
        if counts[name] != count:
            raise _wrong(where, name, f"counts {counts[name]} {name}, the manifest {count}", 0)


_Cut = Callable[[int, str, int], Any]
"""Makes an array: of the file's bytes from a place on, with a dtype, so many items."""


def _view(cut: _Cut, leave: _Cut, manifest: Manifest, where: str) -> Index:
    """Return the arrays of the sections, which must fill the file (section 4.2).

    Args:
        cut: makes the short ones.
        leave: makes those that are as long as the set.
        manifest: the set's manifest.
        where: the file's name, for the error.
    """
    records, shards, kinds = manifest.records, manifest.shards, manifest.index_fields
    sections = [
        ("shard_records", "<i8", shards + 1),
        ("shard_starts", "<u8", shards + 1),
        ("shard_data", "<u8", shards),
        ("shard_bytes", "<u8", shards),
        ("positions", "<u8", records + 1),
        *((f"columns.{name}", "<i8" if kind == "int" else "<f8", records) for name, kind in kinds.items()),
        ("sums", "<u4", records),
        ("padding", "<u4", records % 2),
    ]
    size = INDEX_HEADER.size + sum(int(dtype[2]) * count for _, dtype, count in sections)
    if size != manifest.index_bytes:
        what = f"is {manifest.index_bytes} bytes long where its counts ask for {size}"
        raise _wrong(where, "size", what, manifest.index_bytes)

    views: dict[str, Any] = {}
    start = INDEX_HEADER.size
    for name, dtype, count in sections:
        is_long = name in ("positions", "sums") or name.startswith("columns.")
        views[name] = (leave if is_long else cut)(start, dtype, count)
        start += int(dtype[2]) * count
    if views.pop("padding").any():
        raise _wrong(where, "padding", "has padding that is not zero", size - 4)

    columns = {name: views.pop(f"columns.{name}") for name in kinds}
    names = tuple(shard_name(number) for number in range(shards))
    return Index(shards=names, columns=columns, fields=tuple(manifest.fields.items()), **views)


def _check_shards(index: Index, manifest: Manifest, where: str) -> None:
    """Check that the table of shards is one, and that it agrees with manifest and positions."""
    records, starts = index.shard_records, index.shard_starts

    if records[0] != 0 or records[-1] != len(index) or (records[1:] < records[:-1]).any():
        raise _wrong(where, "shard_records", "has shards that begin at records that cannot be")
    if starts[0] != 0 or starts[-1] != manifest.data_bytes or (starts != index.positions[records]).any():
        raise _wrong(where, "shard_starts", "has shards that begin at places other than their records'")

    room = index.shard_bytes - index.shard_data
    if (index.shard_data != DATA_START).any() or (index.shard_bytes < DATA_START).any():
        raise _wrong(where, "shard_data", "has shards whose records begin where they cannot")
    if (starts[1:] < starts[:-1]).any() or (starts[1:] - starts[:-1] > room).any():
        raise _wrong(where, "shard_bytes", "has shards whose records do not fit into their files")


def _check_positions(index: Index, where: str) -> Iterator[None]:
    """Check that each record has a size that a record can have, some at each step."""
    least = 4 * (len(index.fields) + 1)
    for start in range(0, len(index), _STRIDE):
        places = index.positions[start : start + _STRIDE + 1]
        sizes = places[1:] - places[:-1]  # a place that goes backwards wraps around to a huge size
        if int(sizes.min()) < least or int(sizes.max()) > least + MAX_PAYLOAD_BYTES:
            record = start + int(((sizes < least) | (sizes > least + MAX_PAYLOAD_BYTES)).argmax())
            raise _wrong(where, "positions", f"gives record {record} a size that cannot be", record=record)
        yield


def _wrong(where: str, part: str, message: str, offset: int | None = None, **facts: Any) -> ShardError:
    return ShardError(
        f"{where} {message}: it is damaged or of another set; restore it, or rebuild it from the shards",
        shard=where,
        field=part,
        offset=offset,
        **facts,
    )
