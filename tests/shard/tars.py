"""Archives for the tests: written by Python's tarfile or by hand, and read record by record."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterable

from aioload.errors import ShardError
from aioload.shard.scan import Scanned, run
from aioload.shard.tar import scan
from aioload.shard.tarsample import shown, split

NAME = "some.tar"
MARK = bytes(1024)

Sample = tuple[str, dict[str, bytes]]


def by_tarfile(files: Iterable[tuple[str, bytes]], form: int = tarfile.USTAR_FORMAT) -> bytes:
    """Return an archive of some files, with its end mark and no more."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, encoding="utf-8") as archive:
        for number, (name, data) in enumerate(files):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mtime = number / 7 if form == tarfile.PAX_FORMAT and number % 3 else number
            archive.addfile(member, io.BytesIO(data))
        size = archive.offset
    return out.getvalue()[:size] + MARK


def by_hand(
    name: bytes,
    data: bytes = b"",
    kind: bytes = b"0",
    *,
    link: bytes = b"",
    size: bytes = b"",
    signed: bool = False,
) -> bytes:
    """Return one member, as any writer may have written it."""
    head = bytearray(512)
    head[: len(name)] = name
    head[100:124] = b"0000644\0" * 3
    head[124:136] = size or b"%011o\0" % len(data)
    head[136:148] = b"%011o\0" % 0
    head[156:157] = kind
    head[157 : 157 + len(link)] = link
    return summed(head, signed=signed) + data + bytes(-len(data) % 512)


def summed(head: bytearray, *, signed: bool = False) -> bytes:
    """Return a header with its sum."""
    head[148:156] = b" " * 8
    total = sum(byte - 256 if signed and byte > 127 else byte for byte in head)
    head[148:156] = b"%06o\0 " % total
    return bytes(head)


def scanned(data: bytes, ask: Callable[[int, int], None] = lambda start, stop: None) -> Scanned:
    """Return what the scanner finds; every range that it asks for is within the file."""

    def read(start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(data)
        ask(start, stop)
        return data[start:stop]

    found = run(scan(len(data), NAME), read)
    ends = found.ends.tolist()
    assert [found.data_start, *ends] == sorted({found.data_start, *ends}) or not ends
    assert not ends or ends[-1] <= len(data)
    return found


def records(data: bytes, found: Scanned) -> list[memoryview]:
    """Return the bytes of each record."""
    stops = found.ends.tolist()
    starts = [found.data_start, *stops[:-1]][: len(stops)]
    for record, start in found.far.tolist():
        assert start < starts[record]
        starts[record] = start
    return [memoryview(data)[start:stop] for start, stop in zip(starts, stops, strict=True)]


def outcomes(data: bytes) -> list[Sample | ShardError]:
    """Return each sample of an archive with all its fields, or why it cannot be read."""
    return [_outcome(record) for record in records(data, scanned(data))]


def samples(data: bytes) -> list[Sample]:
    """Return all samples of an archive in which nothing is wrong."""
    found = outcomes(data)
    for outcome in found:
        if isinstance(outcome, ShardError):
            raise outcome
    return found  # type: ignore[return-value]  # no errors are left


def _outcome(record: memoryview) -> Sample | ShardError:
    try:
        sample = split(record)
    except ShardError as error:
        return error
    return shown(sample.key), {name: bytes(view) for name, view in sample.views.items()}
