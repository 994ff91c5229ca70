"""WebDataset archives as shards: where their samples lie, and the record format that reads them.

A record is the files of one key with their headers, as they lie in the archive. A hard link has the bytes of
an earlier file: a record with one begins where the headers of that file do (`Scanned.far`).
"""

from __future__ import annotations

from array import array
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from .absent import ABSENT
from .kinds import NUMERIC_KINDS, Fields, kind_of
from .scan import Scanned, Scanner
from .tarheader import BLOCK, BadMember, Member, member_at, padded
from .tarresync import Reader
from .tarsample import Sample, plain_path, sample_name, shown, split
from .tarwalk import End, walk

__all__ = ["TarFormat", "is_ended", "scan"]

Array = npt.NDArray[Any]

_MOST_REST = 1 << 20  # behind damage: its record need not be read to the archive's end to be refused


@dataclass(frozen=True, slots=True)
class TarFormat:
    """The record format of WebDataset archives."""

    fields: Fields
    """Names and kinds of the fields that are wanted; others are passed over."""
    optional: frozenset[str] = field(default=frozenset(), kw_only=True)
    """Fields that are `ABSENT` in samples which lack them. Of others, that is an error."""
    _names: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", frozenset(name for name, _ in self.fields))

    @property
    def encodings(self) -> dict[str, str]:
        """Numbers stand in files as digits."""
        return {name: f"text:{kind}" for name, kind in self.fields if kind in NUMERIC_KINDS}

    def split(self, record: memoryview) -> tuple[str, dict[str, memoryview]]:
        """Return the key and the payload of each field: views of the record, but for sparse files.

        Raises:
            ShardError: the record is damaged or cut, lacks a field, or a field leads to nothing in it.
        """
        sample = split(record, self._names)
        if len(sample.views) != len(self._names):
            missing = self._names - sample.views.keys()
            if not missing <= self.optional:
                raise self._lacking(sample, missing - self.optional)
            sample.views.update(dict.fromkeys(missing, ABSENT))
        return shown(sample.key), sample.views

    def _lacking(self, sample: Sample, missing: frozenset[str]) -> ShardError:
        names = [name for name, _ in self.fields if name in missing]
        there = [*sample.views, *sample.others]
        what = (
            f"the sample {shown(sample.key)!r} has no field {', '.join(map(repr, names))}: it has "
            f"{', '.join(there)}"
        )
        return ShardError(
            f"{what}; ask for fields that all samples have with fields={{…}}, give it a value with "
            f"defaults={{{names[0]!r}: …}}, or pass on_error='skip'",
            what=what,
            category="missing",
            key=shown(sample.key),
            field=names[0],
            fields=there,
        )


def scan(size: int, name: str) -> Scanner:
    """Ask for the headers of an archive; return where its samples lie.

    Args:
        size: of the file.
        name: what messages call it.

    Raises:
        ShardError: it is no archive, or files of a key do not lie side by side.
    """
    samples = _Samples(name)
    end = yield from walk(size, samples)
    if end.place == 0 and not end.marked and (end.damage is None or end.damage.member is None):
        reason = "it has no header" if end.damage is None else str(end.damage)
        raise ShardError(f"{name} is no tar archive: {reason}", shard=name, offset=0)

    samples.finish()
    yield from samples.check(size)
    origins = _Origins(samples.links)
    if samples.links:
        yield from walk(size, origins)
    return _scanned(samples, end, size, origins.far(samples.starts))


def is_ended(stop: int, size: int) -> Generator[tuple[int, int], memoryview, bool]:
    """Ask for what lies behind the last record of an archive; return whether its end mark is there.

    Args:
        stop: where that record ends.
        size: of the file.
    """
    reader, at = Reader(size), padded(stop)
    while at + BLOCK <= size:
        try:
            member = yield from reader.member(at)
        except BadMember:
            return False
        if member is None:
            return True
        at = member.stop
    return False


