"""Whole: a shard read from end to end and compared with its own sums, before others rely on it."""

from __future__ import annotations

from ..errors import ShardError
from .footer import Footer
from .format import DATA_START, check_sum, shard_name
from .reader import Reader, read_exactly, read_footer, read_header, read_trailer

__all__ = ["read_shard"]

_PIECE_BYTES = 8 << 20


def read_shard(reader: Reader, number: int) -> tuple[Footer, int]:
    """Return footer and size of a shard in which every byte is right.

    Raises:
        NotFoundError: there is no such shard.
        ShardError: it is damaged, or cut short.
        StorageError: the storage failed.
    """
    name = shard_name(number)
    size = reader.size(name)
    header = read_header(reader, number)
    footer = read_footer(reader, number, read_trailer(reader, number))
    if header["fields"] != len(footer.fields):
        raise ShardError(f"{name} counts its fields in two ways", shard=name, offset=0)
    _check_records(reader, name, footer)
    return footer, size


def _check_records(reader: Reader, name: str, footer: Footer) -> None:
    ends, sums = footer.ends.tolist(), footer.sums.tolist()
    first = start = 0
    while first < len(ends):
        stop = first + 1
        while stop < len(ends) and ends[stop] - start <= _PIECE_BYTES:
            stop += 1
        data = memoryview(read_exactly(reader, name, DATA_START + start, DATA_START + ends[stop - 1]))
        begin = 0
        for record in range(first, stop):
            end = ends[record] - start
            where = DATA_START + start + begin
            check_sum(data[begin:end], sums[record], shard=name, record_id=record, start=where)
            begin = end
        first, start = stop, ends[stop - 1]