class _Samples:
    """Puts files of a key together, in the order in which they come."""

    def __init__(self, shard: str) -> None:
        self.shard = shard
        self.stop = 0  # where the bytes of the last sample end
        self.key: bytes | None = None
        self.first: list[bytes] | None = None  # fields of the first sample
        self.links: set[bytes] = set()  # where hard links lead to
        self.holes: list[tuple[int, int]] = []  # what cannot be read, from and to which byte
        self._fields: list[bytes] = []
        self._torn = 0  # so many samples, the present one first, may lack files
        self._before: tuple[bytes | None, list[bytes]] | None = None  # behind a hole: the sample before it
        self._starts, self._hashes = array("q"), array("q")  # of each sample: where it begins, its key's hash

    def files(self, names: list[bytes], starts: Array, stops: Array) -> None:
        """Take ordinary files."""
        # hot: once a file; guarded by benchmarks/index_tar.py
        if self._before is not None:
            self._mend(names)
        key, fields = self.key, self._fields
        begun, hashes, last = [], [], -1
        for number, name in enumerate(names):
            base = name.rfind(b"/") + 1
            dot = name.find(b".", base)
            if dot <= base or dot + 1 == len(name):
                continue
            suffix = name[dot + 1 :].lower()
            if not suffix.isascii():
                suffix = sample_name(name)[1]  # type: ignore[index]  # it has a field, as seen above
            last = number

            if name[:dot] != key:
                if self.first is None and key is not None:
                    self._end_sample(fields)
                key, fields = name[:dot], [suffix]
                begun.append(number)
                hashes.append(hash(key))
            elif suffix in fields:
                raise self._twice(name, int(starts[number]))
            else:
                fields.append(suffix)

        self.key, self._fields = key, fields
        if last >= 0:
            self.stop = int(stops[last])
            self._starts.frombytes(starts[begun].tobytes())
            self._hashes.extend(hashes)

    def member(self, member: Member) -> None:
        """Take any other member."""
        if member.kind == "link":
            self.links.add(plain_path(member.link))
        parts = sample_name(member.name)
        if parts is None or member.kind == "other":
            return

        self._mend([member.name])
        key, suffix = parts
        self.stop = member.data_stop
        if key != self.key:
            self._end_sample(self._fields)
            self.key, self._fields = key, [suffix]
            self._starts.append(member.start)
            self._hashes.append(hash(key))
        elif suffix in self._fields:
            raise self._twice(member.name, member.start)
        else:
            self._fields.append(suffix)

    def hole(self, start: int, stop: int, name: bytes) -> None:
        """Take it that a member is damaged, whose name may be another; its record cannot be read."""
        self.holes.append((start, stop))
        self.stop, self._torn = stop, 2
        key = (sample_name(name) or (b"",))[0]
        if key == self.key or self._before is not None:  # right behind a hole is more of it
            return
        self._before = self.key, self._fields
        self.key, self._fields = key, []
        self._starts.append(start)
        self._hashes.append(hash((start,)))  # as of no other key, since it is not known whose file it was

    def _mend(self, names: list[bytes]) -> None:
        """Put the files before and behind a hole together, where they are of one key."""
        parts = next(filter(None, map(sample_name, names)), None)
        if parts is None or self._before is None:
            return
        if parts[0] == self._before[0]:
            self.key, self._fields = self._before
            self._starts.pop()
            self._hashes.pop()
        self._before = None

    def finish(self) -> None:
        """Take it that there are no more."""
        self._torn = 0  # better than no fields
        self._end_sample(self._fields)

    @property
    def starts(self) -> Array:
        """Where each sample begins."""
        return np.array(self._starts, np.int64)

    def check(self, size: int) -> Generator[tuple[int, int], memoryview, None]:
        """Make sure that each key comes once, by hashes first, then by names."""
        starts, hashes = self.starts, np.array(self._hashes, np.int64)
        order = np.argsort(hashes, kind="stable")
        sums = hashes[order]
        again = np.flatnonzero(sums[1:] == sums[:-1]) + 1
        for place in again[np.argsort(order[again])].tolist():  # the first in the file that comes again
            start = int(starts[order[place]])
            name = yield from _name_at(start, size)
            for before in range(int(np.searchsorted(sums, sums[place])), place):
                other = yield from _name_at(int(starts[order[before]]), size)
                if _key_of(name) == _key_of(other):
                    what = f"its sample {shown(_key_of(name))!r} has ended before"
                    raise self._broken(
                        name, start, f"{what}: files of a key must lie side by side; sort the archive by name"
                    )

    def _end_sample(self, fields: list[bytes]) -> None:
        """Keep the fields of a sample if it was the first that is whole."""
        if self.first is None and fields and not self._torn:
            self.first = fields
        self._torn = max(self._torn - 1, 0)

    def _twice(self, name: bytes, start: int) -> ShardError:
        key, suffix = sample_name(name) or (b"", b"")
        return self._broken(name, start, f"the sample {shown(key)!r} has its field {shown(suffix)!r} twice")

    def _broken(self, name: bytes, start: int, what: str) -> ShardError:
        return ShardError(
            f"{shown(name)} in {self.shard} (byte {start}): {what}",
            shard=self.shard,
            offset=start,
            member=shown(name),
        )


class _Origins:
    """Finds out how far before a record the bytes lie that its hard links mean."""

    def __init__(self, links: set[bytes]) -> None:
        self._links = links
        self._reach: dict[bytes, int] = {}  # by path: where the last of that name so far has its bytes
        self._found: list[tuple[int, int]] = []  # where a link is, and where its bytes are

    def files(self, names: list[bytes], starts: Array, stops: Array) -> None:
        """Take ordinary files."""
        for name, start in zip(names, starts.tolist(), strict=True):
            self._note(name, start)

    def member(self, member: Member) -> None:
        """Take any other member."""
        if member.kind == "file":
            self._note(member.name, member.start)
        elif member.kind == "link":
            reach = self._reach.get(plain_path(member.link), member.start)
            self._note(member.name, reach)
            if sample_name(member.name) is not None:
                self._found.append((member.start, reach))

    def hole(self, start: int, stop: int, name: bytes) -> None:
        """Take it that a member cannot be read."""

    def far(self, starts: Array) -> npt.NDArray[np.int64]:
        """Return the records that have bytes before their span, each with the first of them."""
        places, reaches = np.array(self._found, np.int64).reshape(-1, 2).T
        records = np.searchsorted(starts, places, side="right") - 1
        first = starts.copy()
        np.minimum.at(first, records, reaches)
        changed = np.flatnonzero(first < starts)
        return np.stack([changed, first[changed]], axis=1)

    def _note(self, name: bytes, reach: int) -> None:
        if plain_path(name) in self._links:
            self._reach[plain_path(name)] = reach


def _scanned(samples: _Samples, end: End, size: int, far: npt.NDArray[np.int64]) -> Scanned:
    """Return what has been found, with what is damaged as the last record."""
    starts, stop, damage = samples.starts, samples.stop, end.damage
    if damage is not None:
        parts = sample_name(damage.member.name) if damage.member is not None else None
        if parts is None or parts[0] != samples.key:
            starts = np.append(starts, end.place)  # else the last sample lacks something, and is no record
        stop = min(max(end.place, damage.offset) + _MOST_REST, size)

    wholes = len(starts) - (damage is not None)
    return Scanned(
        data_start=int(starts[0]) if len(starts) else 0,
        ends=np.append(starts[1:], stop).astype(np.uint64) if len(starts) else np.empty(0, np.uint64),
        far=far[far[:, 0] < wholes],
        damage=None if damage is None else _reason(damage, size - int(starts[-1])),
        holes=tuple(
            f"byte {start}: a damaged header; {stop - start:,} bytes with it cannot be read"
            for start, stop in samples.holes
        ),
        fields=tuple((shown(name), kind_of(shown(name))) for name in samples.first or ()),
        facts={"end_mark": end.marked},
    )


def _reason(damage: BadMember, lost: int) -> str:
    """Tell what is wrong, and how much of the archive goes with it."""
    what = f" ({shown(damage.member.name)})" if damage.member is not None else ""
    return (
        f"byte {damage.offset}: {damage}{what}; it is cut short or damaged, and its last {lost:,} bytes "
        "cannot be read"
    )


def _name_at(start: int, size: int) -> Generator[tuple[int, int], memoryview, bytes]:
    """Return the path of a member that has been read before."""
    try:
        member = yield from member_at(start, size)
    except BadMember:
        member = None  # the file has changed meanwhile
    return b"" if member is None else member.name


def _key_of(name: bytes) -> bytes:
    """Return the key of a path."""
    return (sample_name(name) or (b"",))[0]
